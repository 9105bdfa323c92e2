//! Copies and fills, performed by an agent. A GPU uses its page table. An access that the table
//! does not permit is a memory fault.

use crate::address_space::PAGE;
use crate::agents::Agent;
use crate::config::Gpu;
use crate::events::{self, MemoryFault};
use crate::generation::Behaviour;
use crate::instance::{Instance, State};
use crate::physical::Memory;
use crate::pool_memory::AllocationKind;
use crate::signal::Signal;
use crate::status::{HsaResult, file_error_status};
use crate::thread;
use core::ffi::c_void;
use hsa_faults::FaultKind;
use hsa_sys::*;
use std::sync::Arc;

/// The number of bytes copied at a time.
const CHUNK_SIZE: usize = 1 << 20;

/// The agent that performs an access, or this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accessor {
    /// A GPU. It can access memory through its page table, and host memory that was allocated or
    /// locked for it. With XNACK, it can access all plain host memory.
    Gpu(usize),
    /// A GPU, in a call that locks the host memory of its arguments.
    GpuWithLock(usize),
    Process,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

/// The memory at an address.
enum Location {
    /// Memory of the simulation, the offset of the address in it, and the number of bytes that follow.
    Memory(Arc<Memory>, u64, usize),
    /// Memory of the process, with the number of bytes that follow.
    Host(usize),
}

/// Why an access failed.
enum Failure {
    Fault(MemoryFault),
    Status(hsa_status_t),
}

impl Failure {
    /// Returns the status of the call. Reports a fault to the handlers first.
    fn into_status(self, instance: &Instance) -> hsa_status_t {
        match self {
            Self::Fault(fault) => {
                events::report(instance, fault);
                HSA_STATUS_ERROR
            }
            Self::Status(status) => status,
        }
    }
}

/// Reads or writes the process's memory without crashing. Returns the number of bytes before the
/// first inaccessible byte.
///
/// # Safety
/// `local` must be valid for `length` bytes, and writable if `direction` is `Read`.
unsafe fn transfer(direction: Direction, address: usize, local: *mut u8, length: usize) -> usize {
    let remote = core::ptr::without_provenance_mut(address);
    let local = libc::iovec { iov_base: local.cast(), iov_len: length };
    let remote = libc::iovec { iov_base: remote, iov_len: length };
    // SAFETY: the caller promises `local`. The kernel checks `remote`, an address that the program has
    // passed to a copy.
    let done = unsafe {
        let process = libc::getpid();
        match direction {
            Direction::Read => libc::process_vm_readv(process, &local, 1, &remote, 1, 0),
            Direction::Write => libc::process_vm_writev(process, &local, 1, &remote, 1, 0),
        }
    };
    usize::try_from(done).unwrap_or(0)
}

/// Returns whether the process can read every page of a range. The range must not wrap around.
pub(crate) fn host_is_readable(address: usize, size: usize) -> bool {
    // One byte for each page. One system call reads at most 1024 ranges (`IOV_MAX`).
    let mut bytes = [0u8; 1024];
    let first = address & !(PAGE - 1);
    let mut pages = (first..address + size).step_by(PAGE);
    loop {
        let page = |page: usize| libc::iovec {
            iov_base: core::ptr::without_provenance_mut(page.max(address)),
            iov_len: 1,
        };
        let remote: Vec<_> = pages.by_ref().take(bytes.len()).map(page).collect();
        if remote.is_empty() {
            return true;
        }
        let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: remote.len() };
        let (list, count) = (remote.as_ptr(), remote.len() as libc::c_ulong);
        // SAFETY: the kernel writes a byte of `bytes` for each of at most 1024 elements, and checks their addresses.
        let done = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, list, count, 0) };
        if usize::try_from(done) != Ok(remote.len()) {
            return false;
        }
    }
}

impl State {
    /// Returns the distance from an address to the next address that is not plain host memory.
    fn host_extent(&self, address: usize) -> usize {
        let reserved = self.reservations.range(address + 1..).next().map(|(start, _)| *start);
        let allocated = self.allocations.range(address + 1..).next().map(|(start, _)| *start);
        let mapped = self.mappings.range(address + 1..).next().map(|(start, _)| *start);
        let next = [reserved, allocated, mapped].into_iter().flatten().min();
        next.unwrap_or(usize::MAX) - address
    }

    /// Returns whether the page of an address contains locked host memory. The kernel pins whole
    /// pages.
    fn is_locked(&self, address: usize) -> bool {
        let page = address & !(PAGE - 1);
        let before = self.allocations.range(..page.saturating_add(PAGE)).rev();
        before
            .filter(|(_, allocation)| matches!(allocation.kind, AllocationKind::Locked(_)))
            .any(|(start, allocation)| start + allocation.extent() > page)
    }

    /// Looks up the memory of an address for a GPU. `host_accessible`: the GPU can access all
    /// memory of the process.
    fn look_up(
        &self,
        gpu: usize,
        address: usize,
        direction: Direction,
        host_accessible: bool,
    ) -> Result<Location, MemoryFault> {
        let fault = |reason| MemoryFault { gpu, address: address & !(PAGE - 1), reason };
        let absent = fault(HSA_AMD_MEMORY_FAULT_PAGE_NOT_PRESENT);
        if let Some((start, end, entry)) = self.page_tables[gpu].find(address) {
            return match direction {
                Direction::Write if !entry.writable && entry.readable => {
                    Err(fault(HSA_AMD_MEMORY_FAULT_READ_ONLY))
                }
                Direction::Write if !entry.writable => Err(absent),
                Direction::Read if !entry.readable => Err(absent),
                _ => {
                    let memory = Arc::clone(&entry.memory);
                    let (at, length) = entry.offset_at(address - start);
                    Ok(Location::Memory(memory, at, length.min(end - address)))
                }
            };
        }
        if let Some((_, reservation)) = self.reservation_at(address) {
            let plain = !reservation.is_registered() && self.mapping_at(address).is_none();
            return if plain && host_accessible {
                Ok(Location::Host(self.host_extent(address)))
            } else {
                Err(absent)
            };
        }
        let Some((start, allocation)) = self.allocation_at(address) else {
            let extent = self.host_extent(address);
            if host_accessible {
                return Ok(Location::Host(extent));
            }
            let remaining = PAGE - address % PAGE;
            let locked = self.is_locked(address);
            return if locked { Ok(Location::Host(remaining.min(extent))) } else { Err(absent) };
        };
        if !allocation.allows(Agent::Gpu(gpu)) {
            return Err(absent);
        }
        let length = start + allocation.extent() - address;
        Ok(match &allocation.memory {
            Some(memory) => Location::Memory(Arc::clone(memory), (address - start) as u64, length),
            None => Location::Host(length),
        })
    }

    /// Returns the GPU that owns the memory at an address. Returns `Some(None)` for virtual memory that no GPU owns,
    /// such as a registered reservation without a mapping. Returns `None` for plain host memory, for allocations of a
    /// CPU, and, in releases whose `pointer_info` does not know mappings, for all virtual memory.
    fn device_of(&self, behaviour: Behaviour, address: usize) -> Option<Option<usize>> {
        if !behaviour.pointer_info_knows_mappings() && self.reservation_at(address).is_some() {
            // The simulated runtime treats virtual memory as the CPU's.
            return None;
        }
        let gpu = |owner| match owner {
            Agent::Gpu(number) => Some(number),
            Agent::Cpu(_) => None,
        };
        if let Some((_, reservation)) = self.reservation_at(address) {
            let Some((_, mapping)) = self.mapping_at(address) else {
                return reservation.is_registered().then_some(None);
            };
            let handle = self.handles.get(mapping.handle);
            return Some(
                handle.and_then(|handle| handle.memory()).and_then(|memory| gpu(memory.owner)),
            );
        }
        self.allocation_at(address).and_then(|(_, allocation)| gpu(allocation.owner)).map(Some)
    }

    /// Selects the agent of a copy: the owner of the destination, or else of the source. Without an
    /// owner, the first GPU copies virtual memory, and the process copies host memory.
    fn accessor_of(
        &self,
        behaviour: Behaviour,
        destination: usize,
        source: Option<usize>,
    ) -> Accessor {
        let destination = self.device_of(behaviour, destination);
        let source = source.and_then(|source| self.device_of(behaviour, source));
        let owner = destination.flatten().or(source.flatten());
        match (owner, destination.or(source)) {
            (Some(gpu), _) => Accessor::GpuWithLock(gpu),
            (None, Some(_)) if !self.page_tables.is_empty() => Accessor::GpuWithLock(0),
            _ => Accessor::Process,
        }
    }
}

impl Instance {
    /// Reads or writes memory on behalf of an accessor.
    fn access_memory(
        &self,
        accessor: Accessor,
        direction: Direction,
        mut address: usize,
        mut buffer: &mut [u8],
    ) -> Result<(), Failure> {
        let gpu = match accessor {
            Accessor::Gpu(gpu) => {
                Some((gpu, self.config.gpus.get(gpu).is_some_and(Gpu::has_xnack)))
            }
            Accessor::GpuWithLock(gpu) => Some((gpu, true)),
            Accessor::Process => None,
        };
        while !buffer.is_empty() {
            let location = match gpu {
                None => Location::Host(buffer.len()),
                Some((gpu, host_accessible)) => self
                    .lock()
                    .look_up(gpu, address, direction, host_accessible)
                    .map_err(Failure::Fault)?,
            };
            let done = match location {
                Location::Memory(memory, offset, length) => {
                    let length = length.min(buffer.len());
                    let part = &mut buffer[..length];
                    let result = match direction {
                        Direction::Read => memory.read(offset, part),
                        Direction::Write => memory.write(offset, part),
                    };
                    result.map_err(|error| Failure::Status(file_error_status(&error)))?;
                    length
                }
                Location::Host(length) => {
                    let length = length.min(buffer.len());
                    // SAFETY: the buffer has at least `length` bytes and is borrowed exclusively.
                    let done = unsafe { transfer(direction, address, buffer.as_mut_ptr(), length) };
                    match gpu {
                        Some((gpu, _)) if done == 0 => {
                            let reason = HSA_AMD_MEMORY_FAULT_PAGE_NOT_PRESENT;
                            let address = address & !(PAGE - 1);
                            return Err(Failure::Fault(MemoryFault { gpu, address, reason }));
                        }
                        None if done == 0 => {
                            return Err(Failure::Status(HSA_STATUS_ERROR));
                        }
                        _ => done,
                    }
                }
            };
            address += done;
            buffer = &mut buffer[done..];
        }
        Ok(())
    }

    fn copy_memory(
        &self,
        accessor: Accessor,
        destination: usize,
        source: usize,
        size: usize,
    ) -> Result<(), Failure> {
        if size == 0 {
            return Ok(());
        }
        let size = self.affected_size(size);
        let mut buffer = vec![0; size.min(CHUNK_SIZE)];
        let mut done = 0;
        while done < size {
            let length = (size - done).min(CHUNK_SIZE);
            self.access_memory(accessor, Direction::Read, source + done, &mut buffer[..length])?;
            self.access_memory(
                accessor,
                Direction::Write,
                destination + done,
                &mut buffer[..length],
            )?;
            done += length;
        }
        self.garble(accessor, destination)
    }

    /// Flips one bit, if the call has the fault `garbled`.
    fn garble(&self, accessor: Accessor, address: usize) -> Result<(), Failure> {
        if !self.has_fault(FaultKind::Garbled) {
            return Ok(());
        }
        let mut byte = [0];
        self.access_memory(accessor, Direction::Read, address, &mut byte)?;
        byte[0] ^= 1;
        self.access_memory(accessor, Direction::Write, address, &mut byte)
    }
}

/// Returns the start of a range. Rejects a null pointer, and a range that wraps around.
fn checked_start(address: *const c_void, size: usize) -> HsaResult<usize> {
    let start = address.addr();
    let wraps = start.checked_add(size).is_none();
    if start == 0 || wraps { Err(HSA_STATUS_ERROR_INVALID_ARGUMENT) } else { Ok(start) }
}

/// `hsa_memory_copy`
pub(crate) fn copy(
    instance: &Instance,
    destination: *mut c_void,
    source: *const c_void,
    size: usize,
) -> HsaResult {
    let (destination, source) = (checked_start(destination, size)?, checked_start(source, size)?);
    let accessor = instance.lock().accessor_of(instance.behaviour, destination, Some(source));
    let copied = instance.copy_memory(accessor, destination, source, size);
    copied.map_err(|failure| failure.into_status(instance))
}

/// `hsa_amd_memory_fill`
pub(crate) fn fill(
    instance: &Instance,
    address: *mut c_void,
    value: u32,
    count: usize,
) -> HsaResult {
    let size = count.checked_mul(4).ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
    let start = checked_start(address, size)?;
    if !start.is_multiple_of(4) {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    if count == 0 {
        return Ok(());
    }
    let state = instance.lock();
    if !instance.behaviour.fills_virtual_memory() && state.reservation_at(start).is_some() {
        return Err(HSA_STATUS_ERROR_INVALID_ALLOCATION);
    }
    let accessor = state.accessor_of(instance.behaviour, start, None);
    drop(state);
    let size = instance.affected_size(size);
    let mut buffer = value.to_ne_bytes().repeat(count.min(CHUNK_SIZE / 4));
    let mut done = 0;
    while done < size {
        let length = (size - done).min(CHUNK_SIZE);
        let part = &mut buffer[..length];
        let filled = instance.access_memory(accessor, Direction::Write, start + done, part);
        filled.map_err(|failure| failure.into_status(instance))?;
        done += length;
    }
    instance.garble(accessor, start).map_err(|failure| failure.into_status(instance))
}

/// `hsa_amd_memory_async_copy`
///
/// # Safety
/// `dependencies` must be null or point at `dependency_count` signals. The memory must stay valid
/// until the completion signal is decremented or negative.
#[allow(clippy::too_many_arguments)] // HSA defines the signature
pub(crate) unsafe fn copy_async(
    instance: &Arc<Instance>,
    destination: *mut c_void,
    destination_agent: hsa_agent_t,
    source: *const c_void,
    source_agent: hsa_agent_t,
    size: usize,
    dependency_count: u32,
    dependencies: *const hsa_signal_t,
    completion: hsa_signal_t,
) -> HsaResult {
    let (destination, source) = (checked_start(destination, size)?, checked_start(source, size)?);
    if dependency_count > 0 && dependencies.is_null() {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    let agents = [instance.agent(destination_agent)?, instance.agent(source_agent)?];
    let find = |signal| instance.signals.get(signal).ok_or(HSA_STATUS_ERROR_INVALID_SIGNAL);
    let dependencies = (0..dependency_count as usize)
        // SAFETY: the caller promises `dependency_count` signals; `read_unaligned` needs no alignment.
        .map(|index| find(unsafe { dependencies.add(index).read_unaligned() }))
        .collect::<HsaResult<Vec<Arc<Signal>>>>()?;
    let completion = find(completion)?;
    if size == 0 {
        // AMD's runtime does nothing and does not change the signal.
        return Ok(());
    }
    let gpu = agents.into_iter().find_map(|agent| match agent {
        Agent::Gpu(number) => Some(number),
        Agent::Cpu(_) => None,
    });
    let accessor = gpu.map_or(Accessor::Process, Accessor::Gpu);
    // Records the effect here, because the thread of the copy does not know the rule of the fault.
    instance.change_call(FaultKind::Half);
    let (instance, planned) = (Arc::clone(instance), hsa_faults::current_fault());
    let work = move || {
        for dependency in &dependencies {
            dependency.wait(&instance, |value| value == 0, None);
        }
        if instance.config.early_waits {
            completion.wait_until_read(&instance);
        }
        if instance.is_dropped() {
            completion.update(|_| -1);
            return;
        }
        let copy = || instance.copy_memory(accessor, destination, source, size);
        let copied = hsa_faults::with_fault(planned, copy);
        let copied = copied.map_err(|failure| failure.into_status(&instance)).is_ok();
        completion.update(|value| if copied { value.wrapping_sub(1) } else { -1 });
    };
    // Copy in a separate thread, because the copy may depend on a copy that is submitted later.
    thread::spawn("hsa-sim copy", work)
}
