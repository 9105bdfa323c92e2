//! Two threads execute conflicting operations at the same time.

use super::{DESCRIPTOR, TIME_LIMIT, free_everything};
use crate::machine::{self, Machine, access, at};
use crate::process::{self, within};
use hsa_vmm::error::Problem;
use hsa_vmm::simulation::Config;
use hsa_vmm::{Access, Error};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

const ROUNDS: usize = 150;

/// The operation of one of the two threads.
type Operation = Box<dyn FnOnce(&Machine) + Send>;

/// Returns whether an operation succeeded. Fails if the operation returned an error that a conflict with another thread
/// cannot cause.
#[track_caller]
fn succeeded(result: Result<(), Error>) -> bool {
    match result {
        Ok(()) => true,
        Err(error) => {
            let problem = error.problem().unwrap_or_else(|| panic!("{error}"));
            let expected = matches!(
                problem,
                Problem::NotReserved
                    | Problem::NotAReservation
                    | Problem::StillMapped(_)
                    | Problem::AlreadyMapped(_)
                    | Problem::NotMapped(_)
                    | Problem::Released
                    | Problem::NotGranted { .. }
            );
            assert!(expected, "{error}");
            false
        }
    }
}

/// Runs two operations at the same time in each of `rounds` rounds.
fn race(machine: &Machine, rounds: usize, new_round: impl Fn() -> (Operation, Operation)) {
    for _ in 0..rounds {
        let (first, second) = new_round();
        let barrier = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                first(machine);
            });
            barrier.wait();
            second(machine);
        });
        machine.vmm.check().unwrap();
    }
}

fn operation(function: impl FnOnce(&Machine) + Send + 'static) -> Operation {
    Box::new(function)
}

/// Runs a test on a machine of each generation. Passes the machine and its granule.
fn on_each_generation(test: impl Fn(&Machine, usize) + Send + 'static) {
    within(TIME_LIMIT, move || {
        for (_, config) in machine::generations() {
            let machine = Machine::new(config);
            test(&machine, machine.granule());
        }
    });
}

#[test]
fn free_and_map_race_for_a_reservation() {
    on_each_generation(|machine, granule| {
        let handle = machine.create(0, granule);
        race(machine, ROUNDS, || {
            let base = machine.reserve(granule);
            let free = operation(move |m| {
                succeeded(m.vmm.address_free(base, granule));
            });
            let map = operation(move |m| {
                if succeeded(m.vmm.map(base, granule, 0, handle)) {
                    assert!(m.vmm.address_free(base, granule).is_err());
                    m.vmm.unmap(base, granule).unwrap();
                }
            });
            (free, map)
        });
        free_everything(machine, &[handle]);
    });
}

#[test]
fn unmap_and_set_access_race_for_a_mapping() {
    on_each_generation(|machine, granule| {
        let base = machine.reserve(2 * granule);
        let handle = machine.create(0, granule);
        race(machine, ROUNDS, || {
            machine.map(base, granule, handle);
            machine.map(at(base, granule), granule, handle);
            let unmap = operation(move |m| {
                assert!(succeeded(m.vmm.unmap(base, 2 * granule)));
            });
            let grant = operation(move |m| {
                let agents = [m.cpu(0), m.gpu(1), m.gpu(0)];
                let all = agents.map(|agent| access(agent, Access::ReadWrite));
                if succeeded(m.vmm.set_access(base, 2 * granule, &all)) {
                    succeeded(m.vmm.write(base, &[1; 100]));
                    succeeded(m.vmm.read(base, &mut [0; 100]));
                    succeeded(m.vmm.copy(m.gpu(0), at(base, granule), base, 64));
                }
            });
            (unmap, grant)
        });
        process::assert_inaccessible(base.get(), 2 * granule, "after the races");
        free_everything(machine, &[handle]);
    });
}

#[test]
fn names_are_kept_while_mappings_are_exchanged() {
    on_each_generation(|machine, granule| {
        let base = machine.reserve(2 * granule);
        let handles = [machine.create(0, granule), machine.create(0, granule)];
        machine.map(base, granule, handles[0]);
        machine.map(at(base, granule), granule, handles[1]);
        for _ in 0..ROUNDS {
            machine.vmm.name_mapping(base, "old").unwrap();
            machine.vmm.name_mapping(at(base, granule), "old").unwrap();
            race(machine, 1, || {
                let exchange = operation(move |m| {
                    m.vmm.exchange(base, at(base, granule), granule).unwrap();
                });
                let name = operation(move |m| m.vmm.name_mapping(base, "new").unwrap());
                (exchange, name)
            });
            let (reservations, _) = machine.vmm.snapshot();
            let mappings = reservations[0].mappings.iter();
            let mut names: Vec<_> = mappings.filter_map(|it| it.name.as_deref()).collect();
            names.sort_unstable();
            assert_eq!(names, ["new", "old"]);
        }
        free_everything(machine, &handles);
    });
}

#[test]
fn release_and_map_race_for_a_handle() {
    on_each_generation(|machine, granule| {
        let base = machine.reserve(granule);
        race(machine, ROUNDS, || {
            let handle = machine.create(0, granule);
            let release = operation(move |m| m.vmm.release(handle).unwrap());
            let map = operation(move |m| {
                if succeeded(m.vmm.map(base, granule, 0, handle)) {
                    m.grant(base, granule, m.gpu(0), Access::ReadWrite);
                    m.vmm.unmap(base, granule).unwrap();
                }
            });
            (release, map)
        });
        assert_eq!(machine.vmm.usage().handles, 0);
        free_everything(machine, &[]);
    });
}

#[test]
fn release_and_export_and_retain_race_for_a_handle() {
    on_each_generation(|machine, granule| {
        let base = machine.reserve(granule);
        race(machine, ROUNDS, || {
            let handle = machine.create(0, granule);
            machine.map(base, granule, handle);
            let release = operation(move |m| {
                m.vmm.release(handle).unwrap();
                m.vmm.unmap(base, granule).unwrap();
            });
            let export = operation(move |m| {
                let exported = m.vmm.export_to_shareable_handle(handle, DESCRIPTOR);
                succeeded(exported.map(drop));
                match m.vmm.retain_allocation_handle(base) {
                    Ok(retained) => {
                        assert_eq!(retained, handle);
                        m.vmm.release(retained).unwrap();
                    }
                    Err(error) => assert!(!succeeded(Err(error))),
                }
            });
            (release, export)
        });
        assert_eq!(machine.vmm.usage().handles, 0);
        free_everything(machine, &[]);
    });
}

#[test]
fn last_reference_is_released_once() {
    within(TIME_LIMIT, || {
        let machine = Machine::new(Config::mi300x(1));
        let released = AtomicUsize::new(0);
        for round in 1..=ROUNDS {
            let handle = machine.create(0, machine.granule());
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let success = succeeded(machine.vmm.release(handle));
                        released.fetch_add(usize::from(success), Ordering::Relaxed);
                    });
                }
            });
            assert_eq!(released.load(Ordering::Relaxed), round);
        }
        machine.assert_empty();
    });
}
