//! `hipMemMap`: valid calls.

use super::kernel_state::expect_cpu_permissions;
use crate::Context;
use crate::case::{Case, TestResult, ensure_bytes, ensure_eq};
use hsa_vmm::Access;

pub(super) const CASES: &[Case] = &[
    Case::new(
        "map.memory.whole_handle",
        "hip-tests: hipMemCreate_ChkDev2HstMemcpy_ReleaseHdlPostUnmap",
        "mapped memory keeps what CPU and GPU write",
        keeps_written_data,
    ),
    Case::new(
        "map.memory.no_access_at_first",
        "invariant 9 (src/vmm/ledger/check.rs); reference 6.2 #49",
        "no agent has access after mapping, and the kernel permits the CPU none",
        grants_no_access,
    ),
    Case::new(
        "map.memory.part_of_a_handle",
        "hip-tests: hipMemMap_MapPartialPhysicalMem; reference 6.2 #19",
        "a size smaller than the handle's size maps the beginning of the memory",
        maps_part_of_handle,
    ),
    Case::new(
        "map.memory.part_of_the_reservation",
        "hip-tests: hipMemMap_MapPartialVMMMem",
        "the rest of the reservation stays unmapped",
        maps_part_of_reservation,
    ),
    Case::new(
        "map.handle.at_two_places",
        "recorded: cuda_h200_edges map_same_handle_elsewhere; reference 6.2 #25",
        "one handle mapped twice in one reservation is the same memory",
        |c| maps_aliases(c, 2, true),
    ),
    Case::new(
        "map.handle.at_three_reservations",
        "hip-tests: hipMemMap_PhysicalMemory_Map2MultVMMs",
        "one handle mapped in three reservations is the same memory",
        |c| maps_aliases(c, 3, false),
    ),
    Case::new(
        "map.handle.one_place_after_another",
        "hip-tests: hipMemMap_PhysicalMemoryReuse_SingleGPU",
        "one handle mapped in three reservations, one after another, keeps its contents",
        maps_at_changing_addresses,
    ),
    Case::new(
        "map.chunks.in_any_order",
        "hip-tests: hipMemCreate_MapNonContiguousChunks",
        "handles mapped side by side in any order form one range",
        maps_in_any_order,
    ),
    Case::new(
        "map.chunks.of_different_sizes",
        "HIP: hipMemMap",
        "handles of different sizes fill a reservation without a gap",
        maps_different_sizes,
    ),
    Case::new(
        "map.again.same_handle",
        "hip-tests: hipMemMap_SameMemoryReuse",
        "mapping and unmapping the same memory twenty times keeps its contents",
        remaps_same_handle,
    ),
    Case::new(
        "map.again.other_handles",
        "hip-tests: hipMemMap_VMMMemoryReuse_SingleGPU",
        "several handles are mapped at the same address in turn; the address shows the memory of the handle mapped last",
        remaps_other_handles,
    ),
    Case::new(
        "map.gpus.all_in_one_reservation",
        "hip-tests: hipMemMap_VMMMemoryReuse_MultiGPU",
        "memory of several GPUs can be mapped side by side",
        maps_memory_of_all_gpus,
    ),
    Case::new(
        "map.gpus.each_uses_memory_of_one",
        "hip-tests: hipMemMap_PhysicalMemoryReuse_MultiDev",
        "a GPU can be granted access to another GPU's memory although the owner has no access",
        grants_peer_only,
    ),
];

fn keeps_written_data(context: &Context) -> TestResult {
    let (at, _) = context.map_filled(4, 0x1122_3344)?;
    context.check_contents(at, 4, 0x1122_3344)?;
    if context.cpu_can_access(context.gpu()) {
        let text = b"written by the CPU across a granule's end";
        let middle = context.granule_at(at, 1).get() - 16;
        context.vmm().write(hsa_vmm::Address::new(middle), text)?;
        let mut found = vec![0; text.len()];
        context.vmm().read(hsa_vmm::Address::new(middle), &mut found)?;
        ensure_bytes!(found, text, "the CPU's text");
    }
    context.fill(at, 4, 0x5566_7788)?;
    context.check_contents(at, 4, 0x5566_7788)
}

fn grants_no_access(context: &Context) -> TestResult {
    let at = context.reserve(1)?;
    let handle = context.create(1)?;
    context.map(at, 1, handle)?;
    for agent in context.runtime().agents() {
        let access = context.vmm().get_access(agent.id(), at)?;
        ensure_eq!(access, Access::None, "access of {}", agent.id());
    }
    let argument = hsa_vmm::error::Argument::Address;
    context.expect_invalid_argument(argument, || context.vmm().read(at, &mut [0; 4]))?;
    context.expect_invalid_argument(argument, || context.vmm().fill(at, 1, 64))?;
    expect_cpu_permissions(context, at, 1, Access::None)
}

fn maps_part_of_handle(context: &Context) -> TestResult {
    let (all, handle) = context.map_filled(4, 0x0a0a_0a0a)?;
    let half = context.reserve(2)?;
    context.map(half, 2, handle)?;
    context.set_access(half, 2, &context.default_agents(), Access::ReadWrite)?;
    context.check_contents(half, 2, 0x0a0a_0a0a)?;
    context.fill(half, 2, 0x0b0b_0b0b)?;
    context.check_contents(all, 2, 0x0b0b_0b0b)?;
    context.check_contents(context.granule_at(all, 2), 2, 0x0a0a_0a0a)
}

fn maps_part_of_reservation(context: &Context) -> TestResult {
    let at = context.reserve(4)?;
    let handle = context.create(2)?;
    let middle = context.granule_at(at, 1);
    context.map(middle, 2, handle)?;
    context.set_access(middle, 2, &context.default_agents(), Access::ReadWrite)?;
    context.fill(middle, 2, 0x0c0c_0c0c)?;
    context.check_contents(middle, 2, 0x0c0c_0c0c)?;
    let argument = hsa_vmm::error::Argument::Address;
    for unmapped in [at, context.granule_at(at, 3)] {
        context.expect_invalid_argument(argument, || {
            context.vmm().get_access(context.gpu(), unmapped)
        })?;
    }
    Ok(())
}

/// Maps one handle `count` times, in one reservation or in separate reservations. Checks that data written through any
/// mapping is read through every mapping.
fn maps_aliases(context: &Context, count: usize, in_one_reservation: bool) -> TestResult {
    let handle = context.create(1)?;
    let base = if in_one_reservation { Some(context.reserve(count)?) } else { None };
    let mut aliases = Vec::new();
    for index in 0..count {
        let alias = match base {
            Some(base) => context.granule_at(base, index),
            None => context.reserve(1)?,
        };
        context.map(alias, 1, handle)?;
        context.set_access(alias, 1, &context.default_agents(), Access::ReadWrite)?;
        aliases.push(alias);
    }
    for (index, &writer) in aliases.iter().enumerate() {
        let value = 0x0d0d_0d00 + index as u32;
        context.fill(writer, 1, value)?;
        for &reader in &aliases {
            context.check_contents(reader, 1, value)?;
        }
    }
    Ok(())
}

fn maps_at_changing_addresses(context: &Context) -> TestResult {
    let handle = context.create(2)?;
    for round in 0..3u32 {
        let at = context.reserve(2)?;
        context.map(at, 2, handle)?;
        context.set_access(at, 2, &context.default_agents(), Access::ReadWrite)?;
        if round > 0 {
            context.check_contents(at, 2, 0x0e0e_0e00 + round - 1)?;
        }
        context.fill(at, 2, 0x0e0e_0e00 + round)?;
        context.vmm().unmap(at, 2 * context.granule())?;
    }
    Ok(())
}

fn maps_in_any_order(context: &Context) -> TestResult {
    let at = context.reserve(5)?;
    for index in [3, 0, 4, 1, 2] {
        let handle = context.create(1)?;
        context.map(context.granule_at(at, index), 1, handle)?;
    }
    context.set_access(at, 5, &context.default_agents(), Access::ReadWrite)?;
    for index in 0..5 {
        context.fill(context.granule_at(at, index), 1, 0x0f0f_0f00 + index as u32)?;
    }
    for index in 0..5 {
        context.check_contents(context.granule_at(at, index), 1, 0x0f0f_0f00 + index as u32)?;
    }
    context.fill(at, 5, 0x1010_1010)?;
    context.check_contents(at, 5, 0x1010_1010)
}

fn maps_different_sizes(context: &Context) -> TestResult {
    let at = context.reserve(6)?;
    for (offset, size) in [(0, 1), (1, 3), (4, 2)] {
        let handle = context.create(size)?;
        context.map(context.granule_at(at, offset), size, handle)?;
        context.set_access(
            context.granule_at(at, offset),
            size,
            &context.default_agents(),
            Access::ReadWrite,
        )?;
    }
    context.fill(at, 6, 0x1212_1212)?;
    context.check_contents(at, 6, 0x1212_1212)?;
    ensure_eq!(context.vmm().usage().mappings, 3, "mappings");
    Ok(())
}

fn remaps_same_handle(context: &Context) -> TestResult {
    let (at, handle) = context.map_filled(1, 0x1313_1313)?;
    for _ in 0..20 {
        context.vmm().unmap(at, context.granule())?;
        context.map(at, 1, handle)?;
        let access = context.vmm().get_access(context.gpu(), at)?;
        ensure_eq!(access, Access::None, "access after mapping again");
        context.set_access(at, 1, &context.default_agents(), Access::ReadWrite)?;
        context.check_contents(at, 1, 0x1313_1313)?;
    }
    Ok(())
}

fn remaps_other_handles(context: &Context) -> TestResult {
    let at = context.reserve(1)?;
    let handles = [context.create(1)?, context.create(1)?, context.create(1)?];
    for round in 0..2 {
        for (index, &handle) in handles.iter().enumerate() {
            context.map(at, 1, handle)?;
            context.set_access(at, 1, &context.default_agents(), Access::ReadWrite)?;
            let value = 0x1414_1400 + index as u32;
            if round == 0 {
                context.fill(at, 1, value)?;
            }
            context.check_contents(at, 1, value)?;
            context.vmm().unmap(at, context.granule())?;
        }
    }
    Ok(())
}

fn maps_memory_of_all_gpus(context: &Context) -> TestResult {
    context.other_gpu()?;
    let at = context.reserve(context.gpus().len())?;
    for (index, &gpu) in context.gpus().iter().enumerate() {
        let handle = context.create_on(gpu, 1)?;
        let granule = context.granule_at(at, index);
        context.map(granule, 1, handle)?;
        context.set_access(granule, 1, &context.gpu_and_cpu(gpu), Access::ReadWrite)?;
        context.fill(granule, 1, 0x1515_1500 + index as u32)?;
    }
    for (index, &gpu) in context.gpus().iter().enumerate() {
        let (granule, value) = (context.granule_at(at, index), 0x1515_1500 + index as u32);
        context.check_by_cpu_or(gpu, granule, 1, value)?;
        context.check_ends(gpu, granule, 1, value)?;
    }
    Ok(())
}

fn grants_peer_only(context: &Context) -> TestResult {
    let other = context.other_gpu()?;
    let at = context.reserve(2)?;
    let handle = context.create(2)?;
    context.map(at, 2, handle)?;
    context.set_access(at, 2, &[other], Access::ReadWrite)?;
    // Write and copy with the peer's copy engine.
    let (size, second) = (context.granule(), context.granule_at(at, 1));
    context.vmm().copy_from_host(other, at, &vec![0x16; size])?;
    context.vmm().copy_from_host(other, second, &vec![0x17; size])?;
    context.vmm().copy(other, second, at, size)?;
    context.check_ends(other, at, 2, 0x1616_1616)?;
    ensure_eq!(context.vmm().get_access(other, at)?, Access::ReadWrite, "access of the peer");
    let owner = context.vmm().get_access(context.gpu(), at)?;
    ensure_eq!(owner, Access::None, "access of the owner");
    Ok(())
}
