//! `hipMemMap`: invalid calls.

use crate::Context;
use crate::case::{Case, TestResult, ensure, ensure_eq};
use crate::context::offset_by;
use crate::hip_calls::HipCalls as _;
use hsa_vmm::error::{Argument, Feature, Problem};
use hsa_vmm::hip::HipError;
use hsa_vmm::{Address, AllocationProperties, ErrorKind, Handle};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "map.address.null",
        "hip-tests: hipMemMap_negative",
        "null is rejected",
        rejects_null,
    ),
    Case::new(
        "map.address.not_reserved",
        "recorded: cuda_h200_edges map_not_reserved; reference 6.2 #21",
        "addresses that are not reserved are rejected",
        rejects_unreserved,
    ),
    Case::new(
        "map.address.off_the_granule",
        "recorded: cuda_h200_edges map_addr_not_granular; reference 6.2 #24",
        "an address that is not a multiple of the granule is rejected",
        rejects_unaligned_address,
    ),
    Case::new("map.size.zero", "hip-tests: hipMemMap_negative", "a size of 0 is rejected", |c| {
        rejects_size(c, 0)
    }),
    Case::new(
        "map.size.off_the_granule",
        "recorded: cuda_h200_edges map_size_not_granular",
        "a size that is not a multiple of the granule is rejected",
        |c| rejects_size(c, c.granule() / 2),
    ),
    Case::new(
        "map.size.beyond_the_handle",
        "recorded: cuda_h200_edges map_size_beyond_handle; reference 6.2 #20",
        "a size larger than the handle is rejected",
        |c| rejects_size(c, 3 * c.granule()),
    ),
    Case::new(
        "map.size.wraps_around",
        "HIP: hipMemMap",
        "a range that exceeds the address space is rejected",
        |c| rejects_size(c, usize::MAX - c.granule() + 1),
    ),
    Case::new(
        "map.range.beyond_the_reservation",
        "reference 6.2 #21",
        "a range that extends past the reservation is rejected",
        rejects_range_beyond_reservation,
    ),
    Case::new(
        "map.range.across_reservations",
        "reference 6.2 #22",
        "a range over two adjacent reservations is rejected",
        rejects_range_across_reservations,
    ),
    Case::new(
        "map.range.same_as_a_mapping",
        "recorded: cuda_h200_edges map_again_same_place; reference 6.2 #23",
        "a range that is already mapped is rejected",
        |c| rejects_overlap(c, 1, 2),
    ),
    Case::new(
        "map.range.over_the_start_of_a_mapping",
        "recorded: cuda_h200_edges map_overlap_half; reference 6.2 #23",
        "a range that ends inside a mapping is rejected",
        |c| rejects_overlap(c, 0, 2),
    ),
    Case::new(
        "map.range.over_the_end_of_a_mapping",
        "recorded: cuda_h200_edges map_overlap_half; reference 6.2 #23",
        "a range that begins inside a mapping is rejected",
        |c| rejects_overlap(c, 2, 2),
    ),
    Case::new(
        "map.range.around_a_mapping",
        "HIP: hipMemMap; reference 6.2 #23",
        "a range around a mapping is rejected",
        |c| rejects_overlap(c, 0, 4),
    ),
    Case::new(
        "map.offset.one_granule",
        "HIP: hipMemMap; reference 6.2 #18: ROCr ignores the offset",
        "an offset into the handle is rejected, or mapped if the library controls page tables",
        maps_or_rejects_offset,
    ),
    Case::new(
        "map.offset.minus_one",
        "hip-tests: hipMemMap_negative",
        "an offset past the handle is rejected",
        |c| rejects_offset(c, usize::MAX),
    ),
    Case::new(
        "map.flags.refused",
        "recorded: cuda_h200_edges map_flags_nonzero",
        "flags are rejected",
        rejects_flags,
    ),
    Case::new(
        "map.handle.zero",
        "recorded: cuda_h200_edges map_handle_zero",
        "handle 0 is rejected",
        |c| rejects_handle(c, Handle::from_bits(0)),
    ),
    Case::new(
        "map.handle.invented",
        "recorded: cuda_h200_edges risky_1 (CUDA crashes)",
        "an invented handle is rejected",
        // A valid handle with one changed bit is invalid.
        |c| rejects_handle(c, Handle::from_bits(c.create(1)?.to_bits() ^ 1 << 22)),
    ),
    Case::new(
        "map.handle.released",
        "recorded: cuda_h200_edges risky_4 (CUDA crashes); reference 6.2 #27",
        "a released handle is rejected",
        rejects_released_handle,
    ),
    Case::new(
        "map.handle.released_while_mapped",
        "reference 6.2 #26",
        "a released handle is rejected while its memory is still mapped elsewhere",
        rejects_released_while_mapped,
    ),
    Case::new(
        "map.handle.of_another_vmm",
        "HIP: hipMemMap",
        "a handle of another Vmm is rejected",
        rejects_foreign_handle,
    ),
];

fn rejects_null(context: &Context) -> TestResult {
    let handle = context.create(1)?;
    let map = || context.vmm().map(Address::NULL, context.granule(), 0, handle);
    context.expect_invalid_argument(Argument::Address, map)
}

fn rejects_unreserved(context: &Context) -> TestResult {
    let handle = context.create(1)?;
    let local = 0u64;
    let address = Address::new(&raw const local as usize & !(context.granule() - 1));
    let map = || context.vmm().map(address, context.granule(), 0, handle);
    context.expect_invalid_argument(Argument::Address, map)
}

fn rejects_unaligned_address(context: &Context) -> TestResult {
    let at = context.reserve(4)?;
    let handle = context.create(1)?;
    for bytes in [1, 64, context.granule() / 2, context.granule() + 8] {
        let map = || context.vmm().map(offset_by(at, bytes), context.granule(), 0, handle);
        context.expect_invalid_argument(Argument::Address, map)?;
    }
    Ok(())
}

fn rejects_size(context: &Context, size: usize) -> TestResult {
    let at = context.reserve(4)?;
    let handle = context.create(2)?;
    context.expect_invalid_argument(Argument::Size, || context.vmm().map(at, size, 0, handle))
}

fn rejects_range_beyond_reservation(context: &Context) -> TestResult {
    let at = context.reserve(2)?;
    let handle = context.create(2)?;
    for granules in [1, 2] {
        let address = context.granule_at(at, granules);
        let map = || context.vmm().map(address, 2 * context.granule(), 0, handle);
        context.expect_error(HipError::InvalidValue, map)?;
    }
    Ok(())
}

fn rejects_range_across_reservations(context: &Context) -> TestResult {
    let size = 2 * context.granule();
    let Some(low) = reserve_adjacent(context, size)? else {
        let reason = "no two adjacent reservations were available".to_owned();
        return Err(crate::NotPassed::Skipped(reason));
    };
    let handle = context.create(2)?;
    let map = || context.vmm().map(context.granule_at(low, 1), size, 0, handle);
    context.expect_error(HipError::InvalidValue, map).map(|_| ())
}

/// Reserves two adjacent ranges, and returns the lower address. Tries again if another thread reserves
/// the addresses first.
fn reserve_adjacent(context: &Context, size: usize) -> Result<Option<Address>, crate::NotPassed> {
    for _ in 0..32 {
        let base = context.vmm().address_reserve(2 * size, 0, None)?;
        context.vmm().address_free(base, 2 * size)?;
        let low = context.vmm().address_reserve(size, 0, Some(base))?;
        let high = context.vmm().address_reserve(size, 0, Some(offset_by(low, size)))?;
        if high == offset_by(low, size) {
            return Ok(Some(low));
        }
        context.vmm().address_free(low, size)?;
        context.vmm().address_free(high, size)?;
    }
    Ok(None)
}

/// Maps granules 1 and 2 of a reservation of four, and checks that map rejects an overlapping range. `start` is in
/// granules.
fn rejects_overlap(context: &Context, start: usize, granules: usize) -> TestResult {
    let at = context.reserve(4)?;
    let mapping = context.granule_at(at, 1);
    let (mapped_handle, new_handle) = (context.create(2)?, context.create(4)?);
    context.map(mapping, 2, mapped_handle)?;
    context.set_access(mapping, 2, &context.default_agents(), hsa_vmm::Access::ReadWrite)?;
    context.fill(mapping, 2, 0x2121_2121)?;
    let size = granules * context.granule();
    let map = || context.vmm().map(context.granule_at(at, start), size, 0, new_handle);
    let error = context.expect_error(HipError::InvalidValue, map)?;
    ensure_eq!(error.problem(), Some(Problem::AlreadyMapped(mapping)), "{error}");
    context.check_contents(mapping, 2, 0x2121_2121)
}

fn rejects_offset(context: &Context, bytes: usize) -> TestResult {
    let at = context.reserve(2)?;
    let handle = context.create(2)?;
    let map = || context.vmm().map(at, context.granule(), bytes, handle);
    let error = context.expect_error(HipError::InvalidValue, map)?;
    let is_expected = error.argument() == Some(Argument::Offset)
        || matches!(error.kind(), ErrorKind::NotSupported(Feature::MapAtOffset(_)));
    ensure!(is_expected, "{error}");
    Ok(())
}

fn maps_or_rejects_offset(context: &Context) -> TestResult {
    if !context.vmm().can_map_offsets() {
        return rejects_offset(context, context.granule());
    }
    let (whole, part, handle) = (context.reserve(2)?, context.reserve(1)?, context.create(2)?);
    let (agents, access) = (context.default_agents(), hsa_vmm::Access::ReadWrite);
    context.map(whole, 2, handle)?;
    context.set_access(whole, 2, &agents, access)?;
    context.fill(whole, 1, 0x1111_1111)?;
    context.fill(context.granule_at(whole, 1), 1, 0x2222_2222)?;
    context.vmm().map(part, context.granule(), context.granule(), handle)?;
    context.set_access(part, 1, &agents, access)?;
    context.check_contents(part, 1, 0x2222_2222)?;
    context.fill(part, 1, 0x3333_3333)?;
    context.check_contents(whole, 1, 0x1111_1111)?;
    context.check_contents(context.granule_at(whole, 1), 1, 0x3333_3333)
}

fn rejects_flags(context: &Context) -> TestResult {
    let at = context.reserve(1)?;
    let handle = context.create(1)?;
    for flags in [1, 1 << 32] {
        let map = || context.vmm().map_with_flags(at, context.granule(), 0, handle, flags);
        context.expect_invalid_argument(Argument::Flags, map)?;
    }
    Ok(())
}

fn rejects_handle(context: &Context, handle: Handle) -> TestResult {
    let at = context.reserve(1)?;
    let map = || context.vmm().map(at, context.granule(), 0, handle);
    context.expect_invalid_argument(Argument::Handle, map)
}

fn rejects_released_handle(context: &Context) -> TestResult {
    let handle = context.create(1)?;
    context.vmm().release(handle)?;
    // A new handle in the same slot must not be mapped instead.
    context.create(1)?;
    rejects_handle(context, handle)
}

fn rejects_released_while_mapped(context: &Context) -> TestResult {
    let (at, handle) = context.map_filled(1, 0x2222_2222)?;
    context.vmm().release(handle)?;
    rejects_handle(context, handle)?;
    context.check_contents(at, 1, 0x2222_2222)
}

fn rejects_foreign_handle(context: &Context) -> TestResult {
    let other = context.open_vmm(context.profile())?;
    let properties = AllocationProperties::on(context.gpu());
    let handle = other.create(context.granule(), &properties)?;
    rejects_handle(context, handle)?;
    Ok(other.release(handle)?)
}
