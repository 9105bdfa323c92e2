//! `hipMemSetAccess` and `hipMemGetAccess`: valid calls. `reference 6.2 #N` is row N of the table in
//! `conformance/tests/edges/mod.rs`.

use crate::Context;
use crate::case::{Case, TestResult, ensure_eq};
use crate::context::offset_by;
use hsa_vmm::error::Argument;
use hsa_vmm::{Access, AccessDescriptor};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "access.set.is_what_get_answers",
        "hip-tests: hipMemSetAccess_SetGet",
        "get returns the access that was set, and none for other agents",
        get_returns_what_was_set,
    ),
    Case::new(
        "access.set.changes",
        "hip-tests: hipMemSetAccess_ChangeAccessProp",
        "access can change from each value to each other value",
        access_changes_between_all_values,
    ),
    Case::new(
        "access.set.twice_is_once",
        "invariant 11 (src/vmm/ledger/check.rs)",
        "setting the same access again changes nothing",
        setting_again_changes_nothing,
    ),
    Case::new(
        "access.set.last_of_an_agent_wins",
        "recorded: cuda_h200_edges setaccess_same_device_twice",
        "if an agent is named twice, the last entry applies",
        last_entry_applies,
    ),
    Case::new(
        "access.set.others_keep_theirs",
        "reference 6.2 #47",
        "agents that are not named keep their access",
        other_agents_keep_access,
    ),
    Case::new(
        "access.set.over_several_mappings",
        "hip-tests: hipMemSetAccess_GrowVMM",
        "one call sets the access of consecutive mappings",
        sets_several_mappings,
    ),
    Case::new(
        "access.set.on_one_of_several",
        "hip-tests: hipMemSetAccess_SegmentsAccess",
        "setting the access of one mapping does not change its neighbours",
        sets_one_of_several_mappings,
    ),
    Case::new(
        "access.set.of_one_alias",
        "HIP: hipMemSetAccess",
        "two mappings of one handle have independent access",
        aliases_have_independent_access,
    ),
    Case::new(
        "access.get.anywhere_inside",
        "hip-tests: hipMemSetAccess_EntireVMMRangeSetGet",
        "get returns the same access for every address of a mapping",
        get_accepts_every_address,
    ),
    Case::new(
        "access.get.never_set",
        "recorded: cuda_h200_edges getaccess_before_set; reference 6.2 #49",
        "access is none before the first grant",
        access_is_none_at_first,
    ),
    Case::new(
        "access.get.of_a_cpu",
        "reference 6.2 #51: ROCr accepts CPUs since ROCm 10, and HIP accepts only GPUs",
        "get returns the access of a CPU, as it does for a GPU",
        get_returns_cpu_access,
    ),
    Case::new(
        "access.set.none",
        "recorded: cuda_h200_edges setaccess_none; reference 6.2 #42: ROCr leaves the memory mapped",
        "a GPU whose access was set to none cannot copy or fill; the contents stay",
        gpu_without_access_cannot_copy,
    ),
];

const ALL_ACCESS: [Access; 3] = [Access::None, Access::Read, Access::ReadWrite];

fn get_returns_what_was_set(context: &Context) -> TestResult {
    let (at, _) = context.map_filled(2, 0x3131_3131)?;
    let gpu = context.gpu();
    for access in ALL_ACCESS {
        context.set_access(at, 2, &[gpu], access)?;
        ensure_eq!(context.vmm().get_access(gpu, at)?, access, "access of the GPU");
        for agent in context.runtime().agents() {
            if !context.default_agents().contains(&agent.id()) {
                let found = context.vmm().get_access(agent.id(), at)?;
                ensure_eq!(found, Access::None, "access of {}", agent.id());
            }
        }
    }
    Ok(())
}

fn access_changes_between_all_values(context: &Context) -> TestResult {
    let (at, _) = context.map_filled(1, 0x3232_3232)?;
    for first in ALL_ACCESS {
        for second in ALL_ACCESS {
            for access in [first, second, Access::ReadWrite] {
                context.set_access(at, 1, &context.default_agents(), access)?;
                for agent in context.default_agents() {
                    let found = context.vmm().get_access(agent, at)?;
                    ensure_eq!(found, access, "access of {agent}");
                }
            }
            context.check_contents(at, 1, 0x3232_3232)?;
        }
    }
    Ok(())
}

fn setting_again_changes_nothing(context: &Context) -> TestResult {
    let (at, _) = context.map_filled(1, 0x3333_3333)?;
    let before = context.vmm().mappings();
    for _ in 0..4 {
        context.set_access(at, 1, &context.default_agents(), Access::ReadWrite)?;
        ensure_eq!(context.vmm().mappings(), before, "mappings");
    }
    context.check_contents(at, 1, 0x3333_3333)
}

fn last_entry_applies(context: &Context) -> TestResult {
    let (at, _) = context.map_filled(1, 0x3434_3434)?;
    let agent = context.gpu();
    let list = [Access::None, Access::Read, Access::ReadWrite, Access::Read]
        .map(|access| AccessDescriptor { agent, access });
    context.vmm().set_access(at, context.granule(), &list)?;
    ensure_eq!(context.vmm().get_access(agent, at)?, Access::Read, "access");
    Ok(())
}

fn other_agents_keep_access(context: &Context) -> TestResult {
    context.require_cpu_access()?;
    let (at, _) = context.map_filled(1, 0x3535_3535)?;
    context.set_access(at, 1, &[context.host()], Access::Read)?;
    let gpu = context.vmm().get_access(context.gpu(), at)?;
    ensure_eq!(gpu, Access::ReadWrite, "access of the GPU");
    context.set_access(at, 1, &[context.gpu()], Access::Read)?;
    let host = context.vmm().get_access(context.host(), at)?;
    ensure_eq!(host, Access::Read, "access of the CPU");
    context.check_contents(at, 1, 0x3535_3535)
}

fn sets_several_mappings(context: &Context) -> TestResult {
    let at = context.reserve(6)?;
    for (start, granules) in [(0, 2), (2, 1), (3, 3)] {
        let handle = context.create(granules)?;
        context.map(context.granule_at(at, start), granules, handle)?;
    }
    context.set_access(at, 6, &context.default_agents(), Access::ReadWrite)?;
    for index in 0..6 {
        let access = context.vmm().get_access(context.gpu(), context.granule_at(at, index))?;
        ensure_eq!(access, Access::ReadWrite, "access in granule {index}");
    }
    context.fill(at, 6, 0x3636_3636)?;
    context.check_contents(at, 6, 0x3636_3636)
}

fn sets_one_of_several_mappings(context: &Context) -> TestResult {
    let at = context.reserve(3)?;
    for index in 0..3 {
        let handle = context.create(1)?;
        context.map(context.granule_at(at, index), 1, handle)?;
    }
    context.set_access(
        context.granule_at(at, 1),
        1,
        &context.default_agents(),
        Access::ReadWrite,
    )?;
    for (index, expected) in [Access::None, Access::ReadWrite, Access::None].iter().enumerate() {
        let found = context.vmm().get_access(context.gpu(), context.granule_at(at, index))?;
        ensure_eq!(found, *expected, "access of mapping {index}");
    }
    context.fill(context.granule_at(at, 1), 1, 0x3737_3737)?;
    context.check_contents(context.granule_at(at, 1), 1, 0x3737_3737)
}

fn aliases_have_independent_access(context: &Context) -> TestResult {
    let (at, handle) = context.map_filled(1, 0x3838_3838)?;
    let alias = context.reserve(1)?;
    context.map(alias, 1, handle)?;
    let access = context.vmm().get_access(context.gpu(), alias)?;
    ensure_eq!(access, Access::None, "access of the alias");
    context.set_access(alias, 1, &context.default_agents(), Access::Read)?;
    context.check_contents(alias, 1, 0x3838_3838)?;
    let access = context.vmm().get_access(context.gpu(), at)?;
    ensure_eq!(access, Access::ReadWrite, "access of the first mapping");
    context.expect_invalid_argument(Argument::Address, || context.vmm().write(alias, &[1]))
}

fn get_accepts_every_address(context: &Context) -> TestResult {
    let (at, _) = context.map_filled(2, 0x3939_3939)?;
    let size = 2 * context.granule();
    for bytes in [0, 1, context.granule() - 1, context.granule(), size - 1] {
        let access = context.vmm().get_access(context.gpu(), offset_by(at, bytes))?;
        ensure_eq!(access, Access::ReadWrite, "access at offset {bytes:#x}");
    }
    Ok(())
}

fn access_is_none_at_first(context: &Context) -> TestResult {
    let at = context.reserve(1)?;
    let handle = context.create(1)?;
    context.map(at, 1, handle)?;
    ensure_eq!(context.vmm().get_access(context.gpu(), at)?, Access::None, "access");
    ensure_eq!(context.vmm().get_access(context.host(), at)?, Access::None, "access of the CPU");
    Ok(())
}

fn get_returns_cpu_access(context: &Context) -> TestResult {
    context.require_cpu_access()?;
    let (at, _) = context.map_filled(2, 0x3a3a_3a3a)?;
    let last = offset_by(at, 2 * context.granule() - 1);
    for access in ALL_ACCESS {
        context.set_access(at, 2, &[context.host()], access)?;
        for address in [at, last] {
            let found = context.vmm().get_access(context.host(), address)?;
            ensure_eq!(found, access, "access of the CPU at {address}");
        }
    }
    Ok(())
}

fn gpu_without_access_cannot_copy(context: &Context) -> TestResult {
    let (at, _) = context.map_filled(1, 0x3b3b_3b3b)?;
    let (other, _) = context.map_filled(1, 0x3c3c_3c3c)?;
    let (vmm, gpu, size) = (context.vmm(), context.gpu(), context.granule());
    context.set_access(at, 1, &[gpu], Access::None)?;
    ensure_eq!(vmm.get_access(gpu, at)?, Access::None, "access of the GPU");
    context.expect_invalid_argument(Argument::Destination, || vmm.copy(gpu, at, other, size))?;
    context.expect_invalid_argument(Argument::Source, || vmm.copy(gpu, other, at, size))?;
    context.expect_invalid_argument(Argument::Address, || vmm.fill(at, 0, size))?;
    context.check_contents(at, 1, 0x3b3b_3b3b)?;
    context.set_access(at, 1, &[gpu], Access::ReadWrite)?;
    vmm.copy(gpu, other, at, size)?;
    context.check_contents(other, 1, 0x3b3b_3b3b)
}
