//! Conflicting operations of several threads, one conflict for each test.

use crate::calls::{self, Seen};
use crate::machine::{Machine, access, at, failing};
use crate::{in_many_orders, thread};
use hsa_vmm::buffer::PagedBuffer;
use hsa_vmm::error::Problem;
use hsa_vmm::simulation::{Config, FaultPlan, Generation};
use hsa_vmm::{Access, Address, Error, ErrorKind, HandleType, Runtime, Vmm};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const ORDERS: usize = 100;
const FILE: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;
const ON_ADDRESSES: [&str; 3] = ["vmem_map", "vmem_unmap", "vmem_set_access"];

/// A machine whose runtime takes no lock in some calls.
fn machine() -> Machine {
    Machine::new(Config::mi300x(2).with_generation(Generation::A))
}

/// Runs several functions at once, and returns the overlaps of the runtime's calls.
fn at_once(machine: &Machine, acts: &[&(dyn Fn(&Machine) + Sync)]) -> Seen {
    calls::begin();
    thread::scope(|scope| {
        for act in acts {
            scope.spawn(move || act(machine));
        }
    });
    let seen = calls::end();
    machine.vmm.check().expect("the ledger is consistent");
    seen
}

/// The full cycle of one granule.
fn live(machine: &Machine, base: Address) {
    let granule = machine.granule();
    let handle = machine.create(0, granule);
    machine.map(base, granule, handle);
    machine.grant(base, granule, machine.cpu(0), Access::ReadWrite);
    machine.grant(base, granule, machine.gpu(0), Access::ReadWrite);
    machine.vmm.write(base, &[7]).expect("granted");
    machine.vmm.release(handle).expect("still referenced");
    machine.vmm.unmap(base, granule).expect("mapped");
}

fn end(machine: Machine) {
    for (address, size) in machine.vmm.reservations() {
        machine.vmm.address_free(address, size).expect("nothing is in it");
    }
    machine.assert_empty();
    machine.close();
}

#[test]
fn operations_on_one_reservation_exclude_each_other() {
    in_many_orders(ORDERS, || {
        let machine = machine();
        let granule = machine.granule();
        let base = machine.reserve(3 * granule);
        let seen = at_once(
            &machine,
            &[&|m| live(m, base), &|m| live(m, at(base, granule)), &|m| {
                live(m, at(base, 2 * granule))
            }],
        );
        for (one, other) in seen.overlaps {
            let on_addresses = |call: &str| ON_ADDRESSES.iter().any(|it| call.ends_with(it));
            assert!(!on_addresses(&one) || !on_addresses(&other), "{one} during {other}");
        }
        end(machine);
    });
}

#[test]
fn operations_on_different_reservations_overlap() {
    let met = Arc::new(AtomicUsize::new(0));
    let count = met.clone();
    in_many_orders(ORDERS, move || {
        let machine = machine();
        let bases = [(); 2].map(|()| machine.reserve(machine.granule()));
        let seen = at_once(&machine, &[&|m| live(m, bases[0]), &|m| live(m, bases[1])]);
        let met = ON_ADDRESSES.iter().enumerate().filter(|(_, call)| seen.overlapped(call, call));
        count.fetch_or(met.map(|(bit, _)| 1 << bit).sum(), Ordering::Relaxed);
        end(machine);
    });
    assert_eq!(met.load(Ordering::Relaxed), 0b111, "calls that met their like, a bit each");
}

#[test]
fn unlocked_calls_overlap_no_call_on_handles() {
    in_many_orders(ORDERS, || {
        let machine = machine();
        let granule = machine.granule();
        let handle = machine.create(0, granule);
        let bases = [(); 2].map(|()| machine.reserve(granule));
        // The same library once more, with a `Runtime` and a `Vmm` of its own.
        let runtime = Runtime::simulated_by(machine.simulation.clone()).expect("it is started");
        let other = Vmm::open(&runtime).expect("virtual memory is supported");
        let share = |m: &Machine| {
            let shared = m.vmm.export_to_shareable_handle(handle, FILE).expect("alive");
            let imported = other.import_from_shareable_handle(&shared, FILE).expect("memory");
            other.release(imported).expect("of this thread alone");
            let imported = m.vmm.import_from_shareable_handle(shared, FILE).expect("memory");
            m.vmm.release(imported).expect("of this thread alone");
        };
        let seen =
            at_once(&machine, &[&share, &share, &|m| live(m, bases[0]), &|m| live(m, bases[1])]);
        assert_eq!(seen.races().next(), None);
        machine.vmm.release(handle).expect("still referenced");
        drop((other, runtime));
        end(machine);
    });
}

#[test]
fn opposite_copies_do_not_deadlock() {
    in_many_orders(ORDERS, || {
        let machine = machine();
        let granule = machine.granule();
        let handle = machine.create(0, granule);
        let places = [(); 2].map(|()| machine.reserve(granule));
        for place in places {
            machine.map(place, granule, handle);
            machine.grant(place, granule, machine.gpu(0), Access::ReadWrite);
        }
        let copy = |m: &Machine, to: Address, from: Address| {
            m.vmm.copy(m.gpu(0), at(to, 128), from, 64).expect("granted");
        };
        at_once(
            &machine,
            &[
                &|m| copy(m, places[0], places[1]),
                &|m| copy(m, places[1], places[0]),
                &|m| copy(m, places[0], places[0]),
                &|m| machine.grant(places[1], granule, m.cpu(0), Access::Read),
            ],
        );
        for place in places {
            machine.vmm.unmap(place, granule).expect("mapped");
        }
        machine.vmm.release(handle).expect("still referenced");
        end(machine);
    });
}

/// The runtime's map fails after two mappings: a revocation cannot be rolled back, so that the reservation is
/// quarantined while other threads use it.
#[test]
fn waiting_threads_reject_quarantined_ranges() {
    in_many_orders(ORDERS, || {
        let plan = failing(FaultPlan::default(), "hsa_amd_vmem_map", 3..50, 4104);
        let machine = Machine::new(Config::mi300x(2).with_faults(plan));
        let granule = machine.granule();
        let base = machine.reserve(2 * granule);
        let handle = machine.create(0, granule);
        for place in [base, at(base, granule)] {
            machine.map(place, granule, handle);
        }
        machine.grant(base, 2 * granule, machine.gpu(0), Access::ReadWrite);
        let lost = |answer: Result<(), Error>| match answer {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::Quarantined { now: false, .. }) => {}
            Err(error) => assert!(
                matches!(
                    error.problem(),
                    Some(Problem::NotMapped(_) | Problem::StillMapped(_) | Problem::NotReserved)
                ),
                "{error}"
            ),
        };
        let cpu = access(machine.cpu(0), Access::Read);
        at_once(
            &machine,
            &[
                &|m| {
                    let answer = m.vmm.revoke(base, granule, &[m.gpu(0)]);
                    let quarantined = matches!(
                        answer.as_ref().map_err(Error::kind),
                        Err(ErrorKind::Quarantined { now: true, .. })
                    );
                    let was_unmapped =
                        matches!(answer.as_ref().map_err(Error::problem), Err(Some(_)));
                    assert!(quarantined || was_unmapped, "{answer:?}");
                },
                &|m| lost(m.vmm.unmap(base, 2 * granule)),
                &|m| lost(m.vmm.set_access(at(base, granule), granule, &[cpu])),
                &|m| lost(m.vmm.address_free(base, 2 * granule)),
            ],
        );
        let listed = machine.vmm.quarantine();
        assert!(listed.len() <= 1, "{listed:?}");
        let gone = machine.vmm.reservations().is_empty();
        if let [entry] = &*listed {
            assert_eq!((entry.address, entry.size, gone), (base, 2 * granule, false));
            let answer = machine.vmm.address_free(base, 2 * granule);
            assert!(
                matches!(
                    answer.as_ref().map_err(Error::kind),
                    Err(ErrorKind::Quarantined { now: false, .. })
                ),
                "{answer:?}"
            );
        }
    });
}

/// A look-up during a change of several mappings returns the state before or after all of it.
#[test]
fn runs_change_atomically_to_look_ups() {
    in_many_orders(4 * ORDERS, || {
        let machine = machine();
        let granule = machine.granule();
        let (base, handle) = (machine.reserve(2 * granule), machine.create(0, granule));
        for place in [base, at(base, granule)] {
            machine.map(place, granule, handle);
        }
        let gpu = machine.gpu(0);
        let ask = |m: &Machine, place| m.vmm.get_access(gpu, place).ok();
        at_once(
            &machine,
            &[
                &|m| {
                    m.grant(base, 2 * granule, gpu, Access::ReadWrite);
                    m.vmm.unmap(base, 2 * granule).expect("mapped");
                },
                &|m| {
                    let order = [Some(Access::None), Some(Access::ReadWrite), None];
                    let rank = |access| order.iter().position(|&it| it == access);
                    for (first, second) in [(base, at(base, granule)), (at(base, granule), base)] {
                        let (one, other) = (ask(m, first), ask(m, second));
                        assert!(rank(one) <= rank(other), "{one:?}, but then {other:?}");
                    }
                },
                &|m| {
                    let listed = m.vmm.mappings();
                    let same = listed.windows(2).all(|two| two[0].access == two[1].access);
                    assert!([0, 2].contains(&listed.len()) && same, "{listed:?}");
                },
            ],
        );
        machine.vmm.release(handle).expect("still referenced");
        end(machine);
    });
}

/// One thread maps and unmaps, one trims, one maps ahead; then the buffer is dropped.
#[test]
fn mapping_ahead_does_not_disturb_callers() {
    in_many_orders(ORDERS, || {
        let machine = machine();
        let granule = machine.granule();
        let options = PagedBuffer::builder(8 * granule).with_page_size(granule).with_pages_ahead(2);
        let buffer = options.reserve(&machine.vmm, &machine.on(0)).expect("addresses");
        buffer.grant(&[machine.cpu(0)], Access::ReadWrite).expect("access");
        let maps = |_: &Machine| {
            buffer.map(0..2).expect("they are not in use");
            buffer.write(granule, &[7]).expect("granted");
            buffer.unmap(1..2).expect("it is in use");
        };
        let trims = |_: &Machine| {
            buffer.map(4..5).expect("it is not in use");
            buffer.trim().expect("nothing is in the way");
        };
        at_once(&machine, &[&maps, &trims]);
        let found = buffer.statistics();
        assert_eq!((found.mapped, found.lost, found.failures_ahead), (2, 0, 0));
        drop(buffer);
        end(machine);
    });
}
