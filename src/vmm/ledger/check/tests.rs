//! The check is what fuzzers and property tests rely on, so it must be able to fail.

use super::super::handles::HandleRecord;
use super::super::tests::{PAGE, ledger, map, properties, range};
use super::super::{Ledger, ReservationRecord};
use super::CHEAP;

#[test]
fn check_finds_what_does_not_hold() {
    let base = 1 << 20;
    let broken = |spoil: &dyn Fn(&mut Ledger<(), ()>), expected: &str| {
        let (mut ledger, handle) = ledger();
        map(&mut ledger, range(base, 2 * PAGE), handle).unwrap();
        map(&mut ledger, range(base + 2 * PAGE, PAGE), handle).unwrap();
        assert_eq!(ledger.check(), Ok(()));
        spoil(&mut ledger);
        let found = ledger.check().unwrap_err();
        assert!(found.contains(expected), "{found} instead of {expected}");
    };
    let mapping = |ledger: &mut Ledger<(), ()>, start, size| {
        ledger.mappings.get_mut(start).unwrap().size = size;
    };
    fn handle(ledger: &mut Ledger<(), ()>, slot: usize) -> &mut HandleRecord<()> {
        ledger.handles.slots[slot].record.as_mut().unwrap()
    }
    broken(&|ledger| mapping(ledger, base, 3 * PAGE), "overlaps the one before");
    broken(&|ledger| mapping(ledger, base + 2 * PAGE, 5 * PAGE), "exceeds its handle");
    broken(&|ledger| mapping(ledger, base + 2 * PAGE, 32 * PAGE), "is in no reservation");
    broken(&|ledger| ledger.mappings.get_mut(base).unwrap().slot = 7, "has no handle");
    broken(
        &|ledger| ledger.reservations.get_mut(&base).unwrap().mappings = 3,
        "counts 3 mappings and has 2",
    );
    broken(&|ledger| handle(ledger, 0).mappings = 3, "counts 3 mappings and has 2");
    broken(
        &|ledger| {
            ledger.add_handle(PAGE, PAGE, properties(), ()).unwrap();
            handle(ledger, 1).references = 0;
        },
        "nothing keeps slot 1 alive",
    );
    broken(&|ledger| ledger.mappings.get_mut(base).unwrap().rights = 7, "row 7 of rights");
    broken(&|ledger| ledger.handles.free.push_back(0), "slot 0 would be given to two");
    broken(&|ledger| ledger.handles.free.extend([5, 5]), "slot 5 would be given to two");
    broken(&|ledger| ledger.handles.live = 0, "0 handles are counted and 1 are alive");
    broken(&|ledger| ledger.mappings.get_mut(base).unwrap().size = PAGE + 1, "is off the granule");
    broken(
        &|ledger| ledger.mappings.get_mut(base).unwrap().serial = 1,
        "the serial 1 was given twice",
    );
    broken(
        &|ledger| drop(ledger.mapping_names.insert(77, "stray".into())),
        "\"stray\" is the name of no mapping",
    );
    broken(&|ledger| ledger.next_serial = 3, "the serial 3 is still to be given");
    broken(
        &|ledger| {
            let inside = ReservationRecord {
                size: PAGE,
                mappings: 0,
                serial: 99,
                quarantined: false,
                name: None,
                payload: (),
            };
            ledger.reservations.insert(base + 8 * PAGE, inside);
        },
        "overlaps the one before",
    );
}

/// A ledger of so many reservations, handles and mappings, which counts a handle that is not there.
#[cfg(debug_assertions)]
fn broken(reservations: usize, handles: usize, mappings: usize) -> Ledger<(), ()> {
    let (mut ledger, handle) = ledger();
    let base = 1 << 20;
    for number in 1..reservations {
        ledger.reserve(range((number + 1) << 20, PAGE), ());
    }
    for _ in 1..handles {
        ledger.add_handle(PAGE, PAGE, properties(), ()).unwrap();
    }
    ledger.reservations.get_mut(&base).unwrap().size = 256 * PAGE;
    for page in 0..mappings {
        map(&mut ledger, range(base + page * PAGE, PAGE), handle).unwrap();
    }
    assert_eq!(ledger.counts(), (reservations, handles, mappings));
    ledger.handles.live += 1;
    ledger
}

/// After every step, while there is little; of more than that, whoever asks is told.
#[cfg(debug_assertions)]
#[test]
fn steps_are_followed_by_a_check() {
    let step_fails = |mut ledger: Ledger<(), ()>| {
        assert!(ledger.check().is_err());
        let step = std::panic::AssertUnwindSafe(|| ledger.quarantine(1 << 20));
        std::panic::catch_unwind(step).is_err()
    };
    for (reservations, handles, mappings) in [(128, 128, 0), (1, 127, 128), (1, 1, 0)] {
        assert!(step_fails(broken(reservations, handles, mappings)), "{reservations} {handles}");
    }
    for (reservations, handles, mappings) in [(129, 128, 0), (1, 1, 255), (1, 255, 1)] {
        assert!(reservations + handles + mappings > CHEAP);
        assert!(!step_fails(broken(reservations, handles, mappings)), "{reservations} {handles}");
    }
}
