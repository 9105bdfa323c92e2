//! `hipMemSetAccess` and `hipMemGetAccess`: invalid calls.

use crate::case::{Case, TestResult, ensure_eq};
use crate::context::offset_by;
use crate::{Context, NotPassed};
use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::hip::HipError;
use hsa_vmm::{Access, AccessDescriptor, Address, AgentId};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "access.set.null",
        "recorded: cuda_h200_edges setaccess_null",
        "null is rejected",
        |c| rejects_set_access(c, Address::NULL, c.granule(), Argument::Address),
    ),
    Case::new(
        "access.set.size_zero",
        "recorded: cuda_h200_edges setaccess_size_zero",
        "a size of 0 is rejected",
        |c| rejects_range(c, 0, 0, Some(Argument::Size)),
    ),
    Case::new(
        "access.set.list_empty",
        "hip-tests: hipMemSetAccess_negative; reference 6.2 #46",
        "an empty list is rejected",
        rejects_empty_list,
    ),
    Case::new(
        "access.set.agent_invented",
        "recorded: cuda_h200_edges setaccess_bad_device",
        "an agent that does not exist is rejected",
        |c| rejects_agent(c, c.invented_agent()),
    ),
    Case::new(
        "access.set.agent_of_another_runtime",
        "HIP: hipMemSetAccess",
        "an agent of another runtime is rejected",
        // The upper 32 bits of an identifier are the runtime's number.
        |c| rejects_agent(c, AgentId::from_bits(c.gpu().to_bits() ^ 1 << 62)),
    ),
    Case::new(
        "access.set.good_then_bad",
        "recorded: cuda_h200_edges setaccess_good_then_bad; reference 6.2 #41",
        "if one agent in the list is invalid, no entry takes effect",
        invalid_agent_rejects_whole_list,
    ),
    Case::new(
        "access.set.agent_out_of_reach",
        "reference 6.2 #45",
        "a GPU that cannot access the memory is rejected",
        rejects_gpu_without_peer_access,
    ),
    Case::new(
        "access.set.cpu_without_large_bar",
        "HIP: hipDeviceAttributeIsLargeBar",
        "the CPU is rejected if it cannot access the memory",
        rejects_cpu_without_large_bar,
    ),
    Case::new(
        "access.set.size_shorter",
        "recorded: cuda_h200_edges setaccess_half_mapping; reference 6.2 #38",
        "half a mapping is rejected",
        |c| rejects_range(c, 0, c.granule(), None),
    ),
    Case::new(
        "access.set.size_minus_one",
        "hip-tests: hipMemSetAccess_negative",
        "a size one byte too small is rejected",
        |c| rejects_range(c, 0, 2 * c.granule() - 1, None),
    ),
    Case::new(
        "access.set.size_longer",
        "hip-tests: hipMemSetAccess_negative",
        "a size larger than the mapping is rejected",
        |c| rejects_range(c, 0, 3 * c.granule(), None),
    ),
    Case::new(
        "access.set.size_beyond_the_reservation",
        "recorded: cuda_h200_edges setaccess_beyond_reservation; reference 6.2 #37",
        "a size larger than the reservation is rejected",
        |c| rejects_range(c, 0, 5 * c.granule(), None),
    ),
    Case::new(
        "access.set.start_inside",
        "recorded: cuda_h200_edges setaccess_second_half_only; reference 6.2 #39",
        "a range that begins inside a mapping is rejected",
        |c| rejects_range(c, c.granule(), c.granule(), None),
    ),
    Case::new(
        "access.set.unmapped",
        "recorded: cuda_h200_edges setaccess_unmapped; reference 6.2 #36",
        "a range without mappings is rejected",
        |c| rejects_range(c, 2 * c.granule(), c.granule(), None),
    ),
    Case::new(
        "access.set.over_a_hole",
        "recorded: cuda_h200_edges setaccess_partly_unmapped",
        "a range with a hole is rejected, and no mapping changes",
        rejects_range_with_hole,
    ),
    Case::new(
        "access.set.not_reserved",
        "hip-tests: hipMemSetAccess_negative; reference 6.2 #37",
        "addresses that are not reserved are rejected",
        rejects_unreserved,
    ),
    Case::new(
        "access.set.after_unmap",
        "HIP: hipMemSetAccess",
        "an unmapped range is rejected",
        rejects_unmapped_range,
    ),
    Case::new("access.get.null", "hip-tests: hipMemGetAccess_NegTst", "null is rejected", |c| {
        rejects_get_access(c, Address::NULL)
    }),
    Case::new(
        "access.get.unmapped",
        "recorded: cuda_h200_edges getaccess_unmapped",
        "addresses without a mapping are rejected",
        |c| rejects_get_access(c, c.reserve(1)?),
    ),
    Case::new(
        "access.get.not_reserved",
        "recorded: cuda_h200_edges getaccess_not_reserved",
        "addresses that are not reserved are rejected",
        get_rejects_unreserved,
    ),
    Case::new(
        "access.get.end",
        "hip-tests: hipMemGetAccess_NegTst; reference 6.2 #50: ROCr accepts the address",
        "the address after a mapping is rejected",
        get_rejects_end_of_mapping,
    ),
    Case::new(
        "access.get.agent_invented",
        "HIP: hipMemGetAccess",
        "an agent that does not exist is rejected",
        get_rejects_invented_agent,
    ),
];

/// Checks that `set_access` for the first GPU rejects a range.
fn rejects_set_access(
    context: &Context,
    at: Address,
    size: usize,
    argument: Argument,
) -> TestResult {
    let list = [AccessDescriptor { agent: context.gpu(), access: Access::Read }];
    context.expect_invalid_argument(argument, || context.vmm().set_access(at, size, &list))
}

/// Maps two granules at the start of a reservation of four, and checks that `set_access` rejects a range.
/// `start` is an offset in the reservation, in bytes. If `argument` is given, the error must name this argument.
fn rejects_range(
    context: &Context,
    start: usize,
    size: usize,
    argument: Option<Argument>,
) -> TestResult {
    let at = context.reserve(4)?;
    let handle = context.create(2)?;
    context.map(at, 2, handle)?;
    context.set_access(at, 2, &context.default_agents(), Access::ReadWrite)?;
    context.fill(at, 2, 0x6b6b_6b6b)?;
    let list = [AccessDescriptor { agent: context.gpu(), access: Access::Read }];
    let set = || context.vmm().set_access(offset_by(at, start), size, &list);
    let error = context.expect_error(HipError::InvalidValue, set)?;
    if argument.is_some() {
        ensure_eq!(error.argument(), argument, "{error}");
    }
    context.check_contents(at, 2, 0x6b6b_6b6b)
}

fn rejects_empty_list(context: &Context) -> TestResult {
    let (at, _) = context.map_filled(1, 0x6c6c_6c6c)?;
    let set = || context.vmm().set_access(at, context.granule(), &[]);
    context.expect_invalid_argument(Argument::Descriptors, set)
}

fn rejects_agent(context: &Context, agent: AgentId) -> TestResult {
    let (at, _) = context.map_filled(1, 0x6d6d_6d6d)?;
    let list = [AccessDescriptor { agent, access: Access::ReadWrite }];
    let set = || context.vmm().set_access(at, context.granule(), &list);
    context.expect_invalid_argument(Argument::Agent, set)
}

fn invalid_agent_rejects_whole_list(context: &Context) -> TestResult {
    let at = context.reserve(1)?;
    let handle = context.create(1)?;
    context.map(at, 1, handle)?;
    let list = [context.gpu(), context.invented_agent()]
        .map(|agent| AccessDescriptor { agent, access: Access::ReadWrite });
    let set = || context.vmm().set_access(at, context.granule(), &list);
    context.expect_invalid_argument(Argument::Agent, set)?;
    let access = context.vmm().get_access(context.gpu(), at)?;
    ensure_eq!(access, Access::None, "access of the valid agent");
    Ok(())
}

fn rejects_gpu_without_peer_access(context: &Context) -> TestResult {
    let runtime = context.runtime();
    let pairs = context.gpus().iter().flat_map(|&a| context.gpus().iter().map(move |&b| (a, b)));
    let has_no_access = |&(agent, owner): &(AgentId, AgentId)| {
        runtime.agent(agent).is_some_and(|agent| !agent.can_access(owner))
    };
    let Some((agent, owner)) = pairs.into_iter().find(has_no_access) else {
        let reason = "every GPU can access the memory of every other GPU".to_owned();
        return Err(NotPassed::Skipped(reason));
    };
    let at = context.reserve(1)?;
    let handle = context.create_on(owner, 1)?;
    context.map(at, 1, handle)?;
    let list = [AccessDescriptor { agent, access: Access::ReadWrite }];
    let set = || context.vmm().set_access(at, context.granule(), &list);
    let error = context.expect_error(HipError::InvalidValue, set)?;
    ensure_eq!(error.problem(), Some(Problem::NoPeerAccess(owner)), "{error}");
    Ok(())
}

fn rejects_cpu_without_large_bar(context: &Context) -> TestResult {
    if context.cpu_can_access(context.gpu()) {
        return Err(NotPassed::Skipped("the CPU can access all memory of this GPU".to_owned()));
    }
    let (at, _) = context.map_filled(1, 0x6e6e_6e6e)?;
    let list = [AccessDescriptor { agent: context.host(), access: Access::Read }];
    let set = || context.vmm().set_access(at, context.granule(), &list);
    context.expect_error(HipError::NotSupported, set).map(|_| ())
}

fn rejects_range_with_hole(context: &Context) -> TestResult {
    let at = context.reserve(3)?;
    for index in [0, 2] {
        let handle = context.create(1)?;
        context.map(context.granule_at(at, index), 1, handle)?;
    }
    rejects_set_access(context, at, 3 * context.granule(), Argument::Address)?;
    for index in [0, 2] {
        let access = context.vmm().get_access(context.gpu(), context.granule_at(at, index))?;
        ensure_eq!(access, Access::None, "access in granule {index}");
    }
    Ok(())
}

fn rejects_unreserved(context: &Context) -> TestResult {
    let local = 0u64;
    let address = Address::from(&raw const local);
    rejects_set_access(context, address, context.granule(), Argument::Address)
}

fn rejects_unmapped_range(context: &Context) -> TestResult {
    let (at, _) = context.map_filled(1, 0x6f6f_6f6f)?;
    context.vmm().unmap(at, context.granule())?;
    rejects_set_access(context, at, context.granule(), Argument::Address)
}

fn rejects_get_access(context: &Context, at: Address) -> TestResult {
    context
        .expect_invalid_argument(Argument::Address, || context.vmm().get_access(context.gpu(), at))
}

fn get_rejects_unreserved(context: &Context) -> TestResult {
    let local = 0u64;
    rejects_get_access(context, Address::from(&raw const local))
}

fn get_rejects_end_of_mapping(context: &Context) -> TestResult {
    let at = context.reserve(2)?;
    let handle = context.create(1)?;
    context.map(at, 1, handle)?;
    context.set_access(at, 1, &[context.gpu()], Access::ReadWrite)?;
    rejects_get_access(context, context.granule_at(at, 1))
}

fn get_rejects_invented_agent(context: &Context) -> TestResult {
    let (at, _) = context.map_filled(1, 0x7070_7070)?;
    let agent = context.invented_agent();
    context.expect_invalid_argument(Argument::Agent, || context.vmm().get_access(agent, at))
}
