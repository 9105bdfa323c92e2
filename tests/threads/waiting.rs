//! Waiting: no deadlocks, and no waits for operations on other reservations.

use super::{PATIENCE, sweep};
use crate::hostile::Hostile;
use crate::machine::{Machine, at};
use crate::process::within;
use hsa_vmm::simulation::Config;
use hsa_vmm::vmm::VmmOptions;
use hsa_vmm::{Access, AccessDescriptor, AllocationProperties, Reservation, Vmm};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn opposite_copies_do_not_deadlock() {
    within(PATIENCE, || {
        let machine = Machine::new(Config::mi300x(2));
        let granule = machine.granule();
        let handle = machine.create(0, granule);
        let places = [machine.reserve(granule), machine.reserve(granule)];
        for place in places {
            machine.map(place, granule, handle);
            machine.grant(place, granule, machine.gpu(0), Access::ReadWrite);
        }
        std::thread::scope(|scope| {
            for [from, to] in [places, [places[1], places[0]], [places[0], places[0]]] {
                let machine = &machine;
                scope.spawn(move || {
                    for _ in 0..100 {
                        machine.vmm.copy(machine.gpu(0), at(to, 128), from, 64).unwrap();
                    }
                });
            }
        });
        sweep(&machine, &[handle]);
    });
}

#[test]
fn copy_survives_merged_reservations() {
    within(PATIENCE, || {
        let machine = Machine::new(Config::mi300x(1));
        let granule = machine.granule();
        let both = machine.reserve(2 * granule);
        machine.vmm.address_free(both, 2 * granule).unwrap();
        let over = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while over.load(Ordering::Relaxed) == 0 {
                    // Nothing is granted there; the call only has to return.
                    let copied = machine.vmm.copy(machine.gpu(0), both, at(both, granule), 8);
                    copied.expect_err("nothing is mapped");
                }
            });
            for _ in 0..300 {
                let one = Reservation::builder(2 * granule).exactly_at(both).reserve(&machine.vmm);
                drop(one);
                let low = Reservation::builder(granule).exactly_at(both).reserve(&machine.vmm);
                let high = Reservation::builder(granule).exactly_at(at(both, granule));
                drop((low, high.reserve(&machine.vmm)));
            }
            over.store(1, Ordering::Relaxed);
        });
        machine.assert_empty();
    });
}

#[test]
fn operations_on_different_reservations_overlap() {
    within(PATIENCE, || {
        let hostile = Hostile::new();
        let (_runtime, vmm, gpu) = hostile.open();
        let properties = AllocationProperties::on(gpu);
        let places = [(); 4].map(|()| vmm.address_reserve(4096, 0, None).unwrap());
        let handles = [(); 4].map(|()| vmm.create(4096, &properties).unwrap());
        // Each call waits inside the runtime until all four are there, or a time limit.
        hostile.set(c"hostile_meet", 4);
        std::thread::scope(|scope| {
            for (place, handle) in places.into_iter().zip(handles) {
                let vmm = &vmm;
                scope.spawn(move || vmm.map(place, 4096, 0, handle).unwrap());
            }
        });
        assert_eq!(hostile.get(c"hostile_met"), 4);
    });
}

#[test]
fn look_ups_run_during_runtime_calls() {
    within(PATIENCE, || {
        let hostile = Hostile::new();
        let (runtime, vmm, gpu) = hostile.open();
        let properties = AllocationProperties::on(gpu);
        let place = vmm.address_reserve(2 * 4096, 0, None).unwrap();
        let other = vmm.address_reserve(4096, 0, None).unwrap();
        let handle = vmm.create(4096, &properties).unwrap();
        vmm.map(at(place, 4096), 4096, 0, handle).unwrap();
        hostile.set(c"hostile_meet", 2);
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| vmm.map(place, 4096, 0, handle));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!slow.is_finished());
            assert_eq!(vmm.usage().mappings, 1);
            assert_eq!(vmm.get_access(gpu, at(place, 4096)), Ok(Access::None));
            assert_eq!(vmm.allocation_size(handle), Ok(4096));
            assert_eq!(vmm.retain_allocation_handle(at(place, 4096)), Ok(handle));
            assert_eq!(vmm.mappings().len(), 1);
            assert_eq!(runtime.agents().len(), 2);
            // The operation on another reservation lets the first one continue.
            vmm.map(other, 4096, 0, handle).unwrap();
            slow.join().unwrap().unwrap();
        });
        assert_eq!(hostile.get(c"hostile_met"), 2);
        assert_eq!(vmm.usage().mappings, 3);
    });
}

/// Granting the CPU access exports the memory. Where the runtime locks exports itself, the library
/// does not wait for calls on other reservations.
#[test]
fn locked_exports_overlap_maps() {
    within(PATIENCE, || {
        let hostile = Hostile::new();
        let (runtime, vmm, gpu) = hostile.open();
        let mut quirks = vmm.quirks();
        quirks.some_calls_take_no_lock = false;
        // SAFETY: the hostile runtime locks all of its calls itself.
        let options = unsafe { VmmOptions::new().with_exact_quirks(quirks) };
        let vmm = Vmm::open_with(&runtime, options).unwrap();
        let properties = AllocationProperties::on(gpu);
        let places = [(); 3].map(|()| vmm.address_reserve(4096, 0, None).unwrap());
        let handle = vmm.create(4096, &properties).unwrap();
        vmm.map(places[0], 4096, 0, handle).unwrap();
        hostile.set(c"hostile_meet", 2);
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| vmm.map(places[1], 4096, 0, handle));
            std::thread::sleep(Duration::from_millis(50));
            let access = Access::ReadWrite;
            let cpu = AccessDescriptor { agent: runtime.host().id(), access };
            vmm.set_access(places[0], 4096, &[cpu]).unwrap();
            assert!(!slow.is_finished(), "it was waited for");
            vmm.map(places[2], 4096, 0, handle).unwrap();
            slow.join().unwrap().unwrap();
        });
        assert_eq!(hostile.get(c"hostile_met"), 2);
        vmm.write(places[0], b"seen").unwrap();
    });
}
