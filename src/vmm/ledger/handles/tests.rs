//! Handles: how long they are good, and what is said of those that are not.

use super::super::tests::{PAGE, ledger, map, problem, properties, range, unmap};
use super::super::*;
use super::*;

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
    assert_eq!(ledger.begin_release(handle), Ok(Some(slot)), "nothing else keeps it alive");
}

#[test]
fn handles_end_when_names_run_out() {
    let (mut ledger, first) = ledger();
    let add = |ledger: &mut Ledger<(), ()>| ledger.add_handle(PAGE, PAGE, properties(), ());
    ledger.handles.most = 2;
    let second = add(&mut ledger).expect("there may be two");
    assert_eq!(add(&mut ledger), None);
    assert_eq!(ledger.counts().1, 2);
    let end = |ledger: &mut Ledger<(), ()>, handle| {
        let slot = ledger.begin_release(handle).unwrap().unwrap();
        ledger.forget(slot).unwrap();
    };
    end(&mut ledger, first);
    ledger.handles.slots[second.slot()].generation = Handle::LAST_GENERATION;
    let last = Handle::pack(7, Handle::LAST_GENERATION, second.slot() as u32);
    end(&mut ledger, last);
    let again = add(&mut ledger).expect("the first slot is free");
    assert_eq!(again.slot(), first.slot());
    assert_eq!(add(&mut ledger), None, "the other has been through all its generations");
}
