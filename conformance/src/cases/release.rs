//! `hipMemRelease`.

use crate::Context;
use crate::case::{Case, TestResult, ensure, ensure_eq};
use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::{Access, AllocationProperties, Handle};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "release.handle.goes",
        "HIP: hipMemRelease",
        "a released handle is invalid",
        released_handle_is_invalid,
    ),
    Case::new(
        "release.handle.twice",
        "recorded: cuda_h200_edges release_twice; reference 6.2 #29",
        "a second release is rejected",
        rejects_second_release,
    ),
    Case::new(
        "release.handle.zero",
        "hip-tests: hipMemRelease_negative",
        "handle 0 is rejected",
        rejects_handle_zero,
    ),
    Case::new(
        "release.handle.invented",
        "recorded: cuda_h200_edges risky_2 (CUDA crashes)",
        "an invented handle is rejected",
        rejects_invented_handles,
    ),
    Case::new(
        "release.handle.of_another_vmm",
        "HIP: hipMemRelease",
        "a handle of another Vmm is rejected",
        rejects_foreign_handle,
    ),
    Case::new(
        "release.handle.stale_after_reuse",
        "reference 6.2 #29: ROCr reuses the values of handles",
        "a released handle stays invalid when its slot is used again",
        rejects_stale_handle,
    ),
    Case::new(
        "release.mapped.memory_stays",
        "hip-tests: hipMemCreate_ChkDev2HstMemcpy_ReleaseHdlPreUse; reference 6.2 #28",
        "memory released while mapped can be used until it is unmapped",
        mapped_memory_stays,
    ),
    Case::new(
        "release.mapped.twice",
        "recorded: cuda_h200_edges release_twice_while_mapped",
        "a second release is rejected while the memory is still mapped",
        rejects_second_release_while_mapped,
    ),
    Case::new(
        "release.mapped.order_is_free",
        "invariant 19 (src/vmm/ledger/check.rs)",
        "releasing before or after unmapping gives the same result",
        allows_any_order,
    ),
];

fn released_handle_is_invalid(context: &Context) -> TestResult {
    let handle = context.create(1)?;
    ensure_eq!(context.vmm().usage().handles, 1, "handles before");
    context.vmm().release(handle)?;
    ensure_eq!(context.vmm().usage().handles, 0, "handles after");
    context.expect_invalid_argument(Argument::Handle, || context.vmm().allocation_size(handle))
}

fn rejects_second_release(context: &Context) -> TestResult {
    let handle = context.create(1)?;
    context.vmm().release(handle)?;
    context.expect_invalid_argument(Argument::Handle, || context.vmm().release(handle))
}

fn rejects_handle_zero(context: &Context) -> TestResult {
    context
        .expect_invalid_argument(Argument::Handle, || context.vmm().release(Handle::from_bits(0)))
}

fn rejects_invented_handles(context: &Context) -> TestResult {
    let bits = context.create(1)?.to_bits();
    // A valid handle with one changed bit is invalid.
    for bits in [bits ^ 1 << 20, bits ^ 1 << 40, 0xdead_beef, u64::MAX] {
        let handle = Handle::from_bits(bits);
        context.expect_invalid_argument(Argument::Handle, || context.vmm().release(handle))?;
    }
    Ok(())
}

fn rejects_foreign_handle(context: &Context) -> TestResult {
    let other = context.open_vmm(context.profile())?;
    let properties = AllocationProperties::on(context.gpu());
    let handle = other.create(context.granule(), &properties)?;
    let error = context
        .expect_error(hsa_vmm::hip::HipError::InvalidValue, || context.vmm().release(handle))?;
    ensure_eq!(error.problem(), Some(Problem::ForeignHandle), "{error}");
    Ok(other.release(handle)?)
}

fn rejects_stale_handle(context: &Context) -> TestResult {
    let old = context.create(1)?;
    context.vmm().release(old)?;
    for _ in 0..8 {
        let new = context.create(1)?;
        ensure!(new != old, "{old} was returned again");
        context.expect_invalid_argument(Argument::Handle, || context.vmm().release(old))?;
        context.vmm().release(new)?;
    }
    Ok(())
}

fn mapped_memory_stays(context: &Context) -> TestResult {
    let at = context.reserve(2)?;
    let handle = context.create(2)?;
    context.map(at, 2, handle)?;
    context.vmm().release(handle)?;
    context.set_access(at, 2, &context.default_agents(), Access::ReadWrite)?;
    context.fill(at, 2, 0x5151_5151)?;
    context.check_contents(at, 2, 0x5151_5151)?;
    context.vmm().unmap(at, 2 * context.granule())?;
    ensure_eq!(context.vmm().usage().handles, 0, "handles after unmapping");
    Ok(())
}

fn rejects_second_release_while_mapped(context: &Context) -> TestResult {
    let (at, handle) = context.map_filled(1, 0x5252_5252)?;
    context.vmm().release(handle)?;
    context.expect_invalid_argument(Argument::Handle, || context.vmm().release(handle))?;
    context.check_contents(at, 1, 0x5252_5252)
}

fn allows_any_order(context: &Context) -> TestResult {
    for release_first in [true, false] {
        let (at, handle) = context.map_filled(1, 0x5353_5353)?;
        if release_first {
            context.vmm().release(handle)?;
        }
        context.vmm().unmap(at, context.granule())?;
        if !release_first {
            context.vmm().release(handle)?;
        }
        let usage = context.vmm().usage();
        ensure_eq!((usage.handles, usage.mappings), (0, 0), "handles and mappings");
        context.expect_invalid_argument(Argument::Handle, || context.vmm().release(handle))?;
    }
    Ok(())
}
