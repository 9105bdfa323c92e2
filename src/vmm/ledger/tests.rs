//! The ledger by itself: what it refuses, with which words, and that refusing changes nothing.

use super::*;
use crate::access::AccessSet;
use crate::agent::AgentId;
use crate::handle::Handle;
use crate::vmm::Access;
use crate::vmm::properties::AllocationProperties;

pub(super) const PAGE: usize = 4096;

pub(super) fn range(start: usize, size: usize) -> Range {
    Range { start, size }
}

pub(super) fn properties() -> AllocationProperties {
    AllocationProperties::on(AgentId::new(1, 1, crate::agent::AgentKind::Gpu, 0))
}

/// One reservation of 16 pages at 1 MiB, one handle of 4 pages.
pub(super) fn ledger() -> (Ledger<()>, Handle) {
    let ledger = Ledger::new();
    ledger.reserve(range(1 << 20, 16 * PAGE)).unwrap();
    let handle = ledger.handles.add(4 * PAGE, PAGE, properties(), ()).unwrap();
    (ledger, handle)
}

pub(super) fn map(ledger: &Ledger<()>, at: Range, handle: Handle) -> Result<(), Refusal> {
    map_as(ledger, at, handle).map(|_| ())
}

/// Maps, and returns the serial.
fn map_as(ledger: &Ledger<()>, at: Range, handle: Handle) -> Result<u64, Refusal> {
    let reserved = ledger.around(at)?;
    let entered = Entered::One(reserved.enter().expect("it is in use"));
    let (slot, ()) = ledger.begin_map(entered.around(at)?, at, handle, |_| ())?;
    Ok(ledger.add_mapping(entered, at, slot))
}

/// Does something inside the reservations that hold some addresses, which are in order.
fn inside<T>(ledger: &Ledger<()>, at: &[usize], act: impl FnOnce(Entered<'_>) -> T) -> T {
    let around = |&start: &usize| ledger.around(range(start, 1)).unwrap();
    let reserved: Vec<_> = at.iter().map(around).collect();
    act(Entered::all(reserved.iter().map(|reserved| &**reserved)).expect("it is in use"))
}

/// Frees a reservation.
fn free(ledger: &Ledger<()>, start: usize) -> std::sync::Arc<Reserved> {
    let reserved = ledger.take(start).unwrap();
    ledger.remove(&reserved.enter().unwrap());
    reserved
}

/// Whether exactly this range is the reservation that it is in, with nothing in it.
fn check_free(ledger: &Ledger<()>, whole: Range) -> Result<(), Refusal> {
    let check = |reserved: &Reserved| reserved.check_free(whole, &reserved.mappings());
    ledger.at(whole.start, check).expect("it is reserved")
}

/// Asks the mappings of the reservation around an address.
fn ask<T>(ledger: &Ledger<()>, address: usize, what: impl FnOnce(&Mappings) -> T) -> T {
    ledger.at(address, |reserved| what(&reserved.mappings())).expect("it is reserved")
}

fn size_in(ledger: &Ledger<()>, slot: u32) -> Option<usize> {
    ledger.handles.in_slot(slot, |record| record.size)
}

pub(super) fn unmap(ledger: &Ledger<()>, start: usize) -> bool {
    assert!(ledger.mapping_at(start).is_some_and(|(first, _)| first == start));
    let dead =
        inside(ledger, &[start], |entered| ledger.remove_mappings(entered, std::iter::once(start)));
    !dead.is_empty()
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
    let (ledger, handle) = ledger();
    let base = 1 << 20;
    map(&ledger, range(base + 4 * PAGE, 4 * PAGE), handle).unwrap();
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
        assert_eq!(problem(map(&ledger, range(start, pages * PAGE), handle)), expected);
    }
    let odd = Problem::NotAligned { value: PAGE + 1, granule: PAGE };
    let refused = map(&ledger, range(base, PAGE + 1), handle);
    assert_eq!(problem(refused), (Argument::Size, odd));
    assert_eq!(format!("{ledger:?}"), before);
}

#[test]
fn runs_are_whole_contiguous_mappings() {
    let (ledger, handle) = ledger();
    let base = 1 << 20;
    for page in [0, 2, 4, 8] {
        map(&ledger, range(base + page * PAGE, 2 * PAGE), handle).unwrap();
    }
    let check = |first: usize, pages| {
        let run = range(base + first * PAGE, pages * PAGE);
        ledger.around(run)?.mappings().check_run(run)
    };
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
    let (ledger, handle) = ledger();
    let base = 1 << 20;
    map(&ledger, range(base, 2 * PAGE), handle).unwrap();
    assert!(ledger.mapping_at(base + 2 * PAGE - 1).is_some());
    assert!(ledger.mapping_at(base + 2 * PAGE).is_none());
    assert!(ledger.mapping_at(base - 1).is_none());
    let all = |start, size| ask(&ledger, start, |it| it.check_mapped(range(start, size)).is_ok());
    assert!(all(base + 5, PAGE));
    assert!(all(base, 2 * PAGE), "nothing is behind it");
    assert!(!all(base + PAGE, PAGE + 1));
}

#[test]
fn nobody_may_use_what_was_just_mapped() {
    let (ledger, handle) = ledger();
    let base = 1 << 20;
    map(&ledger, range(base, PAGE), handle).unwrap();
    let record = ledger.mapping_at(base).unwrap().1;
    assert_eq!((record.access, record.granted), Default::default());
    let (mut access, mut granted) = (record.access, record.granted);
    access.set(3, Access::ReadWrite);
    granted.insert(3);
    let after = MappingRecord { access, granted, ..record };
    inside(&ledger, &[base], |mut entered| entered.write_access([(base, &after)]));
    let record = ledger.mapping_at(base + 17).unwrap().1;
    assert_eq!((record.access, record.granted), (access, granted));
    unmap(&ledger, base);
    map(&ledger, range(base, PAGE), handle).unwrap();
    let record = ledger.mapping_at(base).unwrap().1;
    assert_eq!((record.access, record.granted), Default::default(), "mapped anew");
}

#[test]
fn what_is_there_is_counted_and_listed() {
    let (ledger, handle) = ledger();
    let base = 1 << 20;
    let other = ledger.handles.add(PAGE, PAGE, properties(), ()).unwrap();
    ledger.reserve(range(4 << 20, PAGE)).unwrap();
    for page in [0, 1, 3] {
        map(&ledger, range(base + page * PAGE, PAGE), handle).unwrap();
    }
    assert_eq!(ledger.counts(), (2, 2, 3));
    let starts = |found: &mut dyn Iterator<Item = (usize, MappingRecord)>| -> Vec<usize> {
        found.map(|(start, _)| (start - base) / PAGE).collect()
    };
    assert_eq!(ask(&ledger, base, |it| starts(&mut it.iter())), [0, 1, 3]);
    let within = |start, size| ask(&ledger, base, |it| starts(&mut it.inside(range(start, size))));
    assert_eq!(within(base + PAGE, 2 * PAGE), [1]);
    assert_eq!(within(base + 1, 3 * PAGE), [1, 3]);
    let slot = handle.slot() as u32;
    assert_eq!(size_in(&ledger, slot), Some(4 * PAGE));
    ledger.handles.begin_release(handle, |_| ()).unwrap();
    assert!(size_in(&ledger, slot).is_some(), "it is mapped");
    assert!(size_in(&ledger, other.slot() as u32 + 1).is_none());
    let sizes: Vec<usize> = ledger.handles.drain().iter().map(|record| record.size).collect();
    assert_eq!(sizes, [4 * PAGE, PAGE]);
    assert_eq!(ledger.counts().1, 0);
}

#[test]
fn reservations_end_where_they_end() {
    let (ledger, _) = ledger();
    let (base, size) = (1 << 20, 16 * PAGE);
    let at = |ledger: &Ledger<()>, address| ledger.at(address, |reserved| reserved.base);
    assert_eq!(at(&ledger, base - 1), None);
    assert_eq!(at(&ledger, base), Some(base));
    assert_eq!(at(&ledger, base + size - 1), Some(base));
    assert_eq!(at(&ledger, base + size), None);
    // What overlaps it is refused, with an address that is in it.
    let reserve = |start, size| ledger.reserve(range(start, size));
    assert_eq!(reserve(base + size - 1, PAGE), Err(base + size - 1));
    assert_eq!(reserve(base - PAGE, PAGE + 1), Err(base));
    assert_eq!(reserve(base - PAGE, 100 * PAGE), Err(base));
    assert_eq!(ledger.counts().0, 1);
    // A neighbour overlaps nothing.
    assert!(reserve(base - PAGE, PAGE).is_ok() && reserve(base + size, PAGE).is_ok());
    assert_eq!(ledger.check(), Ok(()));
    assert_eq!(at(&ledger, base + size), Some(base + size));
    assert_eq!(at(&ledger, base - 1), Some(base - PAGE));
}

#[test]
fn reservations_are_put_back_or_set_aside() {
    let (ledger, _) = ledger();
    let (base, size) = (1 << 20, 16 * PAGE);
    let found = ledger.around(range(base, PAGE)).unwrap();
    let removed = free(&ledger, base);
    assert_eq!(ledger.counts().0, 0);
    assert!(found.is_freed() && found.enter().is_none(), "who found it is told");
    assert!(ledger.at(base, |_| ()).is_none());
    ledger.restore(removed);
    assert!(!found.is_freed() && found.enter().is_some());
    assert_eq!(check_free(&ledger, range(base, size)), Ok(()));
    assert_eq!(ledger.quarantine(base + size), None, "nothing is reserved there");
    assert!(!found.is_quarantined());
    assert_eq!(ledger.quarantine(base + PAGE + 1), Some((Address::new(base), size)));
    assert!(found.is_quarantined() && found.enter().is_none() && !found.is_freed());
    assert_eq!(ledger.counts().0, 1, "it stays");
}

#[test]
fn reservations_are_freed_whole_and_empty() {
    let (ledger, handle) = ledger();
    let base = 1 << 20;
    map(&ledger, range(base, PAGE), handle).unwrap();
    let check = |ledger: &Ledger<()>, start, size| problem(check_free(ledger, range(start, size)));
    let whole = 16 * PAGE;
    assert_eq!(
        check(&ledger, base, whole),
        (Argument::Address, Problem::StillMapped { mappings: 1 })
    );
    unmap(&ledger, base);
    assert_eq!(
        check(&ledger, base, PAGE),
        (Argument::Size, Problem::WrongSize { expected: whole })
    );
    assert_eq!(check(&ledger, base + PAGE, PAGE), (Argument::Address, Problem::NotAReservation));
    assert_eq!(check_free(&ledger, range(base, whole)), Ok(()));
    assert_eq!(free(&ledger, base).base, base);
    assert!(ledger.at(base, |_| ()).is_none());
}

#[test]
fn serials_are_never_used_twice() {
    let (ledger, handle) = ledger();
    let base = 1 << 20;
    let mut seen = vec![ledger.at(base, |reserved| reserved.serial).unwrap()];
    seen.push(ledger.reserve(range(2 << 20, PAGE)).unwrap());
    // More than a reservation takes at a time, in two that take turns.
    for _ in 0..if cfg!(miri) { 3 } else { 2100 } {
        for at in [base, 2 << 20] {
            seen.push(map_as(&ledger, range(at, PAGE), handle).unwrap());
            assert_eq!(ledger.check(), Ok(()));
            unmap(&ledger, at);
        }
    }
    seen.push(ledger.reserve(range(3 << 20, PAGE)).unwrap());
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), count, "{seen:?}");
}

#[test]
fn what_is_mapped_is_found_by_each_address_inside() {
    let (ledger, handle) = ledger();
    let base = 1 << 20;
    map(&ledger, range(base + PAGE, 2 * PAGE), handle).unwrap();
    let slot = handle.slot() as u32;
    let mut access = AccessSet::default();
    access.set(1, Access::Read);
    access.set(2, Access::ReadWrite);
    let record = ledger.mapping_at(base + PAGE).unwrap().1;
    let after = MappingRecord { access, ..record };
    inside(&ledger, &[base], |mut entered| entered.write_access([(base + PAGE, &after)]));
    for inside in [base + PAGE, base + PAGE + 1, base + 3 * PAGE - 1] {
        let found = [0, 1, 2].map(|agent| ledger.access_at(inside, agent));
        assert_eq!(found, [Some(Access::None), Some(Access::Read), Some(Access::ReadWrite)]);
        assert_eq!(ask(&ledger, inside, |it| it.slot_at(inside)), Some(slot));
    }
    for outside in [base, base + PAGE - 1, base + 3 * PAGE] {
        assert_eq!(ledger.access_at(outside, 1), None);
        assert_eq!(ask(&ledger, outside, |it| it.slot_at(outside)), None);
    }
}

#[test]
fn slots_are_told_apart() {
    let (ledger, first) = ledger();
    let second = ledger.handles.add(PAGE, PAGE, properties(), ()).unwrap();
    let base = 1 << 20;
    map(&ledger, range(base, PAGE), first).unwrap();
    map(&ledger, range(base + PAGE, PAGE), second).unwrap();
    let slot = |address| ask(&ledger, address, |it| it.slot_at(address));
    assert_ne!(slot(base), slot(base + PAGE));
}

#[test]
fn what_is_rehung_is_counted_where_it_is() {
    let (ledger, handle) = ledger();
    let (base, other) = (1 << 20, 2 << 20);
    ledger.reserve(range(other, 4 * PAGE)).unwrap();
    map(&ledger, range(base, 4 * PAGE), handle).unwrap();
    map(&ledger, range(base + 4 * PAGE, 4 * PAGE), handle).unwrap();
    let (_, record) = ledger.mapping_at(base).unwrap();
    inside(&ledger, &[base, other], |mut entered| {
        ledger.rehang(&mut entered, [base].into_iter(), [(other, record)].into_iter());
        assert_eq!(entered.at(base).unwrap().mappings().len(), 1, "both are still held");
    });
    assert!(ledger.mapping_at(base).is_none());
    assert_eq!(ledger.mapping_at(other).unwrap().1.serial, record.serial);
    assert_eq!(ledger.check(), Ok(()));
    // One is left in the first reservation, one is in the second.
    let check_free = |whole: Range| check_free(&ledger, whole);
    assert!(check_free(range(base, 16 * PAGE)).is_err());
    assert!(check_free(range(other, 4 * PAGE)).is_err());
    unmap(&ledger, other);
    assert!(check_free(range(other, 4 * PAGE)).is_ok());
    unmap(&ledger, base + 4 * PAGE);
    assert!(check_free(range(base, 16 * PAGE)).is_ok());
}

#[test]
fn handles_tell_how_often_they_are_referenced_and_mapped() {
    let (ledger, handle) = ledger();
    let counts = |ledger: &Ledger<()>| {
        let counts = |record: &mut HandleRecord<()>| (record.references(), record.mappings);
        ledger.handles.with(handle, counts).unwrap()
    };
    assert_eq!(counts(&ledger), (1, 0));
    for page in 0..3 {
        map(&ledger, range((1 << 20) + page * PAGE, PAGE), handle).unwrap();
    }
    ledger.retain(1 << 20).unwrap();
    assert_eq!(counts(&ledger), (2, 3));
}

#[test]
fn a_mapping_may_end_where_another_begins() {
    let (ledger, handle) = ledger();
    let base = 1 << 20;
    map(&ledger, range(base + 2 * PAGE, 2 * PAGE), handle).unwrap();
    map(&ledger, range(base, 2 * PAGE), handle).unwrap();
    map(&ledger, range(base + 4 * PAGE, PAGE), handle).unwrap();
    assert_eq!(ask(&ledger, base, |it| it.check_run(range(base, 5 * PAGE))), Ok(()));
}

#[test]
fn a_run_of_one_is_told_from_others() {
    let (ledger, handle) = ledger();
    let base = 1 << 20;
    for page in [0, 2, 4] {
        map(&ledger, range(base + page * PAGE, 2 * PAGE), handle).unwrap();
    }
    let only = |first: usize, pages| {
        let run = range(base + first * PAGE, pages * PAGE);
        ask(&ledger, base, |it| it.only(run).map(|record| record.size))
    };
    assert_eq!((only(0, 2), only(2, 2)), (Some(2 * PAGE), Some(2 * PAGE)));
    for (first, pages) in [(0, 1), (0, 4), (1, 2), (1, 1), (6, 2)] {
        assert_eq!(only(first, pages), None, "{pages} from {first}");
    }
}

#[test]
fn names_go_with_what_was_named() {
    let (ledger, handle) = ledger();
    let base = 1 << 20;
    for page in [0, 1] {
        map(&ledger, range(base + page * PAGE, PAGE), handle).unwrap();
    }
    ledger.name_mapping(base, None, "page").unwrap();
    let serial = ledger.mapping_at(base).unwrap().1.serial;
    unmap(&ledger, base + PAGE);
    assert!(ask(&ledger, base, |it| it.name(serial).is_some()), "another's");
    unmap(&ledger, base);
    assert!(ask(&ledger, base, |it| it.name(serial).is_none()));
    assert_eq!(ledger.check(), Ok(()));
}

#[test]
fn names_stay_with_what_was_named() {
    let (ledger, handle) = ledger();
    let base = 1 << 20;
    map(&ledger, range(base + PAGE, PAGE), handle).unwrap();
    let reservation = ledger.at(base, |reserved| reserved.serial).unwrap();
    let mapping = ledger.mapping_at(base + PAGE).unwrap().1.serial;
    let names = |ledger: &Ledger<()>| {
        let of = |name: Option<&std::sync::Arc<str>>| name.map(ToString::to_string);
        (
            of(ledger.at(base, Reserved::name).unwrap().as_ref()),
            ask(ledger, base, |it| of(it.name(mapping))),
            ledger.handles.with(handle, |record| of(record.name.as_ref())).unwrap(),
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
    let (ledger, first) = ledger();
    let second = ledger.handles.add(PAGE, PAGE, properties(), ()).unwrap();
    let third = ledger.handles.add(PAGE, PAGE, properties(), ()).unwrap();
    map(&ledger, range(1 << 20, PAGE), first).unwrap();
    for released in [first, second] {
        if let Some((slot, ())) = ledger.handles.begin_release(released, |_| ()).unwrap() {
            ledger.handles.forget(slot);
        }
    }
    let listed = ledger.handles.each(|handle, _| handle);
    assert_eq!(listed, [first, third], "mapped, and referenced");
    let slot = ask(&ledger, 1 << 20, |it| it.slot_at(1 << 20)).unwrap();
    assert_eq!(ledger.handles.named_in_slot(slot, |handle, _| handle), Some(first));
}

#[test]
fn a_thread_finds_the_reservation_it_used_last_by_itself() {
    let (ledger, handle) = ledger();
    let base = 1 << 20;
    map(&ledger, range(base, PAGE), handle).unwrap();
    assert!(ledger.mapping_at(base).is_some());
    ledger.empty_directory();
    for _ in 0..3 {
        assert!(ledger.mapping_at(base).is_some());
        ledger.around(range(base, PAGE)).unwrap().keep();
    }
    let elsewhere = |ledger: &Ledger<()>| ledger.mapping_at(base).is_some();
    assert!(!std::thread::scope(|scope| scope.spawn(|| elsewhere(&ledger)).join().unwrap()));
    assert!(ledger.mapping_at(base + 16 * PAGE).is_none(), "that is not in it");
    assert!(ledger.mapping_at(base).is_none(), "another was looked for meanwhile");
}

#[test]
fn a_reservation_that_was_used_last_and_freed_hides_nothing() {
    let (ledger, handle) = ledger();
    let base = 1 << 20;
    map(&ledger, range(base, PAGE), handle).unwrap();
    assert!(ledger.mapping_at(base).is_some());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            unmap(&ledger, base);
            free(&ledger, base);
            ledger.reserve(range(base, 4 * PAGE)).unwrap();
            map(&ledger, range(base, 2 * PAGE), handle).unwrap();
        });
    });
    assert_eq!(ledger.mapping_at(base).unwrap().1.size, 2 * PAGE);
}

#[test]
fn who_is_inside_has_that_reservation_and_no_more() {
    let (ledger, _) = ledger();
    let (base, end) = (1 << 20, (1 << 20) + 16 * PAGE);
    ledger.reserve(range(end, PAGE)).unwrap();
    for at in [&[base][..], &[base, end]] {
        inside(&ledger, at, |entered| {
            assert!(entered.around(range(base + PAGE, 15 * PAGE)).is_ok());
            let beyond = entered.around(range(end - PAGE, 2 * PAGE));
            assert_eq!(problem(beyond), (Argument::Address, Problem::NotReserved));
            assert_eq!(entered.at(end).is_some(), at.len() == 2);
            assert!(entered.at(base - 1).is_none() && entered.at(end + PAGE).is_none());
        });
    }
}
