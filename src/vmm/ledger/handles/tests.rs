//! Handles: how long they are good, and what is said of those that are not.

use super::super::tests::{PAGE, ledger, map, problem, properties, range, unmap};
use super::super::*;
use super::*;

fn release(ledger: &Ledger<()>, handle: Handle) -> Result<Option<u32>, Refusal> {
    Ok(ledger.handles.begin_release(handle, |_| ())?.map(|(slot, ())| slot))
}

#[test]
fn every_slot_has_a_place_of_its_own() {
    let mut expected = (0, 0);
    for slot in 0..if cfg!(miri) { 4 } else { 256 } * FIRST {
        assert_eq!(place(slot), expected, "{slot}");
        expected = match expected {
            (part, last) if last + 1 == FIRST << part => (part + 1, 0),
            (part, at) => (part, at + 1),
        };
    }
    assert_eq!(place(Handle::SLOTS - 1).0, PARTS - 1, "there is a part for the last");
}

#[test]
fn many_handles_are_told_apart() {
    let (ledger, first) = ledger();
    let many = if cfg!(miri) { 100 } else { 1000 };
    let add = |pages| ledger.handles.add(pages * PAGE, PAGE, properties(), ()).unwrap();
    let all: Vec<_> = (5..many).map(add).collect();
    assert_eq!(ledger.handles.with(first, |record| record.size), Ok(4 * PAGE));
    for (handle, pages) in all.iter().zip(5..) {
        assert_eq!(ledger.handles.with(*handle, |record| record.size), Ok(pages * PAGE));
    }
    assert_eq!(ledger.check(), Ok(()));
}

#[test]
fn memory_lives_while_it_is_referenced_or_mapped() {
    let (ledger, handle) = ledger();
    let base = 1 << 20;
    map(&ledger, range(base, PAGE), handle).unwrap();
    assert_eq!(release(&ledger, handle), Ok(None), "the mapping keeps it alive");
    let released = (Argument::Handle, Problem::Released);
    assert_eq!(problem(release(&ledger, handle)), released);
    assert_eq!(problem(map(&ledger, range(base + PAGE, PAGE), handle)), released);
    assert_eq!(ledger.retain(base + 17), Ok(handle), "a mapping can be retained from inside");
    assert!(map(&ledger, range(base + PAGE, PAGE), handle).is_ok());
    assert!(!unmap(&ledger, base + PAGE));
    assert_eq!(release(&ledger, handle), Ok(None));
    assert!(unmap(&ledger, base), "the last mapping of a released handle ends it");
    assert_eq!(problem(ledger.handles.with(handle, |_| ())), released);
    assert_eq!(ledger.counts(), (1, 0, 0));
}

#[test]
fn what_is_used_lives_until_the_last_use_has_ended() {
    let (ledger, handle) = ledger();
    let begin = || ledger.handles.begin_use(handle, |record| Ok(record.size)).unwrap();
    let (slot, size) = begin();
    assert_eq!((begin().0, size), (slot, 4 * PAGE));
    assert_eq!(release(&ledger, handle), Ok(None), "it is in use");
    assert_eq!(ledger.check(), Ok(()));
    assert!(ledger.handles.end_use(slot).is_none(), "once more");
    assert_eq!(ledger.handles.end_use(slot).map(|record| record.size), Some(4 * PAGE));
    assert_eq!((ledger.counts(), ledger.check()), ((1, 0, 0), Ok(())));
    // What the caller does not find good is not used.
    let handle = ledger.handles.add(PAGE, PAGE, properties(), ()).unwrap();
    let bad = Refusal::new(Argument::Flags, Problem::Zero);
    assert_eq!(ledger.handles.begin_use(handle, |_| Err::<(), _>(bad)), Err(bad));
    assert!(release(&ledger, handle).unwrap().is_some(), "nothing uses it");
}

#[test]
fn either_order_ends_the_same() {
    let base = 1 << 20;
    let [unmapped_first, released_first] = [true, false].map(|unmap_first| {
        let (ledger, handle) = ledger();
        map(&ledger, range(base, PAGE), handle).unwrap();
        if unmap_first {
            assert!(!unmap(&ledger, base), "a reference is left");
            let slot = release(&ledger, handle).unwrap().expect("it was the last");
            assert!(ledger.handles.forget(slot).is_some());
        } else {
            assert_eq!(release(&ledger, handle), Ok(None));
            assert!(unmap(&ledger, base), "it was the last");
        }
        assert_eq!(ledger.check(), Ok(()));
        let problem = problem(ledger.handles.with(handle, |_| ()));
        let counts = ledger.counts();
        let stock = lock(&ledger.handles.stock);
        (problem, counts, stock.free.clone(), stock.used)
    });
    assert_eq!(unmapped_first, released_first);
}

#[test]
fn handles_are_refused_when_stale_foreign_or_invented() {
    let (ledger, first) = ledger();
    let slot = release(&ledger, first).unwrap().unwrap();
    ledger.handles.forget(slot);
    let second = ledger.handles.add(PAGE, PAGE, properties(), ()).unwrap();
    assert_eq!(first.slot(), second.slot(), "the slot is used again");
    let what = |handle| problem(ledger.handles.with(handle, |_| ())).1;
    assert_eq!(what(first), Problem::Released);
    assert_eq!(what(Handle::from_bits(0)), Problem::NoHandle);
    let (_other, theirs) = self::ledger();
    assert_eq!(what(theirs), Problem::ForeignHandle);
    assert_eq!(what(Handle::pack(Handle::NUMBERS - 1, 0)), Problem::UnknownHandle);
    assert_eq!(what(Handle::pack(0, 1)), Problem::UnknownHandle);
    assert_eq!(what(Handle::pack(second.number(), 1)), Problem::UnknownHandle);
    assert!(ledger.handles.with(second, |_| ()).is_ok());
}

#[test]
fn a_release_that_failed_below_can_be_taken_back() {
    let (ledger, handle) = ledger();
    let slot = release(&ledger, handle).unwrap().unwrap();
    assert!(
        ledger.handles.with(handle, |_| ()).is_err(),
        "nobody may use it while it is being given back"
    );
    ledger.handles.unrelease(slot);
    assert!(ledger.handles.with(handle, |_| ()).is_ok());
    assert_eq!(release(&ledger, handle), Ok(Some(slot)), "nothing else keeps it alive");
}

#[test]
fn handles_end_when_names_run_out() {
    let (ledger, first) = ledger();
    let add = |ledger: &Ledger<()>| ledger.handles.add(PAGE, PAGE, properties(), ());
    lock(&ledger.handles.stock).most = 2;
    let second = add(&ledger).expect("there may be two");
    assert_eq!(add(&ledger), None);
    assert_eq!(ledger.counts().1, 2);
    let end = |ledger: &Ledger<()>, handle| {
        let slot = release(ledger, handle).unwrap().unwrap();
        ledger.handles.forget(slot).unwrap();
    };
    end(&ledger, second);
    let again = add(&ledger).expect("a slot is free");
    assert_eq!(again.slot(), second.slot());
    assert!(again != second && again != first);
}
