//! Runs in the second process: makes a GPU read or write memory. If the GPU's page table forbids the access, a fault
//! may end the process.

#![expect(unsafe_code, reason = "copies without the library's checks")]

use super::raw_copy::{CopyResult, RawCopies};
use super::{AccessResult, Reply, wrong_copy};
use crate::hexdump::difference;
use hsa_vmm::transport::{Ticket, Trust};
use hsa_vmm::vmm::VmmOptions;
use hsa_vmm::{
    Access, Agent, Allocation, AllocationProperties, Mapping, Reservation, Runtime, Vmm,
};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// A GPU's access to a granule of the first GPU's memory, and the changes of permissions before the access.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GpuAccess {
    pub gpu: usize,
    /// The access that is granted to the GPU last, as a number for `Access::from_bits`. Earlier, the GPU is granted
    /// read and write access, and reads the memory once, so that the GPU's TLB has the entry.
    pub granted: u32,
    /// The call that then removes the access; `None` if no call removes the access.
    pub removed_by: Option<Removal>,
    /// Whether the GPU writes (true) or reads (false).
    pub writes: bool,
    /// The ticket for memory that another process offers; `None` for new memory.
    pub ticket: Option<String>,
}

/// A call after which the GPU has no access to the memory.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Removal {
    Revoke,
    /// Revokes many times, while another GPU copies from the memory.
    RevokeUnderLoad,
    Unmap,
    /// Unmaps, releases and frees.
    Free,
}

/// The number that new memory is filled with.
pub(crate) const FILLED: u32 = 0xe1e1_e1e1;
/// The number that the GPU writes.
pub(crate) const WRITTEN: u32 = 0xe2e2_e2e2;

/// Maps the memory, changes the access, and has the GPU access the memory with a copy that the library does not check.
pub(super) fn perform(runtime: &Runtime, request: &GpuAccess) -> Result<Reply, Reply> {
    let gpus: Vec<&Agent> = runtime.gpus().collect();
    let (Some(owner), Some(gpu)) = (gpus.first(), gpus.get(request.gpu)) else {
        return Err(Reply::Failed("there are fewer GPUs than in the first process".to_owned()));
    };
    let vmm = Vmm::open_with(runtime, VmmOptions::new().with_page_tables(true))?;
    let raw = RawCopies::of_runtime(runtime).map_err(Reply::Failed)?;
    let size = vmm.reservation_granule();
    let agents = [gpu.id()];

    // Between the last change of access and the last raw copy, host memory must not be locked. Otherwise, the runtime
    // would wait for all changes of page tables. The library's copies to and from host memory lock host memory. Make
    // these copies here, before the last change of access.
    let (target, source) = (map_new_memory(&vmm, owner, size)?, map_new_memory(&vmm, owner, size)?);
    for mapping in [&target, &source] {
        mapping.grant(&agents, Access::ReadWrite)?;
    }
    source.copy_from_host(gpu.id(), 0, &repeat_number(WRITTEN, size))?;
    let memory = match &request.ticket {
        None => {
            let filled = map_new_memory(&vmm, owner, size)?;
            filled.grant(&[owner.id()], Access::ReadWrite)?;
            filled.copy_from_host(owner.id(), 0, &repeat_number(FILLED, size))?;
            filled.allocation().clone()
        }
        Some(ticket) => {
            let ticket: Ticket =
                ticket.parse().map_err(|_| Reply::Failed(format!("invalid ticket {ticket:?}")))?;
            ticket.fetch(&vmm, Trust::SameUser)?
        }
    };
    let reservation = Reservation::builder(size).reserve(&vmm)?;
    let mapping = reservation.map(0, &memory)?;
    let address = mapping.address();
    let copy = |destination, source| {
        // SAFETY: each range is a mapping of `size` bytes, or the addresses of a former mapping of `size` bytes. No
        // other thread uses the ranges.
        unsafe { raw.copy(gpu, destination, source, size) }.map_err(Reply::Failed)
    };

    mapping.grant(&agents, Access::ReadWrite)?;
    if copy(target.address(), address)? != CopyResult::Copied {
        let why = format!("{} faulted immediately after it was granted access", gpu.id());
        return Err(Reply::Failed(why));
    }
    let granted = Access::from_bits(request.granted)
        .ok_or_else(|| Reply::Failed(format!("no access has the number {}", request.granted)))?;
    mapping.grant(&agents, granted)?;
    let removal = request.removed_by;
    let mapping = remove_access(removal, &vmm, mapping, &target, reservation, memory, gpu)?;
    let (copy_to, copy_from) =
        if request.writes { (address, source.address()) } else { (target.address(), address) };
    if let CopyResult::Faulted(at) = copy(copy_to, copy_from)? {
        let begin = address.get() as u64;
        return Ok(Reply::Accessed(AccessResult::Faulted { begin, size, at }));
    }
    let is_permitted = removal.is_none()
        && (granted == Access::ReadWrite || granted == Access::Read && !request.writes);
    if let Some(mapping) = mapping.filter(|_| is_permitted) {
        expect_bytes(&target, gpu, FILLED)?;
        if request.writes {
            expect_bytes(&mapping, gpu, WRITTEN)?;
        }
    }
    Ok(Reply::Accessed(AccessResult::Completed))
}

/// Fails if a mapping is not filled with a number.
fn expect_bytes(mapping: &Mapping, gpu: &Agent, number: u32) -> Result<(), Reply> {
    let mut found = vec![0; mapping.size()];
    mapping.copy_to_host(gpu.id(), 0, &mut found)?;
    expect_equal(&found, number, gpu)
}

/// Fails if `found`, which a GPU has copied, does not consist of repetitions of `number`.
fn expect_equal(found: &[u8], number: u32, gpu: &Agent) -> Result<(), Reply> {
    match difference(&repeat_number(number, found.len()), found) {
        None => Ok(()),
        Some(difference) => Err(wrong_copy(gpu, &difference)),
    }
}

/// Returns `size` bytes that repeat a number.
fn repeat_number(number: u32, size: usize) -> Vec<u8> {
    number.to_ne_bytes().repeat(size / 4)
}

/// Creates memory on a GPU, and maps it in a new reservation.
fn map_new_memory(vmm: &Vmm, owner: &Agent, size: usize) -> Result<Mapping, Reply> {
    let memory = Allocation::create(vmm, size, &AllocationProperties::on(owner.id()))?;
    Ok(Reservation::builder(size).reserve(vmm)?.map(0, &memory)?)
}

/// The number of times that access is revoked under load.
const ROUNDS: usize = 20;

/// Repeatedly revokes `gpu`'s access and grants it again, while a second GPU copies from the memory. Checks what the
/// second GPU has copied. Ends with a revocation.
fn revoke_under_load(
    vmm: &Vmm,
    mapping: &Mapping,
    target: &Mapping,
    gpu: &Agent,
) -> Result<(), Reply> {
    let mut others = vmm.runtime().gpus().filter(|other| other.id() != gpu.id());
    let other = others.find(|other| other.can_access(gpu.id()));
    let other =
        other.ok_or_else(|| Reply::Failed("no other GPU can access the memory".to_owned()))?;
    let size = mapping.size();
    let copied = map_new_memory(vmm, gpu, size)?;
    copied.grant(&[other.id()], Access::ReadWrite)?;
    let host = vmm.runtime().host();
    let cpu = host.can_access(gpu.id()).then(|| host.id());
    if let Some(cpu) = cpu {
        copied.grant(&[cpu], Access::ReadWrite)?;
    }
    mapping.grant(&[other.id()], Access::Read)?;
    let copy_once = || -> Result<(), Reply> {
        if cpu.is_some() {
            copied.write(0, &vec![0; size])?;
        }
        vmm.copy(other.id(), copied.address(), mapping.address(), size)?;
        if cpu.is_some() {
            // When the CPU loads from memory, no host memory is locked, so the runtime does not wait for changes of
            // page tables.
            let mut found = vec![0; size];
            copied.read(0, &mut found)?;
            expect_equal(&found, FILLED, other)?;
        }
        Ok(())
    };
    let revoke = || -> Result<(), Reply> {
        // The GPU copies from the memory first, so that its TLB has the entry.
        vmm.copy(gpu.id(), target.address(), mapping.address(), size)?;
        Ok(mapping.revoke(&[gpu.id()])?)
    };
    let (copies, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let load = scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                copy_once()?;
                copies.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        let revoked = (0..ROUNDS).try_for_each(|round| {
            // The other GPU copies at least once in each round.
            while copies.load(Ordering::Relaxed) <= round && !load.is_finished() {
                thread::yield_now();
            }
            if round > 0 {
                mapping.grant(&[gpu.id()], Access::ReadWrite)?;
            }
            revoke()
        });
        ended.store(true, Ordering::Relaxed);
        let load_result: Result<(), Reply> =
            load.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        revoked.and(load_result)
    })?;
    if cpu.is_none() {
        expect_bytes(&copied, other, FILLED)?;
        // The check above waits until changes of page tables have taken effect. Revoke once more, without such a wait.
        mapping.grant(&[gpu.id()], Access::ReadWrite)?;
        revoke()?;
    }
    Ok(())
}

/// Removes access. Returns the mapping if it still exists.
fn remove_access(
    removal: Option<Removal>,
    vmm: &Vmm,
    mapping: Mapping,
    target: &Mapping,
    reservation: Reservation,
    memory: Allocation,
    gpu: &Agent,
) -> Result<Option<Mapping>, Reply> {
    match removal {
        None => return Ok(Some(mapping)),
        Some(Removal::Revoke) => {
            mapping.revoke(&[gpu.id()])?;
            return Ok(Some(mapping));
        }
        Some(Removal::RevokeUnderLoad) => {
            revoke_under_load(vmm, &mapping, target, gpu)?;
            return Ok(Some(mapping));
        }
        Some(Removal::Unmap) => {
            mapping.unmap().map_err(|rejected| Reply::from(rejected.error))?;
            // The addresses stay reserved, and the memory allocated.
            std::mem::forget((reservation, memory));
        }
        Some(Removal::Free) => {
            mapping.unmap().map_err(|rejected| Reply::from(rejected.error))?;
            memory.release().map_err(|rejected| Reply::from(rejected.error))?;
            reservation.free().map_err(|rejected| Reply::from(rejected.error))?;
        }
    }
    Ok(None)
}
