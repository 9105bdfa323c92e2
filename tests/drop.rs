//! Dropping the last `Vmm` after, or during, failures of the runtime: what is freed, and what has to stay.

mod hostile;
mod machine;
mod process;

use hostile::assert_quarantines;
use hsa_vmm::Access;
use hsa_vmm::hsa_sys::HSA_STATUS_ERROR;
use hsa_vmm::simulation::FaultPlan;
use machine::{Machine, access, quirks_of, releases};

/// The memory of a mapping that cannot be unmapped is not released: a GPU could still access it.
#[test]
fn drop_keeps_memory_that_stays_mapped() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in releases() {
        let Machine { simulation, library } = Machine::new(config);
        let granule = library.granule();
        library.map_new_memory(0, granule);
        simulation.set_faults(FaultPlan::none().always("hsa_amd_vmem_unmap", HSA_STATUS_ERROR));
        let calls = simulation.calls("hsa_amd_vmem_handle_release");
        drop(library);
        assert_eq!(simulation.calls("hsa_amd_vmem_handle_release"), calls, "{release}");
        let usage = simulation.usage();
        assert_eq!((usage.reservations, usage.handles, usage.mappings), (1, 1, 1), "{release}");
    }
}

/// If the unmaps of a drop fail twice, the library unmaps without a rollback. Then it frees everything, too, except the
/// addresses of a reservation that a failed rollback has quarantined. No view of the CPU keeps the memory allocated.
#[test]
fn drop_frees_all_if_two_unmaps_fail() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in releases() {
        for is_quarantined in [false, true] {
            let can_restore = !quirks_of(&config).peer_after_owner_fails;
            if !is_quarantined && !can_restore {
                continue;
            }
            let Machine { simulation, library } = Machine::new(config.clone());
            let granule = library.granule();
            let (base, handle) = library.map_new_memory(0, granule);
            let access =
                [library.cpu(0), library.gpu(0)].map(|agent| access(agent, Access::ReadWrite));
            library.vmm.set_access(base, granule, &access).unwrap();
            library.vmm.release(handle).unwrap();
            let mut faults = FaultPlan::none();
            if is_quarantined {
                faults = faults.always("hsa_amd_vmem_set_access", HSA_STATUS_ERROR);
            }
            let unmap = "hsa_amd_vmem_unmap";
            faults = faults.fail(unmap, 1, HSA_STATUS_ERROR).fail(unmap, 2, HSA_STATUS_ERROR);
            simulation.set_faults(faults);
            let machine::Library { runtime, vmm } = library;
            drop(vmm);
            let context = format!("{release}, quarantined: {is_quarantined}");
            let usage = simulation.usage();
            let expected = (usize::from(is_quarantined), 0, 0);
            let found = (usage.reservations, usage.handles, usage.mappings);
            assert_eq!(found, expected, "{context}");
            // While addresses are quarantined, ROCm 7.2 keeps the memory that was mapped there.
            let is_free = usage.vram_used.iter().all(|used| *used == 0);
            assert!(is_free || is_quarantined, "{context}: {usage:?}");
            let is_in_range =
                |it: &process::Region| it.start < base.get() + granule && base.get() < it.end;
            let left: Vec<_> = process::regions().into_iter().filter(is_in_range).collect();
            assert_eq!(left.is_empty(), !is_quarantined, "{context}: {left:?}");
            assert!(left.iter().all(|it| it.name.is_empty()), "{context}: {left:?}");
            drop(runtime);
        }
    }
}

/// If an unmap fails once, the mapping, its memory, the reservation and the CPU's view are nevertheless freed.
#[test]
fn drop_frees_all_if_one_unmap_fails() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in releases() {
        let Machine { simulation, library } = Machine::new(config);
        let granule = library.granule();
        let (base, handle) = library.map_new_memory(0, granule);
        let access = access(library.cpu(0), Access::ReadWrite);
        library.vmm.set_access(base, granule, &[access]).unwrap();
        library.vmm.release(handle).unwrap();
        simulation.set_faults(FaultPlan::none().fail("hsa_amd_vmem_unmap", 1, HSA_STATUS_ERROR));
        let machine::Library { runtime, vmm } = library;
        drop(vmm);
        let usage = simulation.usage();
        assert_eq!((usage.reservations, usage.handles, usage.mappings), (0, 0, 0), "{release}");
        assert!(usage.vram_used.iter().all(|used| *used == 0), "{release}: {usage:?}");
        assert_eq!(process::permissions(base.get(), granule), Err(base.get()), "{release}");
        drop(runtime);
    }
}

/// If a rollback fails after the CPU has lost its access, dropping the last `Vmm` also removes the CPU's view, which
/// would keep the memory allocated.
#[test]
fn drop_removes_views_without_access() {
    if process::rerun_in_own_process() {
        return;
    }
    let unmap_fails = FaultPlan::none().fail("hsa_amd_vmem_unmap", 1, HSA_STATUS_ERROR);
    let map_fails = FaultPlan::none().fail("hsa_amd_vmem_map", 1, HSA_STATUS_ERROR);
    for (release, config) in releases() {
        for faults in [&unmap_fails, &map_fails] {
            let Machine { simulation, library } = Machine::new(config.clone());
            let granule = library.granule();
            let (base, handle) = library.map_new_memory(0, granule);
            let (cpu, gpu) = (library.cpu(0), library.gpu(1));
            library.vmm.set_access(base, granule, &[access(cpu, Access::ReadWrite)]).unwrap();
            library.vmm.release(handle).unwrap();
            let grant = "hsa_amd_vmem_set_access";
            simulation.set_faults(faults.clone().fail(grant, 1, HSA_STATUS_ERROR));
            let list = [access(cpu, Access::None), access(gpu, Access::ReadWrite)];
            assert_quarantines(library.vmm.set_access(base, granule, &list));
            simulation.set_faults(FaultPlan::none());
            let machine::Library { runtime, vmm } = library;
            drop(vmm);
            let context = format!("{release}, {faults:?}");
            assert_eq!(simulation.usage().mappings, 0, "{context}");
            let is_in_range =
                |it: &process::Region| it.start < base.get() + granule && base.get() < it.end;
            let left: Vec<_> = process::regions().into_iter().filter(is_in_range).collect();
            assert!(!left.is_empty(), "{context}: the addresses stay reserved");
            assert!(left.iter().all(|it| it.name.is_empty()), "{context}: {left:?}");
            drop(runtime);
        }
    }
}

/// If the release of memory fails once when its last mapping is unmapped, dropping the last `Vmm` releases the memory.
#[test]
fn drop_releases_memory_again() {
    for (release, config) in releases() {
        let Machine { simulation, library } = Machine::new(config);
        let granule = library.granule();
        let (base, handle) = library.map_new_memory(0, granule);
        library.vmm.release(handle).unwrap();
        let release_fails =
            FaultPlan::none().fail("hsa_amd_vmem_handle_release", 1, HSA_STATUS_ERROR);
        simulation.set_faults(release_fails);
        library.vmm.unmap(base, granule).unwrap();
        assert_eq!(library.vmm.quarantined_ranges().len(), 1, "{release}");
        assert_eq!(simulation.usage().handles, 1, "{release}");
        let machine::Library { runtime, vmm } = library;
        drop(vmm);
        let usage = simulation.usage();
        assert_eq!((usage.reservations, usage.handles, usage.mappings), (0, 0, 0), "{release}");
        drop(runtime);
    }
}
