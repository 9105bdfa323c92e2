//! A GPU's page table permits exactly the granted access. After the access was revoked, or the memory was unmapped, the
//! page table permits no access.
//!
//! A second process makes the accesses that can fault, because a process cannot continue after a GPU fault.

use super::sharing;
use crate::case::{Case, NotPassed, TestResult, ensure, ensure_bytes};
use crate::context::Context;
use crate::peer::{AccessResult, FILLED, GpuAccess, NO_FAULT, Removal};
use hsa_vmm::Access;
use hsa_vmm::agent::Enforcement;
use hsa_vmm::transport::Offer;

pub(super) const CASES: &[Case] = &[
    Case::new(
        "access.enforced.owner_by_dma",
        "HIP: hipMemAccessFlags",
        "each permission holds for the owner's copies by DMA engines",
        |context| check_permissions(context, User::Owner, DMA),
    ),
    Case::new(
        "access.enforced.owner_by_kernels",
        "HIP: hipMemAccessFlags",
        "each permission holds for the owner's copies by the runtime's kernels",
        |context| check_permissions(context, User::Owner, KERNELS),
    ),
    Case::new(
        "access.enforced.peer_by_dma",
        "HIP: hipMemAccessFlags",
        "each permission holds for another GPU's copies by DMA engines",
        |context| check_permissions(context, User::OtherGpu, DMA),
    ),
    Case::new(
        "access.enforced.peer_by_kernels",
        "HIP: hipMemAccessFlags",
        "each permission holds for another GPU's copies by the runtime's kernels",
        |context| check_permissions(context, User::OtherGpu, KERNELS),
    ),
    Case::new(
        "access.enforced.importer_by_dma",
        "HIP: hipMemAccessFlags",
        "each permission holds for copies by DMA engines in a process that imported the memory",
        |context| check_permissions(context, User::Importer, DMA),
    ),
    Case::new(
        "access.enforced.importer_by_kernels",
        "HIP: hipMemAccessFlags",
        "each permission holds for copies by the runtime's kernels in a process that imported the memory",
        |context| check_permissions(context, User::Importer, KERNELS),
    ),
    Case::new(
        "access.enforced.after_revoke",
        "documentation: Vmm::revoke; rocm-systems#11693",
        "a GPU can neither read nor write when revoke has returned",
        |context| check_removed(context, Removal::Revoke),
    ),
    Case::new(
        "access.enforced.after_unmap",
        "HIP: hipMemUnmap; rocm-systems#11693",
        "a GPU can neither read nor write when unmap has returned",
        |context| check_removed(context, Removal::Unmap),
    ),
    Case::new(
        "access.enforced.after_free",
        "HIP: hipMemAddressFree; rocm-systems#11693",
        "a GPU can neither read nor write freed memory",
        |context| check_removed(context, Removal::Free),
    ),
    Case::new(
        "access.enforced.under_load",
        "documentation: Vmm::revoke",
        "revoking a GPU's access takes effect, and another GPU's copies go on",
        |context| {
            context.other_gpu()?;
            check_removed(context, Removal::RevokeUnderLoad)
        },
    ),
    Case::new(
        "access.enforced.every_offset",
        "HIP: hipMemMap",
        "the first GPU, and a second GPU and the CPU if they have access, see each part of a handle where it is mapped",
        maps_every_offset,
    ),
];

/// The value of `HSA_ENABLE_SDMA` that makes DMA engines copy.
const DMA: &str = "1";
/// The value of `HSA_ENABLE_SDMA` that makes the runtime's kernels copy.
const KERNELS: &str = "0";

/// The GPU and the process that access memory of the first GPU.
#[derive(Clone, Copy, PartialEq, Eq)]
enum User {
    /// The first GPU.
    Owner,
    /// Another GPU.
    OtherGpu,
    /// The first GPU, in a process that imported the memory.
    Importer,
}

/// Skips the case if the library does not enforce GPUs' permissions.
fn require_enforcement(context: &Context) -> TestResult {
    if context.vmm().enforcement(context.gpu()) == Some(Enforcement::Enforced) {
        return Ok(());
    }
    let why = context.vmm().page_table_failure(context.gpu());
    let why = why.unwrap_or_else(|| "it is not requested (--page-tables)".to_owned());
    Err(NotPassed::Skipped(format!("needs control of the GPU's page table: {why}")))
}

/// Checks each access of `user` with each permission.
fn check_permissions(context: &Context, user: User, engine: &str) -> TestResult {
    require_enforcement(context)?;
    let gpu = match user {
        User::OtherGpu => {
            let other = context.other_gpu()?;
            context.runtime().gpus().position(|gpu| gpu.id() == other).unwrap_or(0)
        }
        _ => 0,
    };
    let mut second_process = None;
    // A process cannot continue after a fault. Therefore, the permitted accesses come first.
    for (granted, writes, permitted) in [
        (Access::Read, false, true),
        (Access::ReadWrite, false, true),
        (Access::ReadWrite, true, true),
        (Access::Read, true, false),
        (Access::None, false, false),
        (Access::None, true, false),
    ] {
        let (shared, offer) = match user {
            User::Importer => {
                let (at, handle) = (context.reserve(1)?, context.create_shareable(1)?);
                context.map(at, 1, handle)?;
                context.set_access(at, 1, &context.default_agents(), Access::ReadWrite)?;
                context.fill(at, 1, FILLED)?;
                (Some(at), Some(Offer::of_descriptor(sharing::export(context, handle)?)?))
            }
            _ => (None, None),
        };
        let ticket = offer.as_ref().map(|offer| offer.ticket().to_string());
        let access = GpuAccess { gpu, granted: granted as u32, removed_by: None, writes, ticket };
        let process = match &mut second_process {
            Some(process) => process,
            none => none.insert(context.start_peer_with_variable("HSA_ENABLE_SDMA", engine)?),
        };
        let outcome = process.access_by_gpu(&access)?;
        let verb = if writes { "writes" } else { "reads" };
        check_result(outcome, permitted, &format!("GPU {gpu} {verb} with access \"{granted}\""))?;
        if !permitted {
            second_process = None;
            if let Some(at) = shared {
                context.check_contents(at, 1, FILLED)?;
            }
        }
    }
    Ok(())
}

/// Checks that the first GPU can neither read nor write after its access was removed.
fn check_removed(context: &Context, removal: Removal) -> TestResult {
    require_enforcement(context)?;
    for writes in [false, true] {
        let granted = Access::ReadWrite as u32;
        let access = GpuAccess { gpu: 0, granted, removed_by: Some(removal), writes, ticket: None };
        let verb = if writes { "writes" } else { "reads" };
        check_result(
            context.start_peer()?.access_by_gpu(&access)?,
            false,
            &format!("GPU 0 {verb} after {removal:?}"),
        )?;
    }
    Ok(())
}

/// The number of parts of a handle. Each part is one granule, filled with the part's number.
const PARTS: usize = 4;

/// Maps every range of parts. Then maps single parts side by side in another order, and one part twice.
fn maps_every_offset(context: &Context) -> TestResult {
    require_enforcement(context)?;
    let (vmm, granule) = (context.vmm(), context.granule());
    let (whole, handle) = context.map_filled(PARTS, FILLED)?;
    for part in 0..PARTS {
        context.fill(context.granule_at(whole, part), 1, part as u32)?;
    }
    let mut agents = context.default_agents();
    agents.extend(context.other_gpu().ok());
    let base = context.reserve(PARTS)?;
    let map = |at, first: usize, count: usize| -> TestResult {
        vmm.map(context.granule_at(base, at), count * granule, first * granule, handle)?;
        context.set_access(context.granule_at(base, at), count, &agents, Access::Read)
    };
    let check_parts = |parts: &[usize]| -> TestResult {
        let expected =
            parts.iter().flat_map(|&part| (part as u32).to_ne_bytes().repeat(granule / 4));
        let expected: Vec<u8> = expected.collect();
        let mut read = vec![0; expected.len()];
        for &agent in &agents {
            vmm.copy_to_host(agent, &mut read, base)?;
            ensure_bytes!(read, expected, "the parts {parts:?} that {agent} reads");
        }
        Ok(())
    };
    for first in 0..PARTS {
        for count in 1..=PARTS - first {
            map(0, first, count)?;
            check_parts(&(first..first + count).collect::<Vec<_>>())?;
            vmm.unmap(base, count * granule)?;
        }
    }
    let order = [2, 0, 3, 0];
    for (at, &part) in order.iter().enumerate() {
        map(at, part, 1)?;
    }
    check_parts(&order)
}

/// Checks that a permitted access has succeeded, or that a forbidden access has faulted inside the accessed range.
fn check_result(outcome: AccessResult, permitted: bool, what: &str) -> TestResult {
    match outcome {
        AccessResult::Completed => ensure!(permitted, "{what}: {NO_FAULT}"),
        AccessResult::Faulted { begin, size, at } => {
            ensure!(!permitted, "{what}: a fault at {at:#x}");
            let range = begin..begin + size as u64;
            ensure!(range.contains(&at), "{what}: the fault names {at:#x}, outside {range:#x?}");
        }
    }
    Ok(())
}
