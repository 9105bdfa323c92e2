//! A report matches the state of the library.

use super::*;
use hsa_vmm::hsa_sys::HSA_STATUS_ERROR;
use hsa_vmm::report::{AccessEntry, FreeSpace, IdleItem, Report};
use hsa_vmm::simulation::FaultPlan;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn report_lists_everything() {
    let machine = machine();
    let (base, handles) = map_granules(&machine, 8, &[0, 1, 4]);
    grant_both_gpus(&machine, base, GRANULE);
    machine.grant(at(base, GRANULE), GRANULE, machine.cpu(0), Access::Read);
    machine.vmm.release(handles[1]).unwrap();
    let unused = machine.create(0, 3 * GRANULE);
    let report = machine.vmm.report();

    let labels: Vec<_> = report.agents.iter().map(|agent| agent.label.as_str()).collect();
    assert_eq!(labels, ["CPU 0", "GPU 0", "GPU 1"]);
    let [reservation] = &report.reservations[..] else { panic!("{report}") };
    assert_eq!((reservation.address, reservation.size), (base, 8 * GRANULE));
    let ranges: Vec<_> =
        reservation.mappings.iter().map(|mapping| (mapping.address, mapping.size)).collect();
    let expected = [0, 1, 4].map(|number| (at(base, number * GRANULE), GRANULE));
    assert_eq!(ranges, expected);
    let entry = |agent, access| AccessEntry { agent, access, can_do_more: false };
    let write = |agent| entry(agent, Access::ReadWrite);
    let gpu = |number| machine.gpu(number);
    let [first, second, third] = &reservation.mappings[..] else { panic!("{report}") };
    assert_eq!(first.access, [write(gpu(0)), write(gpu(1))]);
    assert_eq!(second.access, [entry(machine.cpu(0), Access::Read)]);
    assert_eq!(third.access, []);
    assert!(reservation.mappings.iter().all(|mapping| mapping.agent == Some(gpu(1))));

    let memory: Vec<_> = report
        .memory
        .iter()
        .map(|memory| (memory.size, memory.references, memory.mappings, memory.agent))
        .collect();
    let page = |references| (GRANULE, references, 1, Some(gpu(1)));
    assert_eq!(memory, [page(1), page(0), page(1), (3 * GRANULE, 1, 0, Some(gpu(0)))]);
    assert_eq!(first.memory, handles[0]);
    assert_eq!(report.memory[3].handle, unused);
}

#[test]
fn fragmentation_excludes_the_largest_gap() {
    let machine = machine();
    // Free granules, granules of the largest gap, the number of gaps, and the fragmentation.
    let numbers = |granules: usize, mapped: &[usize]| {
        let (base, handles) = map_granules(&machine, granules, mapped);
        let entry =
            machine.vmm.report().reservations.into_iter().find(|entry| entry.address == base);
        for (number, handle) in mapped.iter().zip(handles) {
            machine.vmm.unmap(at(base, number * GRANULE), GRANULE).unwrap();
            machine.vmm.release(handle).unwrap();
        }
        machine.vmm.address_free(base, granules * GRANULE).unwrap();
        let free = entry.unwrap().free_space();
        (free.size / GRANULE, free.largest / GRANULE, free.gaps, free.fragmentation())
    };
    assert_eq!(numbers(10, &[]), (10, 10, 1, 0));
    assert_eq!(numbers(3, &[0, 1, 2]), (0, 0, 0, 0));
    assert_eq!(numbers(10, &[0, 9]), (8, 8, 1, 0));
    assert_eq!(numbers(10, &[5]), (9, 5, 2, 44));
    assert_eq!(numbers(9, &[1, 3, 5, 7]), (5, 1, 5, 80));
    let largest = FreeSpace { size: usize::MAX, largest: 0, gaps: 1 };
    assert_eq!(largest.fragmentation(), 100);
    // An inconsistent value must not cause a panic.
    assert_eq!(FreeSpace { size: 1, largest: 2, gaps: 1 }.fragmentation(), 0);
}

/// AMD's user-space driver gives a GPU read and write access with any grant. The report says whether a GPU can do more
/// than the caller has requested.
#[test]
fn unenforced_access_is_reported() {
    let machine = machine();
    let (base, _) = map_granules(&machine, 1, &[0]);
    let gpu = machine.gpu(0);
    let of_gpu = |report: Report| {
        let access = &report.reservations[0].mappings[0].access;
        access
            .iter()
            .find(|entry| entry.agent == gpu)
            .map(|entry| (entry.access, entry.can_do_more))
    };
    machine.grant(base, GRANULE, gpu, Access::ReadWrite);
    machine.grant(base, GRANULE, gpu, Access::None);
    assert_eq!(of_gpu(machine.vmm.report()), Some((Access::None, true)));
    assert!(machine.vmm.report().to_string().contains("GPU 0 none (can read and write)"));
    machine.vmm.revoke(base, GRANULE, &[gpu]).unwrap();
    assert_eq!(of_gpu(machine.vmm.report()), None);
}

#[test]
fn idle_lists_unused_memory() {
    let machine = machine();
    let (base, _) = map_granules(&machine, 2, &[0, 1]);
    grant_both_gpus(&machine, base, GRANULE);
    let empty = machine.reserve(GRANULE);
    let unused = machine.create(0, GRANULE);
    let report = machine.vmm.report();
    let idle = report.idle();
    let [IdleItem::Reservation(reservation), IdleItem::Mapping(mapping), IdleItem::Memory(memory)] =
        idle[..]
    else {
        panic!("{idle:?}")
    };
    assert_eq!(reservation.address, empty);
    assert_eq!(mapping.address, at(base, GRANULE));
    assert_eq!(memory.handle, unused);
}

#[test]
fn quarantine_is_reported_with_its_reason() {
    // The revocation unmaps the memory, and cannot map it again.
    let mut config = Config::mi300x(2);
    config.faults =
        machine::fail_calls(FaultPlan::default(), "hsa_amd_vmem_map", 2..9, HSA_STATUS_ERROR);
    let machine = Machine::new(config);
    let (base, _) = map_granules(&machine, 1, &[0]);
    grant_both_gpus(&machine, base, GRANULE);
    machine.vmm.name_reservation(base, "lost").unwrap();
    machine.vmm.revoke(base, GRANULE, &[machine.gpu(0)]).unwrap_err();
    let [quarantined] = &machine.vmm.quarantined_ranges()[..] else { panic!("expected one entry") };
    let report = machine.vmm.report();
    let [entry] = &report.quarantine[..] else { panic!("{report}") };
    assert_eq!((entry.address, entry.size, entry.reason()), (base, GRANULE, quarantined.reason()));
    assert!(report.reservations[0].quarantined, "{report}");
    let text = report.to_string();
    assert!(text.contains("\"lost\"") && text.contains("quarantined"), "{text}");
    assert!(text.contains(&quarantined.reason()), "{text}");
}

/// Reservations, mappings and memory in a report are consistent while other threads change them.
#[test]
fn report_is_consistent_during_changes() {
    let machine = machine();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    let (base, handles) = map_granules(&machine, 3, &[0, 1, 2]);
                    machine.vmm.name_mapping(base, "first").unwrap();
                    machine.vmm.unmap(base, 3 * GRANULE).unwrap();
                    for handle in handles {
                        machine.vmm.release(handle).unwrap();
                    }
                    machine.vmm.address_free(base, 3 * GRANULE).unwrap();
                }
            });
        }
        let (mut rounds, mut mappings_found) = (0, 0);
        while rounds < 300 || mappings_found == 0 {
            rounds += 1;
            let report = machine.vmm.report();
            let mappings =
                || report.reservations.iter().flat_map(|reservation| &reservation.mappings);
            mappings_found += mappings().count();
            for memory in &report.memory {
                let found = mappings().filter(|mapping| mapping.memory == memory.handle).count();
                assert_eq!(found, memory.mappings as usize, "{report}");
            }
            let has_memory =
                |handle: Handle| report.memory.iter().any(|memory| memory.handle == handle);
            assert!(mappings().all(|mapping| has_memory(mapping.memory)), "{report}");
        }
        ended.store(true, Ordering::Relaxed);
    });
    machine.assert_empty();
}
