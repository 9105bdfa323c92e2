//! The library makes as few runtime calls as the runtime allows. One call can set the access of several agents to
//! several mappings. If this call fails half-way, the library rolls the call back completely.

mod machine;
mod process;

use hsa_vmm::hsa_sys::HSA_STATUS_ERROR;
use hsa_vmm::simulation::{Config, FaultPlan, Generation};
use hsa_vmm::vmm::VmmOptions;
use hsa_vmm::{Access, Address, AgentId, ErrorKind, HandleType, Vmm};
use machine::{Machine, access, at, without_cpu_mapping};
use std::ops::Range;

/// Returns the number of calls that set access.
fn grant_calls(machine: &Machine) -> u64 {
    machine.simulation.calls("hsa_amd_vmem_set_access")
}

/// Maps one granule of the first GPU's memory. Returns its address and size.
fn map_granule(machine: &Machine) -> (Address, usize) {
    let granule = machine.granule();
    let (base, handle) = (machine.reserve(granule), machine.create(0, granule));
    machine.map(base, granule, handle);
    (base, granule)
}

#[test]
fn set_access_takes_one_call_where_supported() {
    for (release, config) in machine::releases() {
        // Before ROCm 6.4, each mapping takes a call.
        let grants_of_several_fail = config.extension_minor < 7;
        let machine = Machine::new(config);
        assert_eq!(
            machine.vmm.quirks().set_access_of_several_fails,
            grants_of_several_fail,
            "{release}"
        );
        let granule = machine.granule();
        let (base, handle) = (machine.reserve(3 * granule), machine.create(0, granule));
        for index in 0..3 {
            machine.map(at(base, index * granule), granule, handle);
        }
        let grant_all = || {
            let agents = [machine.gpu(0), machine.gpu(1), machine.cpu(0)];
            let all = agents.map(|agent| access(agent, Access::ReadWrite));
            machine.vmm.set_access(base, 3 * granule, &all).unwrap();
        };
        grant_all();
        let expected = if grants_of_several_fail { 3 } else { 1 };
        assert_eq!(grant_calls(&machine), expected, "{release}");
        for index in 0..3 {
            for gpu in 0..2 {
                let page = machine.simulation.page(gpu, at(base, index * granule).get());
                assert!(
                    page.is_some_and(|page| page.writable),
                    "{release}: mapping {index}, GPU {gpu}"
                );
            }
        }
        // Setting the same access again takes no call.
        grant_all();
        assert_eq!(grant_calls(&machine), expected, "{release}");
    }
}

#[test]
fn only_the_last_access_of_an_agent_is_sent() {
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let (base, granule) = map_granule(&machine);
        let set = |accesses: [Access; 2]| {
            let both = accesses.map(|requested| access(machine.gpu(0), requested));
            machine.vmm.set_access(base, granule, &both).unwrap();
        };
        let page = || machine.simulation.page(0, base.get());
        set([Access::ReadWrite, Access::None]);
        assert_eq!((grant_calls(&machine), page()), (0, None), "{release}");
        set([Access::None, Access::ReadWrite]);
        assert_eq!(grant_calls(&machine), 1, "{release}");
        assert!(page().is_some_and(|page| page.writable), "{release}");
    }
}

/// The library gives the CPU access by a view, a mapping of this process. The library does not send the CPU's access to
/// the runtime.
#[test]
fn access_of_the_cpu_is_not_sent() {
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let (base, granule) = map_granule(&machine);
        let [gpu, cpu] = [machine.gpu(0), machine.cpu(0)];
        let both = [gpu, cpu].map(|agent| access(agent, Access::ReadWrite));
        machine.vmm.set_access(base, granule, &both).unwrap();
        machine.vmm.write(base, b"seen").unwrap();
        assert_eq!(grant_calls(&machine), 1, "{release}");
        // Setting the CPU's access to none takes no call either, because the runtime has not mapped the memory for the
        // CPU.
        machine.grant(base, granule, cpu, Access::None);
        assert_eq!(grant_calls(&machine), 1, "{release}");
    }
}

#[test]
fn aligned_hint_takes_one_call() {
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let free = machine.reserve(granule);
        machine.vmm.address_free(free, granule).unwrap();
        let reserve_and_free_calls = || {
            let calls_of = |function| machine.simulation.calls(function);
            let reserves = calls_of("hsa_amd_vmem_address_reserve");
            (
                reserves + calls_of("hsa_amd_vmem_address_reserve_align"),
                calls_of("hsa_amd_vmem_address_free"),
            )
        };
        let (reserved, freed) = reserve_and_free_calls();
        // If another thread has taken the address meanwhile, the same call returns another address.
        machine.vmm.address_reserve(granule, 0, Some(free)).unwrap();
        assert_eq!(reserve_and_free_calls(), (reserved + 1, freed), "{release}");
    }
}

/// When a CPU first gets access, the library exports the memory once to probe whether it can map dma-bufs for writing.
#[test]
fn dma_buf_mapping_is_probed_once() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        let machine = Machine::new(without_cpu_mapping(config));
        let granule = machine.granule();
        let exports = || {
            let calls_of = |function| machine.simulation.calls(function);
            calls_of("hsa_amd_vmem_export_shareable_handle")
        };
        for _ in 0..3 {
            let (base, _) = machine.map_new_memory(0, granule);
            for requested in [Access::Read, Access::ReadWrite] {
                machine.grant(base, granule, machine.cpu(0), requested);
            }
            assert_eq!(exports(), 1, "{release}");
        }
    }
}

#[test]
fn adjacent_mappings_with_equal_changes_share_a_call() {
    let machine = Machine::new(Config::mi300x(2).with_generation(Generation::B));
    let granule = machine.granule();
    let (base, handle) = (machine.reserve(6 * granule), machine.create(0, granule));
    for index in 0..6 {
        machine.map(at(base, index * granule), granule, handle);
    }
    let [both, first] = [vec![machine.gpu(0), machine.gpu(1)], vec![machine.gpu(0)]];
    let calls_of_grant = |mappings: Range<usize>, agents: &[AgentId], requested| {
        let (start, size) = (at(base, mappings.start * granule), mappings.len() * granule);
        let list: Vec<_> = agents.iter().map(|&agent| access(agent, requested)).collect();
        let before = grant_calls(&machine);
        machine.vmm.set_access(start, size, &list).unwrap();
        grant_calls(&machine) - before
    };
    assert_eq!(calls_of_grant(2..4, &first, Access::ReadWrite), 1);
    // The two mappings in the middle lack only the second GPU's access. The two before them, and the two after them,
    // lack the access of both GPUs. Each of the three pairs takes one call.
    assert_eq!(calls_of_grant(0..6, &both, Access::ReadWrite), 3);
    // Six mappings with the same access take one call.
    assert_eq!(calls_of_grant(0..6, &both, Access::Read), 1);
    // Each group of adjacent mappings that change takes one call. Unchanged mappings take none.
    assert_eq!(calls_of_grant(1..3, &first, Access::ReadWrite), 1);
    assert_eq!(calls_of_grant(0..6, &first, Access::ReadWrite), 2);
    for index in 0..6 {
        let address = at(base, index * granule);
        let expected = [Access::ReadWrite, Access::Read];
        let found = [0, 1].map(|gpu| machine.vmm.get_access(machine.gpu(gpu), address).unwrap());
        assert_eq!(found, expected, "mapping {index}");
    }
}

/// The runtime may require that the memory's owner is the last agent of the list, so mappings of two owners need two
/// lists.
#[test]
fn adjacent_mappings_of_two_owners_take_two_calls() {
    for (generation, config) in machine::generations() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let base = machine.reserve(4 * granule);
        for index in 0..4 {
            machine.map(at(base, index * granule), granule, machine.create(index / 2, granule));
        }
        let both = [0, 1].map(|gpu| access(machine.gpu(gpu), Access::ReadWrite));
        machine.vmm.set_access(base, 4 * granule, &both).unwrap();
        assert_eq!(grant_calls(&machine), 2, "{generation}");
    }
}

/// Imports a file that is not GPU memory. ROCm 7.14 and later do not check the file during the import.
fn import_file(machine: &Machine, size: usize) -> hsa_vmm::Handle {
    let file = machine::file_without_memory(size);
    let handle_type = HandleType::POSIX_FILE_DESCRIPTOR;
    machine.vmm.import_from_shareable_handle(&file, handle_type).unwrap()
}

#[test]
fn failed_call_is_rolled_back_for_all_mappings() {
    for generation in [Generation::C, Generation::D] {
        let machine = Machine::new(Config::mi300x(2).with_generation(generation));
        let granule = machine.granule();
        let (base, handle) = (machine.reserve(4 * granule), machine.create(0, granule));
        let addresses: [Address; 4] = std::array::from_fn(|index| at(base, index * granule));
        for (index, address) in addresses.into_iter().enumerate() {
            let invalid = || import_file(&machine, granule);
            machine.map(address, granule, if index == 2 { invalid() } else { handle });
        }
        // The failing call below changes the access to the first mapping, and grants access to the others.
        machine.grant(base, granule, machine.gpu(0), Access::Read);
        let before = grant_calls(&machine);
        let requested = [access(machine.gpu(0), Access::ReadWrite)];
        let error = machine.vmm.set_access(base, 4 * granule, &requested).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Runtime { .. }),
            "generation {generation}: {error}"
        );
        assert!(grant_calls(&machine) > before);
        let expected = [Access::Read, Access::None, Access::None, Access::None];
        let reported = |address| machine.vmm.get_access(machine.gpu(0), address).unwrap();
        assert_eq!(addresses.map(reported), expected, "generation {generation}");
        let is_mapped =
            addresses.map(|address| machine.simulation.page(0, address.get()).is_some());
        assert_eq!(is_mapped, [true, false, false, false], "generation {generation}");
        assert_eq!(machine.vmm.quarantined_ranges(), []);
        machine.vmm.check().unwrap();
        // Access to the first two mappings, which are valid, can be granted in one call.
        let before = grant_calls(&machine);
        machine.vmm.set_access(base, 2 * granule, &requested).unwrap();
        assert_eq!(grant_calls(&machine) - before, 1, "generation {generation}");
    }
}

/// After a failed grant, the library has nothing to revoke. Neither the rollback nor a later `Access::None` calls the
/// runtime.
#[test]
fn failed_grant_is_not_recorded_as_granted() {
    if process::rerun_in_own_process() {
        return;
    }
    for (generation, config) in machine::generations() {
        let machine = Machine::new(without_cpu_mapping(config));
        let granule = machine.granule();
        let (base, _) = machine.map_new_memory(0, granule);
        let set_access = |agent, requested| {
            let before = grant_calls(&machine);
            let result = machine.vmm.set_access(base, granule, &[access(agent, requested)]);
            (result.is_ok(), grant_calls(&machine) - before)
        };
        for agent in [machine.cpu(0), machine.gpu(0)] {
            let failing = FaultPlan::none().fail("hsa_amd_vmem_set_access", 1, HSA_STATUS_ERROR);
            machine.simulation.set_faults(failing);
            assert_eq!(set_access(agent, Access::ReadWrite), (false, 1), "{generation}: {agent}");
            machine.simulation.set_faults(FaultPlan::none());
            assert_eq!(set_access(agent, Access::None), (true, 0), "{generation}: {agent}");
            assert_eq!(set_access(agent, Access::ReadWrite), (true, 1), "{generation}: {agent}");
            // The library changes the runtime's CPU mapping with `mprotect`, without a runtime call.
            let calls = u64::from(agent != machine.cpu(0));
            assert_eq!(set_access(agent, Access::None), (true, calls), "{generation}: {agent}");
        }
    }
}

#[test]
fn barrier_waits_once_per_change_of_gpu_access() {
    let machine = Machine::new(Config::mi300x(2));
    let options = VmmOptions::new().with_barrier(true);
    let vmm = Vmm::open_with(&machine.runtime, options).unwrap();
    let locks = || machine.simulation.calls("hsa_amd_memory_lock");
    // Opening a `Vmm` waits once, to test the calls that the wait makes.
    assert_eq!(locks(), 1);
    let granule = machine.granule();
    let base = vmm.address_reserve(2 * granule, 0, None).unwrap();
    let handle = vmm.create(granule, &machine.shareable_on(0)).unwrap();
    vmm.map(base, granule, 0, handle).unwrap();
    vmm.map(at(base, granule), granule, 0, handle).unwrap();
    assert_eq!(locks(), 1, "no GPU has access");
    let both = [0, 1].map(|gpu| access(machine.gpu(gpu), Access::ReadWrite));
    vmm.set_access(base, 2 * granule, &both).unwrap();
    assert_eq!(locks(), 2);
    vmm.set_access(base, 2 * granule, &both).unwrap();
    assert_eq!(locks(), 2, "nothing changes");
    vmm.set_access(base, 2 * granule, &[access(machine.cpu(0), Access::Read)]).unwrap();
    assert_eq!(locks(), 2, "only the CPU's access changes");
    vmm.revoke(base, granule, &[machine.gpu(0), machine.gpu(1)]).unwrap();
    assert_eq!(locks(), 3, "mapped again without access");
    vmm.unmap(base, 2 * granule).unwrap();
    assert_eq!(locks(), 4);
    assert_eq!(machine.simulation.calls("hsa_amd_memory_unlock"), 4);
    vmm.release(handle).unwrap();
    vmm.address_free(base, 2 * granule).unwrap();
}
