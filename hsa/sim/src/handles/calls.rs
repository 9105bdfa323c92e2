//! The calls on handles: create, release, retain, query.

use crate::address_space::PAGE;
use crate::agents::Agent;
use crate::handles::{Content, Handle};
use crate::instance::{Instance, State};
use crate::physical::Memory;
use crate::share;
use crate::status::{HsaResult, non_null};
use core::ffi::c_void;
use hsa_faults::FaultKind;
use hsa_sys::*;

/// `hsa_amd_vmem_handle_create`
///
/// # Safety
/// `handle` must be null or writable.
pub(crate) unsafe fn create(
    instance: &Instance,
    pool: hsa_amd_memory_pool_t,
    size: usize,
    memory_type: hsa_amd_memory_type_t,
    flags: u64,
    handle: *mut hsa_amd_vmem_alloc_handle_t,
) -> HsaResult {
    let handle = non_null(handle)?;
    let has_unknown_flags = flags & !u64::from(HSA_AMD_MEMORY_POOL_UNCACHED_FLAG) != 0;
    if has_unknown_flags && instance.behaviour.rejects_unknown_flags() {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    let valid_type = matches!(memory_type, MEMORY_TYPE_NONE | MEMORY_TYPE_PINNED);
    if size == 0 || !instance.config.vmem || !valid_type {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    let behaviour = instance.behaviour;
    let pool = instance.pool(pool).ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
    let is_video_memory = pool.allocates() && matches!(pool.owner, Agent::Gpu(_));
    if behaviour.create_checks_pool_first() && !is_video_memory {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    let size = size as u64;
    if !size.is_multiple_of(instance.granule(pool).max(PAGE as u64)) {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    if !pool.allocates() {
        return Err(HSA_STATUS_ERROR_INVALID_ALLOCATION);
    }
    if size > instance.pool_size(pool) {
        return Err(HSA_STATUS_ERROR_INVALID_ALLOCATION);
    }
    if let Agent::Cpu(_) = pool.owner {
        if !behaviour.supports_cpu_memory() {
            return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
        }
        // AMD's runtime needs a GPU, because it maps the CPU's memory in the GPU's page table.
        if instance.config.gpus.is_empty() {
            return Err(HSA_STATUS_ERROR_OUT_OF_RESOURCES);
        }
    }
    let content = match instance.claim(pool.owner, size) {
        Some(claim) => Content::Memory(Memory::new(size, pool.owner, claim)),
        None if behaviour.create_succeeds_without_memory() => Content::Missing,
        None => return Err(HSA_STATUS_ERROR_OUT_OF_RESOURCES),
    };
    if behaviour.descriptor_per_handle()
        && let Content::Memory(memory) = &content
    {
        memory.file().map_err(|_| HSA_STATUS_ERROR_OUT_OF_RESOURCES)?;
    }
    let created = Handle {
        content,
        pool: instance.pool_handle(pool).handle,
        memory_type,
        imported: false,
        references: 1,
        mapping_count: 0,
        exported: None,
    };
    let mut state = instance.lock();
    let value = match created.content {
        Content::Missing => state.handles.insert_without_memory(created),
        _ => state.handles.insert(created, size),
    };
    // SAFETY: not null, therefore writable (`# Safety`).
    unsafe { handle.write(hsa_amd_vmem_alloc_handle_t { handle: value }) };
    Ok(())
}

impl State {
    /// Removes a handle and frees its memory, if the handle has neither references nor mappings.
    pub(crate) fn remove_if_unused(&mut self, handle: u64) {
        if let Some(handle) = self.handles.remove_unused(handle) {
            share::close_exported(&handle);
        }
    }
}

/// `hsa_amd_vmem_handle_release`
pub(crate) fn release(instance: &Instance, handle: hsa_amd_vmem_alloc_handle_t) -> HsaResult {
    let mut state = instance.lock();
    let entry = state.handles.get_mut(handle.handle);
    let entry = entry.filter(|handle| handle.references > 0);
    let entry = entry.ok_or(HSA_STATUS_ERROR_INVALID_ALLOCATION)?;
    entry.references -= 1;
    let leaked = entry.memory().filter(|_| instance.has_fault(FaultKind::Leak)).cloned();
    state.leaked_memory.extend(leaked);
    state.remove_if_unused(handle.handle);
    Ok(())
}

/// `hsa_amd_vmem_retain_alloc_handle`
///
/// # Safety
/// `handle` must be null or writable.
pub(crate) unsafe fn retain(
    instance: &Instance,
    handle: *mut hsa_amd_vmem_alloc_handle_t,
    address: *mut c_void,
) -> HsaResult {
    let handle = non_null(handle)?;
    let address = non_null(address)?.addr().get();
    let mut state = instance.lock();
    let mapping = state.mappings.get(&address).ok_or(HSA_STATUS_ERROR_INVALID_ALLOCATION)?;
    let value = mapping.handle;
    let entry = state.handles.get_mut(value).ok_or(HSA_STATUS_ERROR_INVALID_ALLOCATION)?;
    entry.references += 1;
    // SAFETY: not null, therefore writable (`# Safety`).
    unsafe { handle.write(hsa_amd_vmem_alloc_handle_t { handle: value }) };
    Ok(())
}

/// `hsa_amd_vmem_get_alloc_properties_from_handle`
///
/// # Safety
/// `pool` and `memory_type` must be null or writable.
pub(crate) unsafe fn properties(
    instance: &Instance,
    handle: hsa_amd_vmem_alloc_handle_t,
    pool: *mut hsa_amd_memory_pool_t,
    memory_type: *mut hsa_amd_memory_type_t,
) -> HsaResult {
    let (pool, memory_type) = (non_null(pool)?, non_null(memory_type)?);
    let state = instance.lock();
    let entry = state.handles.get(handle.handle).ok_or(HSA_STATUS_ERROR_INVALID_ALLOCATION)?;
    // SAFETY: not null, therefore writable (`# Safety`).
    unsafe {
        pool.write(hsa_amd_memory_pool_t { handle: entry.pool });
        memory_type.write(entry.memory_type);
    }
    Ok(())
}
