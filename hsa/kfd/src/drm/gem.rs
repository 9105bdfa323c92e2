//! Calls on handles of buffers, and on the page table.

use super::DrmFile;
use super::abi::{CreateInfo, GemClose, GemCreate, GemMetadata, GemMmap, GemOperation, GemVa};
use crate::driver::Driver;
use crate::errno::{EINVAL, ENOENT, ENOMEM, Result};
use crate::kfd::abi::flags;
use crate::metadata::{self, Metadata};
use crate::page_table::{EXECUTABLE, Entry, PAGE, READABLE, WRITABLE};
use crate::user;
use hsa_faults::FaultKind;

// Operations of `GEM_VA` (`AMDGPU_VA_OP_*`).
const MAP: u32 = 1;
const UNMAP: u32 = 2;
const CLEAR: u32 = 3;
const REPLACE: u32 = 4;

/// The supported flags: the permissions, and the caching modes (`AMDGPU_VM_MTYPE_MASK`, `NOALLOC`).
const SUPPORTED_FLAGS: u32 = READABLE | WRITABLE | EXECUTABLE | 0xf << 5 | 1 << 9;
// Flags that are not supported (`AMDGPU_VM_DELAY_UPDATE`, `AMDGPU_VM_PAGE_PRT`).
const DELAY_UPDATE: u32 = 1;
const PRT: u32 = 1 << 4;
/// The driver reserves all lower addresses (`AMDGPU_VA_RESERVED_BOTTOM`).
const RESERVED_END: u64 = 1 << 16;
/// The non-canonical addresses.
const NON_CANONICAL: std::ops::Range<u64> = 1 << 47..!0 << 47;

/// Closes a handle. Removes the buffer's mappings from this file's page table, unless a handle of
/// amdkfd has mapped the buffer in this page table.
pub(super) fn close(driver: &Driver, file: &DrmFile, close: &mut GemClose) -> Result<()> {
    // The buffer is dropped after the lock is released.
    let closed = file.state().close(close.handle);
    if driver.config.faults.has_fault(FaultKind::Leak) {
        std::mem::forget(closed.clone());
    }
    closed.map(drop).ok_or(EINVAL)
}

/// Creates a buffer of system memory (`AMDGPU_GEM_DOMAIN_GTT`). For this call, no other location is emulated.
///
/// amdgpu rejects a buffer that is as large as the GTT, or larger. If other buffers fill the GTT,
/// amdgpu moves idle buffers out of the GTT. This function returns `ENOMEM` instead.
pub(super) fn create(driver: &Driver, file: &DrmFile, create: &mut GemCreate) -> Result<()> {
    if create.domains != DOMAIN_GTT || create.flags != 0 {
        driver.log.unsupported(format_args!("GEM_CREATE outside of system memory = EINVAL"));
        return Err(EINVAL);
    }
    let size = create.size_or_handle.checked_next_multiple_of(PAGE).ok_or(ENOMEM)?;
    if size == 0 || !create.alignment.is_multiple_of(PAGE) {
        return Err(EINVAL);
    }
    if size >= driver.gtt.size {
        return Err(ENOMEM);
    }
    let claim = driver.gtt.claim(size)?;
    let buffer = driver.buffers.create(file.gpu, flags::GTT, size, claim)?;
    // The C type is a union: the handle replaces the size.
    create.size_or_handle = file.state().handle(buffer).into();
    Ok(())
}

pub(super) fn mmap(_: &Driver, file: &DrmFile, mmap: &mut GemMmap) -> Result<()> {
    let state = file.state();
    let buffer = state.buffer(mmap.handle_or_offset as u32).ok_or(ENOENT)?;
    mmap.handle_or_offset = buffer.offset;
    Ok(())
}

// Operations of `GEM_METADATA` (`AMDGPU_GEM_METADATA_OP_*`).
const SET_METADATA: u32 = 1;
const GET_METADATA: u32 = 2;

pub(super) fn metadata(_: &Driver, file: &DrmFile, arguments: &mut GemMetadata) -> Result<()> {
    // Clone the buffer and release the lock: `metadata` can read files of another process.
    let buffer = file.state().buffer(arguments.handle).cloned().ok_or(ENOENT)?;
    match arguments.operation {
        SET_METADATA => {
            let mut data = [0; metadata::MAX_SIZE];
            for (bytes, word) in data.chunks_exact_mut(4).zip(arguments.data) {
                bytes.copy_from_slice(&word.to_ne_bytes());
            }
            let (flags, tiling, size) = (arguments.flags, arguments.tiling, arguments.size);
            buffer.set_metadata(Metadata { flags, tiling, size, data })
        }
        GET_METADATA => {
            let Metadata { flags, tiling, size, data } = buffer.metadata();
            (arguments.flags, arguments.tiling, arguments.size) = (flags, tiling, size);
            for (word, bytes) in arguments.data.iter_mut().zip(data.as_chunks::<4>().0) {
                *word = u32::from_ne_bytes(*bytes);
            }
            Ok(())
        }
        _ => Err(EINVAL),
    }
}

/// The only emulated operation of `GEM_OP` (`AMDGPU_GEM_OP_GET_GEM_CREATE_INFO`).
const GET_CREATE_INFO: u32 = 0;

// The locations of memory (`AMDGPU_GEM_DOMAIN_*`).
const DOMAIN_GTT: u64 = 1 << 1;
const DOMAIN_VRAM: u64 = 1 << 2;

pub(super) fn operation(driver: &Driver, file: &DrmFile, op: &mut GemOperation) -> Result<()> {
    let buffer = file.state().buffer(op.handle).cloned().ok_or(ENOENT)?;
    if op.operation != GET_CREATE_INFO {
        return Err(EINVAL);
    }
    let is_vram = buffer.label.flags & flags::VRAM != 0;
    let domains = if is_vram { DOMAIN_VRAM } else { DOMAIN_GTT };
    let size = driver.config.faults.reported_size(buffer.size);
    let info = CreateInfo { size, alignment: PAGE, domains, flags: 0 };
    user::write_struct(op.value, size_of::<CreateInfo>(), &info)
}

pub(super) fn va(driver: &Driver, file: &DrmFile, va: &mut GemVa) -> Result<()> {
    if va.address < RESERVED_END || NON_CANONICAL.contains(&va.address) {
        return Err(EINVAL);
    }
    let unsupported = va.flags & !SUPPORTED_FLAGS;
    if unsupported != 0 {
        // amdgpu rejects all other flags.
        if unsupported & !(DELAY_UPDATE | PRT) == 0 {
            driver.log.unsupported(format_args!("GEM_VA with DELAY_UPDATE or PRT = EINVAL"));
        }
        return Err(EINVAL);
    }
    if va.syncobj_count != 0 || va.timeline_syncobj != 0 {
        driver.log.unsupported(format_args!("GEM_VA with synchronisation objects = EINVAL"));
        return Err(EINVAL);
    }
    if !(MAP..=REPLACE).contains(&va.operation) {
        return Err(EINVAL);
    }
    let mut state = file.state();
    if va.operation == CLEAR {
        return state.table.clear(va.address, va.size);
    }
    let buffer = state.buffer(va.handle).cloned().ok_or(ENOENT)?;
    if va.operation == UNMAP {
        let entry = state.table.unmap(va.address, Some(&buffer))?;
        if let Some(time) = driver.config.faults.stale_time() {
            state.table.keep_stale(va.address, &entry, time);
        }
        return Ok(());
    }
    let faults = &driver.config.faults;
    let (offset, flags) = (va.offset, faults.page_flags(va.flags));
    let half = (va.size / 2).next_multiple_of(PAGE);
    let size = if half != va.size && faults.change_call(FaultKind::Half) { half } else { va.size };
    // As in amdgpu, an update of the page table also updates the entries of a buffer whose memory
    // has moved.
    state.table.validate(&buffer);
    let has_second_page = buffer.size > PAGE;
    let entry = Entry { size, offset, flags, buffer: Some(buffer) };
    match va.operation {
        REPLACE => state.table.replace(va.address, entry),
        _ => state.table.map(va.address, entry),
    }?;
    if let Some(time) = faults.unseen_time() {
        state.table.hide(va.address, time);
    }
    // A shifted mapping wraps at the end, so that a single page stays where it is.
    if has_second_page && faults.change_call(FaultKind::Shifted) {
        state.table.shift(va.address);
    }
    Ok(())
}
