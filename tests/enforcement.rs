//! The permissions of each agent are enforced or only recorded, as `Agent::enforcement` reports.

mod machine;
mod process;

use hsa_vmm::agent::Enforcement;
use hsa_vmm::error::{Feature, Problem};
use hsa_vmm::simulation::{Config, Generation, GpuPermissions};
use hsa_vmm::vmm::VmmOptions;
use hsa_vmm::{
    Access, AccessDescriptor, Address, AgentId, AllocationProperties, Error, ErrorKind, HandleType,
    Vmm,
};
use machine::{Machine, access, at, with_two_cpus, without_cpu_mapping};
use process::{End, FAULT, STORED_BYTE, load_in_child, store_in_child};

/// Creates a machine with one mapping. Returns the machine, and the mapping's address and size.
fn machine_with_mapping(config: Config) -> (Machine, Address, usize) {
    let machine = Machine::new(config);
    let granule = machine.granule();
    let base = machine.reserve(2 * granule);
    let handle = machine.create(0, granule);
    machine.map(base, granule, handle);
    (machine, base, granule)
}

/// Returns two configurations for each generation. In the first, the library maps memory for the CPU. In the second,
/// the runtime maps memory for the CPU.
fn cpu_mapping_configs() -> Vec<(String, Config)> {
    let generations = machine::generations();
    let by_library =
        generations.clone().into_iter().map(|(generation, config)| (generation.to_owned(), config));
    let by_runtime = generations.into_iter().map(|(generation, config)| {
        (format!("{generation}, CPU access by the runtime"), without_cpu_mapping(config))
    });
    by_library.chain(by_runtime).collect()
}

#[track_caller]
fn assert_accesses(name: &str, base: Address, load: End, store: End) {
    assert_eq!(load_in_child(base.get()), load, "{name}: a load");
    assert_eq!(store_in_child(base.get() + 8), store, "{name}: a store");
}

#[test]
fn cpu_permissions_are_enforced() {
    if process::rerun_in_own_process() {
        return;
    }
    for (name, config) in cpu_mapping_configs() {
        let (machine, base, granule) = machine_with_mapping(config);
        let cpu = machine.cpu(0);
        let grant = |access| machine.grant(base, granule, cpu, access);
        assert_accesses(&format!("{name}, before"), base, FAULT, FAULT);
        grant(Access::Read);
        assert_accesses(&format!("{name}, read"), base, End::Success, FAULT);
        grant(Access::ReadWrite);
        assert_accesses(&format!("{name}, read and write"), base, End::Success, End::Success);
        let mut bytes = [0; 9];
        machine.vmm.read(base, &mut bytes).unwrap();
        assert_eq!(bytes[8], STORED_BYTE, "{name}: the child's store is visible");
        grant(Access::Read);
        assert_accesses(&format!("{name}, read again"), base, End::Success, FAULT);
        grant(Access::None);
        assert_accesses(&format!("{name}, none"), base, FAULT, FAULT);
        assert!(machine.vmm.read(base, &mut bytes).is_err());
        grant(Access::ReadWrite);
        machine.vmm.revoke(base, granule, &[cpu]).unwrap();
        assert_accesses(&format!("{name}, revoked"), base, FAULT, FAULT);
        grant(Access::ReadWrite);
        machine.vmm.read(base, &mut bytes).unwrap();
        assert_eq!(bytes[8], STORED_BYTE, "{name}: the contents stay");
        machine.vmm.unmap(base, granule).unwrap();
        assert_accesses(&format!("{name}, unmapped"), base, FAULT, FAULT);
        assert_accesses(&format!("{name}, after the mapping"), at(base, granule), FAULT, FAULT);
    }
}

/// Revoking the CPU's access makes no runtime call, so a GPU can use the memory meanwhile.
#[test]
fn revoking_from_the_cpu_does_not_unmap() {
    if process::rerun_in_own_process() {
        return;
    }
    for (name, config) in cpu_mapping_configs() {
        let (machine, base, granule) = machine_with_mapping(config);
        let all = [machine.cpu(0), machine.gpu(0)].map(|id| access(id, Access::ReadWrite));
        machine.vmm.set_access(base, granule, &all).unwrap();
        let calls = machine.calls(|| {
            machine.vmm.revoke(base, granule, &[machine.cpu(0)]).unwrap();
        });
        assert_eq!(calls, [], "{name}");
        assert_accesses(&name, base, FAULT, FAULT);
    }
}

#[test]
fn process_has_the_highest_access_of_all_cpus() {
    if process::rerun_in_own_process() {
        return;
    }
    for (name, config) in cpu_mapping_configs() {
        let (machine, base, granule) = machine_with_mapping(with_two_cpus(config));
        let [first, second] = [machine.cpu(0), machine.cpu(1)];
        let grant = |agent, access| machine.grant(base, granule, agent, access);
        let assert_access = |step: &str, load: bool, store: bool| {
            let end = |allowed| if allowed { End::Success } else { FAULT };
            assert_accesses(&format!("{name}: {step}"), base, end(load), end(store));
            assert_eq!(machine.vmm.read(base, &mut [0; 4]).is_ok(), load, "{name}: {step}");
            assert_eq!(machine.vmm.write(base, &[0; 4]).is_ok(), store, "{name}: {step}");
        };
        grant(second, Access::Read);
        assert_access("the second CPU can read", true, false);
        grant(first, Access::ReadWrite);
        assert_access("the first CPU can write", true, true);
        assert_eq!(machine.vmm.get_access(second, base).unwrap(), Access::Read, "{name}");
        grant(second, Access::None);
        assert_access("the second CPU has no access", true, true);
        grant(second, Access::Read);
        grant(first, Access::None);
        assert_access("the first CPU has no access, the second can read", true, false);
        machine.vmm.revoke(base, granule, &[first]).unwrap();
        assert_access("revoked from the first", true, false);
        let grants = [access(first, Access::ReadWrite), access(second, Access::None)];
        machine.vmm.set_access(base, granule, &grants).unwrap();
        assert_access("the first CPU can write, the second has no access", true, true);
        machine.vmm.revoke(base, granule, &[first, second]).unwrap();
        assert_access("revoked from both", false, false);
        machine.vmm.unmap(base, granule).unwrap();
        process::assert_inaccessible(base.get(), 2 * granule, &name);
        assert_eq!(machine.vmm.quarantined_ranges(), [], "{name}");
    }
}

#[test]
fn gpu_keeps_access_until_revoke() {
    if process::rerun_in_own_process() {
        return;
    }
    for (name, config) in cpu_mapping_configs() {
        // rocddi sets exact permissions.
        let is_exact = config.generation == Generation::E;
        let (machine, base, granule) = machine_with_mapping(config);
        let [gpu, peer, cpu] = [machine.gpu(0), machine.gpu(1), machine.cpu(0)];
        let grants = [gpu, peer, cpu].map(|agent| access(agent, Access::ReadWrite));
        machine.vmm.set_access(base, granule, &grants).unwrap();
        machine.vmm.write(base, b"kept").unwrap();
        for reduced in [Access::Read, Access::None] {
            machine.grant(base, granule, gpu, reduced);
            assert_eq!(machine.vmm.get_access(gpu, base).unwrap(), reduced, "{name}");
            let page = machine.simulation.page(0, base.get());
            let is_writable = page.is_some_and(|page| page.writable);
            assert_eq!(is_writable, !is_exact, "{name}: in ROCr, the change is only recorded");
            // The library's own calls respect the recorded access.
            let copied = machine.vmm.copy(gpu, at(base, 64), base, 4);
            assert!(copied.is_err(), "{name}");
        }
        machine.vmm.revoke(base, granule, &[gpu]).unwrap();
        assert_eq!(
            machine.simulation.page(0, base.get()),
            None,
            "{name}: removed from the page table"
        );
        assert!(
            machine.simulation.page(1, base.get()).is_some(),
            "{name}: the peer keeps its access"
        );
        let mut bytes = [0; 4];
        machine.vmm.read(base, &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept", "{name}: the CPU keeps its access");
        assert_eq!(machine.vmm.get_access(gpu, base).unwrap(), Access::None, "{name}");
        machine.vmm.copy(peer, at(base, 64), base, 4).unwrap();
        // Revoking twice is not an error, and access can be granted again.
        machine.vmm.revoke(base, granule, &[gpu]).unwrap();
        machine.grant(base, granule, gpu, Access::ReadWrite);
        machine.vmm.copy(gpu, at(base, 128), base, 4).unwrap();
        machine.vmm.unmap(base, granule).unwrap();
        assert_eq!(machine.simulation.page(0, base.get()), None, "{name}");
        assert_eq!(machine.simulation.page(1, base.get()), None, "{name}");
    }
}

#[test]
fn revoke_of_several_keeps_the_others() {
    if process::rerun_in_own_process() {
        return;
    }
    for (name, config) in cpu_mapping_configs() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let base = machine.reserve(4 * granule);
        for number in 0..4 {
            let handle = machine.create(number % 2, granule);
            machine.map(at(base, number * granule), granule, handle);
        }
        let grants: Vec<AccessDescriptor> =
            machine.gpus().into_iter().map(|gpu| access(gpu, Access::ReadWrite)).collect();
        machine.vmm.set_access(base, 4 * granule, &grants).unwrap();
        machine.vmm.revoke(at(base, granule), 2 * granule, &[machine.gpu(1)]).unwrap();
        for number in 0..4 {
            let address = at(base, number * granule).get();
            let revoked = number == 1 || number == 2;
            assert!(machine.simulation.page(0, address).is_some(), "{name}: {number}");
            assert_eq!(machine.simulation.page(1, address).is_none(), revoked, "{name}: {number}");
        }
    }
}

#[test]
fn agent_copies_need_access_to_the_range() {
    let machine = Machine::new(Config::mi300x(1));
    let (granule, gpu) = (machine.granule(), machine.gpu(0));
    let base = machine.reserve(3 * granule);
    for number in 0..3 {
        machine.map(at(base, number * granule), granule, machine.create(0, granule));
    }
    // Grants access to the middle mapping only.
    let (middle, last) = (at(base, granule), at(base, 2 * granule));
    machine.grant(middle, granule, gpu, Access::ReadWrite);
    let half = granule / 2;
    machine.vmm.copy(gpu, at(middle, half), middle, half).unwrap();
    machine.vmm.copy(gpu, middle, at(middle, half), half).unwrap();
    for (address, expected) in [
        (last, last),
        (at(last, 4), at(last, 4)),
        (at(middle, granule - 4), last),
        (at(base, granule - 4), at(base, granule - 4)),
    ] {
        let error = machine.vmm.copy(gpu, address, middle, 8).unwrap_err();
        let Some(Problem::NotGranted { at, .. }) = error.problem() else { panic!("{error}") };
        assert_eq!(at, expected, "{error}");
    }
}

/// To revoke one agent's access, the library maps the memory again and grants the other agents access again. The
/// library must record these grants. Otherwise, it could not revoke them later, or fill the hole that the runtime
/// leaves.
#[test]
fn remaining_agents_can_be_revoked_later() {
    if process::rerun_in_own_process() {
        return;
    }
    for (name, config) in cpu_mapping_configs() {
        let machine = Machine::new(config.with_gpu_permissions(GpuPermissions::Enforced));
        let (granule, [first, second]) = (machine.granule(), [0, 1].map(|gpu| machine.gpu(gpu)));
        let (base, size) = (machine.reserve(3 * granule), 3 * granule);
        let addresses = [0, 1, 2].map(|number| at(base, number * granule));
        for address in addresses {
            machine.map(address, granule, machine.create(0, granule));
        }
        let set = |agents: &[AgentId], requested| {
            let list: Vec<_> = agents.iter().map(|&agent| access(agent, requested)).collect();
            machine.vmm.set_access(base, size, &list).unwrap();
        };
        set(&[first, second, machine.cpu(0)], Access::ReadWrite);
        machine.vmm.revoke(base, size, &[second]).unwrap();
        set(&[first, machine.cpu(0)], Access::None);
        for address in addresses {
            let page = machine.simulation.page(0, address.get());
            assert!(page.is_none_or(|page| !page.readable), "{name}: {address} can be read");
        }
        process::assert_inaccessible(base.get(), size, &name);
        machine.vmm.unmap(base, size).unwrap();
        process::assert_mapped(base.get(), size, &name);
    }
}

#[test]
fn enforcing_gpus_get_the_requested_access() {
    if process::rerun_in_own_process() {
        return;
    }
    for (name, config) in machine::generations() {
        let (machine, base, granule) =
            machine_with_mapping(config.with_gpu_permissions(GpuPermissions::Enforced));
        let gpu = machine.gpu(0);
        for requested in [Access::Read, Access::ReadWrite, Access::None] {
            machine.grant(base, granule, gpu, requested);
            // In rocddi, a GPU without access has no entry.
            let page = machine.simulation.page(0, base.get());
            let found = page.map_or((false, false), |page| (page.readable, page.writable));
            let expected = (requested >= Access::Read, requested == Access::ReadWrite);
            assert_eq!(found, expected, "{name}");
        }
    }
}

#[test]
fn access_none_without_a_grant_maps_nothing() {
    if process::rerun_in_own_process() {
        return;
    }
    for (name, config) in machine::generations() {
        let (machine, base, granule) = machine_with_mapping(config);
        machine.grant(base, granule, machine.gpu(1), Access::None);
        assert_eq!(machine.simulation.page(1, base.get()), None, "{name}");
        assert_eq!(machine.simulation.calls("hsa_amd_vmem_set_access"), 0, "{name}");
    }
}

#[test]
fn cpu_grant_without_large_bar_is_rejected() {
    if process::rerun_in_own_process() {
        return;
    }
    for (generation, generation_config) in machine::generations() {
        let mut config = Config::consumer().with_generation(generation_config.generation);
        config.gpus.truncate(1);
        let (machine, base, granule) = machine_with_mapping(config);
        assert!(!machine.runtime.gpus().next().unwrap().large_bar);
        let [cpu, gpu] = [machine.cpu(0), machine.gpu(0)];
        let assert_rejected = |result: Result<(), Error>| {
            let feature = Feature::CpuAccess;
            let is_not_supported = matches!(result.as_ref().map_err(Error::kind),
                Err(ErrorKind::NotSupported(found)) if *found == feature
            );
            assert!(is_not_supported, "{generation}: {result:?}");
        };
        assert_rejected(machine.vmm.set_access(base, granule, &[access(cpu, Access::Read)]));
        let properties = AllocationProperties::on(gpu);
        assert_rejected(machine.vmm.check_access(&properties, &[access(cpu, Access::Read)]));
        // The GPU is named first, but gets no access either.
        let grants = [gpu, cpu].map(|agent| access(agent, Access::ReadWrite));
        assert_rejected(machine.vmm.set_access(base, granule, &grants));
        assert_eq!(machine.vmm.get_access(gpu, base).unwrap(), Access::None, "{generation}");
        assert_eq!(machine.simulation.page(0, base.get()), None, "{generation}");
        machine.grant(base, granule, cpu, Access::None);
        machine.grant(base, granule, gpu, Access::ReadWrite);
        // A grant to the CPU is also rejected for an import, whose owner may be unknown.
        let descriptor_type = HandleType::POSIX_FILE_DESCRIPTOR;
        let handle = machine.vmm.retain_allocation_handle(base).unwrap();
        let shared = machine.vmm.export_to_shareable_handle(handle, descriptor_type).unwrap();
        let imported = machine.vmm.import_from_shareable_handle(&shared, descriptor_type).unwrap();
        machine.map(at(base, granule), granule, imported);
        let second = at(base, granule);
        assert_rejected(machine.vmm.set_access(second, granule, &[access(cpu, Access::Read)]));
        machine.grant(second, granule, cpu, Access::None);
        machine.grant(second, granule, gpu, Access::ReadWrite);
    }
}

/// When CPUs lose access, the library does not call the runtime. It calls `mprotect` instead, even if the runtime has
/// mapped the memory for the CPU, and even after a revoke has mapped the memory again.
#[test]
fn cpus_lose_access_without_a_runtime_call() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        for config in [config.clone(), without_cpu_mapping(config)] {
            let config = with_two_cpus(config).with_gpu_permissions(GpuPermissions::Enforced);
            let (machine, base, size) = machine_with_mapping(config);
            let [first, second] = [machine.cpu(0), machine.cpu(1)];
            let [owner, peer] = [machine.gpu(0), machine.gpu(1)];
            let all_grants =
                [first, second, owner, peer].map(|agent| access(agent, Access::ReadWrite));
            machine.vmm.set_access(base, size, &all_grants).unwrap();
            machine.vmm.revoke(base, size, &[peer]).unwrap();
            machine.vmm.write(base, b"kept").unwrap();
            let grants = [first, second].map(|cpu| access(cpu, Access::None));
            let calls = machine.simulation.calls("hsa_amd_vmem_set_access");
            machine.vmm.set_access(base, size, &grants).unwrap();
            let called = machine.simulation.calls("hsa_amd_vmem_set_access") > calls;
            assert!(!called, "{release}");
            process::assert_inaccessible(base.get(), size, release);
            machine.vmm.unmap(base, size).unwrap();
            process::assert_inaccessible(base.get(), size, release);
            assert_eq!(machine.vmm.quarantined_ranges(), [], "{release}");
        }
    }
}

#[test]
fn two_cpus_can_lose_access_together() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        let machine = Machine::new(without_cpu_mapping(with_two_cpus(config)));
        let size = machine.granule();
        let (base, handle) = (machine.reserve(size), machine.create(0, size));
        machine.map(base, size, handle);
        for (requested, permissions) in [(Access::ReadWrite, "rw-"), (Access::None, "---")] {
            let grants = [0, 1].map(|cpu| access(machine.cpu(cpu), requested));
            machine.vmm.set_access(base, size, &grants).unwrap();
            let found = process::permissions(base.get(), size).unwrap();
            assert_eq!(found.len(), 1, "{release}: {found:?}");
            assert!(found[0].2.starts_with(permissions), "{release}, {requested}: {found:?}");
        }
        machine.vmm.unmap(base, size).unwrap();
        machine.vmm.release(handle).unwrap();
        machine.vmm.address_free(base, size).unwrap();
        machine.assert_empty();
    }
}

#[test]
fn control_of_page_tables_is_reported() {
    if process::rerun_in_own_process() {
        return;
    }
    let machine = Machine::new(Config::mi300x(2));
    let other = Machine::new(Config::mi300x(1));
    let [cpu, gpu] = [machine.cpu(0), machine.gpu(1)];
    let open = |options| Vmm::open_with(&machine.runtime, options).unwrap();
    let controlled = open(VmmOptions::new().with_page_tables(true));
    assert_eq!(controlled.enforcement(gpu), Some(Enforcement::Enforced));
    assert_eq!(controlled.enforcement(other.gpu(0)), None);
    assert_eq!(controlled.page_table_failure(gpu), None);
    assert_eq!(controlled.barrier_failure(), None);
    assert!(controlled.can_map_offsets());
    // If the library cannot wait for changes of page tables, it controls no page table.
    machine.simulation.set_faults("hsa_amd_memory_lock=0x1008".parse().unwrap());
    let uncontrolled = open(VmmOptions::new().with_page_tables(true));
    assert_eq!(uncontrolled.enforcement(gpu), Some(Enforcement::Recorded));
    let reason = uncontrolled.page_table_failure(gpu).unwrap();
    assert!(reason.contains("nothing can wait"), "{reason}");
    assert_eq!(uncontrolled.page_table_failure(cpu), None);
    let reason = uncontrolled.barrier_failure().unwrap();
    assert!(reason.contains("hsa_amd_memory_lock returned"), "{reason}");
    assert!(!uncontrolled.can_map_offsets());
}
