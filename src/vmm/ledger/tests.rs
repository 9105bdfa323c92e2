//! The ledger by itself: what it refuses, with which words, and that refusing changes nothing.

use super::handles::HandleRecord;
use super::*;
use crate::agent::AgentId;
use crate::vmm::Access;
use crate::vmm::handle::Handle;
use crate::vmm::properties::AllocationProperties;

const PAGE: usize = 4096;

fn range(start: usize, size: usize) -> Range {
    Range { start, size }
}

fn properties() -> AllocationProperties {
    AllocationProperties::on(AgentId { runtime: 1, index: 1 })
}

/// One reservation of 16 pages at 1 MiB, one handle of 4 pages.
fn ledger() -> (Ledger<(), ()>, Handle) {
    let mut ledger = Ledger::new(7);
    ledger.reserve(range(1 << 20, 16 * PAGE), ());
    let handle = ledger.add_handle(4 * PAGE, PAGE, properties(), ()).unwrap();
    (ledger, handle)
}

fn map(ledger: &mut Ledger<(), ()>, at: Range, handle: Handle) -> Result<(), Refusal> {
    let slot = ledger.begin_map(at, handle)?;
    ledger.add_mapping(at, slot);
    Ok(())
}

fn unmap(ledger: &mut Ledger<(), ()>, start: usize) -> bool {
    let record = ledger.remove_mapping(start).unwrap();
    ledger.end_use(record.slot).is_some()
}

fn problem<T>(result: Result<T, Refusal>) -> (Argument, Problem) {
    match result {
        Err(Refusal { argument, problem }) => (argument, problem),
        Ok(_) => panic!("was not refused"),
    }
}

#[test]
fn ranges_are_not_null_not_empty_and_do_not_wrap() {
    let of = |address, size| Range::new(Address::new(address), size);
    assert_eq!(problem(of(0, 1)), (Argument::Address, Problem::Null));
    assert_eq!(problem(of(1, 0)), (Argument::Size, Problem::Zero));
    assert_eq!(problem(of(usize::MAX, 1)), (Argument::Size, Problem::Overflow));
    assert_eq!(problem(of(2, usize::MAX)), (Argument::Size, Problem::Overflow));
    assert!(of(usize::MAX - 1, 1).is_ok());
}

#[test]
fn maps_are_refused_outside_over_and_beyond() {
    let (mut ledger, handle) = ledger();
    let base = 1 << 20;
    map(&mut ledger, range(base + 4 * PAGE, 4 * PAGE), handle).unwrap();
    let before = format!("{ledger:?}");
    let at = Address::new(base + 4 * PAGE);
    for (start, pages, expected) in [
        (base - PAGE, 1, (Argument::Address, Problem::NotReserved)),
        (base + 15 * PAGE, 2, (Argument::Address, Problem::NotReserved)),
        (base, 5, (Argument::Size, Problem::BeyondHandle { handle: 4 * PAGE })),
        (base + 4 * PAGE, 1, (Argument::Address, Problem::AlreadyMapped { at })),
        (base + 3 * PAGE, 2, (Argument::Address, Problem::AlreadyMapped { at })),
        (base + 7 * PAGE, 4, (Argument::Address, Problem::AlreadyMapped { at })),
    ] {
        assert_eq!(problem(map(&mut ledger, range(start, pages * PAGE), handle)), expected);
    }
    let odd = Problem::NotAligned { value: PAGE + 1, granule: PAGE };
    let refused = map(&mut ledger, range(base, PAGE + 1), handle);
    assert_eq!(problem(refused), (Argument::Size, odd));
    assert_eq!(format!("{ledger:?}"), before);
}

#[test]
fn runs_are_whole_contiguous_mappings() {
    let (mut ledger, handle) = ledger();
    let base = 1 << 20;
    for page in [0, 2, 4, 8] {
        map(&mut ledger, range(base + page * PAGE, 2 * PAGE), handle).unwrap();
    }
    let check = |first: usize, pages| ledger.check_run(range(base + first * PAGE, pages * PAGE));
    let at = |page: usize| Address::new(base + page * PAGE);
    assert_eq!(check(0, 6), Ok(()));
    assert_eq!(check(2, 2), Ok(()));
    assert_eq!(problem(check(1, 3)), (Argument::Address, Problem::CutsMapping { at: at(0) }));
    assert_eq!(problem(check(0, 5)), (Argument::Size, Problem::CutsMapping { at: at(4) }));
    assert_eq!(problem(check(0, 8)), (Argument::Address, Problem::NotMapped { at: at(6) }));
    assert_eq!(problem(check(4, 6)), (Argument::Address, Problem::NotMapped { at: at(6) }));
    assert_eq!(problem(check(6, 2)), (Argument::Address, Problem::NotMapped { at: at(6) }));
    assert_eq!(problem(check(8, 9)), (Argument::Address, Problem::NotReserved));
}

#[test]
fn look_ups_end_where_the_mapping_ends() {
    let (mut ledger, handle) = ledger();
    let base = 1 << 20;
    map(&mut ledger, range(base, 2 * PAGE), handle).unwrap();
    assert!(ledger.mapping_at(base + 2 * PAGE - 1).is_some());
    assert!(ledger.mapping_at(base + 2 * PAGE).is_none());
    assert!(ledger.mapping_at(base - 1).is_none());
    assert!(ledger.check_mapped(range(base + 5, PAGE)).is_ok());
    assert!(ledger.check_mapped(range(base + PAGE, PAGE + 1)).is_err());
}

#[test]
fn memory_lives_while_it_is_referenced_or_mapped() {
    let (mut ledger, handle) = ledger();
    let base = 1 << 20;
    map(&mut ledger, range(base, PAGE), handle).unwrap();
    assert_eq!(ledger.begin_release(handle), Ok(None), "the mapping keeps it alive");
    let released = (Argument::Handle, Problem::Released);
    assert_eq!(problem(ledger.begin_release(handle)), released);
    assert_eq!(problem(map(&mut ledger, range(base + PAGE, PAGE), handle)), released);
    assert_eq!(ledger.retain(base + 17), Ok(handle), "a mapping can be retained from inside");
    assert!(map(&mut ledger, range(base + PAGE, PAGE), handle).is_ok());
    assert!(!unmap(&mut ledger, base + PAGE));
    assert_eq!(ledger.begin_release(handle), Ok(None));
    assert!(unmap(&mut ledger, base), "the last mapping of a released handle ends it");
    assert_eq!(problem(ledger.handle(handle).map(|_| ())), released);
    assert_eq!(ledger.counts(), (1, 0, 0));
}

#[test]
fn nobody_may_use_what_was_just_mapped() {
    let (mut ledger, handle) = ledger();
    let base = 1 << 20;
    map(&mut ledger, range(base, PAGE), handle).unwrap();
    let record = *ledger.mapping_at(base).unwrap().1;
    assert_eq!((record.access, record.granted), Default::default());
    let (mut access, mut granted) = (record.access, record.granted);
    access.set(3, Access::ReadWrite);
    granted.insert(3);
    ledger.write_access(base, access, granted);
    let record = *ledger.mapping_at(base + 17).unwrap().1;
    assert_eq!((record.access, record.granted), (access, granted));
    unmap(&mut ledger, base);
    map(&mut ledger, range(base, PAGE), handle).unwrap();
    let record = *ledger.mapping_at(base).unwrap().1;
    assert_eq!((record.access, record.granted), Default::default(), "mapped anew");
}

#[test]
fn either_order_ends_the_same() {
    let base = 1 << 20;
    let [unmapped_first, released_first] = [true, false].map(|unmap_first| {
        let (mut ledger, handle) = ledger();
        map(&mut ledger, range(base, PAGE), handle).unwrap();
        if unmap_first {
            assert!(!unmap(&mut ledger, base), "a reference is left");
            let slot = ledger.begin_release(handle).unwrap().expect("it was the last");
            assert!(ledger.forget(slot).is_some());
        } else {
            assert_eq!(ledger.begin_release(handle), Ok(None));
            assert!(unmap(&mut ledger, base), "it was the last");
        }
        assert_eq!(ledger.check(), Ok(()));
        format!("{ledger:?}")
    });
    assert_eq!(unmapped_first, released_first);
}

#[test]
fn handles_are_refused_when_stale_foreign_or_invented() {
    let (mut ledger, first) = ledger();
    let slot = ledger.begin_release(first).unwrap().unwrap();
    ledger.forget(slot);
    let second = ledger.add_handle(PAGE, PAGE, properties(), ()).unwrap();
    assert_eq!(first.slot(), second.slot(), "the slot is used again");
    let what = |handle| problem(ledger.handle(handle).map(|_| ())).1;
    assert_eq!(what(first), Problem::Released);
    assert_eq!(what(Handle::from_bits(0)), Problem::NoHandle);
    assert_eq!(what(Handle::pack(8, 2, 0)), Problem::ForeignHandle);
    assert_eq!(what(Handle::pack(7, 3, 0)), Problem::UnknownHandle);
    assert_eq!(what(Handle::pack(7, 0, 0)), Problem::UnknownHandle);
    assert_eq!(what(Handle::pack(7, 1, 1)), Problem::UnknownHandle);
    assert!(ledger.handle(second).is_ok());
}

#[test]
fn a_release_that_failed_below_can_be_taken_back() {
    let (mut ledger, handle) = ledger();
    let slot = ledger.begin_release(handle).unwrap().unwrap();
    assert!(ledger.handle(handle).is_err(), "nobody may use it while it is being given back");
    ledger.unrelease(slot);
    assert!(ledger.handle(handle).is_ok());
}

#[test]
fn reservations_are_freed_whole_and_empty() {
    let (mut ledger, handle) = ledger();
    let base = 1 << 20;
    map(&mut ledger, range(base, PAGE), handle).unwrap();
    let check = |ledger: &Ledger<(), ()>, start, size| {
        problem(ledger.check_free(range(start, size)).map(|_| ()))
    };
    let whole = 16 * PAGE;
    assert_eq!(
        check(&ledger, base, whole),
        (Argument::Address, Problem::StillMapped { mappings: 1 })
    );
    unmap(&mut ledger, base);
    assert_eq!(
        check(&ledger, base, PAGE),
        (Argument::Size, Problem::WrongSize { expected: whole })
    );
    assert_eq!(check(&ledger, base + PAGE, PAGE), (Argument::Address, Problem::NotAReservation));
    assert!(ledger.check_free(range(base, whole)).is_ok());
    ledger.remove_reservation(base);
    assert_eq!(check(&ledger, base, whole), (Argument::Address, Problem::NotAReservation));
}

#[test]
fn serials_are_never_used_twice() {
    let (mut ledger, handle) = ledger();
    let base = 1 << 20;
    let mut seen = vec![ledger.reservations().next().unwrap().1.serial];
    for _ in 0..3 {
        let slot = ledger.begin_map(range(base, PAGE), handle).unwrap();
        seen.push(ledger.add_mapping(range(base, PAGE), slot));
        unmap(&mut ledger, base);
    }
    seen.push(ledger.reserve(range(2 << 20, PAGE), ()));
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), count, "{seen:?}");
}

/// The check is what fuzzers and property tests rely on, so it must be able to fail.
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
        ledger.mappings.get_mut(&start).unwrap().size = size;
    };
    fn handle(ledger: &mut Ledger<(), ()>, slot: usize) -> &mut HandleRecord<()> {
        ledger.handles.slots[slot].record.as_mut().unwrap()
    }
    broken(&|ledger| mapping(ledger, base, 3 * PAGE), "overlaps the one before");
    broken(&|ledger| mapping(ledger, base + 2 * PAGE, 5 * PAGE), "exceeds its handle");
    broken(&|ledger| mapping(ledger, base + 2 * PAGE, 32 * PAGE), "is in no reservation");
    broken(&|ledger| ledger.mappings.get_mut(&base).unwrap().slot = 7, "has no handle");
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
    broken(&|ledger| ledger.handles.free.push_back(0), "slot 0 would be given to two");
    broken(&|ledger| ledger.handles.free.extend([5, 5]), "slot 5 would be given to two");
    broken(&|ledger| ledger.handles.live = 0, "0 handles are counted and 1 are alive");
    broken(&|ledger| ledger.mappings.get_mut(&base).unwrap().size = PAGE + 1, "is off the granule");
    broken(
        &|ledger| ledger.mappings.get_mut(&base).unwrap().serial = 1,
        "the serial 1 was given twice",
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
