//! Loads, stores, copies and fills by the CPU and the GPUs, with each access.

use crate::Context;
use crate::case::{Case, TestResult, ensure, ensure_bytes, ensure_eq};
use crate::context::offset_by;
use hsa_vmm::Access;
use hsa_vmm::error::Argument;

pub(super) const CASES: &[Case] = &[
    Case::new(
        "access.cpu.read_and_write",
        "hip-tests: hipMemSetAccess_AccessDirectlyFromHost",
        "the CPU loads and stores with read and write access",
        cpu_reads_and_writes,
    ),
    Case::new(
        "access.cpu.read_only",
        "recorded: cuda_h200_edges setaccess_read_only",
        "with read access the CPU can read but not write",
        cpu_with_read_access_cannot_write,
    ),
    Case::new(
        "access.cpu.none",
        "recorded: cuda_h200_edges setaccess_none; reference 6.2 #42",
        "without access the CPU can neither read nor write; the contents stay",
        cpu_without_access_cannot_read,
    ),
    Case::new(
        "access.cpu.comes_and_goes",
        "reference 6.2 #63: ROCr leaves a hole",
        "access of the CPU can be set to none and granted again many times",
        cpu_access_is_removed_and_granted,
    ),
    Case::new(
        "access.cpu.beyond_the_mapping",
        "HIP: hipMemcpyDtoH",
        "loads and stores that extend past the mapping are rejected and transfer nothing",
        cpu_cannot_cross_mapping_end,
    ),
    Case::new(
        "access.cpu.across_mappings",
        "hip-tests: hipMemSetAccess_MapPhysChksFromMulDev",
        "loads and stores cross adjacent mappings if the CPU has access to all of them",
        cpu_crosses_adjacent_mappings,
    ),
    Case::new(
        "access.gpu.copies",
        "hip-tests: hipMemSetAccess_Vmm2VMMMemCpy",
        "a GPU copies between mappings to which it has access",
        gpu_copies,
    ),
    Case::new(
        "access.gpu.needs_both_sides",
        "HIP: hipMemSetAccess",
        "a copy by a GPU without access to source or destination is rejected",
        gpu_needs_access_to_source_and_target,
    ),
    Case::new(
        "access.gpu.read_only",
        "reference 6.2 #43",
        "with read access a GPU copies from memory but not to it",
        gpu_with_read_access_cannot_write,
    ),
    Case::new(
        "access.gpu.beyond_the_mapping",
        "HIP: hipMemcpyDtoD",
        "copies and fills that extend past the mapping are rejected and transfer nothing",
        gpu_cannot_cross_mapping_end,
    ),
    Case::new(
        "access.gpu.agent_invented",
        "HIP: hipMemcpyDtoD",
        "a copy by an agent that does not exist is rejected",
        rejects_invented_agent,
    ),
    Case::new(
        "access.gpu.fill_off_the_words",
        "HSA: hsa_amd_memory_async_copy",
        "filling a size that is not a multiple of four bytes is rejected",
        gpu_fill_rejects_partial_words,
    ),
    Case::new(
        "access.gpus.both_see_the_same",
        "hip-tests: hipMemSetAccess_MultDevSetGet",
        "two GPUs that are granted access in one call see the same memory",
        |c| gpus_see_same_memory(c, false),
    ),
    Case::new(
        "access.gpus.peer_after_the_owner",
        "reference 6.2 #47, #48",
        "a peer that is granted access after the owner sees the memory, too",
        |c| gpus_see_same_memory(c, true),
    ),
    Case::new(
        "access.gpus.peer_before_the_owner",
        "reference 6.2 #48; rocm-systems#9908",
        "the owner can be granted access after a peer",
        grants_owner_after_peer,
    ),
    Case::new(
        "access.gpus.over_memory_of_several",
        "reference 6.2 #40",
        "one call sets the access to adjacent memory of different GPUs",
        grants_memory_of_several_gpus,
    ),
];

fn cpu_reads_and_writes(context: &Context) -> TestResult {
    context.require_cpu_access()?;
    let (at, handle) = context.map_filled(2, 0)?;
    let pattern: Vec<u8> = (0..2 * context.granule()).map(|i| (i % 251) as u8).collect();
    context.vmm().write(at, &pattern)?;
    let mut found = vec![0; pattern.len()];
    context.vmm().read(at, &mut found)?;
    ensure_bytes!(found, pattern, "the CPU reads other bytes than it wrote");
    // Check that a GPU reads the same bytes.
    let copy = context.reserve(2)?;
    let other = context.create(2)?;
    context.map(copy, 2, other)?;
    context.set_access(copy, 2, &context.default_agents(), Access::ReadWrite)?;
    context.vmm().copy(context.gpu(), copy, at, pattern.len())?;
    found.fill(0);
    context.vmm().read(copy, &mut found)?;
    ensure!(found == pattern, "the GPU copies other bytes than the CPU wrote");
    ensure_eq!(context.vmm().retain_allocation_handle(at)?, handle, "handle");
    Ok(())
}

fn cpu_with_read_access_cannot_write(context: &Context) -> TestResult {
    context.require_cpu_access()?;
    let (at, _) = context.map_filled(1, 0x4141_4141)?;
    context.set_access(at, 1, &[context.host()], Access::Read)?;
    context.check_contents(at, 1, 0x4141_4141)?;
    context.expect_invalid_argument(Argument::Address, || context.vmm().write(at, &[1]))?;
    context.fill(at, 1, 0x4242_4242)?;
    context.check_contents(at, 1, 0x4242_4242)
}

fn cpu_without_access_cannot_read(context: &Context) -> TestResult {
    context.require_cpu_access()?;
    let (at, _) = context.map_filled(1, 0x4343_4343)?;
    context.set_access(at, 1, &[context.host()], Access::None)?;
    context.expect_invalid_argument(Argument::Address, || context.vmm().read(at, &mut [0]))?;
    context.expect_invalid_argument(Argument::Address, || context.vmm().write(at, &[1]))?;
    context.set_access(at, 1, &[context.host()], Access::ReadWrite)?;
    context.check_contents(at, 1, 0x4343_4343)
}

fn cpu_access_is_removed_and_granted(context: &Context) -> TestResult {
    context.require_cpu_access()?;
    let (at, _) = context.map_filled(2, 0x4444_4444)?;
    for round in 0..16 {
        context.set_access(at, 2, &[context.host()], Access::None)?;
        // If the range had lost addresses, a new reservation could get these addresses.
        let other = context.reserve(1)?;
        ensure!(
            other < at || other >= context.granule_at(at, 2),
            "{other} was reserved inside {at} in round {round}"
        );
        context.set_access(at, 2, &[context.host()], Access::ReadWrite)?;
        context.check_contents(at, 2, 0x4444_4444)?;
    }
    Ok(())
}

fn cpu_cannot_cross_mapping_end(context: &Context) -> TestResult {
    context.require_cpu_access()?;
    let at = context.reserve(3)?;
    let handle = context.create(1)?;
    let mapping = context.granule_at(at, 1);
    context.map(mapping, 1, handle)?;
    context.set_access(mapping, 1, &context.default_agents(), Access::ReadWrite)?;
    context.fill(mapping, 1, 0x4e4e_4e4e)?;
    let last = offset_by(mapping, context.granule() - 4);
    // The second range begins four bytes before the mapping, because `offset_by` wraps around.
    for start in [last, offset_by(mapping, usize::MAX - 3)] {
        context.expect_invalid_argument(Argument::Address, || {
            context.vmm().read(start, &mut [0; 8])
        })?;
        context
            .expect_invalid_argument(Argument::Address, || context.vmm().write(start, &[0; 8]))?;
    }
    context.check_contents(mapping, 1, 0x4e4e_4e4e)
}

fn cpu_crosses_adjacent_mappings(context: &Context) -> TestResult {
    context.require_cpu_access()?;
    let at = context.reserve(2)?;
    for index in 0..2 {
        let handle = context.create(1)?;
        context.map(context.granule_at(at, index), 1, handle)?;
    }
    context.set_access(at, 2, &context.default_agents(), Access::ReadWrite)?;
    let middle = offset_by(at, context.granule() - 8);
    let (text, mut found) = (*b"across an edge..", [0; 16]);
    context.vmm().write(middle, &text)?;
    context.vmm().read(middle, &mut found)?;
    ensure_bytes!(found, text, "the written bytes");
    context.set_access(context.granule_at(at, 1), 1, &[context.host()], Access::Read)?;
    context.expect_invalid_argument(Argument::Address, || context.vmm().write(middle, &[0; 16]))?;
    context.vmm().read(middle, &mut found)?;
    ensure_bytes!(found, text, "the bytes after the rejected write");
    Ok(())
}

fn gpu_copies(context: &Context) -> TestResult {
    let (source, _) = context.map_filled(2, 0x4545_4545)?;
    let (destination, _) = context.map_filled(2, 0x4646_4646)?;
    context.vmm().copy(context.gpu(), destination, source, context.granule())?;
    context.check_contents(destination, 1, 0x4545_4545)?;
    context.check_contents(context.granule_at(destination, 1), 1, 0x4646_4646)?;
    context.check_contents(source, 2, 0x4545_4545)
}

fn gpu_needs_access_to_source_and_target(context: &Context) -> TestResult {
    let (granted, _) = context.map_filled(1, 0x4747_4747)?;
    let not_granted = context.reserve(1)?;
    let handle = context.create(1)?;
    context.map(not_granted, 1, handle)?;
    let (vmm, gpu, size) = (context.vmm(), context.gpu(), context.granule());
    context.expect_invalid_argument(Argument::Destination, || {
        vmm.copy(gpu, not_granted, granted, size)
    })?;
    context
        .expect_invalid_argument(Argument::Source, || vmm.copy(gpu, granted, not_granted, size))?;
    context.check_contents(granted, 1, 0x4747_4747)
}

fn gpu_with_read_access_cannot_write(context: &Context) -> TestResult {
    let (read_only, _) = context.map_filled(1, 0x4848_4848)?;
    let (writable, _) = context.map_filled(1, 0x4949_4949)?;
    let (vmm, gpu, size) = (context.vmm(), context.gpu(), context.granule());
    context.set_access(read_only, 1, &[gpu], Access::Read)?;
    context.expect_invalid_argument(Argument::Destination, || {
        vmm.copy(gpu, read_only, writable, size)
    })?;
    context.expect_invalid_argument(Argument::Address, || vmm.fill(read_only, 1, size))?;
    vmm.copy(gpu, writable, read_only, size)?;
    context.check_contents(writable, 1, 0x4848_4848)
}

fn gpu_cannot_cross_mapping_end(context: &Context) -> TestResult {
    let (vmm, gpu, size) = (context.vmm(), context.gpu(), context.granule());
    let (long, _) = context.map_filled(2, 0x4f4f_4f4f)?;
    let short = context.reserve(2)?;
    let handle = context.create(1)?;
    context.map(short, 1, handle)?;
    context.set_access(short, 1, &context.default_agents(), Access::ReadWrite)?;
    context.fill(short, 1, 0x5050_5050)?;
    context
        .expect_invalid_argument(Argument::Destination, || vmm.copy(gpu, short, long, 2 * size))?;
    context.expect_invalid_argument(Argument::Source, || vmm.copy(gpu, long, short, 2 * size))?;
    context.expect_invalid_argument(Argument::Address, || vmm.fill(short, 1, 2 * size))?;
    context.check_contents(long, 2, 0x4f4f_4f4f)?;
    context.check_contents(short, 1, 0x5050_5050)
}

fn rejects_invented_agent(context: &Context) -> TestResult {
    let (at, _) = context.map_filled(2, 0x5151_5151)?;
    let agent = context.invented_agent();
    let copy = || context.vmm().copy(agent, context.granule_at(at, 1), at, context.granule());
    context.expect_invalid_argument(Argument::Agent, copy)
}

fn gpu_fill_rejects_partial_words(context: &Context) -> TestResult {
    let (at, _) = context.map_filled(1, 0x5252_5252)?;
    context.expect_invalid_argument(Argument::Size, || context.vmm().fill(at, 0, 6))?;
    context.expect_invalid_argument(Argument::Address, || {
        context.vmm().fill(offset_by(at, 2), 0, 8)
    })?;
    context.check_contents(at, 1, 0x5252_5252)
}

fn gpus_see_same_memory(context: &Context, peer_in_second_call: bool) -> TestResult {
    let other = context.other_gpu()?;
    let owner = context.gpu();
    let at = context.reserve(2)?;
    for index in 0..2 {
        let handle = context.create(1)?;
        context.map(context.granule_at(at, index), 1, handle)?;
    }
    if peer_in_second_call {
        context.set_access(at, 2, &context.default_agents(), Access::ReadWrite)?;
        context.fill(at, 2, 0x4a4a_4a4a)?;
        context.set_access(at, 2, &[other], Access::ReadWrite)?;
        context.check_contents(at, 2, 0x4a4a_4a4a)?;
    } else {
        let mut agents = context.default_agents();
        agents.push(other);
        context.set_access(at, 2, &agents, Access::ReadWrite)?;
    }
    context.fill(at, 1, 0x4b4b_4b4b)?;
    context.vmm().copy(other, context.granule_at(at, 1), at, context.granule())?;
    context.check_contents(at, 2, 0x4b4b_4b4b)?;
    for gpu in [owner, other] {
        let access = context.vmm().get_access(gpu, at)?;
        ensure_eq!(access, Access::ReadWrite, "access of {gpu}");
    }
    Ok(())
}

fn grants_owner_after_peer(context: &Context) -> TestResult {
    let other = context.other_gpu()?;
    let at = context.reserve(2)?;
    let handle = context.create(2)?;
    context.map(at, 2, handle)?;
    context.set_access(at, 2, &[other], Access::ReadWrite)?;
    context.set_access(at, 2, &context.default_agents(), Access::ReadWrite)?;
    context.fill(at, 1, 0x4c4c_4c4c)?;
    context.vmm().copy(other, context.granule_at(at, 1), at, context.granule())?;
    context.check_contents(at, 2, 0x4c4c_4c4c)
}

fn grants_memory_of_several_gpus(context: &Context) -> TestResult {
    let (owner, other) = (context.gpu(), context.other_gpu()?);
    let at = context.reserve(2)?;
    for (index, gpu) in [owner, other].into_iter().enumerate() {
        let handle = context.create_on(gpu, 1)?;
        context.map(context.granule_at(at, index), 1, handle)?;
    }
    context.set_access(at, 2, &[owner, other], Access::ReadWrite)?;
    context.fill(at, 1, 0x4d4d_4d4d)?;
    let second = context.granule_at(at, 1);
    for gpu in [owner, other] {
        context.fill(second, 1, 0x4e4e_4e4e)?;
        context.vmm().copy(gpu, second, at, context.granule())?;
        [owner, other].iter().try_for_each(|&gpu| context.check_ends(gpu, at, 2, 0x4d4d_4d4d))?;
    }
    if context.cpu_can_access(owner) && context.cpu_can_access(other) {
        context.set_access(at, 2, &[context.host()], Access::Read)?;
        context.check_contents(at, 2, 0x4d4d_4d4d)?;
    }
    Ok(())
}
