//! Many threads at once: each operation is as if it were alone, those on different reservations
//! do not wait for each other, and none waits for ever.

mod hostile;
mod machine;
mod process;

use hostile::Hostile;
use hsa_vmm::simulation::{Config, Era};
use hsa_vmm::vmm::Problem;
use hsa_vmm::{
    Access, AccessDescriptor, Address, Allocation, AllocationProperties, Handle, HandleType,
    Reservation, Vmm, VmmError,
};
use machine::{Machine, access, at, without_cpu_mapping};
use process::within;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const FILE: HandleType = HandleType::PosixFileDescriptor;

/// A whole life, told apart by its number.
fn life(machine: &Machine, number: u8) {
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
    let shared = vmm.export_to_shareable_handle(handle, FILE, 0).unwrap();
    let imported = vmm.import_from_shareable_handle(shared, FILE).unwrap();
    machine.map(at(base, granule), granule, imported);
    machine.grant(at(base, granule), granule, cpu, Access::Read);
    vmm.revoke(base, granule, &[gpu]).unwrap();
    machine.grant(at(base, 2 * granule), granule, cpu, Access::Read);
    for place in 0..3 {
        let mut bytes = [0; 192];
        vmm.read(at(base, place * granule), &mut bytes).unwrap();
        assert_eq!(bytes, [number; 192], "at {place}");
    }
    assert_eq!(vmm.retain_allocation_handle(base), Ok(handle));
    vmm.release(handle).unwrap();
    vmm.release(imported).unwrap();
    vmm.unmap(base, 3 * granule).unwrap();
    vmm.release(handle).unwrap();
    vmm.address_free(base, 3 * granule).unwrap();
}

#[test]
fn many_threads_live_whole_lives_on_one_vmm() {
    within(PATIENCE, || {
        for (era, config) in machine::eras() {
            for config in [config.clone(), without_cpu_mapping(config)] {
                // A stranger could come in where the runtime leaves holes, and here it does: the
                // other threads reserve addresses.
                let holes = config.era == Era::A && !config.dmabuf_cpu_mapping;
                let machine = Machine::new(config);
                if holes {
                    continue;
                }
                std::thread::scope(|scope| {
                    for number in 1..=8 {
                        let machine = &machine;
                        scope.spawn(move || (0..20).for_each(|_| life(machine, number)));
                    }
                });
                assert_eq!(machine.vmm.quarantine(), [], "{era}");
                machine.assert_empty();
            }
        }
    });
}

/// What may happen to an operation whose reservation is being freed, unmapped or mapped.
#[track_caller]
fn assert_documented(answer: Result<(), VmmError>) -> bool {
    match answer {
        Ok(()) => true,
        Err(error) => {
            let problem = error.problem().unwrap_or_else(|| panic!("{error}"));
            let expected = matches!(
                problem,
                Problem::NotReserved
                    | Problem::NotAReservation
                    | Problem::StillMapped { .. }
                    | Problem::AlreadyMapped { .. }
                    | Problem::NotMapped { .. }
                    | Problem::Released
                    | Problem::NotGranted { .. }
            );
            assert!(expected, "{error}");
            false
        }
    }
}

/// Runs two things at the same time, over and over.
fn race(machine: &Machine, rounds: usize, round: impl Fn() -> (Act, Act)) {
    for _ in 0..rounds {
        let (one, other) = round();
        let barrier = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                one(machine);
            });
            barrier.wait();
            other(machine);
        });
        machine.vmm.check().unwrap();
    }
}

type Act = Box<dyn FnOnce(&Machine) + Send>;

fn act(what: impl FnOnce(&Machine) + Send + 'static) -> Act {
    Box::new(what)
}

/// Everything gone, whichever won.
fn sweep(machine: &Machine, handles: &[Handle]) {
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

/// Runs a test on a machine of each era, with its granule.
fn on_each_era(test: impl Fn(&Machine, usize) + Send + 'static) {
    within(PATIENCE, move || {
        for (_, config) in machine::eras() {
            let machine = Machine::new(config);
            test(&machine, machine.granule());
        }
    });
}

const ROUNDS: usize = 150;

#[test]
fn free_and_map_race_for_a_reservation() {
    on_each_era(|machine, granule| {
        let handle = machine.create(0, granule);
        race(machine, ROUNDS, || {
            let base = machine.reserve(granule);
            let free = act(move |m| {
                assert_documented(m.vmm.address_free(base, granule));
            });
            let map = act(move |m| {
                if assert_documented(m.vmm.map(base, granule, 0, handle, 0)) {
                    assert!(m.vmm.address_free(base, granule).is_err());
                    m.vmm.unmap(base, granule).unwrap();
                }
            });
            (free, map)
        });
        sweep(machine, &[handle]);
    });
}

#[test]
fn unmap_and_set_access_race_for_a_mapping() {
    on_each_era(|machine, granule| {
        let base = machine.reserve(2 * granule);
        let handle = machine.create(0, granule);
        race(machine, ROUNDS, || {
            machine.map(base, granule, handle);
            machine.map(at(base, granule), granule, handle);
            let unmap = act(move |m| {
                assert!(assert_documented(m.vmm.unmap(base, 2 * granule)));
            });
            let grant = act(move |m| {
                let all = [m.cpu(0), m.gpu(1), m.gpu(0)];
                let all = all.map(|agent| access(agent, Access::ReadWrite));
                if assert_documented(m.vmm.set_access(base, 2 * granule, &all)) {
                    assert_documented(m.vmm.write(base, &[1; 100]));
                    assert_documented(m.vmm.read(base, &mut [0; 100]));
                    assert_documented(m.vmm.copy(m.gpu(0), at(base, granule), base, 64));
                }
            });
            (unmap, grant)
        });
        process::assert_untouchable(base.get(), 2 * granule, "after the races");
        sweep(machine, &[handle]);
    });
}

#[test]
fn release_and_map_race_for_a_handle() {
    on_each_era(|machine, granule| {
        let base = machine.reserve(granule);
        race(machine, ROUNDS, || {
            let handle = machine.create(0, granule);
            let release = act(move |m| m.vmm.release(handle).unwrap());
            let map = act(move |m| {
                if assert_documented(m.vmm.map(base, granule, 0, handle, 0)) {
                    m.grant(base, granule, m.gpu(0), Access::ReadWrite);
                    m.vmm.unmap(base, granule).unwrap();
                }
            });
            (release, map)
        });
        assert_eq!(machine.vmm.usage().handles, 0);
        sweep(machine, &[]);
    });
}

#[test]
fn release_and_export_and_retain_race_for_a_handle() {
    on_each_era(|machine, granule| {
        let base = machine.reserve(granule);
        race(machine, ROUNDS, || {
            let handle = machine.create(0, granule);
            machine.map(base, granule, handle);
            let release = act(move |m| {
                m.vmm.release(handle).unwrap();
                m.vmm.unmap(base, granule).unwrap();
            });
            let export = act(move |m| {
                let exported = m.vmm.export_to_shareable_handle(handle, FILE, 0);
                assert_documented(exported.map(drop));
                match m.vmm.retain_allocation_handle(base) {
                    Ok(retained) => {
                        assert_eq!(retained, handle);
                        m.vmm.release(retained).unwrap();
                    }
                    Err(error) => assert!(!assert_documented(Err(error))),
                }
            });
            (release, export)
        });
        assert_eq!(machine.vmm.usage().handles, 0);
        sweep(machine, &[]);
    });
}

#[test]
fn two_that_release_the_last_reference_do_not_both_succeed() {
    within(PATIENCE, || {
        let machine = Machine::new(Config::mi300x(1));
        let released = AtomicUsize::new(0);
        for round in 1..=ROUNDS {
            let handle = machine.create(0, machine.granule());
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let won = assert_documented(machine.vmm.release(handle));
                        released.fetch_add(usize::from(won), Ordering::Relaxed);
                    });
                }
            });
            assert_eq!(released.load(Ordering::Relaxed), round);
        }
        machine.assert_empty();
    });
}

#[test]
fn copies_between_two_reservations_do_not_wait_for_each_other_in_a_circle() {
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
fn a_copy_does_not_wait_for_itself_when_two_reservations_become_one() {
    within(PATIENCE, || {
        let machine = Machine::new(Config::mi300x(1));
        let granule = machine.granule();
        let both = machine.reserve(2 * granule);
        machine.vmm.address_free(both, 2 * granule).unwrap();
        let over = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while over.load(Ordering::Relaxed) == 0 {
                    // Nothing is ever granted there: all that matters is that it ends.
                    let copied = machine.vmm.copy(machine.gpu(0), both, at(both, granule), 8);
                    copied.expect_err("nothing is mapped");
                }
            });
            for _ in 0..300 {
                let one = Reservation::of(2 * granule).exactly_at(both).reserve(&machine.vmm);
                drop(one);
                let low = Reservation::of(granule).exactly_at(both).reserve(&machine.vmm);
                let high = Reservation::of(granule).exactly_at(at(both, granule));
                drop((low, high.reserve(&machine.vmm)));
            }
            over.store(1, Ordering::Relaxed);
        });
        machine.assert_empty();
    });
}

#[test]
fn operations_on_different_reservations_overlap_while_the_runtime_works() {
    within(PATIENCE, || {
        let hostile = Hostile::new();
        let (_runtime, vmm, gpu) = hostile.open();
        let properties = AllocationProperties::on(gpu);
        let places = [(); 4].map(|()| vmm.address_reserve(4096, 0, None, 0).unwrap());
        let handles = [(); 4].map(|()| vmm.create(4096, &properties, 0).unwrap());
        // Each waits inside the runtime until all four are there; alone it would give up.
        hostile.set(c"hostile_meet", 4);
        std::thread::scope(|scope| {
            for (place, handle) in places.into_iter().zip(handles) {
                let vmm = &vmm;
                scope.spawn(move || vmm.map(place, 4096, 0, handle, 0).unwrap());
            }
        });
        assert_eq!(hostile.get(c"hostile_met"), 4);
    });
}

#[test]
fn questions_are_answered_while_the_runtime_works() {
    within(PATIENCE, || {
        let hostile = Hostile::new();
        let (runtime, vmm, gpu) = hostile.open();
        let properties = AllocationProperties::on(gpu);
        let place = vmm.address_reserve(2 * 4096, 0, None, 0).unwrap();
        let other = vmm.address_reserve(4096, 0, None, 0).unwrap();
        let handle = vmm.create(4096, &properties, 0).unwrap();
        vmm.map(at(place, 4096), 4096, 0, handle, 0).unwrap();
        hostile.set(c"hostile_meet", 2);
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| vmm.map(place, 4096, 0, handle, 0));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!slow.is_finished());
            assert_eq!(vmm.usage().mappings, 1);
            assert_eq!(vmm.get_access(gpu, at(place, 4096)), Ok(Access::None));
            assert_eq!(vmm.allocation_size(handle), Ok(4096));
            assert_eq!(vmm.retain_allocation_handle(at(place, 4096)), Ok(handle));
            assert_eq!(vmm.mappings().len(), 1);
            assert_eq!(runtime.agents().len(), 2);
            // What was asked for meanwhile on another reservation lets the first go on.
            vmm.map(other, 4096, 0, handle, 0).unwrap();
            slow.join().unwrap().unwrap();
        });
        assert_eq!(hostile.get(c"hostile_met"), 2);
        assert_eq!(vmm.usage().mappings, 3);
    });
}

/// To give the CPU access is to export, which takes no lock in AMD's runtime.
#[test]
fn the_cpu_is_given_access_while_the_runtime_maps_elsewhere() {
    within(PATIENCE, || {
        let hostile = Hostile::new();
        let (runtime, vmm, gpu) = hostile.open();
        let properties = AllocationProperties::on(gpu);
        let places = [(); 3].map(|()| vmm.address_reserve(4096, 0, None, 0).unwrap());
        let handle = vmm.create(4096, &properties, 0).unwrap();
        vmm.map(places[0], 4096, 0, handle, 0).unwrap();
        hostile.set(c"hostile_meet", 2);
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| vmm.map(places[1], 4096, 0, handle, 0));
            std::thread::sleep(Duration::from_millis(50));
            let access = Access::ReadWrite;
            let cpu = AccessDescriptor { agent: runtime.host().id(), access };
            vmm.set_access(places[0], 4096, &[cpu]).unwrap();
            assert!(!slow.is_finished(), "it was waited for");
            vmm.map(places[2], 4096, 0, handle, 0).unwrap();
            slow.join().unwrap().unwrap();
        });
        assert_eq!(hostile.get(c"hostile_met"), 2);
        vmm.write(places[0], b"seen").unwrap();
    });
}

#[test]
fn owned_values_may_be_dropped_by_any_thread() {
    within(PATIENCE, || {
        let machine = Machine::new(Config::mi300x(2));
        let granule = machine.granule();
        let reservation = Reservation::of(8 * granule).reserve(&machine.vmm).unwrap();
        let memory = Allocation::create(&machine.vmm, granule, &machine.on(0)).unwrap();
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
    within(PATIENCE, || {
        let machine = Machine::new(Config::mi300x(2));
        let granule = machine.granule();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..30 {
                        let vmm = Vmm::open(&machine.runtime).unwrap();
                        let base: Address = vmm.address_reserve(granule, 0, None, 0).unwrap();
                        let handle = vmm.create(granule, &machine.on(0), 0).unwrap();
                        vmm.map(base, granule, 0, handle, 0).unwrap();
                        // Its end gives everything back.
                    }
                });
            }
        });
        machine.assert_empty();
    });
}
