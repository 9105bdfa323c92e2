//! `hipMemRetainAllocationHandle`.

use crate::Context;
use crate::case::{Case, TestResult, ensure_eq};
use crate::context::offset_by;
use hsa_vmm::Address;
use hsa_vmm::error::Argument;

pub(super) const CASES: &[Case] = &[
    Case::new(
        "retain.start.same_handle",
        "hip-tests: hipMemRetainAllocationHandle_SetGet",
        "retain returns the mapped handle",
        |c| returns_mapped_handle(c, 0),
    ),
    Case::new(
        "retain.interior.same_handle",
        "recorded: cuda_h200_edges retain_interior_same_handle; reference 6.2 #52",
        "any address inside the mapping is valid, including the last address",
        |c| returns_mapped_handle(c, 2 * c.granule() - 1),
    ),
    Case::new(
        "retain.references.counted",
        "HIP: hipMemRetainAllocationHandle; reference 6.2 #53",
        "every retain needs a release",
        counts_references,
    ),
    Case::new(
        "retain.released.comes_back",
        "invariant 6 (src/vmm/ledger/check.rs)",
        "a handle without references can be retained from its mapping and mapped again",
        retains_released_handle,
    ),
    Case::new(
        "retain.aliases.one_handle",
        "HIP: hipMemRetainAllocationHandle",
        "two mappings of one handle return that handle, and a mapping of another handle returns the other handle",
        aliases_share_handle,
    ),
    Case::new(
        "retain.address.null",
        "hip-tests: hipMemRetainAllocationHandle_NegTst",
        "null is rejected",
        |c| rejects_address(c, Address::NULL),
    ),
    Case::new(
        "retain.address.only_reserved",
        "hip-tests: hipMemRetainAllocationHandle_NegTst",
        "addresses without a mapping are rejected",
        |c| rejects_address(c, c.reserve(1)?),
    ),
    Case::new(
        "retain.address.not_reserved",
        "HIP: hipMemRetainAllocationHandle",
        "addresses of other memory are rejected",
        rejects_unreserved,
    ),
    Case::new(
        "retain.address.unmapped",
        "hip-tests: hipMemRetainAllocationHandle_NegTst",
        "addresses that were unmapped are rejected",
        rejects_unmapped,
    ),
    Case::new(
        "retain.address.end",
        "invariant 14 (src/vmm/ledger/check.rs)",
        "the address after a mapping is rejected",
        rejects_end_of_mapping,
    ),
];

fn rejects_address(context: &Context, at: Address) -> TestResult {
    context
        .expect_invalid_argument(Argument::Address, || context.vmm().retain_allocation_handle(at))
}

fn returns_mapped_handle(context: &Context, bytes: usize) -> TestResult {
    let (at, handle) = context.map_filled(2, 0x6161_6161)?;
    let retained = context.vmm().retain_allocation_handle(offset_by(at, bytes))?;
    ensure_eq!(retained, handle, "retained handle");
    Ok(())
}

fn counts_references(context: &Context) -> TestResult {
    let (at, handle) = context.map_filled(1, 0x6262_6262)?;
    for _ in 0..3 {
        context.vmm().retain_allocation_handle(at)?;
    }
    context.vmm().unmap(at, context.granule())?;
    for _ in 0..3 {
        context.vmm().release(handle)?;
        ensure_eq!(context.vmm().usage().handles, 1, "handles while a reference is left");
    }
    context.vmm().release(handle)?;
    context.expect_invalid_argument(Argument::Handle, || context.vmm().release(handle))
}

fn retains_released_handle(context: &Context) -> TestResult {
    let (at, handle) = context.map_filled(1, 0x6363_6363)?;
    context.vmm().release(handle)?;
    let retained = context.vmm().retain_allocation_handle(at)?;
    ensure_eq!(retained, handle, "retained handle");
    let alias = context.reserve(1)?;
    context.map(alias, 1, retained)?;
    context.set_access(alias, 1, &context.default_agents(), hsa_vmm::Access::ReadWrite)?;
    context.check_contents(alias, 1, 0x6363_6363)
}

fn aliases_share_handle(context: &Context) -> TestResult {
    let at = context.reserve(3)?;
    let (first, second) = (context.create(1)?, context.create(1)?);
    for (index, handle) in [first, second, first].into_iter().enumerate() {
        context.map(context.granule_at(at, index), 1, handle)?;
    }
    for (index, handle) in [first, second, first].into_iter().enumerate() {
        let retained = context.vmm().retain_allocation_handle(context.granule_at(at, index))?;
        ensure_eq!(retained, handle, "handle of mapping {index}");
    }
    Ok(())
}

fn rejects_unreserved(context: &Context) -> TestResult {
    let local = 0u64;
    rejects_address(context, Address::from(&raw const local))
}

fn rejects_unmapped(context: &Context) -> TestResult {
    let (at, _) = context.map_filled(1, 0x6464_6464)?;
    context.vmm().unmap(at, context.granule())?;
    rejects_address(context, at)
}

fn rejects_end_of_mapping(context: &Context) -> TestResult {
    let at = context.reserve(2)?;
    let handle = context.create(1)?;
    context.map(at, 1, handle)?;
    rejects_address(context, context.granule_at(at, 1))
}
