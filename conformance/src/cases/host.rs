//! Physical memory of the host (`hipMemLocationTypeHost`).

use super::sharing::{FD, import, map_for_default_agents};
use crate::case::{Case, TestResult, ensure_bytes, ensure_eq};
use crate::{Context, NotPassed};
use hsa_vmm::error::{Argument, Feature};
use hsa_vmm::vmm::Location;
use hsa_vmm::{Access, AllocationProperties, ErrorKind, Handle};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "share.host.all_agents",
        "HIP 7.1: hipMemLocationTypeHost; rocm-systems#7892",
        "the CPU and every GPU see the same bytes in memory of the host",
        all_agents_share_memory,
    ),
    Case::new(
        "share.host.exported",
        "HIP 7.1: hipMemLocationTypeHost; rocm-systems#8058",
        "memory of the host can be exported and imported",
        exports_and_imports,
    ),
    Case::new(
        "share.host.unknown_node",
        "HIP 7.1: hipMemLocationTypeHostNuma",
        "a NUMA node that does not exist is rejected",
        rejects_unknown_node,
    ),
];

fn host_properties() -> AllocationProperties {
    AllocationProperties::at(Location::Host).shareable_as(FD)
}

/// Creates a granule of host memory. Skips the case if neither the runtime nor the driver can allocate host memory.
fn create(context: &Context) -> TestResult<Handle> {
    match context.vmm().create(context.granule(), &host_properties()) {
        Ok(handle) => Ok(context.release_at_end(handle)),
        Err(error) => match error.kind() {
            ErrorKind::NotSupported(Feature::HostMemory(_)) => {
                Err(NotPassed::Skipped(error.to_string()))
            }
            _ => Err(error.into()),
        },
    }
}

fn all_agents_share_memory(context: &Context) -> TestResult {
    let (vmm, granule) = (context.vmm(), context.granule());
    let (at, handle) = (context.reserve(1)?, create(context)?);
    ensure_eq!(vmm.allocation_properties(handle)?, host_properties(), "the properties");
    context.map(at, 1, handle)?;
    let agents: Vec<_> = context.gpus().iter().copied().chain([context.host()]).collect();
    context.set_access(at, 1, &agents, Access::ReadWrite)?;
    let written: Vec<u8> = (0..granule).map(|index| (index * 11 + index / 256) as u8).collect();
    vmm.write(at, &written)?;
    let mut read = vec![0; granule];
    for &gpu in context.gpus() {
        vmm.copy_to_host(gpu, &mut read, at)?;
        ensure_bytes!(read, written, "the memory that {gpu} reads");
    }
    let written: Vec<u8> = written.into_iter().rev().collect();
    vmm.copy_from_host(context.gpu(), at, &written)?;
    vmm.read(at, &mut read)?;
    ensure_bytes!(read, written, "the bytes that a GPU wrote and the CPU reads");
    Ok(())
}

fn exports_and_imports(context: &Context) -> TestResult {
    let vmm = context.vmm();
    let handle = create(context)?;
    let at = map_for_default_agents(context, handle, 1)?;
    context.fill(at, 1, 0xb5b5_b5b5)?;
    let descriptor = vmm.export_to_shareable_handle(handle, FD)?;
    let imported = import(context, &descriptor)?;
    let at_import = map_for_default_agents(context, imported, 1)?;
    context.check_contents(at_import, 1, 0xb5b5_b5b5)?;
    context.fill(at_import, 1, 0xb6b6_b6b6)?;
    context.check_contents(at, 1, 0xb6b6_b6b6)
}

fn rejects_unknown_node(context: &Context) -> TestResult {
    let properties = AllocationProperties::at(Location::HostNuma(0xffff));
    let create = || context.vmm().create(context.granule(), &properties);
    context.expect_invalid_argument(Argument::Location, create)
}
