//! Fabric handles: values of 16 bytes by which physical memory is exported and imported.
//!
//! A fabric handle contains a process id, a descriptor number and the memory's token. An import
//! opens this descriptor in the same way as the import of an IPC handle (`ipc`). The simulated fabric
//! connects only the processes of one machine. As with real fabrics, a fabric handle does not keep
//! the memory allocated.

use crate::handles::{Content, Handle};
use crate::instance::Instance;
use crate::ipc::open_memory_file;
use crate::status::{HsaResult, file_error_status, non_null};
use hsa_sys::*;
use std::os::fd::AsRawFd;

impl Instance {
    /// Returns whether memory can be exported as fabric handles.
    pub(crate) fn has_fabric(&self) -> bool {
        self.behaviour.has_fabric() && self.config.fabric
    }
}

/// `hsa_amd_vmem_export_fabric_handle`
///
/// # Safety
/// `fabric` must be null or writable.
pub(crate) unsafe fn export(
    instance: &Instance,
    fabric: *mut hsa_fabric_handle_t,
    handle: hsa_amd_vmem_alloc_handle_t,
    _flags: u64,
) -> HsaResult {
    let fabric = non_null(fabric)?;
    let mut state = instance.lock();
    let entry = state.handles.get(handle.handle).ok_or(HSA_STATUS_ERROR_INVALID_ALLOCATION)?;
    if !instance.has_fabric() {
        return Err(HSA_STATUS_ERROR_NOT_SUPPORTED);
    }
    if entry.imported {
        return Err(HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS);
    }
    let memory = instance.resolve(&mut state, handle.handle).ok_or(HSA_STATUS_ERROR)?;
    let descriptor = memory.file().map_err(|error| file_error_status(&error))?.as_raw_fd();
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&std::process::id().to_ne_bytes());
    bytes[4..8].copy_from_slice(&(descriptor as u32).to_ne_bytes());
    bytes[8..].copy_from_slice(&memory.token.to_ne_bytes());
    state.shared_memory.insert(&memory);
    // SAFETY: not null, therefore writable (`# Safety`).
    unsafe { fabric.write_unaligned(hsa_fabric_handle_t { handle: bytes }) };
    Ok(())
}

/// `hsa_amd_vmem_import_fabric_handle`
///
/// # Safety
/// `handle` must be null or writable.
pub(crate) unsafe fn import(
    instance: &Instance,
    fabric: hsa_fabric_handle_t,
    handle: *mut hsa_amd_vmem_alloc_handle_t,
) -> HsaResult {
    let handle = non_null(handle)?;
    if !instance.has_fabric() {
        return Err(HSA_STATUS_ERROR_NOT_SUPPORTED);
    }
    let number = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| fabric.handle[at + byte]));
    let token = u64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|byte| fabric.handle[8 + byte]));
    let found = open_memory_file(number(0), number(4), token);
    let (file, _) = found.ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
    let imported = Handle {
        content: Content::Unresolved(file.into()),
        pool: 0,
        memory_type: MEMORY_TYPE_NONE,
        imported: true,
        references: 1,
        mapping_count: 0,
        exported: None,
    };
    let value = instance.lock().handles.insert(imported, 0);
    // SAFETY: not null, therefore writable (`# Safety`).
    unsafe { handle.write(hsa_amd_vmem_alloc_handle_t { handle: value }) };
    Ok(())
}
