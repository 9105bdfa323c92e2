//! `hipMemAddressReserve` and `hipMemAddressFree`.

use super::kernel_state::expect_cpu_permissions;
use crate::case::{Case, TestResult, ensure, ensure_eq};
use crate::context::offset_by;
use crate::hip_calls::HipCalls as _;
use crate::{Context, NotPassed};
use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::hip::{HipError, HipProfile};
use hsa_vmm::{Access, Address, Reservation};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "reserve.address.on_the_granule",
        "HIP: hipMemAddressReserve",
        "a reservation begins at a multiple of the granule and is listed",
        reservation_is_aligned_and_listed,
    ),
    Case::new(
        "reserve.many.are_disjoint",
        "invariant 1 (src/vmm/ledger/check.rs)",
        "reservations do not overlap",
        reservations_do_not_overlap,
    ),
    Case::new(
        "reserve.size.zero",
        "hip-tests: hipMemAddressReserve_Negative; reference 6.2 #1",
        "a size of 0 is rejected",
        |c| rejects_size(c, 0),
    ),
    Case::new(
        "reserve.size.off_the_granule",
        "hip-tests: hipMemAddressReserve_Negative; reference 6.2 #2",
        "a size that is not a multiple of the granule is rejected",
        |c| rejects_size(c, c.granule() - 1),
    ),
    Case::new(
        "reserve.size.one_byte",
        "recorded: cuda_h200_edges reserve_size_one; reference 6.2 #2",
        "a size of one byte is rejected",
        |c| rejects_size(c, 1),
    ),
    Case::new(
        "reserve.size.too_large",
        "recorded: cuda_h200_edges reserve_huge_1pib",
        "more address space than exists returns out of memory",
        rejects_huge_size,
    ),
    Case::new(
        "reserve.alignment.honoured",
        "recorded: cuda_h200_edges reserve_align_big_honoured",
        "an alignment larger than the granule is honoured",
        honours_large_alignment,
    ),
    Case::new(
        "reserve.alignment.below_the_granule",
        "hip-tests: hipMemAddressReserve_AlignmentTest; reference 6.2 #4",
        "powers of two below the granule are accepted as alignment, and the addresses can be used",
        accepts_small_alignment,
    ),
    Case::new(
        "reserve.alignment.not_power_of_two",
        "recorded: cuda_h200_edges reserve_align_not_pow2; reference 6.2 #3",
        "an alignment that is not a power of two is rejected",
        rejects_invalid_alignment,
    ),
    Case::new(
        "reserve.flags.refused",
        "HIP: hipMemAddressReserve; reference 6.2 #7",
        "flags are rejected",
        rejects_flags,
    ),
    Case::new(
        "reserve.hint.free",
        "recorded: cuda_h200_edges reserve_hint_after",
        "a hint at free addresses is accepted, and the reservations do not overlap",
        accepts_free_hint,
    ),
    Case::new(
        "reserve.hint.taken",
        "recorded: cuda_h200_edges reserve_hint_taken_elsewhere; reference 6.2 #5",
        "a hint at addresses in use returns other addresses",
        ignores_taken_hint,
    ),
    Case::new(
        "reserve.hint.off_the_alignment",
        "reference 6.2 #6: in ROCr the hint takes precedence over the alignment",
        "the alignment is honoured even if the hint is not aligned",
        aligns_despite_hint,
    ),
    Case::new(
        "reserve.exactly.taken",
        "HIP: hipMemAddressReserve; this library's exactly_at",
        "an exact address that is in use is rejected",
        rejects_taken_address,
    ),
    Case::new(
        "reserve.memory.nobody_may_touch",
        "HIP: hipMemAddressReserve",
        "a reservation without mappings cannot be read or written, and no agent has access to it",
        unmapped_reservation_has_no_access,
    ),
    Case::new(
        "reserve.free.again_and_again",
        "HIP: hipMemAddressFree",
        "repeated reserving and freeing leaves no reservation, as Vmm::usage counts",
        repeats_without_leak,
    ),
    Case::new(
        "reserve.free.size_smaller",
        "recorded: cuda_h200_edges free_size_smaller; reference 6.2 #9",
        "freeing a part of a reservation is rejected",
        |c| rejects_free_of_size(c, c.granule()),
    ),
    Case::new(
        "reserve.free.size_larger",
        "recorded: cuda_h200_edges free_size_larger; reference 6.2 #9",
        "freeing more than the reservation is rejected",
        |c| rejects_free_of_size(c, 3 * c.granule()),
    ),
    Case::new(
        "reserve.free.size_zero",
        "hip-tests: hipMemAddressFree_negative",
        "freeing a size of 0 is rejected",
        |c| rejects_free_of_size(c, 0),
    ),
    Case::new(
        "reserve.free.null",
        "hip-tests: hipMemAddressFree_negative",
        "freeing null is rejected",
        rejects_free_of_null,
    ),
    Case::new(
        "reserve.free.inside",
        "recorded: cuda_h200_edges free_inside; reference 6.2 #8",
        "freeing an address inside a reservation is rejected",
        rejects_free_inside,
    ),
    Case::new(
        "reserve.free.never_reserved",
        "recorded: cuda_h200_edges free_never_reserved; reference 6.2 #8",
        "freeing an address that was never reserved is rejected",
        rejects_free_of_unreserved,
    ),
    Case::new(
        "reserve.free.twice",
        "recorded: cuda_h200_edges free_twice; reference 6.2 #11",
        "a second free is rejected",
        rejects_second_free,
    ),
    Case::new(
        "reserve.free.while_mapped",
        "HIP: hipMemAddressFree; reference 6.2 #10",
        "freeing is rejected while a mapping exists, and succeeds after unmapping",
        rejects_free_while_mapped,
    ),
];

/// Returns the error of a reservation with an invalid size, alignment or address: out of memory in HIP 6, invalid value
/// in HIP 7.
fn invalid_reservation_error(context: &Context) -> HipError {
    match context.profile() {
        HipProfile::Hip6 => HipError::OutOfMemory,
        _ => HipError::InvalidValue,
    }
}

fn reservation_is_aligned_and_listed(context: &Context) -> TestResult {
    let at = context.reserve(3)?;
    ensure_eq!(at.get() % context.granule(), 0, "{at} modulo the granule");
    ensure_eq!(context.vmm().reservations(), vec![(at, 3 * context.granule())], "reservations");
    Ok(())
}

fn reservations_do_not_overlap(context: &Context) -> TestResult {
    for granules in 1..=16 {
        context.reserve(granules)?;
    }
    let reservations = context.vmm().reservations();
    ensure_eq!(reservations.len(), 16, "reservations");
    for pair in reservations.windows(2) {
        let &[(low, size), (high, _)] = pair else { continue };
        ensure!(low.get() + size <= high.get(), "{low} and {high} overlap");
    }
    Ok(())
}

fn rejects_size(context: &Context, size: usize) -> TestResult {
    let reserve = || context.vmm().address_reserve(size, 0, None);
    let error = context.expect_error(invalid_reservation_error(context), reserve)?;
    ensure_eq!(error.argument(), Some(Argument::Size), "{error}");
    Ok(())
}

fn rejects_huge_size(context: &Context) -> TestResult {
    // No machine has this much address space.
    let reserve = || context.vmm().address_reserve(1 << 60, 0, None);
    context.expect_error(HipError::OutOfMemory, reserve).map(|_| ())
}

fn honours_large_alignment(context: &Context) -> TestResult {
    for alignment in [2, 16, 64].map(|times| times * context.granule()) {
        for _ in 0..4 {
            let size = context.granule();
            let at = context.vmm().address_reserve(size, alignment, None)?;
            ensure_eq!(at.get() % alignment, 0, "{at} modulo the alignment {alignment:#x}");
        }
    }
    Ok(())
}

fn accepts_small_alignment(context: &Context) -> TestResult {
    let granule = context.granule();
    for alignment in (0..=12).map(|shift| 1 << shift) {
        let at = context.vmm().address_reserve(granule, alignment, None)?;
        let handle = context.create(1)?;
        context.map(at, 1, handle)?;
        context.set_access(at, 1, &context.default_agents(), Access::ReadWrite)?;
        context.fill(at, 1, alignment as u32)?;
        context.check_contents(at, 1, alignment as u32)?;
    }
    Ok(())
}

fn rejects_invalid_alignment(context: &Context) -> TestResult {
    for alignment in [3, context.granule() - 1, context.granule() * 3] {
        let reserve = || context.vmm().address_reserve(context.granule(), alignment, None);
        let error = context.expect_error(invalid_reservation_error(context), reserve)?;
        ensure_eq!(error.argument(), Some(Argument::Alignment), "{error}");
    }
    Ok(())
}

fn rejects_flags(context: &Context) -> TestResult {
    for flags in [1, 2, 1 << 40] {
        let reserve = || context.vmm().reserve_with_flags(context.granule(), 0, None, flags);
        context.expect_invalid_argument(Argument::Flags, reserve)?;
    }
    Ok(())
}

/// Checks that two reservations do not overlap.
fn check_disjoint(a: (Address, usize), b: (Address, usize)) -> TestResult {
    let (low, high) = if a.0 <= b.0 { (a, b) } else { (b, a) };
    ensure!(low.0.get() + low.1 <= high.0.get(), "{} and {} overlap", low.0, high.0);
    Ok(())
}

fn accepts_free_hint(context: &Context) -> TestResult {
    let size = 2 * context.granule();
    let at = context.reserve(2)?;
    let next = context.vmm().address_reserve(size, 0, Some(offset_by(at, size)))?;
    check_disjoint((at, size), (next, size))
}

fn ignores_taken_hint(context: &Context) -> TestResult {
    let size = 2 * context.granule();
    let at = context.reserve(2)?;
    let other = context.vmm().address_reserve(size, 0, Some(at))?;
    check_disjoint((at, size), (other, size))
}

fn aligns_despite_hint(context: &Context) -> TestResult {
    let (granule, alignment) = (context.granule(), 16 * context.granule());
    // The hint is an address of a range that was just freed. The address is most likely still free.
    let freed = context.vmm().address_reserve(3 * alignment, alignment, None)?;
    context.vmm().address_free(freed, 3 * alignment)?;
    let hint = offset_by(freed, granule);
    let at = context.vmm().address_reserve(granule, alignment, Some(hint))?;
    ensure_eq!(at.get() % alignment, 0, "{at} modulo the alignment, hint {hint}");
    Ok(())
}

fn rejects_taken_address(context: &Context) -> TestResult {
    let at = context.reserve(2)?;
    let reserve = || {
        Reservation::builder(context.granule()).exactly_at(at).reserve(context.vmm()).map(|_| ())
    };
    let error = context.expect_error(invalid_reservation_error(context), reserve)?;
    ensure_eq!(error.problem(), Some(Problem::AddressTaken), "{error}");
    Ok(())
}

fn unmapped_reservation_has_no_access(context: &Context) -> TestResult {
    let at = context.reserve(2)?;
    let vmm = context.vmm();
    context.expect_invalid_argument(Argument::Address, || vmm.read(at, &mut [0; 8]))?;
    context.expect_invalid_argument(Argument::Address, || vmm.write(at, &[0; 8]))?;
    for agent in context.runtime().agents() {
        context.expect_invalid_argument(Argument::Address, || vmm.get_access(agent.id(), at))?;
    }
    context.expect_invalid_argument(Argument::Address, || vmm.fill(at, 0, 64))?;
    expect_cpu_permissions(context, at, 2, Access::None)
}

fn repeats_without_leak(context: &Context) -> TestResult {
    for round in 1..=32 {
        let size = round * context.granule();
        let at = context.vmm().address_reserve(size, 0, None)?;
        context.vmm().address_free(at, size)?;
        ensure_eq!(context.vmm().usage().reservations, 0, "reservations after round {round}");
    }
    Ok(())
}

fn rejects_free_of_size(context: &Context, size: usize) -> TestResult {
    let at = context.reserve(2)?;
    context.expect_invalid_argument(Argument::Size, || context.vmm().address_free(at, size))
}

fn rejects_free_of_null(context: &Context) -> TestResult {
    let free = || context.vmm().address_free(Address::NULL, context.granule());
    context.expect_invalid_argument(Argument::Address, free)
}

fn rejects_free_inside(context: &Context) -> TestResult {
    let at = context.reserve(2)?;
    let free = || context.vmm().address_free(context.granule_at(at, 1), context.granule());
    context.expect_invalid_argument(Argument::Address, free)
}

fn rejects_free_of_unreserved(context: &Context) -> TestResult {
    let local = 0u64;
    let free = || context.vmm().address_free(Address::from(&raw const local), context.granule());
    context.expect_invalid_argument(Argument::Address, free)
}

fn rejects_second_free(context: &Context) -> TestResult {
    let at = context.reserve(2)?;
    let free = || context.vmm().address_free(at, 2 * context.granule());
    free()?;
    context.expect_invalid_argument(Argument::Address, free)
}

fn rejects_free_while_mapped(context: &Context) -> TestResult {
    let size = 2 * context.granule();
    let at = context.reserve(2)?;
    let handle = context.create(1)?;
    context.map(context.granule_at(at, 1), 1, handle)?;
    let expected = match context.profile() {
        HipProfile::Hip6 => HipError::Unknown,
        _ => HipError::InvalidValue,
    };
    let error = context.expect_error(expected, || context.vmm().address_free(at, size))?;
    let Some(Problem::StillMapped(mappings)) = error.problem() else {
        return Err(NotPassed::Failed(format!("the error does not report the mapping: {error}")));
    };
    ensure_eq!(mappings, 1, "remaining mappings");
    context.vmm().unmap(context.granule_at(at, 1), context.granule())?;
    Ok(context.vmm().address_free(at, size)?)
}
