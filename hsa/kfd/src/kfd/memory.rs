//! Allocates memory, and maps it for GPUs at the address of the allocation.

use super::abi::{Alloc, Free, Map, flags};
use super::mmap::{self, Window};
use super::process::{KfdMemory, State};
use super::windows::DOORBELLS_SIZE;
use crate::driver::Driver;
use crate::errno::{EBUSY, EINVAL, ENOMEM, Result};
use crate::page_table::{EXECUTABLE, Entry, PAGE, READABLE, WRITABLE};
use crate::user;
use hsa_faults::FaultKind;
use std::collections::BTreeSet;

/// The maximum size of an allocation. No machine has more memory.
const MAX_SIZE: u64 = 1 << 48;

/// Splits a handle into the GPU's index and the number of the memory on that GPU.
pub(super) fn split_handle(driver: &Driver, handle: u64) -> Result<(usize, u32)> {
    Ok((driver.gpu((handle >> 32) as u32)?, handle as u32))
}

pub(super) fn insert_memory(driver: &Driver, state: &mut State, memory: KfdMemory) -> u64 {
    let gpu = memory.gpu;
    let number = state.memories[gpu].insert(memory);
    u64::from(driver.gpus[gpu].id) << 32 | u64::from(number)
}

pub(crate) fn alloc(driver: &Driver, alloc: &mut Alloc) -> Result<()> {
    if alloc.size == 0 {
        return Err(EINVAL);
    }
    let gpu = driver.gpu(alloc.gpu_id)?;
    let visible = flags::VRAM | flags::PUBLIC;
    if alloc.flags & visible == visible && !driver.config.profile.large_bar {
        return Err(EINVAL);
    }
    let mut state = driver.process.state();
    state.drm_file(gpu)?;
    let size = alloc.size.checked_next_multiple_of(PAGE).filter(|size| *size <= MAX_SIZE);
    let size = size.ok_or(ENOMEM)?;
    // For user memory, `alloc.offset` is the address of the memory in the process.
    let user_address = if alloc.flags & flags::KINDS == flags::USERPTR { alloc.offset } else { 0 };
    let create = |claim| driver.buffers.create(gpu, alloc.flags, size, claim);
    let buffer = match alloc.flags & flags::KINDS {
        flags::VRAM => {
            let buffer = create(driver.gpus[gpu].vram.claim(size)?)?;
            alloc.offset = buffer.offset;
            Some(buffer)
        }
        flags::GTT => {
            let buffer = create(driver.gtt.claim(size)?)?;
            alloc.offset = buffer.offset;
            Some(buffer)
        }
        flags::USERPTR if alloc.offset != 0 && alloc.offset.is_multiple_of(PAGE) => {
            user::check_writable(alloc.offset, size)?;
            None
        }
        flags::DOORBELL if alloc.size == DOORBELLS_SIZE => {
            alloc.offset = mmap::offset(Window::Doorbells, alloc.gpu_id);
            None
        }
        flags::MMIO_REMAP if alloc.size == PAGE => {
            alloc.offset = mmap::offset(Window::Registers, alloc.gpu_id);
            None
        }
        _ => return Err(EINVAL),
    };
    let (address, flags) = (alloc.address, alloc.flags);
    let (mapped, attached) = (BTreeSet::new(), BTreeSet::new());
    let memory = KfdMemory { buffer, address, size, user_address, flags, gpu, mapped, attached };
    alloc.handle = insert_memory(driver, &mut state, memory);
    Ok(())
}

/// Frees memory. Returns `EBUSY` if amdkfd has mapped it on a GPU. Mappings made through DRM are
/// not checked: their page-table entries keep the memory alive.
pub(crate) fn free(driver: &Driver, free: &mut Free) -> Result<()> {
    let (gpu, number) = split_handle(driver, free.handle)?;
    // The memory is dropped after the lock is released.
    let removed = {
        let mut state = driver.process.state();
        if !state.memory(gpu, number)?.mapped.is_empty() {
            return Err(EBUSY);
        }
        let removed = state.memories[gpu].remove(number);
        if let Some(KfdMemory { buffer: Some(buffer), attached, .. }) = &removed {
            for gpu in attached {
                state.drm_file(*gpu)?.state().detach(buffer);
            }
        }
        removed
    };
    if driver.config.faults.has_fault(FaultKind::Leak) {
        std::mem::forget(removed.as_ref().and_then(|memory| memory.buffer.clone()));
    }
    removed.map(drop).ok_or(EINVAL)
}

const MAX_GPUS_PER_CALL: u32 = 1 << 16;

/// Returns the identifiers of a call's GPUs, without the first `done` GPUs, which are finished.
fn remaining_gpus(map: &Map) -> Result<Vec<u32>> {
    if map.count == 0 || map.done > map.count {
        return Err(EINVAL);
    }
    if map.count > MAX_GPUS_PER_CALL {
        return Err(ENOMEM);
    }
    let mut bytes = vec![0; map.count as usize * 4];
    user::read(map.gpus, &mut bytes)?;
    let ids = bytes.chunks_exact(4).map(|id| u32::from_ne_bytes([id[0], id[1], id[2], id[3]]));
    Ok(ids.skip(map.done as usize).collect())
}

/// Converts allocation flags to `AMDGPU_VM_PAGE_*`. All memory is readable.
fn page_flags(flags: u32) -> u32 {
    let writable = if flags & flags::WRITABLE != 0 { WRITABLE } else { 0 };
    READABLE | writable | if flags & flags::EXECUTABLE != 0 { EXECUTABLE } else { 0 }
}

/// Maps memory for each GPU in turn. After a failure, `done` is the number of finished GPUs.
///
/// For each GPU on which the memory was not mapped yet, makes the pending changes of the page table, and flushes the
/// TLB.
pub(crate) fn map(driver: &Driver, map: &mut Map) -> Result<()> {
    let (owner, number) = split_handle(driver, map.handle)?;
    let gpu_ids = remaining_gpus(map)?;
    let mut state = driver.process.state();
    state.drm_file(owner)?;
    for gpu_id in gpu_ids {
        let memory = state.memory(owner, number).map_err(|_| ENOMEM)?;
        let gpu = driver.gpu(gpu_id)?;
        if !memory.mapped.contains(&gpu) {
            let (address, size, offset) = (memory.address, memory.size, memory.user_address);
            let (flags, buffer) = (page_flags(memory.flags), memory.buffer.clone());
            let drm_file = state.drm_file(gpu)?;
            let mut drm = drm_file.state();
            drm.table.map(address, Entry { size, offset, flags, buffer: buffer.clone() })?;
            drm.table.synchronize();
            let memory = state.memory(owner, number)?;
            memory.mapped.insert(gpu);
            if memory.attached.insert(gpu)
                && let Some(buffer) = &buffer
            {
                drm.attach(buffer);
            }
        }
        map.done += 1;
    }
    Ok(())
}

pub(crate) fn unmap(driver: &Driver, map: &mut Map) -> Result<()> {
    let (owner, number) = split_handle(driver, map.handle)?;
    let gpu_ids = remaining_gpus(map)?;
    let mut state = driver.process.state();
    state.memory(owner, number).map_err(|_| ENOMEM)?;
    for gpu_id in gpu_ids {
        let gpu = driver.gpu(gpu_id)?;
        let drm_file = state.drm_file(gpu)?;
        let memory = state.memory(owner, number)?;
        if memory.mapped.remove(&gpu) {
            let mut drm = drm_file.state();
            // DRM calls may have removed the entry already.
            let _ = drm.table.unmap(memory.address, memory.buffer.as_ref());
            drm.table.synchronize();
        }
        map.done += 1;
    }
    Ok(())
}
