//! The check is what fuzzers and property tests rely on, so it must be able to fail.

use super::super::handles::HandleRecord;
use super::super::tests::{PAGE, ledger, map, properties, range};
use super::super::{Ledger, Mappings};
use super::CHEAP;
use crate::sync::lock;

const BASE: usize = 1 << 20;

fn mappings(ledger: &Ledger<()>, spoil: impl FnOnce(&mut Mappings)) {
    ledger.at(BASE, |reserved| reserved.change(spoil)).expect("it is reserved");
}

fn handle(ledger: &Ledger<()>, slot: usize, spoil: impl FnOnce(&mut HandleRecord<()>)) {
    spoil(ledger.handles.slot(slot).unwrap().record.as_mut().unwrap());
}

#[test]
fn check_finds_what_does_not_hold() {
    let broken = |spoil: &dyn Fn(&mut Ledger<()>), expected: &str| {
        let (mut ledger, handle) = ledger();
        map(&ledger, range(BASE, 2 * PAGE), handle).unwrap();
        map(&ledger, range(BASE + 2 * PAGE, PAGE), handle).unwrap();
        assert_eq!(ledger.check(), Ok(()));
        spoil(&mut ledger);
        let found = ledger.check().unwrap_err();
        assert!(found.contains(expected), "{found} instead of {expected}");
    };
    let size = |ledger: &Ledger<()>, start, size| {
        mappings(ledger, |it| it.entries.get_mut(start).unwrap().size = size);
    };
    broken(&|ledger| size(ledger, BASE, 3 * PAGE), "overlaps the one before");
    broken(&|ledger| size(ledger, BASE + 2 * PAGE, 5 * PAGE), "exceeds its handle");
    broken(&|ledger| size(ledger, BASE + 2 * PAGE, 32 * PAGE), "is not in its reservation");
    broken(&|ledger| size(ledger, BASE, PAGE + 1), "is off the granule");
    let first = |ledger: &Ledger<()>, spoil: fn(&mut super::super::mappings::Entry)| {
        mappings(ledger, |it| spoil(it.entries.get_mut(BASE).unwrap()));
    };
    broken(&|ledger| first(ledger, |it| it.slot = 7), "has no handle");
    broken(&|ledger| first(ledger, |it| it.rights = 7), "row 7 of rights");
    broken(&|ledger| first(ledger, |it| it.serial = 1), "the serial 1 was given twice");
    broken(&|ledger| first(ledger, |it| it.serial = 500), "the serial 500 is still to be given");
    broken(&|ledger| first(ledger, |it| it.serial = 1 << 40), "is still to be given");
    broken(
        &|ledger| mappings(ledger, |it| drop(it.names.insert(77, "stray".into()))),
        "\"stray\" is the name of no mapping",
    );
    broken(&|ledger| handle(ledger, 0, |it| it.mappings = 3), "counts 3 mappings and has 2");
    broken(
        &|ledger| {
            ledger.handles.add(PAGE, PAGE, properties(), ()).unwrap();
            handle(ledger, 1, |it| it.references = 0);
        },
        "nothing keeps slot 1 alive",
    );
    let stock = |ledger: &Ledger<()>, free: &[u32]| lock(&ledger.handles.stock).free.extend(free);
    broken(&|ledger| stock(ledger, &[0]), "slot 0 would be given to two");
    broken(&|ledger| stock(ledger, &[5, 5]), "slot 5 would be given to two");
    broken(&|ledger| lock(&ledger.handles.stock).live = 0, "0 handles are counted and 1 are alive");
    broken(
        &|ledger| {
            ledger.reserve(range(BASE + 64 * PAGE, PAGE)).unwrap();
            ledger.set_size_of_reservation(BASE, 65 * PAGE);
        },
        "overlaps the one before",
    );
}

/// After every step in a reservation in which little is; of more than that, whoever asks is told.
#[cfg(debug_assertions)]
#[test]
fn steps_are_followed_by_a_check() {
    let step_fails = |count: usize| {
        let (mut ledger, handle) = ledger();
        ledger.set_size_of_reservation(BASE, 512 * PAGE);
        for page in 0..count {
            map(&ledger, range(BASE + page * PAGE, PAGE), handle).unwrap();
        }
        mappings(&ledger, |it| it.entries.get_mut(BASE).unwrap().size = 2 * PAGE);
        assert!(ledger.check().is_err());
        let last = range(BASE + count * PAGE, PAGE);
        let step = std::panic::AssertUnwindSafe(|| map(&ledger, last, handle));
        std::panic::catch_unwind(step).is_err()
    };
    assert!(step_fails(2) && step_fails(CHEAP - 1));
    assert!(!step_fails(CHEAP));
}
