//! Leaks are logged by name.

use super::*;
use hsa_vmm::{Allocation, Reservation};
use log::{Fields, watch};
use std::cell::RefCell;
use tracing::{Level, Metadata};

thread_local! {
    static SEEN: RefCell<Vec<Fields>> = const { RefCell::new(Vec::new()) };
}

/// Returns the warnings of this thread during a function.
fn warnings(act: impl FnOnce()) -> Vec<Fields> {
    let wants = |metadata: &Metadata<'_>| {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("hsa_vmm")
    };
    watch(wants, |fields| SEEN.with_borrow_mut(|seen| seen.push(fields)));
    SEEN.take();
    act();
    SEEN.take()
}

#[test]
fn leaks_are_logged_by_name() {
    let seen = warnings(|| {
        let machine = machine();
        let (base, handles) = cache(&machine, 2, &[0]);
        machine.vmm.name_reservation(base, "kv cache").unwrap();
        machine.vmm.name_handle(handles[0], "page 0").unwrap();
        // This memory is only mapped: it is released with its reservation.
        let (_, others) = cache(&machine, 1, &[0]);
        machine.vmm.release(others[0]).unwrap();
        machine.close();
    });
    let is_leak = |(field, value): &(&str, String)| *field == "message" && value.contains("leaked");
    let leaks: Vec<_> = seen.iter().filter(|fields| fields.iter().any(is_leak)).collect();
    assert_eq!(leaks.len(), 3, "{seen:?}");
    let one = |message: &str, facts: &[(&'static str, &str)]| {
        let facts: Fields = [&[("message", message)], facts]
            .concat()
            .into_iter()
            .map(|(field, value)| (field, value.to_owned()))
            .collect();
        let all = |leak: &&&Fields| facts.iter().all(|fact| leak.contains(fact));
        assert_eq!(leaks.iter().filter(all).count(), 1, "{facts:?} in {leaks:?}");
    };
    let reservation = "a reservation was leaked";
    one(reservation, &[("name", "kv cache"), ("mappings", "1"), ("size", "4194304")]);
    one("physical memory was leaked", &[("name", "page 0"), ("references", "1")]);
    one(reservation, &[("name", ""), ("mappings", "1"), ("size", "2097152")]);
}

#[test]
fn owned_values_are_not_logged_as_leaks() {
    let seen = warnings(|| {
        let machine = machine();
        let reservation = Reservation::builder(GRANULE).reserve(&machine.vmm).unwrap();
        let memory = Allocation::create(&machine.vmm, GRANULE, &machine.on(0)).unwrap();
        let mapping = reservation.map(0, &memory).unwrap();
        // The last of them ends the library's use of the runtime.
        drop((reservation, memory, machine));
        drop(mapping);
    });
    assert!(seen.is_empty(), "{seen:?}");
}
