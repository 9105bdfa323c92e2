//! The ledger by itself: what it refuses, with which words, and that refusing changes nothing.

use super::*;
use crate::agent::AgentId;
use crate::vmm::Access;
use crate::vmm::access::{AccessSet, AgentSet};
use crate::vmm::handle::Handle;
use crate::vmm::properties::AllocationProperties;

pub(super) const PAGE: usize = 4096;

pub(super) fn range(start: usize, size: usize) -> Range {
    Range { start, size }
}

pub(super) fn properties() -> AllocationProperties {
    AllocationProperties::on(AgentId { runtime: 1, index: 1 })
}

/// One reservation of 16 pages at 1 MiB, one handle of 4 pages.
pub(super) fn ledger() -> (Ledger<(), ()>, Handle) {
    let mut ledger = Ledger::new(7);
    ledger.reserve(range(1 << 20, 16 * PAGE), ());
    let handle = ledger.add_handle(4 * PAGE, PAGE, properties(), ()).unwrap();
    (ledger, handle)
}

pub(super) fn map(ledger: &mut Ledger<(), ()>, at: Range, handle: Handle) -> Result<(), Refusal> {
    let slot = ledger.begin_map(at, handle)?;
    ledger.add_mapping(at, slot);
    Ok(())
}

pub(super) fn unmap(ledger: &mut Ledger<(), ()>, start: usize) -> bool {
    let record = ledger.remove_mapping(start).unwrap();
    ledger.end_use(record.slot).is_some()
}

pub(super) fn problem<T>(result: Result<T, Refusal>) -> (Argument, Problem) {
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
    assert!(ledger.check_mapped(range(base, 2 * PAGE)).is_ok(), "nothing is behind it");
    assert!(ledger.check_mapped(range(base + PAGE, PAGE + 1)).is_err());
}

#[test]
fn nobody_may_use_what_was_just_mapped() {
    let (mut ledger, handle) = ledger();
    let base = 1 << 20;
    map(&mut ledger, range(base, PAGE), handle).unwrap();
    let record = ledger.mapping_at(base).unwrap().1;
    assert_eq!((record.access, record.granted), Default::default());
    let (mut access, mut granted) = (record.access, record.granted);
    access.set(3, Access::ReadWrite);
    granted.insert(3);
    ledger.write_access(base, access, granted);
    let record = ledger.mapping_at(base + 17).unwrap().1;
    assert_eq!((record.access, record.granted), (access, granted));
    unmap(&mut ledger, base);
    map(&mut ledger, range(base, PAGE), handle).unwrap();
    let record = ledger.mapping_at(base).unwrap().1;
    assert_eq!((record.access, record.granted), Default::default(), "mapped anew");
}

#[test]
fn what_is_there_is_counted_and_listed() {
    let (mut ledger, handle) = ledger();
    let base = 1 << 20;
    let other = ledger.add_handle(PAGE, PAGE, properties(), ()).unwrap();
    ledger.reserve(range(4 << 20, PAGE), ());
    for page in [0, 1, 3] {
        map(&mut ledger, range(base + page * PAGE, PAGE), handle).unwrap();
    }
    assert_eq!(ledger.counts(), (2, 2, 3));
    let starts = |found: &mut dyn Iterator<Item = (usize, MappingRecord)>| -> Vec<usize> {
        found.map(|(start, _)| (start - base) / PAGE).collect()
    };
    assert_eq!(starts(&mut ledger.mappings()), [0, 1, 3]);
    assert_eq!(starts(&mut ledger.mappings_in(range(base + PAGE, 2 * PAGE))), [1]);
    assert_eq!(starts(&mut ledger.mappings_in(range(base + 1, 3 * PAGE))), [1, 3]);
    let slot = handle.slot() as u32;
    assert_eq!(ledger.handle_in(slot).map(|record| record.size), Some(4 * PAGE));
    ledger.begin_release(handle).unwrap();
    assert!(ledger.handle_in(slot).is_some(), "it is mapped");
    assert!(ledger.handle_in(other.slot() as u32 + 1).is_none());
    let sizes: Vec<usize> = ledger.drain_handles().iter().map(|record| record.size).collect();
    assert_eq!(sizes, [4 * PAGE, PAGE]);
    assert_eq!(ledger.counts().1, 0);
}

#[test]
fn reservations_end_where_they_end() {
    let (mut ledger, _) = ledger();
    let (base, size) = (1 << 20, 16 * PAGE);
    let at = |ledger: &Ledger<(), ()>, address| ledger.reservation_at(address).map(|at| at.0);
    assert_eq!(at(&ledger, base - 1), None);
    assert_eq!(at(&ledger, base), Some(base));
    assert_eq!(at(&ledger, base + size - 1), Some(base));
    assert_eq!(at(&ledger, base + size), None);
    // A neighbour overlaps nothing.
    let overlap =
        |ledger: &Ledger<(), ()>, start, size| ledger.overlapping_reservation(range(start, size));
    assert_eq!(overlap(&ledger, base + size, PAGE), None);
    assert_eq!(overlap(&ledger, base - PAGE, PAGE), None);
    assert_eq!(overlap(&ledger, base + size - 1, PAGE), Some(base + size - 1));
    assert_eq!(overlap(&ledger, base - PAGE, PAGE + 1), Some(base));
    ledger.reserve(range(base + size, PAGE), ());
    assert_eq!(ledger.check(), Ok(()));
    assert_eq!(at(&ledger, base + size), Some(base + size));
}

#[test]
fn reservations_are_put_back_or_set_aside() {
    let (mut ledger, _) = ledger();
    let (base, size) = (1 << 20, 16 * PAGE);
    let record = ledger.remove_reservation(base).unwrap();
    assert_eq!(ledger.counts().0, 0);
    ledger.restore_reservation(base, record);
    assert!(ledger.check_free(range(base, size)).is_ok());
    let set_aside = |ledger: &Ledger<(), ()>| {
        ledger.reservations().map(|(_, record)| record.quarantined).collect::<Vec<_>>()
    };
    assert_eq!(ledger.quarantine(base + size), None, "nothing is reserved there");
    assert_eq!(set_aside(&ledger), [false]);
    assert_eq!(ledger.quarantine(base + PAGE + 1), Some((Address::new(base), size)));
    assert_eq!(set_aside(&ledger), [true]);
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

#[test]
fn what_is_mapped_is_found_by_each_address_inside() {
    let (mut ledger, handle) = ledger();
    let base = 1 << 20;
    let slot = ledger.begin_map(range(base + PAGE, 2 * PAGE), handle).unwrap();
    ledger.add_mapping(range(base + PAGE, 2 * PAGE), slot);
    let mut access = AccessSet::default();
    access.set(1, Access::Read);
    access.set(2, Access::ReadWrite);
    ledger.write_access(base + PAGE, access, AgentSet::default());
    for inside in [base + PAGE, base + PAGE + 1, base + 3 * PAGE - 1] {
        let found = [0, 1, 2].map(|agent| ledger.access_at(inside, agent));
        assert_eq!(found, [Some(Access::None), Some(Access::Read), Some(Access::ReadWrite)]);
        assert_eq!(ledger.slot_at(inside), Some(slot));
    }
    for outside in [base, base + PAGE - 1, base + 3 * PAGE] {
        assert_eq!((ledger.access_at(outside, 1), ledger.slot_at(outside)), (None, None));
    }
}

#[test]
fn slots_are_told_apart() {
    let (mut ledger, first) = ledger();
    let second = ledger.add_handle(PAGE, PAGE, properties(), ()).unwrap();
    let base = 1 << 20;
    map(&mut ledger, range(base, PAGE), first).unwrap();
    map(&mut ledger, range(base + PAGE, PAGE), second).unwrap();
    assert_ne!(ledger.slot_at(base), ledger.slot_at(base + PAGE));
}

#[test]
fn what_is_rehung_is_counted_where_it_is() {
    let (mut ledger, handle) = ledger();
    let (base, other) = (1 << 20, 2 << 20);
    ledger.reserve(range(other, 4 * PAGE), ());
    map(&mut ledger, range(base, 4 * PAGE), handle).unwrap();
    map(&mut ledger, range(base + 4 * PAGE, 4 * PAGE), handle).unwrap();
    let (_, record) = ledger.mapping_at(base).unwrap();
    ledger.rehang([base].into_iter(), [(other, record)].into_iter());
    assert!(ledger.mapping_at(base).is_none());
    assert_eq!(ledger.mapping_at(other).unwrap().1.serial, record.serial);
    assert_eq!(ledger.check(), Ok(()));
    // One is left in the first reservation, one is in the second.
    assert!(ledger.check_free(range(base, 16 * PAGE)).is_err());
    assert!(ledger.check_free(range(other, 4 * PAGE)).is_err());
    unmap(&mut ledger, other);
    assert!(ledger.check_free(range(other, 4 * PAGE)).is_ok());
    unmap(&mut ledger, base + 4 * PAGE);
    assert!(ledger.check_free(range(base, 16 * PAGE)).is_ok());
}

#[test]
fn handles_tell_how_often_they_are_referenced_and_mapped() {
    let (mut ledger, handle) = ledger();
    let counts = |ledger: &Ledger<(), ()>| {
        let record = ledger.handle(handle).unwrap();
        (record.references(), record.mappings())
    };
    assert_eq!(counts(&ledger), (1, 0));
    for page in 0..3 {
        map(&mut ledger, range((1 << 20) + page * PAGE, PAGE), handle).unwrap();
    }
    ledger.retain(1 << 20).unwrap();
    assert_eq!(counts(&ledger), (2, 3));
}

#[test]
fn a_mapping_may_end_where_another_begins() {
    let (mut ledger, handle) = ledger();
    let base = 1 << 20;
    map(&mut ledger, range(base + 2 * PAGE, 2 * PAGE), handle).unwrap();
    map(&mut ledger, range(base, 2 * PAGE), handle).unwrap();
    map(&mut ledger, range(base + 4 * PAGE, PAGE), handle).unwrap();
    assert_eq!(ledger.check_run(range(base, 5 * PAGE)), Ok(()));
}

#[test]
fn names_stay_with_what_was_named() {
    let (mut ledger, handle) = ledger();
    let base = 1 << 20;
    map(&mut ledger, range(base + PAGE, PAGE), handle).unwrap();
    let reservation = ledger.reservation_at(base).unwrap().1.serial;
    let mapping = ledger.mapping_at(base + PAGE).unwrap().1.serial;
    let names = |ledger: &Ledger<(), ()>| {
        let of = |name: Option<&std::sync::Arc<str>>| name.map(ToString::to_string);
        (
            of(ledger.reservation_at(base).unwrap().1.name.as_ref()),
            of(ledger.mapping_name(mapping)),
            of(ledger.handle(handle).unwrap().name.as_ref()),
        )
    };
    let some = |text: &str| Some(text.to_owned());
    ledger.name_reservation(base + 16 * PAGE - 1, None, "pool").unwrap();
    ledger.name_mapping(base + PAGE + 1, Some(mapping), "page").unwrap();
    ledger.name_handle(handle, "memory").unwrap();
    assert_eq!(names(&ledger), (some("pool"), some("page"), some("memory")));
    ledger.name_reservation(base, Some(reservation), "cache").unwrap();
    assert_eq!(names(&ledger).0, some("cache"));
    // Nothing is there, or something else by now.
    for outside in [base - 1, base + 16 * PAGE] {
        let refused = ledger.name_reservation(outside, None, "x");
        assert_eq!(problem(refused), (Argument::Address, Problem::NotReserved));
    }
    assert!(ledger.name_reservation(base, Some(reservation + 1000), "x").is_err());
    let at = Address::new(base);
    let refused = ledger.name_mapping(base, None, "x");
    assert_eq!(problem(refused), (Argument::Address, Problem::NotMapped { at }));
    assert!(ledger.name_mapping(base + PAGE, Some(mapping + 1000), "x").is_err());
    assert_eq!(names(&ledger), (some("cache"), some("page"), some("memory")));
    // An empty name takes the name away.
    ledger.name_reservation(base, None, "").unwrap();
    ledger.name_mapping(base + PAGE, None, "").unwrap();
    ledger.name_handle(handle, "").unwrap();
    assert_eq!(names(&ledger), (None, None, None));
}

#[test]
fn every_handle_that_is_alive_is_listed() {
    let (mut ledger, first) = ledger();
    let second = ledger.add_handle(PAGE, PAGE, properties(), ()).unwrap();
    let third = ledger.add_handle(PAGE, PAGE, properties(), ()).unwrap();
    map(&mut ledger, range(1 << 20, PAGE), first).unwrap();
    for released in [first, second] {
        if let Some(slot) = ledger.begin_release(released).unwrap() {
            ledger.forget(slot);
        }
    }
    let listed: Vec<_> = ledger.handles().map(|(handle, _)| handle).collect();
    assert_eq!(listed, [first, third], "mapped, and referenced");
    let slot = ledger.slot_at(1 << 20).unwrap();
    assert_eq!(ledger.handle_of_slot(slot).unwrap().0, first);
}
