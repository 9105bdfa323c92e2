//! The addresses of a reservation stay reserved. After every operation, each of them is mapped in this process, and is
//! inaccessible unless the CPU has access. The library never changes a foreign mapping in a hole.

mod hostile;
mod machine;
mod process;

use hostile::{HostileRuntime, assert_quarantines, foreign_page_is_at, make_two_mappings};
use hsa_vmm::error::{Problem, Rejected};
use hsa_vmm::simulation::{Config, Generation};
use hsa_vmm::vmm::{Probing, Quirks, VmmOptions};
use hsa_vmm::{Access, Allocation, AllocationProperties, Error, ErrorKind, Mapping, Reservation};
use hsa_vmm::{Runtime, Vmm};
use machine::{Machine, access, at, without_cpu_mapping};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maps, unmaps and changes access in one reservation. After each call, checks that the addresses are reserved.
fn check_every_operation(config: Config, name: &str) {
    let machine = Machine::new(config);
    let vmm = &machine.vmm;
    let granule = machine.granule();
    let size = 6 * granule;
    let [cpu, gpu, peer] = [machine.cpu(0), machine.gpu(0), machine.gpu(1)];
    let base = machine.reserve(size);
    let assert_reserved =
        |step: &str| process::assert_mapped(base.get(), size, &format!("{name}: {step}"));
    let assert_inaccessible = |first: usize, count: usize, step: &str| {
        let start = base.get() + first * granule;
        process::assert_inaccessible(start, count * granule, &format!("{name}: {step}"));
    };
    assert_inaccessible(0, 6, "reserved");
    let [small, large] = [machine.create(0, granule), machine.create(1, 2 * granule)];
    machine.map(base, granule, small);
    machine.map(at(base, granule), 2 * granule, large);
    machine.map(at(base, 3 * granule), granule, small);
    assert_inaccessible(0, 6, "mapped");
    let gpus = [gpu, peer].map(|gpu| access(gpu, Access::ReadWrite));
    vmm.set_access(base, 4 * granule, &gpus).unwrap();
    assert_inaccessible(0, 6, "granted to GPUs");
    for requested in
        [Access::Read, Access::ReadWrite, Access::Read, Access::None, Access::ReadWrite]
    {
        vmm.set_access(at(base, granule), 3 * granule, &[access(cpu, requested)]).unwrap();
        assert_reserved("granted to the CPU");
        assert_inaccessible(0, 1, "before the granted range");
        assert_inaccessible(4, 2, "after the granted range");
        let start = at(base, granule).get();
        let parts = process::permissions(start, 3 * granule).unwrap();
        let expected = match requested {
            Access::None => "---",
            Access::Read => "r--",
            Access::ReadWrite => "rw-",
        };
        assert!(parts.iter().all(|part| part.2.starts_with(expected)), "{name}: {parts:x?}");
    }
    vmm.revoke(base, 3 * granule, &[gpu]).unwrap();
    assert_reserved("revoked from a GPU");
    vmm.revoke(at(base, 3 * granule), granule, &[cpu]).unwrap();
    assert_inaccessible(3, 3, "revoked from the CPU");
    vmm.unmap(at(base, granule), 2 * granule).unwrap();
    assert_inaccessible(0, 6, "unmapped");
    vmm.release(small).unwrap();
    vmm.unmap(at(base, 3 * granule), granule).unwrap();
    assert_inaccessible(0, 6, "both unmapped");
    machine.map(at(base, granule), 2 * granule, large);
    assert_inaccessible(0, 6, "mapped again");
    machine.grant(at(base, granule), 2 * granule, cpu, Access::ReadWrite);
    vmm.write(at(base, granule), &[1; 32]).unwrap();
    assert_reserved("granted again");
    for mapping in vmm.mappings() {
        vmm.unmap(mapping.address, mapping.size).unwrap();
    }
    assert_inaccessible(0, 6, "finally unmapped");
    vmm.release(large).unwrap();
    assert_eq!(vmm.quarantined_ranges(), [], "{name}");
    vmm.address_free(base, size).unwrap();
    machine.assert_empty();
}

#[test]
fn reservation_stays_reserved_in_every_generation() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        check_every_operation(config, release);
    }
}

#[test]
fn addresses_stay_reserved_with_runtime_cpu_access() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        check_every_operation(
            without_cpu_mapping(config),
            &format!("{release}, CPU access by the runtime"),
        );
    }
}

#[test]
fn free_leaves_no_mapping_behind() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let base = machine.reserve(4 * granule);
        let handle = machine.create(0, granule);
        machine.map(base, granule, handle);
        machine.grant(base, granule, machine.cpu(0), Access::ReadWrite);
        let is_view = |region: &process::Region| {
            region.start < base.get() + granule
                && region.end > base.get()
                && region.name.contains("hsa-sim")
        };
        assert!(process::regions().iter().any(is_view), "{release}: the view");
        machine.grant(base, granule, machine.cpu(0), Access::None);
        assert!(!process::regions().iter().any(is_view), "{release}: no access");
        machine.grant(base, granule, machine.cpu(0), Access::ReadWrite);
        machine.vmm.unmap(base, granule).unwrap();
        machine.vmm.address_free(base, 4 * granule).unwrap();
        assert!(!process::regions().iter().any(is_view), "{release}");
    }
}

/// The hostile runtime lists a GPU before the CPU. AMD's runtimes list CPUs first, but do not document this order.
#[test]
fn cpu_listed_after_a_gpu_gets_access() {
    if process::rerun_in_own_process() {
        return;
    }
    let hostile = HostileRuntime::new();
    hostile.set(c"hostile_gpu_first", 1);
    let (runtime, vmm, gpu) = hostile.open();
    assert_eq!(runtime.agents()[0].id(), gpu);
    let base = make_two_mappings(&vmm, gpu);
    for number in 0..2 {
        let end = process::load_in_child(at(base, number * 4096).get());
        assert_eq!(end, process::End::Success, "{number}");
    }
    let host = runtime.host().id();
    vmm.set_access(base, 2 * 4096, &[access(host, Access::None)]).unwrap();
    process::assert_inaccessible(base.get(), 2 * 4096, "access set to none");
}

/// Fails unless the four pages at `base` are quarantined, the calls below on the pages fail, and the foreign mapping
/// stays.
fn assert_in_quarantine(vmm: &Vmm, base: hsa_vmm::Address, foreign: hsa_vmm::Address) {
    let listed = vmm.quarantined_ranges();
    assert!(listed.iter().any(|entry| entry.address == base), "{listed:?}");
    let entry = listed.iter().find(|entry| entry.address == base).unwrap();
    assert_eq!(entry.size, 4 * 4096);
    assert!(entry.reason().contains("may contain a foreign mapping"), "{entry}");
    let reported = format!("0x4000 bytes at {base} since {}: {}", entry.operation, entry.reason());
    assert_eq!(entry.to_string(), reported);
    let properties = AllocationProperties::on(vmm.runtime().gpus().next().unwrap().id());
    let handle = vmm.create(4096, &properties).unwrap();
    let gpu = vmm.runtime().gpus().next().unwrap().id();
    let results = [
        vmm.address_free(base, 4 * 4096),
        vmm.map(at(base, 2 * 4096), 4096, 0, handle),
        vmm.map(foreign, 4096, 0, handle),
        vmm.unmap(at(base, 4096), 4096),
        vmm.set_access(at(base, 4096), 4096, &[access(gpu, Access::Read)]),
        vmm.revoke(at(base, 4096), 4096, &[gpu]),
        vmm.read(base, &mut [0]),
        vmm.write(base, &[0]),
        vmm.fill(base, 0, 4),
        vmm.copy(gpu, base, at(base, 4096), 4),
    ];
    for (number, result) in results.into_iter().enumerate() {
        let quarantined = matches!(
            result.as_ref().map_err(Error::kind),
            Err(ErrorKind::Quarantined { now: false, .. })
        );
        assert!(quarantined, "{number}: {result:?}");
    }
    // A part of the range cannot be freed either.
    let error = vmm.address_free(at(base, 4096), 3 * 4096).unwrap_err();
    assert_eq!(error.problem(), Some(Problem::NotAReservation));
    assert!(foreign_page_is_at(foreign));
    vmm.check().unwrap();
}

#[test]
fn foreign_mapping_in_a_hole_is_never_freed() {
    if process::rerun_in_own_process() {
        return;
    }
    let hostile = HostileRuntime::new();
    let (runtime, vmm, gpu) = hostile.open();
    let base = make_two_mappings(&vmm, gpu);
    hostile.set(c"hostile_foreign_mappings", 1);
    assert_quarantines(vmm.unmap(base, 4096));
    assert_in_quarantine(&vmm, base, base);
    drop(vmm);
    assert!(foreign_page_is_at(base), "after the `Vmm` was dropped");
    drop(runtime);
    assert!(foreign_page_is_at(base), "after the runtime was dropped");
    // A runtime could unmap reserved addresses, and with them the foreign mapping, when it stops.
    assert_eq!(hostile.get(c"hostile_started"), 1);
}

/// A call that only unmaps also unmaps the mappings in other reservations.
#[test]
fn batch_goes_on_after_foreign_mapping_in_a_hole() {
    if process::rerun_in_own_process() {
        return;
    }
    let hostile = HostileRuntime::new();
    let (runtime, vmm, gpu) = hostile.open();
    let memory = Allocation::create(&vmm, 4096, &AllocationProperties::on(gpu)).unwrap();
    let new_mapping = |_| {
        let mapping = Reservation::builder(4096).reserve(&vmm).unwrap().map(0, &memory).unwrap();
        mapping.grant(&[runtime.host().id()], Access::ReadWrite).unwrap();
        mapping
    };
    let mappings = Vec::from([0, 1].map(new_mapping));
    hostile.set(c"hostile_foreign_mappings", 1);
    let Rejected { value, error } = Mapping::unmap_many(mappings).unwrap_err();
    assert_quarantines(Err(error));
    assert_eq!((value.len(), vmm.usage().mappings, vmm.quarantined_ranges().len()), (0, 0, 1));
}

#[test]
fn probe_keeps_foreign_mapping() {
    if process::rerun_in_own_process() {
        return;
    }
    for inaccessible in [0, 1] {
        let hostile = HostileRuntime::new();
        // SAFETY: this test compiled the runtime, which implements HSA's functions.
        let runtime = unsafe { Runtime::load_from(&hostile.path) }.unwrap();
        let probing = VmmOptions::new().with_probing(Probing::Always);
        hostile.set(c"hostile_foreign_inaccessible", inaccessible);
        hostile.set(c"hostile_foreign_mappings", 1);
        let vmm = Vmm::open_with(&runtime, probing).unwrap();
        let foreign = hostile.foreign_address();
        assert_ne!(foreign.get(), 0, "the runtime leaves a hole when the probe unmaps");
        assert!(foreign_page_is_at(foreign), "after the `Vmm` was opened");
        let probed: Vec<_> = vmm.probes().iter().map(|probe| probe.quirk.name).collect();
        assert!(!probed.contains(&"cpu_unmap_leaves_hole"), "no verdict: {probed:?}");
        assert!(vmm.quirks().cpu_unmap_leaves_hole);
        drop(vmm);
        drop(runtime);
        assert!(foreign_page_is_at(foreign), "after the runtime was dropped");
    }
}

/// A thread maps memory while another thread's unmap loses the addresses to a foreign mapping.
#[test]
fn waiting_thread_keeps_foreign_mapping_in_a_hole() {
    if process::rerun_in_own_process() {
        return;
    }
    let hostile = HostileRuntime::new();
    let (_runtime, vmm, gpu) = hostile.open();
    let handle = vmm.create(4096, &AllocationProperties::on(gpu)).unwrap();
    // The runtime releases memory slowly, so that the waiting thread runs before the unmap ends.
    hostile.set(c"hostile_release_delay_us", 20_000);
    for round in 0..10 {
        let base = make_two_mappings(&vmm, gpu);
        let memory = vmm.retain_allocation_handle(base).unwrap();
        vmm.release(memory).unwrap();
        vmm.release(memory).unwrap();
        let has_called = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                loop {
                    let result = vmm.map(base, 4096, 0, handle);
                    has_called.store(true, Ordering::Relaxed);
                    let mapped = Some(Problem::AlreadyMapped(base));
                    if result.as_ref().map_err(Error::problem) != Err(mapped) {
                        return result;
                    }
                }
            });
            while !has_called.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            hostile.set(c"hostile_foreign_mappings", 1);
            let result = match round % 2 {
                0 => vmm.unmap(base, 4096),
                _ => vmm.unmap_many(&[(base, 4096)]),
            };
            let quarantined = matches!(
                result.as_ref().map_err(Error::kind),
                Err(ErrorKind::Quarantined { now: true, .. })
            );
            assert!(quarantined, "{round}: {result:?}");
            let result = waiting.join().unwrap();
            let rejected = matches!(
                result.as_ref().map_err(Error::kind),
                Err(ErrorKind::Quarantined { now: false, .. })
            );
            assert!(rejected, "{round}: {result:?}");
        });
        assert!(foreign_page_is_at(base), "{round}");
    }
    hostile.set(c"hostile_release_delay_us", 0);
}

#[test]
fn revoke_keeps_foreign_mapping() {
    if process::rerun_in_own_process() {
        return;
    }
    let hostile = HostileRuntime::new();
    let (_runtime, vmm, gpu) = hostile.open();
    let base = make_two_mappings(&vmm, gpu);
    hostile.set(c"hostile_foreign_mappings", 1);
    assert_quarantines(vmm.revoke(base, 2 * 4096, &[gpu]));
    assert!(foreign_page_is_at(base));
    assert_eq!(vmm.mappings().len(), 2, "the lost mapping keeps its memory");
    drop(vmm);
    assert!(foreign_page_is_at(base));
}

#[test]
fn rollback_keeps_foreign_mapping() {
    if process::rerun_in_own_process() {
        return;
    }
    let hostile = HostileRuntime::new();
    let (_runtime, vmm, gpu) = hostile.open();
    let base = make_two_mappings(&vmm, gpu);
    hostile.set(c"hostile_foreign_mappings", 1);
    // The second mapping cannot be unmapped, so the unmap of the first is rolled back.
    hostile.set(c"hostile_unmap_fails_at", 2);
    assert_quarantines(vmm.unmap(base, 2 * 4096));
    assert_in_quarantine(&vmm, base, base);
    let mapped_addresses: Vec<_> = vmm.mappings().iter().map(|it| it.address).collect();
    assert_eq!(mapped_addresses, [at(base, 4096)], "the first mapping was unmapped");
    drop(vmm);
    assert!(foreign_page_is_at(base));
}

#[test]
fn foreign_mappings_in_several_holes_are_never_freed() {
    if process::rerun_in_own_process() {
        return;
    }
    let hostile = HostileRuntime::new();
    let (_runtime, vmm, gpu) = hostile.open();
    let base = make_two_mappings(&vmm, gpu);
    hostile.set(c"hostile_foreign_mappings", 2);
    assert_quarantines(vmm.unmap(base, 2 * 4096));
    assert_in_quarantine(&vmm, base, base);
    assert_in_quarantine(&vmm, base, at(base, 4096));
    assert_eq!(vmm.quarantined_ranges().len(), 1);
}

/// The hostile runtime would create a foreign mapping in any hole.
#[test]
fn cpu_access_changes_make_no_hole() {
    if process::rerun_in_own_process() {
        return;
    }
    let hostile = HostileRuntime::new();
    let (runtime, vmm, gpu) = hostile.open();
    let base = make_two_mappings(&vmm, gpu);
    hostile.set(c"hostile_foreign_mappings", 1);
    let before = hostile.get(c"hostile_access_changes");
    let cpu = runtime.host().id();
    for (requested, expected) in [
        (Access::Read, "r--"),
        (Access::None, "---"),
        (Access::ReadWrite, "rw-"),
        (Access::None, "---"),
        (Access::Read, "r--"),
        (Access::ReadWrite, "rw-"),
    ] {
        vmm.set_access(base, 2 * 4096, &[access(cpu, requested)]).unwrap();
        let parts = process::permissions(base.get(), 2 * 4096).unwrap();
        assert!(parts.iter().all(|part| part.2.starts_with(expected)), "{parts:x?}");
        // The contents are intact although the CPU has no access.
        if requested != Access::None {
            let mut bytes = [0; 4];
            vmm.read(base, &mut bytes).unwrap();
            assert_eq!(&bytes, b"mine");
        }
    }
    assert_eq!(hostile.get(c"hostile_access_changes"), before, "no call of the runtime");
    assert_eq!(hostile.get(c"hostile_foreign_mappings"), 1, "no hole");
    hostile.set(c"hostile_foreign_mappings", 0);
    vmm.unmap(base, 2 * 4096).unwrap();
    process::assert_inaccessible(base.get(), 2 * 4096, "unmapped");
    assert_eq!(vmm.quarantined_ranges(), []);
}

/// A CPU with read access cannot write the memory, even if the runtime, and not the library, maps it for the CPU.
#[test]
fn cpu_read_access_is_enforced_from_the_first_grant() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        let machine = Machine::new(without_cpu_mapping(config));
        let granule = machine.granule();
        let (base, _) = machine.map_new_memory(0, granule);
        machine.grant(base, granule, machine.cpu(0), Access::Read);
        let parts = process::permissions(base.get(), granule).unwrap();
        assert!(parts.iter().all(|part| part.2.starts_with("r--")), "{release}: {parts:x?}");
        // The memory stays read-only when other agents get access, and when it is mapped again.
        machine.grant(base, granule, machine.gpu(1), Access::ReadWrite);
        machine.grant(base, granule, machine.gpu(0), Access::ReadWrite);
        machine.vmm.revoke(base, granule, &[machine.gpu(1)]).unwrap();
        let parts = process::permissions(base.get(), granule).unwrap();
        assert!(parts.iter().all(|part| part.2.starts_with("r--")), "{release}: {parts:x?}");
        machine.grant(base, granule, machine.cpu(0), Access::None);
        machine.grant(base, granule, machine.gpu(1), Access::ReadWrite);
        process::assert_inaccessible(base.get(), granule, release);
    }
}

#[test]
fn foreign_thread_keeps_its_mappings_in_holes() {
    if process::rerun_in_own_process() {
        return;
    }
    let config = without_cpu_mapping(Config::mi300x(1).with_generation(Generation::A));
    let machine = Machine::new(config);
    let granule = machine.granule();
    let stop = Arc::new(AtomicBool::new(false));
    let mut base = machine.reserve(granule);
    let target = Arc::new(std::sync::atomic::AtomicUsize::new(base.get()));
    let (thread_stop, thread_target) = (stop.clone(), target.clone());
    let foreign_thread = std::thread::spawn(move || {
        let mut pages = Vec::new();
        while !thread_stop.load(Ordering::Relaxed) {
            let hint = thread_target.load(Ordering::Relaxed);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: `MAP_FIXED_NOREPLACE` replaces no mapping.
            let page = unsafe { libc::mmap(hint as *mut _, 4096, protection, flags, -1, 0) };
            if page != libc::MAP_FAILED {
                // SAFETY: the page was just mapped, and only this thread uses it.
                unsafe { page.cast::<u8>().write_bytes(hostile::FOREIGN_BYTE, 4096) };
                pages.push(page as usize);
            }
        }
        pages
    });
    let handle = machine.create(0, granule);
    let mut quarantined = 0;
    let begun = Instant::now();
    while quarantined < 8 && begun.elapsed() < Duration::from_secs(60) {
        machine.map(base, granule, handle);
        machine.grant(base, granule, machine.cpu(0), Access::ReadWrite);
        match machine.vmm.unmap(base, granule) {
            Ok(()) => process::assert_inaccessible(base.get(), granule, "unmapped"),
            Err(error) if matches!(error.kind(), ErrorKind::Quarantined { now: true, .. }) => {
                quarantined += 1;
                base = machine.reserve(granule);
                target.store(base.get(), Ordering::Relaxed);
            }
            Err(error) => panic!("{error}"),
        }
    }
    stop.store(true, Ordering::Relaxed);
    let pages = foreign_thread.join().unwrap();
    let simulation = machine.simulation.clone();
    assert!(quarantined > 0, "the thread has never mapped a page in a hole");
    assert_eq!(machine.vmm.quarantined_ranges().len(), quarantined);
    drop(machine);
    drop(simulation);
    for page in pages {
        assert!(foreign_page_is_at(hsa_vmm::Address::new(page)), "{page:#x}");
    }
}

#[test]
fn unneeded_hole_workaround_quarantines() {
    if process::rerun_in_own_process() {
        return;
    }
    // The runtime leaves no hole, but the test switches on the quirk. The library therefore takes the runtime's own
    // mapping for a foreign mapping in a hole, and does not change the mapping.
    let mut quirks = Quirks::default();
    quirks.cpu_unmap_leaves_hole = true;
    let options = VmmOptions::new().with_quirks(quirks);
    let config = without_cpu_mapping(Config::mi300x(1).with_generation(Generation::D));
    let machine = Machine::with_options(config, options);
    let granule = machine.granule();
    let base = machine.reserve(granule);
    let handle = machine.create(0, granule);
    machine.map(base, granule, handle);
    machine.grant(base, granule, machine.cpu(0), Access::ReadWrite);
    assert_quarantines(machine.vmm.unmap(base, granule));
}
