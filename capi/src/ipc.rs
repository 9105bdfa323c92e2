//! HIP's functions for IPC.

use crate::allocations::{OpenedEntry, next_buffer_id};
use crate::devices::current_device;
use crate::errors;
use crate::pointers::{address, not_null, write_out};
use crate::process::{process, profile};
use crate::status::{Failure, run};
use crate::types::{hipError_t, hipIpcMemHandle_t};
use core::ffi::{c_uint, c_void};
use hsa_vmm::error::Rejected;
use hsa_vmm::hip::HipProfile;
use hsa_vmm::ipc::{IpcHandle, OpenedMemory};
use hsa_vmm::{Error, ErrorKind};
use std::sync::Arc;

#[unsafe(no_mangle)]
unsafe extern "C" fn hipIpcGetMemHandle(
    handle: *mut hipIpcMemHandle_t,
    ptr: *mut c_void,
) -> hipError_t {
    run("hipIpcGetMemHandle", || {
        let process = process()?;
        not_null("handle", handle)?;
        let exported = process.ipc(current_device())?.get_mem_handle(address(ptr))?;
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("handle", handle, hipIpcMemHandle_t { reserved: exported.to_bytes() }) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipIpcOpenMemHandle(
    ptr: *mut *mut c_void,
    handle: hipIpcMemHandle_t,
    flags: c_uint,
) -> hipError_t {
    run("hipIpcOpenMemHandle", || {
        let process = process()?;
        not_null("ptr", ptr)?;
        // HIP requires this flag, and hip-tests checks that other values are rejected.
        if flags != hsa_vmm::ipc::LAZY_ENABLE_PEER_ACCESS {
            let problem = format!("({flags:#x}) must be hipIpcMemLazyEnablePeerAccess");
            return Err(Failure::invalid_argument("flags", problem));
        }
        let handle = IpcHandle::from_bytes(&handle.reserved);
        let device = current_device();
        let ipc = process.ipc(device)?;
        // As in HIP, the memory starts at the start of the allocation, and not at the address in the handle.
        let memory = OpenedMemory::open_allocation(ipc, &handle)
            .map_err(|error| describe_open_error(error, &handle))?;
        let at = memory.address();
        // The lock is taken only now, because opening can wait for the exporter, and other threads need the lock to
        // look up addresses.
        let mut opened = process.allocations.opened();
        let empty = || OpenedEntry { device, buffer_id: next_buffer_id(), memory: Vec::new() };
        let entry = opened.entry(at.get()).or_insert_with(empty);
        entry.device = device;
        entry.memory.push(Arc::new(memory));
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("ptr", ptr, at.as_ptr()) }
    })
}

/// Converts the error of opening a handle. Replaces the message if the handle's bytes show a more precise reason.
fn describe_open_error(error: Error, handle: &IpcHandle) -> Failure {
    let mut failure = Failure::from(error.clone());
    // HIP checks only that the size is not 0. HIP 6 then returns the error of the runtime's call.
    if profile() == HipProfile::Hip6
        && handle.allocation_size != 0
        && matches!(error.kind(), ErrorKind::InvalidArgument { .. })
    {
        failure.code = errors::INVALID_DEVICE_POINTER;
    }
    let message = match error.kind() {
        ErrorKind::InvalidArgument { .. } if !handle.is_plausible() => {
            "`handle`: the 64 bytes are not an IPC handle, or were modified"
        }
        ErrorKind::SameProcess if handle.is_freed() => {
            "`handle`: the memory belonged to this process and was freed, or the handle was modified"
        }
        _ => return failure,
    };
    Failure::new(failure.code, message)
}

#[unsafe(no_mangle)]
extern "C" fn hipIpcCloseMemHandle(ptr: *mut c_void) -> hipError_t {
    run("hipIpcCloseMemHandle", || {
        let process = process()?;
        not_null("ptr", ptr)?;
        let mut opened = process.allocations.opened();
        // As in HIP, `ptr` may be any address inside the memory.
        let entry = opened.range_mut(..=address(ptr).get()).next_back();
        let entry = entry.filter(|(start, entry)| address(ptr).get() - **start < entry.size());
        let Some((&at, entry)) = entry else {
            // `close_mem_handle` fails for this address, and its error describes the address.
            return Ok(process.ipc(current_device())?.close_mem_handle(address(ptr))?);
        };
        let (device, buffer_id) = (entry.device, entry.buffer_id);
        let last = entry.memory.pop();
        if entry.memory.is_empty() {
            opened.remove(&at);
        }
        // A running copy in another thread keeps the memory open until the copy ends.
        match last.map(Arc::try_unwrap) {
            Some(Ok(memory)) => memory.close().map_err(|Rejected { value: memory, error }| {
                let empty = || OpenedEntry { device, buffer_id, memory: Vec::new() };
                opened.entry(at).or_insert_with(empty).memory.push(Arc::new(memory));
                Failure::from(error)
            }),
            _ => Ok(()),
        }
    })
}
