//! When the last `Vmm` is dropped, the library logs leaked reservations and memory with their names.

use super::*;
use hsa_vmm::hsa_sys::HSA_STATUS_ERROR;
use hsa_vmm::simulation::FaultPlan;
use hsa_vmm::vmm::RetireQueue;
use hsa_vmm::{Allocation, Reservation};
use log::{Fields, subscribe};
use std::cell::RefCell;
use tracing::{Level, Metadata};

thread_local! {
    static EVENTS: RefCell<Vec<Fields>> = const { RefCell::new(Vec::new()) };
}

/// Calls a function, and returns the warnings that this thread logs during the call.
fn warnings(function: impl FnOnce()) -> Vec<Fields> {
    let is_warning = |metadata: &Metadata<'_>| {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("hsa_vmm")
    };
    subscribe(is_warning, |fields| EVENTS.with_borrow_mut(|events| events.push(fields)));
    EVENTS.take();
    function();
    EVENTS.take()
}

#[test]
fn leaks_are_logged_by_name() {
    let logged = warnings(|| {
        let machine = machine();
        let (base, handles) = map_granules(&machine, 2, &[0]);
        machine.vmm.name_reservation(base, "kv cache").unwrap();
        machine.vmm.name_handle(handles[0], "page 0").unwrap();
        // No handle refers to this memory, so the library reports only its reservation as leaked.
        let (_, unnamed) = map_granules(&machine, 1, &[0]);
        machine.vmm.release(unnamed[0]).unwrap();
        machine.close();
    });
    let is_leak = |(field, value): &(&str, String)| *field == "message" && value.contains("leaked");
    let leaks: Vec<_> = logged.iter().filter(|fields| fields.iter().any(is_leak)).collect();
    assert_eq!(leaks.len(), 3, "{logged:?}");
    let assert_one = |message: &str, fields: &[(&'static str, &str)]| {
        let expected: Fields = [&[("message", message)], fields]
            .concat()
            .into_iter()
            .map(|(field, value)| (field, value.to_owned()))
            .collect();
        let matches = |leak: &&&Fields| expected.iter().all(|field| leak.contains(field));
        assert_eq!(leaks.iter().filter(matches).count(), 1, "{expected:?} in {leaks:?}");
    };
    let leaked_reservation = "a reservation was leaked";
    let [one_granule, two_granules] = [1, 2].map(|count| (count * GRANULE).to_string());
    assert_one(
        leaked_reservation,
        &[("name", "kv cache"), ("mappings", "1"), ("size", two_granules.as_str())],
    );
    assert_one("physical memory was leaked", &[("name", "page 0"), ("references", "1")]);
    assert_one(
        leaked_reservation,
        &[("name", ""), ("mappings", "1"), ("size", one_granule.as_str())],
    );
}

#[test]
fn owned_values_are_not_logged_as_leaks() {
    let logged = warnings(|| {
        let machine = machine();
        let reservation = Reservation::builder(GRANULE).reserve(&machine.vmm).unwrap();
        let memory = Allocation::create(&machine.vmm, GRANULE, &machine.shareable_on(0)).unwrap();
        let mapping = reservation.map(0, &memory).unwrap();
        // The mapping is the last value that uses the runtime.
        drop((reservation, memory, machine));
        drop(mapping);
    });
    assert!(logged.is_empty(), "{logged:?}");
}

#[test]
fn quarantined_mappings_are_not_logged_as_leaks() {
    let logged = warnings(|| {
        let machine = machine();
        let (base, handles) = map_granules(&machine, 1, &[0]);
        machine.vmm.release(handles[0]).unwrap();
        let queue = RetireQueue::builder(1).without_thread().open(&machine.vmm).unwrap();
        let plan = FaultPlan::none().always("hsa_amd_vmem_unmap", HSA_STATUS_ERROR);
        machine.simulation.set_faults(plan);
        // SAFETY: no agent uses the range, and there are no signals that could be destroyed too early.
        unsafe { queue.submit_range(base, GRANULE, &[]) }.unwrap();
        assert!(queue.poll().unwrap().failures[0].quarantined);
        drop((queue, machine));
    });
    let names_a_leak = |fields: &Fields| fields.iter().any(|(_, value)| value.contains("leaked"));
    assert!(!logged.iter().any(names_a_leak), "{logged:?}");
}
