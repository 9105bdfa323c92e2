//! Export and import of handles as file descriptors, between processes or within one.

use crate::handles::{Content, Handle};
use crate::instance::{Instance, State};
use crate::physical::{self, Memory};
use crate::status::{HsaResult, file_error_status, non_null};
use core::ffi::c_int;
use hsa_sys::*;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Weak};

/// The only flag of exports: `HSA_AMD_DMABUF_MAPPING_TYPE_PCIE`.
const DMABUF_MAPPING_TYPE_PCIE: u64 = 1;

/// Live memory that was exported or imported. An import of memory in this map returns the same
/// [`Memory`] again. The memory therefore counts only once as used memory of the GPU, and holds one
/// descriptor.
#[derive(Debug, Default)]
pub(crate) struct SharedMemory {
    memory_by_token: HashMap<u64, Weak<Memory>>,
    /// When the map has this number of entries, `insert` removes the entries of freed memory.
    cleanup_threshold: usize,
}

impl SharedMemory {
    pub(crate) fn insert(&mut self, memory: &Arc<Memory>) {
        if self.memory_by_token.len() >= self.cleanup_threshold {
            self.memory_by_token.retain(|_, memory| memory.strong_count() > 0);
            self.cleanup_threshold = self.memory_by_token.len() * 2 + 64;
        }
        self.memory_by_token.insert(memory.token, Arc::downgrade(memory));
    }

    /// Finds or opens the memory of a descriptor.
    fn find(&mut self, instance: &Instance, descriptor: RawFd) -> Result<Arc<Memory>, ImportError> {
        let exported = physical::recognise(descriptor).ok_or(ImportError::NotMemory)?;
        if !instance.has_agent(exported.owner) {
            return Err(ImportError::UnknownOwner);
        }
        let file = physical::reopen(descriptor).map_err(|_| ImportError::NoDescriptor)?;
        let has_file = |memory: &Arc<Memory>| {
            memory.existing_file().is_some_and(|existing| is_same_file(existing, &file))
        };
        let live = self.memory_by_token.get(&exported.token).and_then(Weak::upgrade);
        if let Some(memory) = live.filter(has_file) {
            return Ok(memory);
        }
        let memory = Memory::adopt(exported, file);
        self.insert(&memory);
        Ok(memory)
    }
}

impl State {
    /// Returns the exported or imported memory of a descriptor. Opens no descriptor.
    pub(crate) fn memory_of_descriptor(&self, descriptor: RawFd) -> Option<Arc<Memory>> {
        let token = physical::recognise(descriptor)?.token;
        self.shared_memory.memory_by_token.get(&token)?.upgrade()
    }
}

/// Why a descriptor cannot be imported.
enum ImportError {
    /// The descriptor does not refer to memory of a simulation.
    NotMemory,
    /// The owner of the memory is not an agent of this runtime.
    UnknownOwner,
    /// The descriptor cannot be duplicated: no free descriptor is left.
    NoDescriptor,
}

fn is_same_file(first: &File, second: &File) -> bool {
    let identity = |file: &File| file.metadata().ok().map(|data| (data.dev(), data.ino()));
    identity(first).is_some() && identity(first) == identity(second)
}

impl Instance {
    /// Returns a handle's memory. If the handle is a lazy import, resolves it first.
    pub(crate) fn resolve(&self, state: &mut State, handle: u64) -> Option<Arc<Memory>> {
        let State { handles, shared_memory, .. } = state;
        let handle = handles.get_mut(handle)?;
        let descriptor = match &handle.content {
            Content::Memory(memory) => return Some(Arc::clone(memory)),
            Content::Unresolved(descriptor) => std::os::fd::AsRawFd::as_raw_fd(descriptor),
            Content::Borrowed(descriptor) => *descriptor,
            Content::Missing => return None,
        };
        let memory = shared_memory.find(self, descriptor).ok()?;
        handle.content = Content::Memory(Arc::clone(&memory));
        Some(memory)
    }
}

/// `hsa_amd_vmem_export_shareable_handle`
///
/// # Safety
/// `dmabuf` must be null or writable.
pub(crate) unsafe fn export(
    instance: &Instance,
    dmabuf: *mut c_int,
    handle: hsa_amd_vmem_alloc_handle_t,
    flags: u64,
) -> HsaResult {
    let dmabuf = non_null(dmabuf)?;
    let has_unknown_flags = flags & !DMABUF_MAPPING_TYPE_PCIE != 0;
    if has_unknown_flags && instance.behaviour.rejects_unknown_flags() {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    // SAFETY: not null, therefore writable (`# Safety`).
    unsafe { dmabuf.write(-1) };
    let mut state = instance.lock();
    let entry = state.handles.get(handle.handle).ok_or(HSA_STATUS_ERROR_INVALID_ALLOCATION)?;
    if entry.imported && !instance.behaviour.can_export_imports() {
        return Err(HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS);
    }
    let descriptor = match entry.exported {
        // The caller may have closed this descriptor.
        Some(descriptor) => descriptor,
        None if matches!(entry.content, Content::Missing) => {
            return Err(HSA_STATUS_ERROR_OUT_OF_RESOURCES);
        }
        None => {
            let memory = instance.resolve(&mut state, handle.handle).ok_or(HSA_STATUS_ERROR)?;
            let descriptor = instance.export(&memory).map_err(|error| file_error_status(&error))?;
            state.shared_memory.insert(&memory);
            descriptor.into_raw_fd()
        }
    };
    if instance.behaviour.export_repeats_descriptor()
        && let Some(handle) = state.handles.get_mut(handle.handle)
    {
        handle.exported = Some(descriptor);
    }
    // SAFETY: not null, therefore writable (`# Safety`).
    unsafe { dmabuf.write(descriptor) };
    Ok(())
}

/// Closes the descriptor that a handle keeps for its exports, if it still refers to the handle's memory.
/// AMD's runtime closes the descriptor's number without a check.
pub(crate) fn close_exported(handle: &Handle) {
    let (Some(descriptor), Some(memory)) = (handle.exported, handle.memory()) else { return };
    if physical::recognise(descriptor).is_some_and(|exported| exported.token == memory.token) {
        // SAFETY: the runtime has created the descriptor and owns it. The token shows that the
        // number does not refer to another file.
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    }
}

/// `hsa_amd_vmem_import_shareable_handle`
///
/// # Safety
/// `handle` must be null or writable.
pub(crate) unsafe fn import(
    instance: &Instance,
    dmabuf: c_int,
    handle: *mut hsa_amd_vmem_alloc_handle_t,
) -> HsaResult {
    let handle = non_null(handle)?;
    if dmabuf < 0 {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    if !instance.is_initialised() {
        return Err(HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS);
    }
    let behaviour = instance.behaviour;
    let mut state = instance.lock();
    let content = if behaviour.import_borrows_descriptor() {
        Content::Borrowed(dmabuf)
    } else if behaviour.imports_lazily() {
        if behaviour.import_checks_size() && physical::size_of(dmabuf).is_none_or(|size| size == 0)
        {
            return Err(HSA_STATUS_ERROR);
        }
        let duplicate = physical::duplicate(dmabuf);
        Content::Unresolved(duplicate.map_err(|_| HSA_STATUS_ERROR_OUT_OF_RESOURCES)?)
    } else {
        let memory = state.shared_memory.find(instance, dmabuf);
        Content::Memory(memory.map_err(|error| match error {
            ImportError::NotMemory => HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS,
            ImportError::UnknownOwner => HSA_STATUS_ERROR_INVALID_ALLOCATION,
            ImportError::NoDescriptor => HSA_STATUS_ERROR_OUT_OF_RESOURCES,
        })?)
    };
    let (pool, size) = match &content {
        Content::Memory(memory) if !behaviour.imports_have_no_pool() => {
            let pool = instance.pool_of_imports(memory.owner);
            (pool.map_or(0, |pool| instance.pool_handle(pool).handle), memory.size)
        }
        _ => (0, 0),
    };
    let imported = Handle {
        content,
        pool,
        memory_type: MEMORY_TYPE_NONE,
        imported: true,
        references: 1,
        mapping_count: 0,
        exported: None,
    };
    let value = state.handles.insert(imported, size);
    // SAFETY: not null, therefore writable (`# Safety`).
    unsafe { handle.write(hsa_amd_vmem_alloc_handle_t { handle: value }) };
    Ok(())
}
