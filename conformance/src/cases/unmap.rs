//! `hipMemUnmap`.

use super::kernel_state::expect_cpu_permissions;
use crate::Context;
use crate::case::{Case, TestResult, ensure, ensure_eq};
use crate::context::offset_by;
use hsa_vmm::error::Argument;
use hsa_vmm::hip::HipError;
use hsa_vmm::{Access, Address};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "unmap.run.one_mapping",
        "HIP: hipMemUnmap",
        "after unmap the range has no mapping and stays reserved, and the kernel permits the CPU no access",
        unmaps_one_mapping,
    ),
    Case::new(
        "unmap.run.several_mappings",
        "hip-tests: hipMemSetAccess_GrowVMM; reference 6.2 #31",
        "one call unmaps consecutive mappings",
        unmaps_several_mappings,
    ),
    Case::new(
        "unmap.run.some_of_several",
        "HIP: hipMemUnmap",
        "unmapping some mappings does not change adjacent mappings or their contents",
        unmaps_some_mappings,
    ),
    Case::new(
        "unmap.access.goes",
        "reference 6.2 #34",
        "memory can be unmapped without revoking access first; after mapping again, access is none",
        unmap_clears_access,
    ),
    Case::new(
        "unmap.memory.stays_with_its_handle",
        "invariant 15 (src/vmm/ledger/check.rs)",
        "the contents stay while the handle has a reference",
        unmap_keeps_contents,
    ),
    Case::new(
        "unmap.memory.alias_stays",
        "HIP: hipMemUnmap",
        "unmapping one of two mappings of a handle does not change the other mapping",
        unmap_keeps_alias,
    ),
    Case::new(
        "unmap.addresses.stay_reserved",
        "reference 6.2 #63: ROCr leaves a hole",
        "unmapped addresses are not used by other reservations",
        unmap_keeps_addresses_reserved,
    ),
    Case::new(
        "unmap.again_and_again.leaves_nothing",
        "invariant 13 (src/vmm/ledger/check.rs)",
        "repeated mapping and unmapping leaves no handle and no mapping, as Vmm::usage counts",
        repeats_without_leak,
    ),
    Case::new(
        "unmap.address.null",
        "hip-tests: hipMemUnmap_negative",
        "null is rejected",
        rejects_null,
    ),
    Case::new(
        "unmap.address.not_reserved",
        "recorded: cuda_h200_edges unmap_not_reserved",
        "addresses that are not reserved are rejected",
        rejects_unreserved,
    ),
    Case::new(
        "unmap.address.nothing_mapped",
        "HIP: hipMemUnmap needs exactly a sequence of whole mappings",
        "a reservation without mappings is rejected",
        rejects_unmapped_reservation,
    ),
    Case::new(
        "unmap.address.twice",
        "reference 6.2 #35",
        "a second unmap is rejected",
        rejects_second_unmap,
    ),
    Case::new(
        "unmap.size.zero",
        "hip-tests: hipMemUnmap_negative",
        "a size of 0 is rejected",
        |c| rejects_range(c, 0, 0),
    ),
    Case::new(
        "unmap.size.first_half",
        "recorded: cuda_h200_edges unmap_half; hip-tests: hipMemUnmap_negative; reference 6.2 #30",
        "the first half of a mapping is rejected",
        |c| rejects_range(c, 0, c.granule()),
    ),
    Case::new(
        "unmap.size.second_half",
        "recorded: cuda_h200_edges unmap_second_half; reference 6.2 #30",
        "the second half of a mapping is rejected",
        |c| rejects_range(c, c.granule(), c.granule()),
    ),
    Case::new(
        "unmap.size.minus_one",
        "HIP: hipMemUnmap",
        "a size one byte too small is rejected",
        |c| rejects_range(c, 0, 2 * c.granule() - 1),
    ),
    Case::new(
        "unmap.size.beyond_the_mapping",
        "HIP: hipMemUnmap needs exactly a sequence of whole mappings",
        "a size larger than the mapping is rejected",
        |c| rejects_range(c, 0, 3 * c.granule()),
    ),
    Case::new(
        "unmap.size.beyond_the_reservation",
        "HIP: hipMemUnmap",
        "a size larger than the reservation is rejected",
        |c| rejects_range(c, 0, 5 * c.granule()),
    ),
    Case::new(
        "unmap.range.start_inside",
        "reference 6.2 #33: HIP unmaps the whole mapping",
        "a range that begins inside a mapping is rejected",
        |c| rejects_range(c, c.granule(), 2 * c.granule()),
    ),
    Case::new(
        "unmap.range.one_and_a_half",
        "HIP: hipMemUnmap",
        "a range of one and a half mappings is rejected, and both mappings stay",
        rejects_one_and_a_half_mappings,
    ),
    Case::new(
        "unmap.range.over_a_hole",
        "reference 6.2 #32; recorded: cuda_h200_edges unmap_across_gap succeeds",
        "a range with a hole is rejected, and its mappings stay",
        rejects_range_with_hole,
    ),
];

fn unmaps_one_mapping(context: &Context) -> TestResult {
    let (at, _) = context.map_filled(2, 0x9191_9191)?;
    let size = 2 * context.granule();
    context.vmm().unmap(at, size)?;
    let usage = context.vmm().usage();
    ensure_eq!((usage.reservations, usage.mappings), (1, 0), "reservations and mappings");
    context.expect_invalid_argument(Argument::Address, || context.vmm().read(at, &mut [0]))?;
    context.expect_invalid_argument(Argument::Address, || context.vmm().fill(at, 0, size))?;
    expect_cpu_permissions(context, at, 2, Access::None)
}

/// Creates `count` adjacent mappings of one granule. Fills each mapping with a value that contains its index.
fn map_adjacent(context: &Context, count: usize) -> TestResult<Address> {
    let at = context.reserve(count)?;
    for index in 0..count {
        let handle = context.create(1)?;
        let granule = context.granule_at(at, index);
        context.map(granule, 1, handle)?;
        context.set_access(granule, 1, &context.default_agents(), Access::ReadWrite)?;
        context.fill(granule, 1, 0x9292_9200 + index as u32)?;
    }
    Ok(at)
}

fn unmaps_several_mappings(context: &Context) -> TestResult {
    let at = map_adjacent(context, 4)?;
    context.vmm().unmap(at, 4 * context.granule())?;
    ensure_eq!(context.vmm().usage().mappings, 0, "mappings");
    Ok(())
}

fn unmaps_some_mappings(context: &Context) -> TestResult {
    let at = map_adjacent(context, 4)?;
    context.vmm().unmap(context.granule_at(at, 1), 2 * context.granule())?;
    ensure_eq!(context.vmm().usage().mappings, 2, "mappings");
    for index in [0, 3] {
        context.check_contents(context.granule_at(at, index), 1, 0x9292_9200 + index as u32)?;
    }
    Ok(())
}

fn unmap_clears_access(context: &Context) -> TestResult {
    let (at, handle) = context.map_filled(1, 0x9393_9393)?;
    context.vmm().unmap(at, context.granule())?;
    context.map(at, 1, handle)?;
    for agent in context.default_agents() {
        let access = context.vmm().get_access(agent, at)?;
        ensure_eq!(access, Access::None, "access of {agent}");
    }
    context.expect_invalid_argument(Argument::Address, || context.vmm().read(at, &mut [0]))
}

fn unmap_keeps_contents(context: &Context) -> TestResult {
    let (at, handle) = context.map_filled(2, 0x9494_9494)?;
    context.vmm().unmap(at, 2 * context.granule())?;
    let elsewhere = context.reserve(2)?;
    context.map(elsewhere, 2, handle)?;
    context.set_access(elsewhere, 2, &context.default_agents(), Access::ReadWrite)?;
    context.check_contents(elsewhere, 2, 0x9494_9494)
}

fn unmap_keeps_alias(context: &Context) -> TestResult {
    let (at, handle) = context.map_filled(1, 0x9595_9595)?;
    let alias = context.reserve(1)?;
    context.map(alias, 1, handle)?;
    context.set_access(alias, 1, &context.default_agents(), Access::ReadWrite)?;
    context.vmm().unmap(at, context.granule())?;
    context.check_contents(alias, 1, 0x9595_9595)?;
    context.fill(alias, 1, 0x9696_9696)?;
    context.check_contents(alias, 1, 0x9696_9696)
}

fn unmap_keeps_addresses_reserved(context: &Context) -> TestResult {
    let (at, _) = context.map_filled(4, 0x9797_9797)?;
    context.vmm().unmap(at, 4 * context.granule())?;
    for _ in 0..16 {
        let other = context.vmm().address_reserve(context.granule(), 0, Some(at))?;
        ensure!(
            other < at || other >= context.granule_at(at, 4),
            "{other} was reserved inside {at}"
        );
    }
    Ok(())
}

fn repeats_without_leak(context: &Context) -> TestResult {
    let at = context.reserve(2)?;
    for round in 0..32 {
        let handle = context.create(1)?;
        context.map(context.granule_at(at, 1), 1, handle)?;
        context.set_access(
            context.granule_at(at, 1),
            1,
            &context.default_agents(),
            Access::ReadWrite,
        )?;
        context.fill(context.granule_at(at, 1), 1, round)?;
        context.check_contents(context.granule_at(at, 1), 1, round)?;
        context.vmm().unmap(context.granule_at(at, 1), context.granule())?;
        context.vmm().release(handle)?;
        let usage = context.vmm().usage();
        ensure_eq!((usage.handles, usage.mappings), (0, 0), "handles and mappings");
    }
    Ok(())
}

fn rejects_null(context: &Context) -> TestResult {
    let unmap = || context.vmm().unmap(Address::NULL, context.granule());
    context.expect_invalid_argument(Argument::Address, unmap)
}

fn rejects_unreserved(context: &Context) -> TestResult {
    let local = 0u64;
    let unmap = || context.vmm().unmap(Address::from(&raw const local), context.granule());
    context.expect_invalid_argument(Argument::Address, unmap)
}

fn rejects_unmapped_reservation(context: &Context) -> TestResult {
    let at = context.reserve(2)?;
    let unmap = || context.vmm().unmap(at, 2 * context.granule());
    context.expect_invalid_argument(Argument::Address, unmap)
}

fn rejects_second_unmap(context: &Context) -> TestResult {
    let (at, _) = context.map_filled(1, 0x9898_9898)?;
    context.vmm().unmap(at, context.granule())?;
    context
        .expect_invalid_argument(Argument::Address, || context.vmm().unmap(at, context.granule()))
}

/// Maps two granules at the start of a reservation of four, and checks that unmap rejects a range.
/// `start` is an offset in the reservation, in bytes.
fn rejects_range(context: &Context, start: usize, size: usize) -> TestResult {
    let at = context.reserve(4)?;
    let handle = context.create(2)?;
    context.map(at, 2, handle)?;
    context.set_access(at, 2, &context.default_agents(), Access::ReadWrite)?;
    context.fill(at, 2, 0x9999_9999)?;
    let unmap = || context.vmm().unmap(offset_by(at, start), size);
    context.expect_error(HipError::InvalidValue, unmap)?;
    context.check_contents(at, 2, 0x9999_9999)
}

fn rejects_one_and_a_half_mappings(context: &Context) -> TestResult {
    let at = context.reserve(3)?;
    for (start, granules) in [(0, 1), (1, 2)] {
        let handle = context.create(granules)?;
        context.map(context.granule_at(at, start), granules, handle)?;
    }
    let unmap = || context.vmm().unmap(at, 2 * context.granule());
    context.expect_error(HipError::InvalidValue, unmap).map(|_| ())
}

fn rejects_range_with_hole(context: &Context) -> TestResult {
    let at = map_adjacent(context, 3)?;
    context.vmm().unmap(context.granule_at(at, 1), context.granule())?;
    let unmap = || context.vmm().unmap(at, 3 * context.granule());
    context.expect_error(HipError::InvalidValue, unmap)?;
    context.check_contents(at, 1, 0x9292_9200)?;
    context.check_contents(context.granule_at(at, 2), 1, 0x9292_9202)
}
