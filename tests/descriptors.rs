//! If too few file descriptors are free, a call that needs them returns `OutOfDescriptors` and changes nothing.

mod hostile;
mod machine;
mod process;

use hostile::HostileRuntime;
use hsa_vmm::error::Status;
use hsa_vmm::simulation::Config;
use hsa_vmm::{Access, AllocationProperties, Error, ErrorKind, Handle, HandleType, PoolMemory};
use machine::{Machine, access, at};
use process::End;
use process::limit::{limit_free_descriptors, raise_limit};
use std::os::fd::OwnedFd;

const DESCRIPTOR: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;

fn export(machine: &Machine, handle: Handle) -> OwnedFd {
    machine.vmm.export_to_shareable_handle(handle, DESCRIPTOR).expect("an export")
}

/// Runs a test on a machine of each release, in a process of its own, where the test can use up all descriptors.
fn run_on_releases(test: impl Fn(&Machine)) {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        let end = process::in_child(|| test(&Machine::new(config)));
        assert_eq!(end, End::Success, "{release}");
    }
}

#[test]
fn calls_without_descriptors_change_nothing() {
    run_on_releases(|machine| {
        let vmm = &machine.vmm;
        let granule = machine.granule();
        let handle = machine.create(0, granule);
        let second_handle = machine.create(0, granule);
        let base = machine.reserve(2 * granule);
        machine.map(base, granule, handle);
        machine.map(at(base, granule), granule, second_handle);
        machine.grant(base, granule, machine.gpu(0), Access::Read);
        let shared = export(machine, handle);
        limit_free_descriptors(0);
        let state = || (vmm.usage(), vmm.mappings(), machine.simulation.usage());
        let before = state();
        let cpu = [access(machine.cpu(0), Access::ReadWrite)];
        let results = [
            ("export", vmm.export_to_shareable_handle(handle, DESCRIPTOR).map(drop)),
            ("import", vmm.import_from_shareable_handle(&shared, DESCRIPTOR).map(drop)),
            ("set_access", vmm.set_access(base, granule, &cpu)),
            ("set_access of several", vmm.set_access(base, 2 * granule, &cpu)),
        ];
        for (name, result) in results {
            let is_shortage =
                matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::OutOfDescriptors));
            assert!(is_shortage, "{name}: {result:?}");
        }
        if machine.simulation.config().generation == hsa_vmm::simulation::Generation::C {
            let result = vmm.create(granule, &machine.shareable_on(0));
            assert!(
                matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::OutOfDescriptors)),
                "{result:?}"
            );
        }
        assert_eq!(state(), before);
        raise_limit();
        machine.grant(base, 2 * granule, machine.cpu(0), Access::ReadWrite);
        drop(export(machine, handle));
        vmm.import_from_shareable_handle(&shared, DESCRIPTOR).unwrap();
    });
}

/// These calls open no descriptor (except `create` from ROCm 7.14 on), so that their errors do not name descriptors.
#[test]
fn lack_of_memory_is_not_lack_of_descriptors() {
    run_on_releases(|machine| {
        let (vmm, granule) = (&machine.vmm, machine.granule());
        limit_free_descriptors(0);
        let error = vmm.address_reserve(1 << 63, 0, None).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutOfMemory { status: None, .. }), "{error}");
        assert_eq!(error.call(), None);
        machine.simulation.set_faults("hsa_amd_vmem_handle_create=0x1008".parse().unwrap());
        let error = vmm.create(granule, &machine.shareable_on(0)).unwrap_err();
        let expected = match vmm.quirks().import_needs_descriptor {
            true => ErrorKind::OutOfDescriptors,
            false => ErrorKind::OutOfMemory {
                call: "hsa_amd_vmem_handle_create",
                status: Some(Status(0x1008)),
                size: granule,
            },
        };
        assert_eq!(*error.kind(), expected);
        raise_limit();
    });
}

/// The simulation opens a file for each allocation.
#[test]
fn simulated_pool_memory_needs_a_descriptor() {
    run_on_releases(|machine| {
        let allocate = || PoolMemory::allocate(&machine.runtime, machine.gpu(0), machine.granule());
        limit_free_descriptors(0);
        let error = allocate().unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::OutOfDescriptors, "{error}");
        raise_limit();
        allocate().unwrap();
    });
}

#[test]
fn unmapped_memory_keeps_no_descriptors() {
    run_on_releases(|machine| {
        let granule = machine.granule();
        let base = machine.reserve(granule);
        let before = process::descriptors();
        for _ in 0..100 {
            let handle = machine.create(0, granule);
            machine.map(base, granule, handle);
            machine.vmm.unmap(base, granule).unwrap();
            machine.vmm.release(handle).unwrap();
        }
        let kept = process::descriptors() - before;
        assert!(kept <= 20, "{kept} descriptors of unmapped memory are open");
    });
}

/// AMD's runtime before 7.14 aborts the process if no descriptor is free when the runtime grants a GPU access. The
/// library therefore returns an error, and does not call the runtime. Changing the permission of an agent that already
/// has access needs no descriptor.
#[test]
fn permission_changes_need_no_descriptor() {
    run_on_releases(|machine| {
        let granule = machine.granule();
        let (base, _) = machine.map_new_memory(0, granule);
        machine.grant(base, granule, machine.gpu(0), Access::Read);
        let calls = || machine.simulation.calls("hsa_amd_vmem_set_access");
        limit_free_descriptors(0);
        machine.grant(base, granule, machine.gpu(0), Access::ReadWrite);
        machine.grant(base, granule, machine.gpu(1), Access::None);
        if machine.vmm.quirks().grant_without_descriptor_aborts {
            let before = calls();
            let peer = [access(machine.gpu(1), Access::Read)];
            let result = machine.vmm.set_access(base, granule, &peer);
            assert!(
                matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::OutOfDescriptors)),
                "{result:?}"
            );
            assert_eq!(calls(), before);
        }
    });
}

#[test]
fn running_out_of_descriptors_half_way_rolls_back() {
    run_on_releases(|machine| {
        let vmm = &machine.vmm;
        let granule = machine.granule();
        let base = machine.reserve(4 * granule);
        for number in 0..4 {
            let handle = machine.create(0, granule);
            machine.map(at(base, number * granule), granule, handle);
        }
        let grants = [machine.cpu(0), machine.gpu(0)].map(|id| access(id, Access::ReadWrite));
        for free_descriptors in 1..4 {
            limit_free_descriptors(free_descriptors);
            let before = (vmm.usage(), vmm.mappings());
            let result = vmm.set_access(base, 4 * granule, &grants);
            if result.is_ok() {
                break;
            }
            let is_shortage =
                matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::OutOfDescriptors));
            assert!(is_shortage, "{free_descriptors}: {result:?}");
            assert_eq!((vmm.usage(), vmm.mappings()), before);
            raise_limit();
            for number in 0..4 {
                let page = machine.simulation.page(0, at(base, number * granule).get());
                assert_eq!(page, None, "{free_descriptors}");
            }
            process::assert_inaccessible(base.get(), 4 * granule, "half-way");
        }
        raise_limit();
        vmm.set_access(base, 4 * granule, &grants).unwrap();
    });
}

/// From ROCm 7.14 on, the runtime opens an import when the first GPU is granted access.
#[test]
fn grants_to_an_import_need_a_descriptor() {
    run_on_releases(|machine| {
        let granule = machine.granule();
        let shared = export(machine, machine.create(0, granule));
        let imported = machine.vmm.import_from_shareable_handle(&shared, DESCRIPTOR).unwrap();
        let base = machine.reserve(granule);
        machine.map(base, granule, imported);
        let grant = [access(machine.gpu(0), Access::ReadWrite)];
        let before = (machine.vmm.mappings(), machine.simulation.usage());
        limit_free_descriptors(0);
        let result = machine.vmm.set_access(base, granule, &grant);
        raise_limit();
        match result {
            Err(error) if *error.kind() == ErrorKind::OutOfDescriptors => {
                assert_eq!((machine.vmm.mappings(), machine.simulation.usage()), before);
                machine.vmm.set_access(base, granule, &grant).unwrap();
            }
            result => assert_eq!(result, Ok(())),
        }
    });
}

/// Revoking unmaps the memory and maps it again. Without a descriptor, the library could not map the memory again.
#[test]
fn revoke_without_descriptors_changes_nothing() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        for cpu_has_access in [true, false] {
            let config = config.clone();
            let end =
                process::in_child(|| check_revoke_without_descriptors(config, cpu_has_access));
            assert_eq!(end, End::Success, "{release}, CPU access: {cpu_has_access}");
        }
    }
}

fn check_revoke_without_descriptors(config: Config, cpu_has_access: bool) {
    let machine = Machine::new(config);
    let (granule, vmm) = (machine.granule(), &machine.vmm);
    let (base, size) = (machine.reserve(2 * granule), 2 * granule);
    for address in [base, at(base, granule)] {
        machine.map(address, granule, machine.create(0, granule));
    }
    let [first, second] = [0, 1].map(|gpu| machine.gpu(gpu));
    let mut agents = vec![first, second];
    if cpu_has_access {
        agents.push(machine.cpu(0));
    }
    let grants: Vec<_> = agents.iter().map(|&agent| access(agent, Access::ReadWrite)).collect();
    vmm.set_access(base, size, &grants).unwrap();
    let state = || {
        let pages = [0, 1].map(|gpu| machine.simulation.page(gpu, base.get()));
        let cpu_permissions = process::permissions(base.get(), size);
        (
            vmm.mappings(),
            vmm.quarantined_ranges(),
            pages,
            cpu_permissions,
            machine.simulation.all_calls(),
        )
    };
    for agents in [&[first][..], &[second], &[first, second]] {
        let before = state();
        limit_free_descriptors(0);
        let result = vmm.revoke(base, size, agents);
        raise_limit();
        match result {
            Err(error) if *error.kind() == ErrorKind::OutOfDescriptors => {
                assert_eq!(state(), before, "{agents:?}")
            }
            // Some runtimes need no descriptor if the CPU has no view.
            Ok(()) if !cpu_has_access && !vmm.quirks().grant_without_descriptor_aborts => {
                vmm.set_access(base, size, &grants).unwrap();
            }
            _ => panic!("{agents:?}: {result:?}"),
        }
    }
    vmm.revoke(base, size, &[second]).unwrap();
    assert_eq!(machine.simulation.page(1, base.get()), None);
}

/// To import memory, the library duplicates the descriptor. Some runtimes need a further descriptor to check the
/// import.
#[test]
fn import_fails_until_enough_descriptors_are_free() {
    run_on_releases(|machine| {
        let handle = machine.create(0, machine.granule());
        let shared = export(machine, handle);
        for free_descriptors in 0..16 {
            limit_free_descriptors(free_descriptors);
            let result = machine.vmm.import_from_shareable_handle(&shared, DESCRIPTOR);
            raise_limit();
            match result {
                Ok(_) if free_descriptors > 0 => return,
                Err(error) if *error.kind() == ErrorKind::OutOfDescriptors => {}
                _ => panic!("{free_descriptors} descriptors: {result:?}"),
            }
        }
        panic!("the call never succeeds");
    });
}

/// The library changes the CPU's access before the access of GPUs. If the GPUs' change fails, the CPU keeps its access.
#[test]
fn set_access_keeps_cpu_access_after_failure() {
    run_on_releases(|machine| {
        let (vmm, granule) = (&machine.vmm, machine.granule());
        let shared = export(machine, machine.create(0, granule));
        // From ROCm 7.14 on, an import needs a descriptor when the first GPU is granted access.
        let imported = vmm.import_from_shareable_handle(&shared, DESCRIPTOR).unwrap();
        let base = machine.reserve(granule);
        machine.map(base, granule, imported);
        let [cpu, gpu] = [machine.cpu(0), machine.gpu(0)];
        for granted in [Access::ReadWrite, Access::Read] {
            for requested in [Access::None, Access::Read, Access::ReadWrite] {
                machine.grant(base, granule, cpu, granted);
                let state = || {
                    let cpu_permissions = process::permissions(base.get(), granule);
                    (
                        vmm.mappings(),
                        vmm.quarantined_ranges(),
                        cpu_permissions,
                        machine.simulation.page(0, base.get()),
                    )
                };
                let before = state();
                limit_free_descriptors(0);
                let grants = [access(cpu, requested), access(gpu, Access::ReadWrite)];
                let result = vmm.set_access(base, granule, &grants);
                raise_limit();
                match result {
                    Err(error) if *error.kind() == ErrorKind::OutOfDescriptors => {
                        assert_eq!(state(), before)
                    }
                    // ROCm 7.14 needs no descriptor once it has opened the memory.
                    result => {
                        assert_eq!(result, Ok(()));
                        vmm.revoke(base, granule, &[gpu]).unwrap();
                    }
                }
            }
        }
        machine.grant(base, granule, cpu, Access::ReadWrite);
        vmm.write(base, b"kept").unwrap();
        machine.grant(base, granule, cpu, Access::None);
        process::assert_inaccessible(base.get(), granule, "inaccessible");
    });
}

/// `set_access` changes several mappings. If the descriptors run out after the first change, the library undoes this
/// change.
#[test]
fn set_access_of_several_restores_after_failure() {
    run_on_releases(|machine| {
        let (vmm, granule) = (&machine.vmm, machine.granule());
        let base = machine.reserve(3 * granule);
        for number in 0..3 {
            let shared = export(machine, machine.create(0, granule));
            let imported = vmm.import_from_shareable_handle(&shared, DESCRIPTOR).unwrap();
            machine.map(at(base, number * granule), granule, imported);
        }
        let size = 3 * granule;
        machine.grant(base, size, machine.cpu(0), Access::ReadWrite);
        vmm.write(base, b"kept").unwrap();
        for free_descriptors in 0..16 {
            let state = || {
                let pages =
                    [0, 1, 2].map(|n| machine.simulation.page(0, at(base, n * granule).get()));
                let cpu_permissions = process::permissions(base.get(), size);
                (
                    vmm.mappings(),
                    vmm.quarantined_ranges(),
                    pages.map(|page| page.is_some()),
                    cpu_permissions,
                )
            };
            let before = state();
            limit_free_descriptors(free_descriptors);
            let grants =
                [access(machine.cpu(0), Access::None), access(machine.gpu(0), Access::ReadWrite)];
            let result = vmm.set_access(base, size, &grants);
            raise_limit();
            if result.is_ok() {
                machine.grant(base, size, machine.cpu(0), Access::Read);
                let mut bytes = [0; 4];
                vmm.read(base, &mut bytes).unwrap();
                assert_eq!(&bytes, b"kept");
                return;
            }
            let is_shortage =
                matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::OutOfDescriptors));
            assert!(is_shortage, "{free_descriptors}: {result:?}");
            assert_eq!(state(), before, "{free_descriptors}");
        }
        panic!("the call never succeeds");
    });
}

/// Runs a test twice on the hostile runtime, with two mappings that the CPU and a GPU can read and write. The first
/// time, the library maps the memory for the CPU. The second time, the exported descriptors are read-only, and the
/// runtime maps the memory for the CPU.
fn on_hostile_runtime(
    function: impl Fn(&HostileRuntime, &hsa_vmm::Vmm, hsa_vmm::Address, [hsa_vmm::AgentId; 2]),
) {
    for writable in [1, 0] {
        let hostile = HostileRuntime::new();
        let end = process::in_child(|| {
            hostile.set(c"hostile_writable", writable);
            let (runtime, vmm, gpu) = hostile.open();
            let cpu = runtime.host().id();
            let base = vmm.address_reserve(4 * 4096, 0, None).unwrap();
            for number in 0..2 {
                let memory = vmm.create(4096, &AllocationProperties::on(gpu)).unwrap();
                vmm.map(at(base, number * 4096), 4096, 0, memory).unwrap();
            }
            let grants = [gpu, cpu].map(|agent| access(agent, Access::ReadWrite));
            vmm.set_access(base, 2 * 4096, &grants).unwrap();
            vmm.write(base, b"kept").unwrap();
            function(&hostile, &vmm, base, [gpu, cpu]);
            raise_limit();
            assert_eq!(vmm.quarantined_ranges(), []);
            let mut bytes = [0; 4];
            vmm.read(base, &mut bytes).unwrap();
            assert_eq!(&bytes, b"kept");
            vmm.check().unwrap();
            vmm.unmap(base, 2 * 4096).unwrap();
            process::assert_inaccessible(base.get(), 4 * 4096, "unmapped");
        });
        assert_eq!(end, End::Success, "writable: {writable}");
    }
}

/// Revoking unmaps the memory. Before the library maps the memory again, the hostile runtime uses up all descriptors,
/// as another thread could.
#[test]
fn revoke_survives_loss_of_descriptors() {
    if process::rerun_in_own_process() {
        return;
    }
    on_hostile_runtime(|hostile, vmm, base, [gpu, _]| {
        limit_free_descriptors(1);
        hostile.set(c"hostile_exhausts_descriptors", 1);
        vmm.revoke(base, 2 * 4096, &[gpu]).unwrap();
        assert_eq!(hostile.get(c"hostile_exhausts_descriptors"), 0);
        assert_eq!(vmm.get_access(gpu, base).unwrap(), Access::None);
    });
}

#[test]
fn exchange_survives_loss_of_descriptors() {
    if process::rerun_in_own_process() {
        return;
    }
    on_hostile_runtime(|hostile, vmm, base, _| {
        limit_free_descriptors(1);
        hostile.set(c"hostile_exhausts_descriptors", 1);
        let second = at(base, 4096);
        vmm.exchange(base, second, 4096).unwrap();
        let mut bytes = [0; 4];
        vmm.read(second, &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept");
        raise_limit();
        vmm.exchange(base, second, 4096).unwrap();
    });
}

/// If the runtime rejects an unmap, the call changes nothing and needs no descriptor.
#[test]
fn rejected_unmap_needs_no_descriptor() {
    if process::rerun_in_own_process() {
        return;
    }
    on_hostile_runtime(|hostile, vmm, base, _| {
        limit_free_descriptors(0);
        hostile.set(c"hostile_unmap_fails_at", 1);
        vmm.unmap(base, 4096).unwrap_err();
        // If the runtime has mapped the memory for the CPU, the rollback has unmapped the memory and mapped it again.
        let unmaps = if hostile.get(c"hostile_writable") == 0 { 2 } else { 1 };
        hostile.set(c"hostile_unmap_fails_at", unmaps + 1);
        vmm.unmap_many(&[(base, 2 * 4096)]).unwrap_err();
    });
}
