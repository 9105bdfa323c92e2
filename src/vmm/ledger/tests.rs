//! Tests of the ledger without a runtime.

use super::mappings::AccessStates;
use super::reservations::locked_containing;
use super::*;
use crate::access::{Access, AccessState};
use crate::agent::{AgentId, AgentKind};
use crate::error::Quarantined;
use crate::native::NativeHandle;
use crate::vmm::properties::AllocationProperties;
use proptest::prelude::*;

const PAGE: usize = 4096;
const NATIVE: NativeHandle = NativeHandle(hsa_sys::hsa_amd_vmem_alloc_handle_t { handle: 1 });

fn range(first: usize, pages: usize) -> AddressRange {
    AddressRange { start: first * PAGE, size: pages * PAGE }
}

fn properties() -> AllocationProperties {
    AllocationProperties::on(AgentId::new(1, 1, AgentKind::Gpu, 0))
}

fn create(ledger: &Ledger, pages: usize) -> Handle {
    ledger.handles.insert(HandleRecord::new(pages * PAGE, PAGE, properties(), NATIVE))
}

fn granted(agent: usize, access: Access) -> AccessState {
    let mut state = AccessState::default();
    state.requested.set(agent, access);
    state.runtime_granted.insert(agent);
    state
}

/// Adds a mapping, as a map does at the end of its operation.
fn map(ledger: &Ledger, range: AddressRange, handle: Handle) {
    let count = |record: &mut HandleRecord| {
        record.mappings += 1;
        (record.native, record.owner)
    };
    let (native, owner) = ledger.handles.with(handle, count).unwrap();
    ledger.reservations.at(range.start, |reservation| {
        let (AddressRange { start, size }, access) = (range, AccessState::default());
        let serial = reservation.new_serial();
        let offset = 0;
        let mapped = MappedRange { start, size, handle, offset, serial, native, owner, access };
        reservation.mappings_mut().insert(&mapped, None);
    });
}

/// Removes a mapping. Returns whether nothing keeps the memory alive any more.
fn unmap(ledger: &Ledger, start: usize) -> bool {
    let removed = ledger.reservations.at(start, |reservation| {
        let mut mappings = reservation.mappings_mut();
        let handle = mappings.at(start).unwrap().handle;
        mappings.remove(start);
        ledger.handles.decrement(handle, |record| record.mappings -= 1)
    });
    removed.unwrap().is_some()
}

fn problem<T>(result: Result<T, ErrorKind>) -> Problem {
    match result.err() {
        Some(ErrorKind::InvalidArgument { problem, .. }) => problem,
        other => panic!("{other:?}"),
    }
}

fn page_address(page: usize) -> Address {
    Address::new(page * PAGE)
}

/// Creates a reservation of pages 1 to 8, with mappings of 2, 1 and 1 pages at pages 2, 4 and 6.
fn three_mappings() -> (Ledger, Handle) {
    let ledger = Ledger::default();
    ledger.reservations.insert(range(1, 8)).unwrap();
    let handle = create(&ledger, 2);
    for (first, pages) in [(2, 2), (4, 1), (6, 1)] {
        map(&ledger, range(first, pages), handle);
    }
    (ledger, handle)
}

fn count_in(ledger: &Ledger, range: AddressRange) -> Result<usize, ErrorKind> {
    let found = ledger
        .reservations
        .at(range.start, |it| it.mappings().adjacent(range).map(|it| it.count()));
    found.unwrap()
}

#[test]
fn adjacent_requires_whole_mappings() {
    let (ledger, _) = three_mappings();
    assert_eq!(count_in(&ledger, range(2, 2)).unwrap(), 1);
    assert_eq!(count_in(&ledger, range(2, 3)).unwrap(), 2);
    assert_eq!(problem(count_in(&ledger, range(3, 1))), Problem::SplitsMapping(page_address(2)));
    assert_eq!(problem(count_in(&ledger, range(2, 1))), Problem::SplitsMapping(page_address(2)));
    assert_eq!(problem(count_in(&ledger, range(4, 3))), Problem::NotMapped(page_address(5)));
    assert_eq!(problem(count_in(&ledger, range(1, 3))), Problem::NotMapped(page_address(1)));
    assert_eq!(problem(count_in(&ledger, range(5, 2))), Problem::NotMapped(page_address(5)));
}

#[test]
fn covering_finds_every_overlapping_mapping() {
    let (ledger, _) = three_mappings();
    let covering = |first, pages| {
        let range = range(first, pages);
        let found = ledger
            .reservations
            .at(range.start, |it| it.mappings().covering(range).map(|it| it.count()));
        found.unwrap()
    };
    assert_eq!(covering(3, 2).unwrap(), 2);
    assert_eq!(covering(3, 1).unwrap(), 1);
    assert_eq!(problem(covering(3, 3)), Problem::NotMapped(page_address(5)));
    assert_eq!(problem(covering(5, 1)), Problem::NotMapped(page_address(5)));
}

#[test]
fn check_empty_finds_every_overlap() {
    let (ledger, _) = three_mappings();
    for (first, pages, expected) in [
        (1, 1, None),
        (5, 1, None),
        (7, 2, None),
        (1, 2, Some(2)),
        (3, 1, Some(2)),
        (3, 4, Some(2)),
        (5, 2, Some(6)),
    ] {
        let range = range(first, pages);
        let empty =
            ledger.reservations.at(range.start, |it| it.mappings().check_empty(range, |_| false));
        let found = empty.unwrap().err().map(|kind| problem(Err::<(), _>(kind)));
        assert_eq!(
            found,
            expected.map(|page| Problem::AlreadyMapped(page_address(page))),
            "{first}"
        );
    }
}

#[test]
fn look_ups_end_where_the_mapping_ends() {
    let (ledger, handle) = three_mappings();
    let found = |address| {
        ledger.reservations.at(address, |it| it.mappings().at(address).map(|it| it.start))
    };
    assert_eq!(found(2 * PAGE), Some(Some(2 * PAGE)));
    assert_eq!(found(4 * PAGE - 1), Some(Some(2 * PAGE)));
    assert_eq!(found(5 * PAGE), Some(None));
    assert_eq!(found(9 * PAGE), None);
    assert_eq!(ledger.retain(3 * PAGE).unwrap(), handle);
    assert_eq!(problem(ledger.retain(5 * PAGE)), Problem::NotMapped(page_address(5)));
    ledger.handles.with(handle, |record| record.references = u32::MAX).unwrap();
    let error = ledger.retain(3 * PAGE).unwrap_err();
    assert!(matches!(error, ErrorKind::LimitReached { .. }), "{error}");
}

#[test]
fn memory_lives_while_referenced_or_mapped() {
    let (ledger, handle) = three_mappings();
    let release = |handle| ledger.handles.release(handle);
    assert!(release(handle).unwrap().is_none(), "the memory is mapped");
    assert_eq!(problem(release(handle)), Problem::Released);
    assert_eq!(problem(ledger.handles.with(handle, |_| ())), Problem::Released);
    assert_eq!(ledger.retain(2 * PAGE).unwrap(), handle, "retain makes it valid again");
    assert!(!unmap(&ledger, 2 * PAGE) && !unmap(&ledger, 4 * PAGE));
    assert!(!unmap(&ledger, 6 * PAGE), "the memory is referenced");
    let record = release(handle).unwrap().unwrap();
    assert_eq!(problem(release(handle)), Problem::Released, "the memory is being released");
    ledger.handles.restore(handle, record);
    assert!(release(handle).unwrap().is_some());
    assert_eq!(ledger.usage(), Usage { reservations: 1, handles: 0, mappings: 0 });
    // If the last reference is released first, removing the last mapping releases the memory.
    let handle = create(&ledger, 1);
    map(&ledger, range(2, 1), handle);
    assert!(release(handle).unwrap().is_none());
    assert!(unmap(&ledger, 2 * PAGE));
    assert_eq!(ledger.check(), Ok(()));
}

#[test]
fn uses_keep_memory_alive() {
    let ledger = Ledger::default();
    let handle = create(&ledger, 1);
    ledger.handles.with(handle, |record| record.uses += 1).unwrap();
    assert!(ledger.handles.release(handle).unwrap().is_none());
    assert!(ledger.handles.decrement(handle, |record| record.uses -= 1).is_some());
    assert_eq!(ledger.handles.len(), 0);
}

#[test]
fn invalid_handles_have_distinct_problems() {
    let ledger = Ledger::default();
    let with = |handle| problem(ledger.handles.with(handle, |_| ()));
    assert_eq!(with(Handle::from_bits(0)), Problem::Null);
    assert_eq!(with(Handle::from_bits(7)), Problem::UnknownHandle);
    let handle = create(&ledger, 1);
    assert!(ledger.handles.release(handle).unwrap().is_some());
    assert_eq!(with(handle), Problem::Released);
    let other = Ledger::default();
    let foreign = create(&other, 1);
    assert_eq!(with(foreign), Problem::ForeignHandle);
    for distance in [1, 9] {
        assert_eq!(with(Handle(handle.0 + distance)), Problem::UnknownHandle, "{distance}");
    }
}

#[test]
fn reservations_are_freed_whole_and_empty() {
    let (ledger, _) = three_mappings();
    let reservation = ledger.reservations.find(2 * PAGE).unwrap();
    let guard = reservation.lock().unwrap();
    let free = |first, pages| problem(guard.check_free(range(first, pages)));
    assert_eq!(free(1, 8), Problem::StillMapped(3));
    assert_eq!(free(2, 8), Problem::NotAReservation);
    assert_eq!(free(1, 7), Problem::WrongSize(8 * PAGE));
    for page in [2, 4, 6] {
        unmap(&ledger, page * PAGE);
    }
    assert!(guard.check_free(range(1, 8)).is_ok());
    ledger.reservations.remove(&guard);
    assert!(ledger.reservations.find(2 * PAGE).is_none());
    drop(guard);
    assert!(reservation.lock().is_none() && reservation.is_freed());
    ledger.reservations.restore(reservation);
    assert!(ledger.reservations.find(2 * PAGE).unwrap().lock().is_some());
}

#[test]
fn reservations_are_disjoint() {
    let ledger = Ledger::default();
    ledger.reservations.insert(range(10, 4)).unwrap();
    for (first, pages, occupied) in [(8, 3, 10), (12, 1, 12), (13, 9, 13), (1, 30, 10)] {
        let result = ledger.reservations.insert(range(first, pages)).map(drop);
        assert_eq!(result, Err(occupied * PAGE));
    }
    ledger.reservations.insert(range(14, 1)).unwrap();
    ledger.reservations.insert(range(9, 1)).unwrap();
    // No range extends across two adjacent reservations.
    assert!(ledger.reservations.containing(range(13, 2)).is_err());
    let found = [ledger.reservations.find(9 * PAGE), ledger.reservations.find(14 * PAGE)];
    let found = found.map(Option::unwrap);
    let guards: Vec<_> = found.iter().map(|it| it.lock().unwrap()).collect();
    assert_eq!(locked_containing(&guards, range(14, 1)).unwrap().base, 14 * PAGE);
    assert!(locked_containing(&guards, range(10, 1)).is_err());
    assert!(locked_containing(&guards, range(1, 1)).is_err());
}

#[test]
fn serials_are_unique() {
    let ledger = Ledger::default();
    let reserve = |first| ledger.reservations.insert(range(first, 1)).unwrap();
    let reservations = [reserve(1), reserve(2)];
    let mut serials: Vec<u64> = reservations.iter().map(|it| it.serial).collect();
    // A reservation's own serial is the first of its block.
    assert!(reservations.iter().all(|it| it.new_serial() == it.serial + 1));
    for number in 0..if cfg!(miri) { 3_000 } else { 300_000 } {
        serials.push(reservations[number % 2].new_serial());
    }
    let count = serials.len();
    serials.sort_unstable();
    serials.dedup();
    assert_eq!(serials.len(), count);
}

#[test]
fn lock_returns_none_after_free() {
    let ledger = Ledger::default();
    ledger.reservations.insert(range(1, 1)).unwrap();
    let reservation = ledger.reservations.find(PAGE).unwrap();
    let guard = reservation.lock().unwrap();
    let waiting = {
        let reservation = reservation.clone();
        std::thread::spawn(move || reservation.lock().is_some())
    };
    ledger.reservations.remove(&guard);
    drop(guard);
    assert!(!waiting.join().unwrap());
    ledger.reservations.restore(reservation.clone());
    let (operation, failure) = (crate::error::Operation::Unmap, ErrorKind::OutOfDescriptors);
    let (address, size) = (Address::new(PAGE), PAGE);
    let reason = Quarantined { address, size, operation, failure, rollback: None };
    reservation.mark_quarantined(reason.into());
    assert!(reservation.lock().is_none() && reservation.quarantined().is_some());
}

#[test]
fn check_counts_mappings_after_a_panic() {
    let (ledger, handle) = three_mappings();
    let reservation = ledger.reservations.find(2 * PAGE).unwrap();
    let panics = || {
        let _guard = reservation.lock();
        std::panic::resume_unwind(Box::new("the caller's closure"))
    };
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
    ledger.handles.with(handle, |record| record.mappings += 1).unwrap();
    assert!(ledger.check().unwrap_err().contains("counts 4 mappings and has 3"));
}

#[test]
fn equal_access_is_stored_once() {
    let (ledger, _) = three_mappings();
    let reservation = ledger.reservations.find(2 * PAGE).unwrap();
    let mut mappings = reservation.mappings_mut();
    let used = |mappings: &Mappings| {
        let slots = mappings.access.slots.iter();
        slots.filter(|(_, mappings)| *mappings > 0).count()
    };
    for page in [2, 4, 6] {
        mappings.set_access(page * PAGE, &granted(1, Access::Read));
    }
    assert_eq!(used(&mappings), 1);
    mappings.set_access(4 * PAGE, &granted(2, Access::Read));
    assert_eq!(used(&mappings), 2);
    mappings.set_access(4 * PAGE, &AccessState::default());
    mappings.remove(2 * PAGE);
    assert_eq!(used(&mappings), 1);
    assert_eq!(mappings.at(6 * PAGE).unwrap().access.requested.get(1), Access::Read);
    mappings.remove(6 * PAGE);
    assert_eq!(used(&mappings), 0);
    mappings.set_access(4 * PAGE, &granted(3, Access::Read));
    assert_eq!(mappings.access.slots.len(), 2, "slots are used again");
}

/// Stores more distinct access states than there are slots.
#[test]
fn access_without_a_slot_is_stored() {
    let (mut mappings, agents) = (Mappings::default(), 9);
    let state = |bits: usize| {
        let agents = (0..agents).filter(|agent| bits & 1 << agent != 0);
        AccessState { runtime_granted: agents.collect(), ..AccessState::default() }
    };
    let count = 1 << agents;
    for number in 0..count {
        let (start, size, access) = ((number + 1) * PAGE, PAGE, state(number));
        let (handle, native, serial) = (Handle(1), NATIVE, number as u64);
        let (offset, owner) = (0, None);
        let it = MappedRange { start, size, handle, offset, serial, native, owner, access };
        mappings.insert(&it, None);
    }
    assert_eq!(mappings.access.others.len(), count - 1 - usize::from(AccessStates::MAX_SLOTS));
    assert_eq!(mappings.check(), Ok(()));
    assert!(mappings.iter().enumerate().all(|(number, it)| it.access == state(number)));
    for number in 0..count {
        mappings.set_access((number + 1) * PAGE, &state(0));
    }
    assert!(mappings.access.others.is_empty());
    assert_eq!(mappings.check(), Ok(()));
}

#[test]
fn names_belong_to_one_mapping() {
    let (ledger, _) = three_mappings();
    let reservation = ledger.reservations.find(2 * PAGE).unwrap();
    let mut mappings = reservation.mappings_mut();
    let serial = mappings.at(3 * PAGE).unwrap().serial;
    assert!(mappings.set_name(3 * PAGE, Some(serial), Some("weights".into())).is_ok());
    assert_eq!(mappings.name_of(serial).map(|name| &**name), Some("weights"));
    assert!(mappings.set_name(3 * PAGE, Some(serial + 9), None).is_err());
    assert!(mappings.set_name(5 * PAGE, None, None).is_err());
    mappings.remove(2 * PAGE);
    assert!(mappings.name_of(serial).is_none());
}

#[test]
fn check_finds_broken_invariants() {
    let broken = |damage: fn(&mut Mappings, Handle)| {
        let (ledger, handle) = three_mappings();
        assert_eq!(ledger.check(), Ok(()));
        let reservation = ledger.reservations.find(2 * PAGE).unwrap();
        damage(&mut reservation.mappings_mut(), handle);
        ledger.check().unwrap_err()
    };
    let found = broken(|it, _| it.entries.get_mut(&(2 * PAGE)).unwrap().size = 3 * PAGE);
    assert!(found.contains("overlaps"), "{found}");
    let found = broken(|it, _| it.entries.get_mut(&(4 * PAGE)).unwrap().size = PAGE - 1);
    assert!(found.contains("granule"), "{found}");
    let found = broken(|it, _| it.entries.get_mut(&(6 * PAGE)).unwrap().size = 3 * PAGE);
    assert!(found.contains("exceeds") || found.contains("reservation"), "{found}");
    let found = broken(|it, _| assert!(it.entries.remove(&(6 * PAGE)).is_some()));
    assert!(found.contains("counts 3 mappings and has 2"), "{found}");
    let found = broken(|it, _| {
        let serial = it.entries[&(4 * PAGE)].serial;
        it.entries.get_mut(&(2 * PAGE)).unwrap().serial = serial;
    });
    assert!(found.contains("twice"), "{found}");
    let found = broken(|it, _| it.entries.get_mut(&(2 * PAGE)).unwrap().handle = Handle(0));
    assert!(found.contains("no handle"), "{found}");
    let found = broken(|it, _| it.access.slots.push((granted(1, Access::Read), 1)));
    assert!(found.contains("stored access"), "{found}");
    let found =
        broken(|it, _| assert!(it.access.others.insert(99, granted(1, Access::Read)).is_none()));
    assert!(found.contains("stored access"), "{found}");
    let found = broken(|it, _| drop(it.names.insert(99, "lost".into())));
    assert!(found.contains("names no mapping"), "{found}");
    let (ledger, handle) = three_mappings();
    ledger.handles.with(handle, |record| record.mappings = 2).unwrap();
    let found = ledger.check().unwrap_err();
    assert!(found.contains("counts 2 mappings and has 3"), "{found}");
    // Inserts another reservation at addresses of the first while the first is removed, and restores the first.
    let (ledger, _) = three_mappings();
    let reservation = ledger.reservations.find(2 * PAGE).unwrap();
    ledger.reservations.remove(&reservation.lock().unwrap());
    ledger.reservations.insert(range(8, 4)).unwrap();
    ledger.reservations.restore(reservation);
    let found = ledger.check().unwrap_err();
    assert!(found.contains("the reservation at 0x8000 overlaps"), "{found}");
}

/// In debug builds, every change of a reservation's mappings checks them.
#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "names no mapping")]
fn debug_builds_check_changed_mappings() {
    let mut mappings = Mappings::default();
    mappings.names.insert(99, "lost".into());
    mappings.set_access(PAGE, &AccessState::default());
}

/// A step of a random sequence.
#[derive(Clone, Debug)]
enum Step {
    Map(usize, usize),
    Unmap(usize),
    Grant(usize, usize, Access),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let access = prop_oneof![Just(Access::None), Just(Access::Read), Just(Access::ReadWrite)];
    let step = prop_oneof![
        (1..30_usize, 1..4_usize).prop_map(|(first, pages)| Step::Map(first, pages)),
        (1..30_usize).prop_map(Step::Unmap),
        (1..30_usize, 0..3_usize, access)
            .prop_map(|(page, agent, access)| Step::Grant(page, agent, access)),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Compares the ledger with a model that has one entry for each page.
    #[test]
    fn mappings_match_a_model_of_pages(steps in steps()) {
        let ledger = Ledger::default();
        ledger.reservations.insert(range(1, 40)).unwrap();
        let handle = create(&ledger, 4);
        let mut pages: Vec<Option<(usize, AccessState)>> = vec![None; 41];
        for step in steps {
            match step {
                Step::Map(first, count) => {
                    let new = range(first, count);
                    let reservation = ledger.reservations.containing(new).unwrap();
                    let empty = reservation.mappings().check_empty(new, |_| false).is_ok();
                    prop_assert_eq!(empty, pages[first..first + count].iter().all(Option::is_none));
                    if empty {
                        map(&ledger, new, handle);
                        pages[first..first + count].fill(Some((first, AccessState::default())));
                    }
                }
                Step::Unmap(page) => {
                    if let Some((first, _)) = pages[page] {
                        unmap(&ledger, first * PAGE);
                        pages.iter_mut().filter(|it| it.is_some_and(|(start, _)| start == first))
                            .for_each(|it| *it = None);
                    }
                }
                Step::Grant(page, agent, access) => {
                    if let Some((first, _)) = pages[page] {
                        let state = granted(agent, access);
                        let reservation = ledger.reservations.find(first * PAGE).unwrap();
                        reservation.mappings_mut().set_access(first * PAGE, &state);
                        pages.iter_mut().flatten().filter(|(start, _)| *start == first)
                            .for_each(|it| it.1 = state);
                    }
                }
            }
            prop_assert_eq!(ledger.check(), Ok(()));
            let reservation = ledger.reservations.find(PAGE).unwrap();
            let mappings = reservation.mappings();
            for (page, expected) in pages.iter().enumerate().skip(1) {
                let found = mappings.at(page * PAGE + 1);
                let found = found.map(|it| (it.start / PAGE, it.access));
                prop_assert_eq!(found, *expected);
            }
        }
    }
}
