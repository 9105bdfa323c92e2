//! Operations do not deadlock, and do not wait for operations on other reservations.

use super::{TIME_LIMIT, free_everything};
use crate::hostile::HostileRuntime;
use crate::machine::{Machine, at};
use crate::process::within;
use hsa_vmm::simulation::Config;
use hsa_vmm::vmm::VmmOptions;
use hsa_vmm::{Access, AccessDescriptor, AllocationProperties, Reservation, Vmm};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn opposite_copies_do_not_deadlock() {
    within(TIME_LIMIT, || {
        let machine = Machine::new(Config::mi300x(2));
        let granule = machine.granule();
        let handle = machine.create(0, granule);
        let bases = [machine.reserve(granule), machine.reserve(granule)];
        for base in bases {
            machine.map(base, granule, handle);
            machine.grant(base, granule, machine.gpu(0), Access::ReadWrite);
        }
        std::thread::scope(|scope| {
            for [source, target] in [bases, [bases[1], bases[0]], [bases[0], bases[0]]] {
                let machine = &machine;
                scope.spawn(move || {
                    for _ in 0..100 {
                        machine.vmm.copy(machine.gpu(0), at(target, 128), source, 64).unwrap();
                    }
                });
            }
        });
        free_everything(&machine, &[handle]);
    });
}

#[test]
fn copy_returns_while_reservations_change() {
    within(TIME_LIMIT, || {
        let machine = Machine::new(Config::mi300x(1));
        let granule = machine.granule();
        let base = machine.reserve(2 * granule);
        machine.vmm.address_free(base, 2 * granule).unwrap();
        let ended = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while ended.load(Ordering::Relaxed) == 0 {
                    // The call fails, because nothing is mapped, but must not hang.
                    let copied = machine.vmm.copy(machine.gpu(0), base, at(base, granule), 8);
                    copied.expect_err("nothing is mapped");
                }
            });
            for _ in 0..300 {
                let whole =
                    Reservation::builder(2 * granule).exactly_at(base).reserve(&machine.vmm);
                drop(whole);
                let low = Reservation::builder(granule).exactly_at(base).reserve(&machine.vmm);
                let high = Reservation::builder(granule).exactly_at(at(base, granule));
                drop((low, high.reserve(&machine.vmm)));
            }
            ended.store(1, Ordering::Relaxed);
        });
        machine.assert_empty();
    });
}

#[test]
fn operations_on_different_reservations_overlap() {
    within(TIME_LIMIT, || {
        let hostile = HostileRuntime::new();
        let (_runtime, vmm, gpu) = hostile.open();
        let properties = AllocationProperties::on(gpu);
        let bases = [(); 4].map(|()| vmm.address_reserve(4096, 0, None).unwrap());
        let handles = [(); 4].map(|()| vmm.create(4096, &properties).unwrap());
        // Each call of `map` waits in the runtime until four calls have arrived, or until a time limit.
        hostile.set(c"hostile_meet", 4);
        std::thread::scope(|scope| {
            for (base, handle) in bases.into_iter().zip(handles) {
                let vmm = &vmm;
                scope.spawn(move || vmm.map(base, 4096, 0, handle).unwrap());
            }
        });
        assert_eq!(hostile.get(c"hostile_met"), 4);
    });
}

#[test]
fn look_ups_run_during_runtime_calls() {
    within(TIME_LIMIT, || {
        let hostile = HostileRuntime::new();
        let (runtime, vmm, gpu) = hostile.open();
        let properties = AllocationProperties::on(gpu);
        let base = vmm.address_reserve(2 * 4096, 0, None).unwrap();
        let second_base = vmm.address_reserve(4096, 0, None).unwrap();
        let handle = vmm.create(4096, &properties).unwrap();
        vmm.map(at(base, 4096), 4096, 0, handle).unwrap();
        hostile.set(c"hostile_meet", 2);
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| vmm.map(base, 4096, 0, handle));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!slow.is_finished());
            assert_eq!(vmm.usage().mappings, 1);
            assert_eq!(vmm.get_access(gpu, at(base, 4096)), Ok(Access::None));
            assert_eq!(vmm.allocation_size(handle), Ok(4096));
            assert_eq!(vmm.retain_allocation_handle(at(base, 4096)), Ok(handle));
            assert_eq!(vmm.mappings().len(), 1);
            assert_eq!(runtime.agents().len(), 2);
            // The first call of `map` continues once this second call has begun.
            vmm.map(second_base, 4096, 0, handle).unwrap();
            slow.join().unwrap().unwrap();
        });
        assert_eq!(hostile.get(c"hostile_met"), 2);
        assert_eq!(vmm.usage().mappings, 3);
    });
}

/// To grant the CPU access, the library exports the memory. If the runtime itself takes a lock in exports, the grant
/// does not wait for calls on other reservations.
#[test]
fn exports_overlap_maps_if_the_runtime_locks() {
    within(TIME_LIMIT, || {
        let hostile = HostileRuntime::new();
        let (runtime, vmm, gpu) = hostile.open();
        let mut quirks = vmm.quirks();
        quirks.some_calls_take_no_lock = false;
        // SAFETY: the omitted quirk is not needed: in the hostile runtime, exports and other calls may overlap.
        let options = unsafe { VmmOptions::new().with_exact_quirks(quirks) };
        let vmm = Vmm::open_with(&runtime, options).unwrap();
        let properties = AllocationProperties::on(gpu);
        let bases = [(); 3].map(|()| vmm.address_reserve(4096, 0, None).unwrap());
        let handle = vmm.create(4096, &properties).unwrap();
        vmm.map(bases[0], 4096, 0, handle).unwrap();
        hostile.set(c"hostile_meet", 2);
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| vmm.map(bases[1], 4096, 0, handle));
            std::thread::sleep(Duration::from_millis(50));
            let access = Access::ReadWrite;
            let cpu = AccessDescriptor { agent: runtime.host().id(), access };
            vmm.set_access(bases[0], 4096, &[cpu]).unwrap();
            assert!(!slow.is_finished(), "the grant has waited for the map");
            vmm.map(bases[2], 4096, 0, handle).unwrap();
            slow.join().unwrap().unwrap();
        });
        assert_eq!(hostile.get(c"hostile_met"), 2);
        vmm.write(bases[0], b"seen").unwrap();
    });
}
