//! `hipMemImportFromShareableHandle`.

use super::sharing::{FD, create_filled, export, import, map_for_default_agents};
use crate::case::{Case, TestResult, describe_quarantined, ensure, ensure_bytes, ensure_eq};
use crate::{Context, NotPassed};
use hsa_vmm::error::Argument;
use hsa_vmm::hip::HipError;
use hsa_vmm::{Access, HandleType};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "share.import.same_memory",
        "hip-tests: hipMemImportFromShareableHandle_Positive_Basic; reference 6.2 #60",
        "an import in the same process returns another handle of the same memory",
        import_is_same_memory,
    ),
    Case::new(
        "share.import.twice",
        "recorded: cuda_h200_edges import_twice_same_handle; reference 6.2 #58",
        "importing a descriptor twice returns two handles of the same memory",
        imports_twice,
    ),
    Case::new(
        "share.import.descriptor_closed_at_once",
        "reference 6.2 #59",
        "the descriptor can be closed right after the import",
        descriptor_can_be_closed,
    ),
    Case::new(
        "share.import.descriptor_stays_ours",
        "invariant 17 (src/vmm/ledger/check.rs)",
        "the import does not consume the descriptor",
        descriptor_stays_open,
    ),
    Case::new(
        "share.import.outlives_its_exporter",
        "invariant 16 (src/vmm/ledger/check.rs)",
        "the imported memory stays when the exported handle is released",
        import_outlives_exporter,
    ),
    Case::new(
        "share.import.size_of_the_whole",
        "HIP: hipMemImportFromShareableHandle",
        "the whole memory can be mapped, but not more",
        import_has_full_size,
    ),
    Case::new(
        "share.import.by_another_vmm",
        "hip-tests: hipMemImportFromShareableHandle",
        "an import into another Vmm is the same memory",
        imports_into_another_vmm,
    ),
    Case::new(
        "share.import.filled",
        "HSA: hsa_amd_memory_async_copy; reference 6.2 #61",
        "an import is filled by its owner, or by a GPU with access if the owner is unknown",
        owner_fills_import,
    ),
    Case::new(
        "share.import.peer",
        "hip-tests: hipMemSetAccessImportedHandle",
        "access to an import can be granted to a GPU that is not its owner",
        grants_peer,
    ),
    Case::new(
        "share.import.peer_after_the_owner",
        "reference 6.2 #48; rocm-systems#9908",
        "access to an import can be granted to a peer after it was granted to the owner",
        grants_peer_after_owner,
    ),
    Case::new(
        "share.import.not_memory",
        "recorded: cuda_h200_edges import_not_a_memory_fd; reference 6.2 #57",
        "a file that is not GPU memory is rejected",
        rejects_plain_file,
    ),
    Case::new(
        "share.import.not_memory_never_granted",
        "reference 6.2 #57: ROCr 7.14 checks the file in set_access",
        "access to a file that is not GPU memory cannot be granted, and nothing is leaked",
        never_grants_plain_file,
    ),
    Case::new(
        "share.import.no_file",
        "reference 6.2 #57",
        "a device, a pipe and a directory are rejected",
        rejects_devices_and_pipes,
    ),
    Case::new(
        "share.import.wrong_type",
        "recorded: cuda_h200_edges import_wrong_type",
        "handle types other than a descriptor are not supported",
        rejects_other_handle_types,
    ),
    Case::new(
        "share.again_and_again.leaves_nothing",
        "invariant 13 (src/vmm/ledger/check.rs)",
        "repeated export, import and map leave no handle, as Vmm::usage counts",
        repeats_without_leak,
    ),
];

fn import_is_same_memory(context: &Context) -> TestResult {
    let (at, handle) = create_filled(context, 2, 0xa5a5_a5a5)?;
    let imported = import(context, &export(context, handle)?)?;
    ensure!(imported != handle, "the import is the same handle");
    let imported_at = map_for_default_agents(context, imported, 2)?;
    context.check_contents(imported_at, 2, 0xa5a5_a5a5)?;
    context.vmm().copy(context.gpu(), context.granule_at(imported_at, 1), at, context.granule())?;
    context.fill(at, 2, 0xa6a6_a6a6)?;
    context.check_contents(imported_at, 2, 0xa6a6_a6a6)
}

fn imports_twice(context: &Context) -> TestResult {
    let (_, handle) = create_filled(context, 1, 0xa7a7_a7a7)?;
    let descriptor = export(context, handle)?;
    let (first, second) = (import(context, &descriptor)?, import(context, &descriptor)?);
    ensure!(first != second, "both imports are {first}");
    let imported_at = map_for_default_agents(context, first, 1)?;
    context.vmm().unmap(imported_at, context.granule())?;
    context.vmm().release(first)?;
    let imported_at = map_for_default_agents(context, second, 1)?;
    context.check_contents(imported_at, 1, 0xa7a7_a7a7)
}

fn descriptor_can_be_closed(context: &Context) -> TestResult {
    let (_, handle) = create_filled(context, 1, 0xa8a8_a8a8)?;
    let descriptor = export(context, handle)?;
    let imported = import(context, &descriptor)?;
    drop(descriptor);
    // Reuse the descriptor's number for a file that is not memory.
    let _other = File::open("/dev/null")?;
    let imported_at = map_for_default_agents(context, imported, 1)?;
    context.check_contents(imported_at, 1, 0xa8a8_a8a8)
}

fn descriptor_stays_open(context: &Context) -> TestResult {
    let (_, handle) = create_filled(context, 1, 0xa9a9_a9a9)?;
    let descriptor = export(context, handle)?;
    let first = import(context, &descriptor)?;
    let at = map_for_default_agents(context, first, 1)?;
    context.vmm().unmap(at, context.granule())?;
    context.vmm().release(first)?;
    let is_open = std::fs::exists(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))?;
    ensure!(is_open, "the descriptor was closed");
    let second = import(context, &descriptor)?;
    let imported_at = map_for_default_agents(context, second, 1)?;
    context.check_contents(imported_at, 1, 0xa9a9_a9a9)
}

fn import_outlives_exporter(context: &Context) -> TestResult {
    let (at, handle) = create_filled(context, 1, 0xaaaa_aaaa)?;
    let descriptor = export(context, handle)?;
    let imported = import(context, &descriptor)?;
    let imported_at = map_for_default_agents(context, imported, 1)?;
    drop(descriptor);
    context.vmm().unmap(at, context.granule())?;
    context.vmm().release(handle)?;
    context.check_contents(imported_at, 1, 0xaaaa_aaaa)?;
    let (other, _) = context.map_filled(1, 0xabab_abab)?;
    context.vmm().copy(context.gpu(), imported_at, other, context.granule())?;
    context.check_contents(imported_at, 1, 0xabab_abab)
}

fn import_has_full_size(context: &Context) -> TestResult {
    let handle = context.create_shareable(3)?;
    let imported = import(context, &export(context, handle)?)?;
    let size = context.vmm().allocation_size(imported)?;
    ensure_eq!(size, 3 * context.granule(), "size of the import");
    let at = context.reserve(4)?;
    let map = || context.vmm().map(at, 4 * context.granule(), 0, imported);
    context.expect_invalid_argument(Argument::Size, map)?;
    context.map(at, 3, imported)
}

fn imports_into_another_vmm(context: &Context) -> TestResult {
    let (_, handle) = create_filled(context, 1, 0xacac_acac)?;
    let descriptor = export(context, handle)?;
    let size = context.granule();
    let other = context.open_vmm(context.profile())?;
    let imported = other.import_from_shareable_handle(&descriptor, FD)?;
    let imported_at = other.address_reserve(size, 0, None)?;
    other.map(imported_at, size, 0, imported)?;
    let list: Vec<_> = context
        .default_agents()
        .into_iter()
        .map(|agent| hsa_vmm::AccessDescriptor { agent, access: Access::ReadWrite })
        .collect();
    other.set_access(imported_at, size, &list)?;
    if context.cpu_can_access(context.gpu()) {
        let mut found = [0; 4];
        other.read(imported_at, &mut found)?;
        ensure_bytes!(found, [0xac; 4], "the value in the other Vmm");
    }
    other.unmap(imported_at, size)?;
    other.release(imported)?;
    other.address_free(imported_at, size)?;
    let quarantine = other.quarantined_ranges();
    ensure!(quarantine.is_empty(), "{}", describe_quarantined(&quarantine));
    Ok(())
}

fn owner_fills_import(context: &Context) -> TestResult {
    let (at, handle) = create_filled(context, 1, 0xafaf_afaf)?;
    let imported = import(context, &export(context, handle)?)?;
    let imported_at = map_for_default_agents(context, imported, 1)?;
    context.vmm().fill(imported_at, 0xa0a0_a0a0, context.granule())?;
    context.check_contents(at, 1, 0xa0a0_a0a0)
}

fn grants_peer(context: &Context) -> TestResult {
    let other = context.other_gpu()?;
    let (_, handle) = create_filled(context, 2, 0xadad_adad)?;
    let imported = import(context, &export(context, handle)?)?;
    let imported_at = context.reserve(2)?;
    context.map(imported_at, 2, imported)?;
    let mut agents = context.default_agents();
    agents.insert(0, other);
    context.set_access(imported_at, 2, &agents, Access::ReadWrite)?;
    context.fill(context.granule_at(imported_at, 1), 1, 0xaeae_aeae)?;
    context.vmm().copy(
        other,
        context.granule_at(imported_at, 1),
        imported_at,
        context.granule(),
    )?;
    context.check_contents(imported_at, 2, 0xadad_adad)
}

fn grants_peer_after_owner(context: &Context) -> TestResult {
    let other = context.other_gpu()?;
    let (_, handle) = create_filled(context, 2, 0xb7b7_b7b7)?;
    let imported = import(context, &export(context, handle)?)?;
    let imported_at = map_for_default_agents(context, imported, 2)?;
    context.set_access(imported_at, 2, &[other], Access::ReadWrite)?;
    context.fill(context.granule_at(imported_at, 1), 1, 0xb8b8_b8b8)?;
    context.vmm().copy(
        other,
        context.granule_at(imported_at, 1),
        imported_at,
        context.granule(),
    )?;
    context.check_contents(imported_at, 2, 0xb7b7_b7b7)
}

/// Creates an anonymous file of one granule, which is not GPU memory. Seals the file against shrinking: the library
/// would reject an unsealed file without calling the runtime.
fn create_plain_file(context: &Context) -> TestResult<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("hsa-vmm no memory", flags).map_err(io::Error::from)?);
    file.set_len(context.granule() as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK).map_err(io::Error::from)?;
    Ok(file.into())
}

fn rejects_plain_file(context: &Context) -> TestResult {
    let file = create_plain_file(context)?;
    let import = || context.vmm().import_from_shareable_handle(&file, FD);
    // The runtime returns the same status if the driver has failed, so the library does not return `InvalidArgument`.
    context.expect_error(HipError::InvalidValue, import).map(|_| ())
}

fn never_grants_plain_file(context: &Context) -> TestResult {
    let file = create_plain_file(context)?;
    let Ok(handle) = context.vmm().import_from_shareable_handle(&file, FD) else {
        return Ok(());
    };
    context.release_at_end(handle);
    let at = context.reserve(1)?;
    context.map(at, 1, handle)?;
    let list = [hsa_vmm::AccessDescriptor { agent: context.gpu(), access: Access::ReadWrite }];
    let grant = || context.vmm().set_access(at, context.granule(), &list);
    context.expect_error(HipError::InvalidValue, grant).map(|_| ())
}

fn rejects_devices_and_pipes(context: &Context) -> TestResult {
    let (reader, _writer) = std::io::pipe()?;
    let descriptors: [OwnedFd; 3] =
        [File::open("/dev/null")?.into(), reader.into(), File::open("/")?.into()];
    for descriptor in &descriptors {
        let import = || context.vmm().import_from_shareable_handle(descriptor, FD);
        context.expect_invalid_argument(Argument::Descriptor, import)?;
    }
    Ok(())
}

fn rejects_other_handle_types(context: &Context) -> TestResult {
    let handle = context.create_shareable(1)?;
    let descriptor = export(context, handle)?;
    for kind in [HandleType::WIN32, HandleType::WIN32_KMT, HandleType::FABRIC] {
        let import = || context.vmm().import_from_shareable_handle(&descriptor, kind);
        context.expect_error(HipError::NotSupported, import)?;
    }
    Ok(())
}

fn repeats_without_leak(context: &Context) -> TestResult {
    let (_, handle) = create_filled(context, 1, 0xaeae_aeae)?;
    let imported_at = context.reserve(1)?;
    for _ in 0..32 {
        let imported = import(context, &export(context, handle)?)?;
        context.map(imported_at, 1, imported)?;
        context.set_access(imported_at, 1, &context.default_agents(), Access::ReadWrite)?;
        context.check_contents(imported_at, 1, 0xaeae_aeae)?;
        context.vmm().unmap(imported_at, context.granule())?;
        context.vmm().release(imported)?;
        if context.vmm().usage().handles != 1 {
            return Err(NotPassed::Failed(format!("leaked: {:?}", context.vmm().usage())));
        }
    }
    Ok(())
}
