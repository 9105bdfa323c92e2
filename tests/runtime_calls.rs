//! Setting access to several mappings for several agents takes one call of the runtime, where it supports that.
//! If the call fails half-way, all of it is rolled back.

mod machine;
mod process;

use hsa_vmm::simulation::{Config, FaultPlan, Generation};
use hsa_vmm::{Access, Address, AgentId, ErrorKind, HandleType};
use machine::{Machine, access, at, without_cpu_mapping};
use std::ops::Range;

/// Returns the number of calls that set access.
fn grants(machine: &Machine) -> u64 {
    machine.simulation.calls("hsa_amd_vmem_set_access")
}

/// Maps one granule of the first GPU's memory. Returns its address and size.
fn one_mapping(machine: &Machine) -> (Address, usize) {
    let granule = machine.granule();
    let (base, handle) = (machine.reserve(granule), machine.create(0, granule));
    machine.map(base, granule, handle);
    (base, granule)
}

#[test]
fn grants_are_one_call_where_supported() {
    for (release, config) in machine::releases() {
        // One call for each mapping, before ROCm 6.4.
        let several_fail = config.extension_minor < 7;
        let machine = Machine::new(config);
        assert_eq!(machine.vmm.quirks().set_access_of_several_fails, several_fail, "{release}");
        let granule = machine.granule();
        let (base, handle) = (machine.reserve(3 * granule), machine.create(0, granule));
        for place in 0..3 {
            machine.map(at(base, place * granule), granule, handle);
        }
        let grant_all = || {
            let agents = [machine.gpu(0), machine.gpu(1), machine.cpu(0)];
            let all = agents.map(|agent| access(agent, Access::ReadWrite));
            machine.vmm.set_access(base, 3 * granule, &all).unwrap();
        };
        grant_all();
        let expected = if several_fail { 3 } else { 1 };
        assert_eq!(grants(&machine), expected, "{release}");
        for place in 0..3 {
            for gpu in 0..2 {
                let page = machine.simulation.page(gpu, at(base, place * granule).get());
                assert!(page.is_some_and(|page| page.writable), "{release}: {place}, GPU {gpu}");
            }
        }
        // Repeating the current access needs none.
        grant_all();
        assert_eq!(grants(&machine), expected, "{release}");
    }
}

#[test]
fn last_access_counts_and_is_sent_alone() {
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let (base, granule) = one_mapping(&machine);
        let set = |accesses: [Access; 2]| {
            let both = accesses.map(|what| access(machine.gpu(0), what));
            machine.vmm.set_access(base, granule, &both).unwrap();
        };
        let page = || machine.simulation.page(0, base.get());
        set([Access::ReadWrite, Access::None]);
        assert_eq!((grants(&machine), page()), (0, None), "{release}");
        set([Access::None, Access::ReadWrite]);
        assert_eq!(grants(&machine), 1, "{release}");
        assert!(page().is_some_and(|page| page.writable), "{release}");
    }
}

/// The CPU's access is this process's own view, at any position in the list.
#[test]
fn cpu_named_last_is_not_sent() {
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let (base, granule) = one_mapping(&machine);
        let [gpu, cpu] = [machine.gpu(0), machine.cpu(0)];
        let both = [gpu, cpu].map(|agent| access(agent, Access::ReadWrite));
        machine.vmm.set_access(base, granule, &both).unwrap();
        machine.vmm.write(base, b"seen").unwrap();
        assert_eq!(grants(&machine), 1, "{release}");
        // The runtime would be called only if it had mapped for the CPU.
        machine.grant(base, granule, cpu, Access::None);
        assert_eq!(grants(&machine), 1, "{release}");
    }
}

#[test]
fn aligned_hint_costs_one_call() {
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let free = machine.reserve(granule);
        machine.vmm.address_free(free, granule).unwrap();
        let calls = || {
            let of = |function| machine.simulation.calls(function);
            let plain = of("hsa_amd_vmem_address_reserve");
            (plain + of("hsa_amd_vmem_address_reserve_align"), of("hsa_amd_vmem_address_free"))
        };
        let (reserved, freed) = calls();
        // Other threads may have taken the address meanwhile.
        machine.vmm.address_reserve(granule, 0, Some(free)).unwrap();
        assert_eq!(calls(), (reserved + 1, freed), "{release}");
    }
}

/// Each attempt exports the memory and closes it again.
#[test]
fn dma_buf_mapping_is_probed_once() {
    if process::ran_alone() {
        return;
    }
    for (release, config) in machine::releases() {
        let machine = Machine::new(without_cpu_mapping(config));
        let granule = machine.granule();
        let exports = || {
            let of = |function| machine.simulation.calls(function);
            of("hsa_amd_vmem_export_shareable_handle")
        };
        for _ in 0..3 {
            let (base, _) = machine.mapped(0, granule);
            for wanted in [Access::Read, Access::ReadWrite] {
                machine.grant(base, granule, machine.cpu(0), wanted);
            }
            assert_eq!(exports(), 1, "{release}");
        }
    }
}

#[test]
fn adjacent_mappings_with_equal_deltas_share_a_call() {
    let machine = Machine::new(Config::mi300x(2).with_generation(Generation::B));
    let granule = machine.granule();
    let (base, handle) = (machine.reserve(6 * granule), machine.create(0, granule));
    for place in 0..6 {
        machine.map(at(base, place * granule), granule, handle);
    }
    let [both, first] = [vec![machine.gpu(0), machine.gpu(1)], vec![machine.gpu(0)]];
    let grant = |places: Range<usize>, agents: &[AgentId], wanted| {
        let (start, size) = (at(base, places.start * granule), places.len() * granule);
        let list: Vec<_> = agents.iter().map(|&agent| access(agent, wanted)).collect();
        let before = grants(&machine);
        machine.vmm.set_access(start, size, &list).unwrap();
        grants(&machine) - before
    };
    assert_eq!(grant(2..4, &first, Access::ReadWrite), 1);
    // The two in the middle have the first GPU's already: before them, they, and behind them.
    assert_eq!(grant(0..6, &both, Access::ReadWrite), 3);
    // Six mappings with the same access take one call.
    assert_eq!(grant(0..6, &both, Access::Read), 1);
    // Unchanged mappings take no call.
    assert_eq!(grant(1..3, &first, Access::ReadWrite), 1);
    assert_eq!(grant(0..6, &first, Access::ReadWrite), 2);
    for place in 0..6 {
        let address = at(base, place * granule);
        let expected = [Access::ReadWrite, Access::Read];
        let found = [0, 1].map(|gpu| machine.vmm.get_access(machine.gpu(gpu), address).unwrap());
        assert_eq!(found, expected, "at {place}");
    }
}

/// If the owner must be last, adjacent mappings of two owners need two orders.
#[test]
fn adjacent_mappings_of_two_owners_take_two_calls() {
    for (release, config) in machine::generations() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let base = machine.reserve(4 * granule);
        for place in 0..4 {
            machine.map(at(base, place * granule), granule, machine.create(place / 2, granule));
        }
        let both = [0, 1].map(|gpu| access(machine.gpu(gpu), Access::ReadWrite));
        machine.vmm.set_access(base, 4 * granule, &both).unwrap();
        assert_eq!(grants(&machine), 2, "{release}");
    }
}

/// A descriptor that is not memory. Newer runtimes import it without a check.
fn no_memory(machine: &Machine, size: usize) -> hsa_vmm::Handle {
    let file = rustix::fs::memfd_create("no memory", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, size as u64).unwrap();
    let kind = HandleType::POSIX_FILE_DESCRIPTOR;
    machine.vmm.import_from_shareable_handle(&file, kind).unwrap()
}

#[test]
fn failure_at_a_later_mapping_is_rolled_back() {
    for generation in [Generation::C, Generation::D] {
        let machine = Machine::new(Config::mi300x(2).with_generation(generation));
        let granule = machine.granule();
        let (base, handle) = (machine.reserve(4 * granule), machine.create(0, granule));
        let places: [Address; 4] = std::array::from_fn(|place| at(base, place * granule));
        for (place, address) in places.into_iter().enumerate() {
            let bad = || no_memory(&machine, granule);
            machine.map(address, granule, if place == 2 { bad() } else { handle });
        }
        // The GPU's permission changes for the first mapping; it is granted access to the others.
        machine.grant(base, granule, machine.gpu(0), Access::Read);
        let before = grants(&machine);
        let wanted = [access(machine.gpu(0), Access::ReadWrite)];
        let refused = machine.vmm.set_access(base, 4 * granule, &wanted).unwrap_err();
        assert!(
            matches!(refused.kind(), ErrorKind::Runtime { .. }),
            "generation {generation}: {refused}"
        );
        assert!(grants(&machine) > before);
        let expected = [Access::Read, Access::None, Access::None, Access::None];
        let reported = |address| machine.vmm.get_access(machine.gpu(0), address).unwrap();
        assert_eq!(places.map(reported), expected, "generation {generation}");
        let has = places.map(|address| machine.simulation.page(0, address.get()).is_some());
        assert_eq!(has, [true, false, false, false], "generation {generation}");
        assert_eq!(machine.vmm.quarantine(), []);
        machine.vmm.check().unwrap();
        // The valid ones can be granted, in one call if they are adjacent.
        let before = grants(&machine);
        machine.vmm.set_access(base, 2 * granule, &wanted).unwrap();
        assert_eq!(grants(&machine) - before, 1, "generation {generation}");
    }
}

/// The runtime has refused a grant: neither the rollback nor a later call revokes it.
#[test]
fn refused_agents_are_not_recorded_as_granted() {
    if process::ran_alone() {
        return;
    }
    for (generation, config) in machine::generations() {
        let machine = Machine::new(without_cpu_mapping(config));
        let granule = machine.granule();
        let (base, _) = machine.mapped(0, granule);
        let calls_of = |agent, wanted| {
            let before = grants(&machine);
            let answer = machine.vmm.set_access(base, granule, &[access(agent, wanted)]);
            (answer.is_ok(), grants(&machine) - before)
        };
        for agent in [machine.cpu(0), machine.gpu(0)] {
            let refuse = FaultPlan::none().fail("hsa_amd_vmem_set_access", 1, 0x1000);
            machine.simulation.set_faults(refuse);
            assert_eq!(calls_of(agent, Access::ReadWrite), (false, 1), "{generation}: {agent}");
            machine.simulation.set_faults(FaultPlan::none());
            assert_eq!(calls_of(agent, Access::None), (true, 0), "{generation}: {agent}");
            assert_eq!(calls_of(agent, Access::ReadWrite), (true, 1), "{generation}: {agent}");
            // `mprotect` changes what the runtime has mapped for the CPU.
            let reported = u64::from(agent != machine.cpu(0));
            assert_eq!(calls_of(agent, Access::None), (true, reported), "{generation}: {agent}");
        }
    }
}
