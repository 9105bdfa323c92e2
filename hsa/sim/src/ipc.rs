//! Sharing pool memory with other processes, by IPC handles and by descriptors.
//!
//! An IPC handle contains a process id, a descriptor number, and the memory's length and token (a
//! random number). The importer opens that descriptor through `/proc`, and compares the handle's token with the token
//! in the file's name. If the tokens differ, the handle is stale. No call waits for the other process.

use crate::agents::Agent;
use crate::instance::Instance;
use crate::physical::{self, ExportedMemory, Memory};
use crate::pool_memory::{Allocation, AllocationKind, CallerData, unmap};
use crate::status::{HsaResult, file_error_status, non_null};
use core::ffi::{c_int, c_void};
use hsa_sys::*;
use std::fs::File;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::Arc;

/// The last word of every IPC handle: "hsim" in ASCII.
const MAGIC: u32 = 0x6873_696d;

/// The kind of object that an IPC handle refers to. The second to last word of the handle contains
/// the kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SharedObject {
    Allocation = 0,
    #[cfg(feature = "export")]
    Signal = 1,
}

/// Returns the IPC handle of memory.
pub(crate) fn handle_of(
    memory: &Memory,
    length: u64,
    object: SharedObject,
) -> HsaResult<hsa_amd_ipc_memory_t> {
    let descriptor = memory.file().map_err(|error| file_error_status(&error))?.as_raw_fd();
    let token = memory.token;
    let words = [
        std::process::id(),
        descriptor as u32,
        token as u32,
        (token >> 32) as u32,
        length as u32,
        (length >> 32) as u32,
        object as u32,
        MAGIC,
    ];
    Ok(hsa_amd_ipc_memory_t { handle: words })
}

/// `hsa_amd_ipc_memory_create`
///
/// # Safety
/// `handle` must be null or writable.
pub(crate) unsafe fn create(
    instance: &Instance,
    address: *mut c_void,
    length: usize,
    handle: *mut hsa_amd_ipc_memory_t,
) -> HsaResult {
    let handle = non_null(handle)?;
    let state = instance.lock();
    let allocation = state.allocations.get(&address.addr());
    // Only whole allocations can be shared.
    let allocation = allocation
        .filter(|allocation| allocation.kind == AllocationKind::Pool && allocation.size == length);
    let memory = allocation.and_then(|allocation| allocation.memory.as_ref());
    let memory = memory.ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
    let found = handle_of(memory, length as u64, SharedObject::Allocation)?;
    // SAFETY: not null, therefore writable (`# Safety`).
    unsafe { handle.write(found) };
    Ok(())
}

/// `hsa_amd_ipc_memory_attach`
///
/// # Safety
/// `handle` must be null or readable. `agents` must be null or point at `count` agents. `address`
/// must be null or writable.
pub(crate) unsafe fn attach(
    instance: &Instance,
    handle: *const hsa_amd_ipc_memory_t,
    length: usize,
    count: u32,
    agents: *const hsa_agent_t,
    address: *mut *mut c_void,
) -> HsaResult {
    let handle = non_null(handle.cast_mut())?;
    let address = non_null(address)?;
    if length == 0 || (count > 0 && agents.is_null()) {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    let agents = if count == 0 {
        instance.agents().filter(|agent| matches!(agent, Agent::Gpu(_))).collect()
    } else {
        // SAFETY: the caller promises `count` agents.
        unsafe { instance.agents_of(agents, count as usize)? }
    };
    // SAFETY: not null, therefore readable (`# Safety`).
    let words = unsafe { handle.read_unaligned() }.handle;
    if !instance.config.accepts_any_ipc_length && length as u64 != length_of(words) {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    let memory = open(instance, words, SharedObject::Allocation);
    let memory = memory.ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
    let start = attach_memory(instance, memory, length, agents)?;
    // SAFETY: not null, therefore writable (`# Safety`).
    unsafe { address.write(core::ptr::without_provenance_mut(start)) };
    Ok(())
}

/// Maps memory of another process, or of a descriptor. Returns the address of the mapping.
pub(crate) fn attach_memory(
    instance: &Instance,
    memory: Arc<Memory>,
    length: usize,
    agents: Vec<Agent>,
) -> HsaResult<usize> {
    let start = instance.map_memory(&memory)?;
    let attached = Allocation {
        kind: AllocationKind::Attached,
        size: length,
        owner: memory.owner,
        flags: HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED,
        memory: Some(memory),
        agents,
        caller_data: CallerData::default(),
    };
    instance.lock().allocations.insert(start, attached);
    Ok(start)
}

/// Returns the length of the exported allocation from the words of an IPC handle.
fn length_of(words: [u32; 8]) -> u64 {
    u64::from(words[5]) << 32 | u64::from(words[4])
}

/// Opens the memory of an IPC handle, if the memory still exists.
pub(crate) fn open(
    instance: &Instance,
    words: [u32; 8],
    object: SharedObject,
) -> Option<Arc<Memory>> {
    let [process, descriptor, low, high, _, _, kind, MAGIC] = words else { return None };
    if kind != object as u32 {
        return None;
    }
    let token = u64::from(high) << 32 | u64::from(low);
    let (file, exported) = open_memory_file(process, descriptor, token)?;
    let is_valid = length_of(words) <= exported.size && instance.has_agent(exported.owner);
    is_valid.then(|| Memory::adopt(exported, file))
}

/// Opens the file that a process's descriptor refers to, if the file contains the memory with this token.
pub(crate) fn open_memory_file(
    process: u32,
    descriptor: u32,
    token: u64,
) -> Option<(File, ExportedMemory)> {
    let path = format!("/proc/{process}/fd/{descriptor}");
    // Open only memory files: opening a pipe could block forever.
    let name = std::fs::read_link(&path).ok()?;
    if !name.to_str()?.contains(&format!("{token:016x}")) {
        return None;
    }
    let file = physical::open_memory(path).ok()?;
    let exported = physical::recognise(file.as_raw_fd()).filter(|info| info.token == token)?;
    Some((file, exported))
}

/// `hsa_amd_ipc_memory_detach`
///
/// # Safety
/// The memory must no longer be in use.
pub(crate) unsafe fn detach(instance: &Instance, address: *mut c_void) -> HsaResult {
    let mut state = instance.lock();
    let allocation = state.allocations.get(&address.addr());
    if allocation.is_none_or(|allocation| allocation.kind != AllocationKind::Attached) {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    if let Some(attached) = state.allocations.remove(&address.addr()) {
        unmap(address.addr(), &attached);
    }
    Ok(())
}

/// `hsa_amd_portable_export_dmabuf`
///
/// # Safety
/// `dmabuf` and `offset` must be null or writable.
pub(crate) unsafe fn export_dmabuf(
    instance: &Instance,
    address: *const c_void,
    size: usize,
    dmabuf: *mut c_int,
    offset: *mut u64,
) -> HsaResult {
    let (dmabuf, offset) = (non_null(dmabuf)?, non_null(offset)?);
    if address.is_null() || size == 0 {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    let mut state = instance.lock();
    let (start, allocation) =
        state.allocation_at(address.addr()).ok_or(HSA_STATUS_ERROR_INVALID_ALLOCATION)?;
    let offset_in_allocation = address.addr() - start;
    if size > allocation.extent() - offset_in_allocation {
        return Err(HSA_STATUS_ERROR_INVALID_ALLOCATION);
    }
    let memory = allocation.memory.clone().ok_or(HSA_STATUS_ERROR_INVALID_ALLOCATION)?;
    if let Agent::Cpu(_) = memory.owner {
        return Err(HSA_STATUS_ERROR_INVALID_AGENT);
    }
    let descriptor = instance.export(&memory).map_err(|error| file_error_status(&error))?;
    state.shared_memory.insert(&memory);
    // SAFETY: not null, therefore writable (`# Safety`).
    unsafe {
        dmabuf.write(descriptor.into_raw_fd());
        offset.write(offset_in_allocation as u64);
    }
    Ok(())
}

/// `hsa_amd_portable_export_dmabuf_v2`
///
/// # Safety
/// `dmabuf` and `offset` must be null or writable.
pub(crate) unsafe fn export_dmabuf_v2(
    instance: &Instance,
    address: *const c_void,
    size: usize,
    dmabuf: *mut c_int,
    offset: *mut u64,
    _flags: u64,
) -> HsaResult {
    // SAFETY: both functions have the same contract.
    unsafe { export_dmabuf(instance, address, size, dmabuf, offset) }
}

/// `hsa_amd_portable_close_dmabuf`
pub(crate) fn close_dmabuf(_: &Instance, dmabuf: c_int) -> HsaResult {
    // SAFETY: the caller passes ownership of the descriptor; `close` rejects an invalid one.
    if unsafe { libc::close(dmabuf) } == 0 { Ok(()) } else { Err(HSA_STATUS_ERROR_RESOURCE_FREE) }
}
