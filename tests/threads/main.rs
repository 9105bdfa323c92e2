//! Operations of concurrent threads are atomic, do not deadlock, and do not wait for operations on other reservations.

#[path = "../hostile/mod.rs"]
mod hostile;
#[path = "../machine/mod.rs"]
mod machine;
#[path = "../process/mod.rs"]
mod process;
mod races;
mod waiting;

use hsa_vmm::simulation::{Config, Generation};
use hsa_vmm::vmm::VmmOptions;
use hsa_vmm::{Access, Address, Allocation, Handle, HandleType, Reservation, Runtime, Vmm};
use machine::{Library, Machine, access, at, without_cpu_mapping};
use process::within;
use std::time::Duration;

const TIME_LIMIT: Duration = Duration::from_secs(60);
const DESCRIPTOR: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;

/// Frees everything that the threads have left. Ignores handles that a thread has released.
fn free_everything(machine: &Machine, handles: &[Handle]) {
    let vmm = &machine.vmm;
    for mapping in vmm.mappings() {
        vmm.unmap(mapping.address, mapping.size).unwrap();
    }
    for &handle in handles {
        let _ = vmm.release(handle);
    }
    for (address, size) in vmm.reservations() {
        vmm.address_free(address, size).unwrap();
    }
    machine.assert_empty();
}

/// Runs a full cycle of operations, from reserving to freeing, with contents that identify the thread.
fn run_full_cycle(machine: &Machine, number: u8) {
    let vmm = &machine.vmm;
    let granule = machine.granule();
    let [cpu, gpu, peer] = [machine.cpu(0), machine.gpu(0), machine.gpu(1)];
    let base = machine.reserve(3 * granule);
    let handle = machine.create(0, granule);
    machine.map(base, granule, handle);
    machine.map(at(base, 2 * granule), granule, handle);
    let both = [access(cpu, Access::ReadWrite), access(gpu, Access::ReadWrite)];
    vmm.set_access(base, granule, &both).unwrap();
    vmm.write(base, &[number; 64]).unwrap();
    vmm.copy(gpu, at(base, 64), base, 64).unwrap();
    vmm.fill(at(base, 128), u32::from_ne_bytes([number; 4]), 64).unwrap();
    machine.grant(base, granule, peer, Access::Read);
    let shared = vmm.export_to_shareable_handle(handle, DESCRIPTOR).unwrap();
    let imported = vmm.import_from_shareable_handle(shared, DESCRIPTOR).unwrap();
    machine.map(at(base, granule), granule, imported);
    machine.grant(at(base, granule), granule, cpu, Access::Read);
    vmm.revoke(base, granule, &[gpu]).unwrap();
    machine.grant(at(base, 2 * granule), granule, cpu, Access::Read);
    for index in 0..3 {
        let mut bytes = [0; 192];
        vmm.read(at(base, index * granule), &mut bytes).unwrap();
        assert_eq!(bytes, [number; 192], "granule {index}");
    }
    assert_eq!(vmm.retain_allocation_handle(base), Ok(handle));
    vmm.release(handle).unwrap();
    vmm.release(imported).unwrap();
    vmm.unmap(base, 3 * granule).unwrap();
    vmm.release(handle).unwrap();
    vmm.address_free(base, 3 * granule).unwrap();
}

#[test]
fn threads_run_full_cycles_on_one_vmm() {
    within(TIME_LIMIT, || {
        for (generation, config) in machine::generations() {
            for config in [config.clone(), without_cpu_mapping(config)] {
                // In generation A, the runtime leaves address-space holes, in which other threads can reserve
                // addresses.
                if config.generation == Generation::A && !config.dmabuf_cpu_mapping {
                    continue;
                }
                let machine = Machine::new(config);
                std::thread::scope(|scope| {
                    for number in 1..=8 {
                        let machine = &machine;
                        scope.spawn(move || (0..20).for_each(|_| run_full_cycle(machine, number)));
                    }
                });
                assert_eq!(machine.vmm.quarantined_ranges(), [], "{generation}");
                machine.assert_empty();
            }
        }
    });
}

/// Like AMD's runtime, the simulation takes no lock in some calls. If a call overlaps one of these calls, the
/// simulation aborts the process.
#[test]
fn vmms_and_runtimes_share_a_simulation() {
    within(TIME_LIMIT, || {
        for (_, config) in machine::generations() {
            let machine = Machine::new(config);
            let simulation = machine.simulation.clone();
            let runtime = Runtime::simulated_by(simulation.clone()).unwrap();
            let options = VmmOptions::default();
            let on_same_runtime = Library::open(machine.runtime.clone(), options);
            let on_second_runtime = Library::open(runtime, options);
            let others = [on_same_runtime, on_second_runtime]
                .map(|library| Machine { simulation: simulation.clone(), library });
            std::thread::scope(|scope| {
                for number in 1..=6 {
                    let all = [&machine, &others[0], &others[1]];
                    let chosen = all[number as usize % 3];
                    scope.spawn(move || (0..50).for_each(|_| run_full_cycle(chosen, number)));
                }
            });
            others.iter().for_each(|machine| machine.assert_everything_freed());
            machine.assert_empty();
        }
    });
}

#[test]
fn owned_values_drop_on_any_thread() {
    within(TIME_LIMIT, || {
        let machine = Machine::new(Config::mi300x(2));
        let granule = machine.granule();
        let reservation = Reservation::builder(8 * granule).reserve(&machine.vmm).unwrap();
        let memory = Allocation::create(&machine.vmm, granule, &machine.shareable_on(0)).unwrap();
        std::thread::scope(|scope| {
            for number in 0..8 {
                let (reservation, memory) = (reservation.clone(), memory.clone());
                let cpu = machine.cpu(0);
                scope.spawn(move || {
                    for _ in 0..50 {
                        let mapping = reservation.map(number * granule, &memory).unwrap();
                        mapping.grant(&[cpu], Access::ReadWrite).unwrap();
                        mapping.write(number * 8, &[number as u8 + 1; 8]).unwrap();
                        let mut bytes = [0; 8];
                        mapping.read(number * 8, &mut bytes).unwrap();
                        assert_eq!(bytes, [number as u8 + 1; 8]);
                    }
                });
            }
            drop((reservation, memory));
        });
        machine.assert_empty();
    });
}

#[test]
fn several_vmms_share_a_runtime() {
    within(TIME_LIMIT, || {
        let machine = Machine::new(Config::mi300x(2));
        let granule = machine.granule();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..30 {
                        let vmm = Vmm::open(&machine.runtime).unwrap();
                        let base: Address = vmm.address_reserve(granule, 0, None).unwrap();
                        let handle = vmm.create(granule, &machine.shareable_on(0)).unwrap();
                        vmm.map(base, granule, 0, handle).unwrap();
                        // The `Vmm` frees everything when it is dropped.
                    }
                });
            }
        });
        machine.assert_empty();
    });
}
