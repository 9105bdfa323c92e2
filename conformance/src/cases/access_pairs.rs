//! Access of every GPU, and of every pair of an owner and a peer.

use super::kernel_state::expect_cpu_permissions;
use super::sharing::{FD, export};
use crate::Context;
use crate::case::{Case, TestResult, ensure, ensure_bytes, ensure_eq};
use crate::{NotPassed, context};
use hsa_vmm::error::Argument;
use hsa_vmm::hip::HipError;
use hsa_vmm::{Access, Address, AgentId};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "access.every_gpu.uses_its_own",
        "HIP: hipMemSetAccess; hip-tests: hipMemSetAccess_MapPhysChksFromMulDev",
        "each GPU fills and copies its own memory; the CPU, or without CPU access the GPU, reads the same contents",
        each_gpu_uses_its_memory,
    ),
    Case::new(
        "access.every_agent.each_permission",
        "HIP: hipMemSetAccess, hipMemGetAccess, hipMemAccessFlags",
        "each permission can be set for each GPU and the CPU on memory that they can access, and get returns the permission",
        get_returns_each_permission,
    ),
    Case::new(
        "access.every_cpu_view.is_enforced",
        "recorded: cuda_h200_edges setaccess_read_only, setaccess_none",
        "the CPU has exactly the granted access to memory of each GPU",
        cpu_access_is_enforced,
    ),
    Case::new(
        "access.every_pair.reads",
        "hip-tests: hipMemSetAccess_Vmm2VMMInterDevMemCpy",
        "each GPU with read access copies from memory of each GPU that it can access",
        peer_reads,
    ),
    Case::new(
        "access.every_pair.writes",
        "hip-tests: hipMemSetAccess_Vmm2VMMInterDevMemCpy",
        "each GPU copies to memory of each GPU that it can access; the owner and the CPU see the copy",
        peer_writes,
    ),
    Case::new(
        "access.every_pair.not_granted",
        "HIP: hipMemSetAccess: no access at first",
        "a GPU without access to memory of another GPU can copy neither from nor to that memory",
        peer_without_access_cannot_copy,
    ),
    Case::new(
        "access.every_pair.read_only",
        "HIP: hipMemAccessFlagsProtRead; reference 6.2 #43",
        "a GPU with read access to memory of another GPU cannot copy to that memory",
        peer_with_read_access_cannot_write,
    ),
    Case::new(
        "access.every_pair.taken_back",
        "documentation: Vmm::revoke",
        "revoking one GPU's access does not change the access of other GPUs and the owner",
        revoking_peer_keeps_others,
    ),
    Case::new(
        "access.every_pair.in_one_range",
        "hip-tests: hipMemSetAccess_MapPhysChksFromMulDev",
        "one call grants several GPUs access to a range with memory of each of them, and each GPU uses the range",
        grants_one_range_to_all_gpus,
    ),
];

pub(super) const EXPORT_CASES: &[Case] = &[Case::new(
    "share.every_pair.same_memory",
    "HIP: hipMemExportToShareableHandle, hipMemImportFromShareableHandle",
    "exported memory of each GPU is imported, and every GPU sees the same contents",
    exported_memory_is_shared,
)];

/// Maps and fills a granule of a GPU's memory. The GPU, and the CPU if possible, get access.
fn map_filled(context: &Context, gpu: AgentId, value: u32) -> TestResult<Address> {
    let at = context.reserve(1)?;
    let memory = context.create_on(gpu, 1)?;
    context.map(at, 1, memory)?;
    context.set_access(at, 1, &context.gpu_and_cpu(gpu), Access::ReadWrite)?;
    context.fill(at, 1, value)?;
    Ok(at)
}

/// Maps memory for each pair of an owner and a peer. Calls `check` with the memory's address, the owner and the peer.
fn for_each_pair(
    context: &Context,
    check: impl Fn(Address, AgentId, AgentId) -> TestResult,
) -> TestResult {
    context.other_gpu()?;
    for &owner in context.gpus() {
        let others = context.gpus().iter().copied().filter(|&other| other != owner);
        for other in others {
            if !context.runtime().agent(other).is_some_and(|agent| agent.can_access(owner)) {
                continue;
            }
            let at = map_filled(context, owner, 0xe000)?;
            check(at, owner, other).map_err(|reason| match reason {
                NotPassed::Failed(reason) => {
                    NotPassed::Failed(format!("memory of {owner}, used by {other}: {reason}"))
                }
                skipped @ NotPassed::Skipped(_) => skipped,
            })?;
            context.vmm().unmap(at, context.granule())?;
            context.vmm().address_free(at, context.granule())?;
        }
    }
    Ok(())
}

fn each_gpu_uses_its_memory(context: &Context) -> TestResult {
    for (index, &gpu) in context.gpus().iter().enumerate() {
        let value = 0xe100 + index as u32;
        let at = map_filled(context, gpu, value)?;
        context.check_by_cpu_or(gpu, at, 1, value)?;
        context.check_through_gpu(gpu, at, 1, value)?;
    }
    Ok(())
}

fn get_returns_each_permission(context: &Context) -> TestResult {
    for &owner in context.gpus() {
        let at = map_filled(context, owner, 0)?;
        for agent in context.runtime().agents() {
            let is_tested = context.gpus().contains(&agent.id()) || agent.id() == context.host();
            if !is_tested || !agent.can_access(owner) {
                continue;
            }
            for access in [Access::Read, Access::None, Access::ReadWrite, Access::Read] {
                context.set_access(at, 1, &[agent.id()], access)?;
                for offset in [0, context.granule() - 1] {
                    let found =
                        context.vmm().get_access(agent.id(), context::offset_by(at, offset))?;
                    ensure_eq!(found, access, "agent {} on memory of {owner}", agent.id());
                }
            }
        }
    }
    Ok(())
}

fn cpu_access_is_enforced(context: &Context) -> TestResult {
    context.require_cpu_access()?;
    for &owner in context.gpus().iter().filter(|&&gpu| context.cpu_can_access(gpu)) {
        let at = map_filled(context, owner, 0xe200)?;
        let (vmm, host) = (context.vmm(), [context.host()]);
        vmm.write(at, &[0x5e; 64])?;
        context.set_access(at, 1, &host, Access::Read)?;
        expect_cpu_permissions(context, at, 1, Access::Read)?;
        let mut found = [0; 64];
        vmm.read(at, &mut found)?;
        ensure_bytes!(found, [0x5e; 64], "memory of {owner}");
        context.expect_invalid_argument(Argument::Address, || vmm.write(at, &[1]))?;
        context.set_access(at, 1, &host, Access::None)?;
        expect_cpu_permissions(context, at, 1, Access::None)?;
        context.expect_invalid_argument(Argument::Address, || vmm.read(at, &mut [0; 4]))?;
        context.set_access(at, 1, &host, Access::ReadWrite)?;
        expect_cpu_permissions(context, at, 1, Access::ReadWrite)?;
        context.fill(at, 1, 0xe201)?;
        context.check_filled(at, 1, 0xe201)?;
    }
    Ok(())
}

fn peer_reads(context: &Context) -> TestResult {
    for_each_pair(context, |at, _, other| {
        context.set_access(at, 1, &[other], Access::Read)?;
        context.check_through_gpu(other, at, 1, 0xe000)?;
        context.fill(at, 1, 0xe301)?;
        context.check_through_gpu(other, at, 1, 0xe301)
    })
}

fn peer_writes(context: &Context) -> TestResult {
    for_each_pair(context, |at, owner, other| {
        context.set_access(at, 1, &[other], Access::ReadWrite)?;
        let source = map_filled(context, other, 0xe400)?;
        context.vmm().copy(other, at, source, context.granule())?;
        context.check_by_cpu_or(owner, at, 1, 0xe400)?;
        context.check_through_gpu(owner, at, 1, 0xe400)
    })
}

fn peer_without_access_cannot_copy(context: &Context) -> TestResult {
    for_each_pair(context, |at, owner, other| {
        let peer_memory = map_filled(context, other, 0xe500)?;
        let (vmm, size) = (context.vmm(), context.granule());
        context
            .expect_invalid_argument(Argument::Source, || vmm.copy(other, peer_memory, at, size))?;
        context.expect_invalid_argument(Argument::Destination, || {
            vmm.copy(other, at, peer_memory, size)
        })?;
        context.check_by_cpu_or(owner, at, 1, 0xe000)?;
        context.check_by_cpu_or(other, peer_memory, 1, 0xe500)
    })
}

fn peer_with_read_access_cannot_write(context: &Context) -> TestResult {
    for_each_pair(context, |at, owner, other| {
        context.set_access(at, 1, &[other], Access::Read)?;
        let peer_memory = map_filled(context, other, 0xe600)?;
        let (vmm, size) = (context.vmm(), context.granule());
        context.expect_invalid_argument(Argument::Destination, || {
            vmm.copy(other, at, peer_memory, size)
        })?;
        context.check_by_cpu_or(owner, at, 1, 0xe000)?;
        vmm.copy(other, peer_memory, at, size)?;
        context.check_by_cpu_or(other, peer_memory, 1, 0xe000)
    })
}

fn revoking_peer_keeps_others(context: &Context) -> TestResult {
    for_each_pair(context, |at, owner, other| {
        context.set_access(at, 1, &[other], Access::ReadWrite)?;
        context.check_through_gpu(other, at, 1, 0xe000)?;
        let (vmm, size) = (context.vmm(), context.granule());
        vmm.revoke(at, size, &[other])?;
        ensure_eq!(vmm.get_access(other, at)?, Access::None, "revoked access");
        ensure_eq!(vmm.get_access(owner, at)?, Access::ReadWrite, "the owner's access");
        let peer_memory = map_filled(context, other, 0xe700)?;
        context.expect_error(HipError::InvalidValue, || vmm.copy(other, peer_memory, at, size))?;
        context.check_by_cpu_or(owner, at, 1, 0xe000)?;
        context.check_through_gpu(owner, at, 1, 0xe000)
    })
}

fn grants_one_range_to_all_gpus(context: &Context) -> TestResult {
    context.other_gpu()?;
    let can_access = |gpu: AgentId, owner: AgentId| {
        context.runtime().agent(gpu).is_some_and(|agent| agent.can_access(owner))
    };
    // Not every GPU can access every other GPU. The list contains at least two GPUs: the first GPU, and the GPU that
    // `other_gpu` returns.
    let mut gpus_with_access: Vec<AgentId> = Vec::new();
    for &gpu in context.gpus() {
        if gpus_with_access.iter().all(|&it| can_access(gpu, it) && can_access(it, gpu)) {
            gpus_with_access.push(gpu);
        }
    }
    let at = context.reserve(gpus_with_access.len())?;
    for (index, &gpu) in gpus_with_access.iter().enumerate() {
        let memory = context.create_on(gpu, 1)?;
        context.map(context.granule_at(at, index), 1, memory)?;
    }
    context.set_access(at, gpus_with_access.len(), &gpus_with_access, Access::ReadWrite)?;
    for index in 0..gpus_with_access.len() {
        context.fill(context.granule_at(at, index), 1, 0xe800 + index as u32)?;
    }
    for &gpu in &gpus_with_access {
        for index in 0..gpus_with_access.len() {
            context.check_through_gpu(
                gpu,
                context.granule_at(at, index),
                1,
                0xe800 + index as u32,
            )?;
        }
    }
    ensure!(context.vmm().usage().mappings == gpus_with_access.len(), "one mapping per GPU");
    Ok(())
}

fn exported_memory_is_shared(context: &Context) -> TestResult {
    for &owner in context.gpus() {
        let exported = context.create_shareable_on(owner, 1)?;
        let at = context.reserve(1)?;
        context.map(at, 1, exported)?;
        context.set_access(at, 1, &context.gpu_and_cpu(owner), Access::ReadWrite)?;
        context.fill(at, 1, 0xe900)?;
        let descriptor = export(context, exported)?;
        let imported = context.vmm().import_from_shareable_handle(&descriptor, FD)?;
        let imported = context.release_at_end(imported);
        let imported_at = context.reserve(1)?;
        context.map(imported_at, 1, imported)?;
        let can_access =
            |agent| context.runtime().agent(agent).is_some_and(|a| a.can_access(owner));
        for &gpu in context.gpus().iter().filter(|&&gpu| can_access(gpu)) {
            context.set_access(imported_at, 1, &[gpu], Access::ReadWrite)?;
            context.check_through_gpu(gpu, imported_at, 1, 0xe900)?;
        }
        context.fill(at, 1, 0xe901)?;
        for &gpu in context.gpus().iter().filter(|&&gpu| can_access(gpu)) {
            context.check_through_gpu(gpu, imported_at, 1, 0xe901)?;
        }
    }
    Ok(())
}
