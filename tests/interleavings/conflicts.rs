//! Several threads perform operations that conflict, or that must be able to overlap.

use crate::calls::{self, Recording};
use crate::machine::{Machine, access, at, fail_calls};
use crate::{in_many_schedules, thread};
use hsa_vmm::buffer::PagedBuffer;
use hsa_vmm::error::Problem;
use hsa_vmm::hsa_sys::HSA_STATUS_ERROR_OUT_OF_RESOURCES;
use hsa_vmm::simulation::{Config, FaultPlan, Generation};
use hsa_vmm::{Access, Address, Error, ErrorKind, HandleType, Runtime, Vmm};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const SCHEDULES: usize = 100;
const DESCRIPTOR: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;
const MAPPING_CALLS: [&str; 3] = ["vmem_map", "vmem_unmap", "vmem_set_access"];

/// Returns a machine whose runtime takes no lock in export, import and properties.
fn machine() -> Machine {
    Machine::new(Config::mi300x(2).with_generation(Generation::A))
}

/// Runs several functions at once, and returns the overlaps of the runtime's calls.
fn run_concurrently(machine: &Machine, operations: &[&(dyn Fn(&Machine) + Sync)]) -> Recording {
    calls::begin_recording();
    thread::scope(|scope| {
        for operation in operations {
            scope.spawn(move || operation(machine));
        }
    });
    let recording = calls::end_recording();
    machine.vmm.check().expect("the ledger is consistent");
    recording
}

/// Creates, maps, grants, writes, releases and unmaps one granule at `base`.
fn run_cycle(machine: &Machine, base: Address) {
    let granule = machine.granule();
    let handle = machine.create(0, granule);
    machine.map(base, granule, handle);
    machine.grant(base, granule, machine.cpu(0), Access::ReadWrite);
    machine.grant(base, granule, machine.gpu(0), Access::ReadWrite);
    machine.vmm.write(base, &[7]).expect("granted");
    machine.vmm.release(handle).expect("still referenced");
    machine.vmm.unmap(base, granule).expect("mapped");
}

/// Frees the reservations, and closes the machine.
fn tear_down(machine: Machine) {
    for (address, size) in machine.vmm.reservations() {
        machine.vmm.address_free(address, size).expect("nothing is mapped");
    }
    machine.assert_empty();
    machine.close();
}

#[test]
fn operations_on_one_reservation_exclude_each_other() {
    in_many_schedules(SCHEDULES, || {
        let machine = machine();
        let granule = machine.granule();
        let base = machine.reserve(3 * granule);
        let recording = run_concurrently(
            &machine,
            &[&|m| run_cycle(m, base), &|m| run_cycle(m, at(base, granule)), &|m| {
                run_cycle(m, at(base, 2 * granule))
            }],
        );
        for (first, second) in recording.overlaps {
            let is_mapping_call =
                |call: &str| MAPPING_CALLS.iter().any(|function| call.ends_with(function));
            let conflict = is_mapping_call(&first) && is_mapping_call(&second);
            assert!(!conflict, "{second} began during {first}");
        }
        tear_down(machine);
    });
}

#[test]
fn operations_on_different_reservations_overlap() {
    let overlapped_functions = Arc::new(AtomicUsize::new(0));
    let recorded_functions = overlapped_functions.clone();
    in_many_schedules(SCHEDULES, move || {
        let machine = machine();
        let bases = [(); 2].map(|()| machine.reserve(machine.granule()));
        let recording =
            run_concurrently(&machine, &[&|m| run_cycle(m, bases[0]), &|m| run_cycle(m, bases[1])]);
        let calls =
            MAPPING_CALLS.iter().enumerate().filter(|(_, call)| recording.overlapped(call, call));
        recorded_functions.fetch_or(calls.map(|(bit, _)| 1 << bit).sum(), Ordering::Relaxed);
        tear_down(machine);
    });
    let overlapped_bits = overlapped_functions.load(Ordering::Relaxed);
    assert_eq!(overlapped_bits, 0b111, "each bit is a function that overlapped with itself");
}

#[test]
fn unlocked_calls_overlap_no_call_on_handles() {
    in_many_schedules(SCHEDULES, || {
        let machine = machine();
        let granule = machine.granule();
        let handle = machine.create(0, granule);
        let bases = [(); 2].map(|()| machine.reserve(granule));
        let runtime =
            Runtime::simulated_by(machine.simulation.clone()).expect("the simulation is running");
        let second_vmm = Vmm::open(&runtime).expect("virtual memory is supported");
        let share = |m: &Machine| {
            let shared = m.vmm.export_to_shareable_handle(handle, DESCRIPTOR).expect("alive");
            let imported = second_vmm
                .import_from_shareable_handle(&shared, DESCRIPTOR)
                .expect("an exported descriptor");
            second_vmm.release(imported).expect("no other thread uses it");
            let imported = m
                .vmm
                .import_from_shareable_handle(shared, DESCRIPTOR)
                .expect("an exported descriptor");
            m.vmm.release(imported).expect("no other thread uses it");
        };
        let recording = run_concurrently(
            &machine,
            &[&share, &share, &|m| run_cycle(m, bases[0]), &|m| run_cycle(m, bases[1])],
        );
        assert_eq!(recording.races().next(), None);
        machine.vmm.release(handle).expect("still referenced");
        drop((second_vmm, runtime));
        tear_down(machine);
    });
}

#[test]
fn opposite_copies_do_not_deadlock() {
    in_many_schedules(SCHEDULES, || {
        let machine = machine();
        let granule = machine.granule();
        let handle = machine.create(0, granule);
        let bases = [(); 2].map(|()| machine.reserve(granule));
        for base in bases {
            machine.map(base, granule, handle);
            machine.grant(base, granule, machine.gpu(0), Access::ReadWrite);
        }
        let copy = |m: &Machine, target: Address, source: Address| {
            m.vmm.copy(m.gpu(0), at(target, 128), source, 64).expect("granted");
        };
        run_concurrently(
            &machine,
            &[
                &|m| copy(m, bases[0], bases[1]),
                &|m| copy(m, bases[1], bases[0]),
                &|m| copy(m, bases[0], bases[0]),
                &|m| machine.grant(bases[1], granule, m.cpu(0), Access::Read),
            ],
        );
        for base in bases {
            machine.vmm.unmap(base, granule).expect("mapped");
        }
        machine.vmm.release(handle).expect("still referenced");
        tear_down(machine);
    });
}

/// The runtime's `map` fails from its third call on. A revocation then fails, and the library cannot roll the
/// revocation back. The library quarantines the reservation while other threads use the reservation.
#[test]
fn waiting_threads_reject_quarantined_ranges() {
    in_many_schedules(SCHEDULES, || {
        let plan = fail_calls(
            FaultPlan::default(),
            "hsa_amd_vmem_map",
            3..50,
            HSA_STATUS_ERROR_OUT_OF_RESOURCES,
        );
        let machine = Machine::new(Config::mi300x(2).with_faults(plan));
        let granule = machine.granule();
        let base = machine.reserve(2 * granule);
        let handle = machine.create(0, granule);
        for address in [base, at(base, granule)] {
            machine.map(address, granule, handle);
        }
        machine.grant(base, 2 * granule, machine.gpu(0), Access::ReadWrite);
        let assert_ok_unmapped_or_quarantined = |result: Result<(), Error>| match result {
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
        run_concurrently(
            &machine,
            &[
                &|m| {
                    let result = m.vmm.revoke(base, granule, &[m.gpu(0)]);
                    let quarantined = matches!(
                        result.as_ref().map_err(Error::kind),
                        Err(ErrorKind::Quarantined { now: true, .. })
                    );
                    let was_unmapped =
                        matches!(result.as_ref().map_err(Error::problem), Err(Some(_)));
                    assert!(quarantined || was_unmapped, "{result:?}");
                },
                &|m| assert_ok_unmapped_or_quarantined(m.vmm.unmap(base, 2 * granule)),
                &|m| {
                    assert_ok_unmapped_or_quarantined(m.vmm.set_access(
                        at(base, granule),
                        granule,
                        &[cpu],
                    ))
                },
                &|m| assert_ok_unmapped_or_quarantined(m.vmm.address_free(base, 2 * granule)),
            ],
        );
        let quarantined_ranges = machine.vmm.quarantined_ranges();
        assert!(quarantined_ranges.len() <= 1, "{quarantined_ranges:?}");
        let is_freed = machine.vmm.reservations().is_empty();
        if let [entry] = &*quarantined_ranges {
            assert_eq!((entry.address, entry.size, is_freed), (base, 2 * granule, false));
            let result = machine.vmm.address_free(base, 2 * granule);
            assert!(
                matches!(
                    result.as_ref().map_err(Error::kind),
                    Err(ErrorKind::Quarantined { now: false, .. })
                ),
                "{result:?}"
            );
        }
    });
}

/// While several mappings change, a look-up returns the state before or after the whole change.
#[test]
fn look_ups_see_changes_of_ranges_atomically() {
    in_many_schedules(4 * SCHEDULES, || {
        let machine = machine();
        let granule = machine.granule();
        let (base, handle) = (machine.reserve(2 * granule), machine.create(0, granule));
        for address in [base, at(base, granule)] {
            machine.map(address, granule, handle);
        }
        let gpu = machine.gpu(0);
        let access_at = |m: &Machine, address| m.vmm.get_access(gpu, address).ok();
        run_concurrently(
            &machine,
            &[
                &|m| {
                    m.grant(base, 2 * granule, gpu, Access::ReadWrite);
                    m.vmm.unmap(base, 2 * granule).expect("mapped");
                },
                &|m| {
                    let states = [Some(Access::None), Some(Access::ReadWrite), None];
                    let rank = |access| states.iter().position(|&state| state == access).unwrap();
                    for (first, second) in [(base, at(base, granule)), (at(base, granule), base)] {
                        let (earlier, later) = (access_at(m, first), access_at(m, second));
                        assert!(rank(earlier) <= rank(later), "{earlier:?}, then {later:?}");
                    }
                },
                &|m| {
                    let mappings = m.vmm.mappings();
                    let have_equal_access =
                        mappings.windows(2).all(|pair| pair[0].access == pair[1].access);
                    assert!([0, 2].contains(&mappings.len()) && have_equal_access, "{mappings:?}");
                },
            ],
        );
        machine.vmm.release(handle).expect("still referenced");
        tear_down(machine);
    });
}

/// One thread maps and unmaps pages, another maps a page and trims, and the buffer's own thread maps pages ahead.
#[test]
fn mapping_ahead_does_not_affect_callers() {
    in_many_schedules(SCHEDULES, || {
        let machine = machine();
        let granule = machine.granule();
        let options = PagedBuffer::builder(8 * granule).with_page_size(granule).with_pages_ahead(2);
        let buffer = options.reserve(&machine.vmm, &machine.shareable_on(0)).expect("addresses");
        buffer.grant(&[machine.cpu(0)], Access::ReadWrite).expect("access");
        let map_and_unmap = |_: &Machine| {
            buffer.map(0..2).expect("the pages are not mapped");
            buffer.write(granule, &[7]).expect("granted");
            buffer.unmap(1..2).expect("the page is mapped");
        };
        let map_and_trim = |_: &Machine| {
            buffer.map(4..5).expect("the page is not mapped");
            buffer.trim().expect("the runtime accepts it");
        };
        run_concurrently(&machine, &[&map_and_unmap, &map_and_trim]);
        let statistics = buffer.statistics();
        assert_eq!((statistics.mapped, statistics.lost, statistics.failures_ahead), (2, 0, 0));
        drop(buffer);
        tear_down(machine);
    });
}

/// The buffer's own thread may hold the memory of a page ahead, which the caller needs.
#[test]
fn map_waits_for_memory_of_a_page_ahead() {
    in_many_schedules(SCHEDULES, || {
        let granule = machine().granule();
        let config = Config::mi300x(1).with_generation(Generation::A);
        let machine = Machine::new(config.with_vram(3 * granule as u64));
        let options = PagedBuffer::builder(8 * granule).with_page_size(granule).with_pages_ahead(1);
        let buffer = options.reserve(&machine.vmm, &machine.shareable_on(0)).expect("addresses");
        buffer.map(0..1).expect("the memory is free");
        buffer.map(2..4).expect("no other page is in use");
        drop(buffer);
        tear_down(machine);
    });
}
