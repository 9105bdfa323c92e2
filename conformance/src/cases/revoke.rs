//! `Vmm::revoke`, for which HIP has no call.

use crate::Context;
use crate::case::{Case, TestResult, ensure_eq};
use hsa_vmm::Access;
use hsa_vmm::error::Argument;

pub(super) const CASES: &[Case] = &[
    Case::new(
        "access.revoke.gpu",
        "documentation: Vmm::revoke; reference 6.2 #42",
        "a GPU whose access was revoked has no access, and can be granted access again",
        revoked_gpu_has_no_access,
    ),
    Case::new(
        "access.revoke.others_keep_theirs",
        "documentation: Vmm::revoke",
        "other agents keep their access, and the contents stay",
        other_agents_keep_access,
    ),
    Case::new(
        "access.revoke.over_several_mappings",
        "documentation: Vmm::revoke",
        "one call revokes access to consecutive mappings",
        revokes_several_mappings,
    ),
    Case::new(
        "access.revoke.list_empty",
        "HIP: hipMemSetAccess",
        "an empty list is rejected",
        rejects_empty_list,
    ),
    Case::new(
        "access.revoke.agent_invented",
        "HIP: hipMemSetAccess",
        "an agent that does not exist is rejected",
        rejects_invented_agent,
    ),
    Case::new(
        "access.revoke.part_of_a_mapping",
        "HIP: hipMemSetAccess",
        "half a mapping is rejected",
        rejects_part_of_mapping,
    ),
];

fn revoked_gpu_has_no_access(context: &Context) -> TestResult {
    let (at, _) = context.map_filled(2, 0x8181_8181)?;
    let (vmm, gpu, size) = (context.vmm(), context.gpu(), 2 * context.granule());
    vmm.revoke(at, size, &[gpu])?;
    ensure_eq!(vmm.get_access(gpu, at)?, Access::None, "access of the GPU");
    context.expect_invalid_argument(Argument::Address, || vmm.fill(at, 0, size))?;
    context.set_access(at, 2, &[gpu], Access::ReadWrite)?;
    context.check_contents(at, 2, 0x8181_8181)?;
    context.fill(at, 2, 0x8282_8282)?;
    context.check_contents(at, 2, 0x8282_8282)
}

fn other_agents_keep_access(context: &Context) -> TestResult {
    context.require_cpu_access()?;
    let (at, handle) = context.map_filled(1, 0x8383_8383)?;
    context.vmm().revoke(at, context.granule(), &[context.gpu()])?;
    let access = context.vmm().get_access(context.host(), at)?;
    ensure_eq!(access, Access::ReadWrite, "access of the CPU");
    context.check_contents(at, 1, 0x8383_8383)?;
    context.vmm().write(at, &[1, 2, 3])?;
    ensure_eq!(context.vmm().retain_allocation_handle(at)?, handle, "handle");
    Ok(())
}

fn revokes_several_mappings(context: &Context) -> TestResult {
    let at = context.reserve(3)?;
    for index in 0..3 {
        let handle = context.create(1)?;
        context.map(context.granule_at(at, index), 1, handle)?;
    }
    context.set_access(at, 3, &context.default_agents(), Access::ReadWrite)?;
    context.fill(at, 3, 0x8484_8484)?;
    context.vmm().revoke(at, 2 * context.granule(), &context.default_agents())?;
    for (index, expected) in [Access::None, Access::None, Access::ReadWrite].iter().enumerate() {
        for agent in context.default_agents() {
            let found = context.vmm().get_access(agent, context.granule_at(at, index))?;
            ensure_eq!(found, *expected, "access of {agent} to mapping {index}");
        }
    }
    context.check_contents(context.granule_at(at, 2), 1, 0x8484_8484)?;
    context.set_access(at, 3, &context.default_agents(), Access::Read)?;
    context.check_contents(at, 3, 0x8484_8484)
}

fn rejects_empty_list(context: &Context) -> TestResult {
    let (at, _) = context.map_filled(1, 0x8585_8585)?;
    let revoke = || context.vmm().revoke(at, context.granule(), &[]);
    context.expect_invalid_argument(Argument::Descriptors, revoke)
}

fn rejects_invented_agent(context: &Context) -> TestResult {
    let (at, _) = context.map_filled(1, 0x8686_8686)?;
    let agents = [context.gpu(), context.invented_agent()];
    let revoke = || context.vmm().revoke(at, context.granule(), &agents);
    context.expect_invalid_argument(Argument::Agent, revoke)
}

fn rejects_part_of_mapping(context: &Context) -> TestResult {
    let (at, _) = context.map_filled(2, 0x8787_8787)?;
    let revoke = || context.vmm().revoke(at, context.granule(), &[context.gpu()]);
    context.expect_error(hsa_vmm::hip::HipError::InvalidValue, revoke).map(|_| ())
}
