//! `hipMemGetAllocationPropertiesFromHandle`.

use crate::Context;
use crate::case::{Case, TestResult, ensure_eq};
use hsa_vmm::error::Argument;
use hsa_vmm::vmm::AllocationKind;
use hsa_vmm::{AllocationProperties, Handle, HandleType};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "properties.created.round_trip",
        "hip-tests: hipMemGetAllocationPropertiesFromHandle_functional",
        "on every GPU, the properties are those that the memory was created with",
        returns_creation_properties,
    ),
    Case::new(
        "properties.created.stay",
        "recorded: cuda_h200_edges props_roundtrip",
        "mapping and granting access do not change properties and size",
        mapping_keeps_properties,
    ),
    Case::new(
        "properties.imported.told",
        "recorded: cuda_h200_edges props_imported; reference 6.2 #61",
        "imported memory is pinned, and has the full size; its handle type is the type that the import call named",
        returns_import_properties,
    ),
    Case::new(
        "properties.handle.zero",
        "hip-tests: hipMemGetAllocationPropertiesFromHandle_Negative",
        "handle 0 is rejected",
        |c| rejects_handle(c, Handle::from_bits(0)),
    ),
    Case::new(
        "properties.handle.invented",
        "recorded: cuda_h200_edges risky_0 (CUDA crashes)",
        "an invented handle is rejected",
        // A valid handle with one changed bit is invalid.
        |c| rejects_handle(c, Handle::from_bits(c.create(1)?.to_bits() ^ 1 << 21)),
    ),
    Case::new(
        "properties.handle.released",
        "HIP: hipMemGetAllocationPropertiesFromHandle",
        "a released handle is rejected",
        rejects_released_handle,
    ),
    Case::new(
        "properties.handle.released_while_mapped",
        "invariant 5 (src/vmm/ledger/check.rs)",
        "a handle without references is rejected while its memory is mapped",
        rejects_released_while_mapped,
    ),
];

fn rejects_handle(context: &Context, handle: Handle) -> TestResult {
    let vmm = context.vmm();
    context.expect_invalid_argument(Argument::Handle, || vmm.allocation_properties(handle))?;
    context.expect_invalid_argument(Argument::Handle, || vmm.allocation_size(handle))
}

fn returns_creation_properties(context: &Context) -> TestResult {
    for &gpu in context.gpus() {
        let plain = AllocationProperties::on(gpu);
        for properties in [plain, plain.shareable_as(HandleType::POSIX_FILE_DESCRIPTOR)] {
            let handle =
                context.release_at_end(context.vmm().create(context.granule(), &properties)?);
            let found = context.vmm().allocation_properties(handle)?;
            ensure_eq!(found, properties, "properties");
        }
    }
    Ok(())
}

fn mapping_keeps_properties(context: &Context) -> TestResult {
    let (_, handle) = context.map_filled(2, 0x7171_7171)?;
    let properties = context.vmm().allocation_properties(handle)?;
    ensure_eq!(properties, AllocationProperties::on(context.gpu()), "properties");
    ensure_eq!(context.vmm().allocation_size(handle)?, 2 * context.granule(), "size");
    Ok(())
}

fn returns_import_properties(context: &Context) -> TestResult {
    let handle = context.create_shareable(3)?;
    let kind = HandleType::POSIX_FILE_DESCRIPTOR;
    let descriptor = context.vmm().export_to_shareable_handle(handle, kind)?;
    let import =
        context.release_at_end(context.vmm().import_from_shareable_handle(&descriptor, kind)?);
    let properties = context.vmm().allocation_properties(import)?;
    ensure_eq!(properties.kind, AllocationKind::Pinned, "kind");
    ensure_eq!(properties.handle_types, HandleType::POSIX_FILE_DESCRIPTOR, "handle types");
    ensure_eq!(context.vmm().allocation_size(import)?, 3 * context.granule(), "size");
    Ok(())
}

fn rejects_released_handle(context: &Context) -> TestResult {
    let handle = context.create(1)?;
    context.vmm().release(handle)?;
    rejects_handle(context, handle)
}

fn rejects_released_while_mapped(context: &Context) -> TestResult {
    let (_, handle) = context.map_filled(1, 0x7272_7272)?;
    context.vmm().release(handle)?;
    rejects_handle(context, handle)
}
