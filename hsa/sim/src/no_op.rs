//! Virtual memory that does nothing: every function returns success at once, with addresses and
//! handles from a counter.
//!
//! Used to measure the overhead of callers. Agents, pools and all other functions are the
//! simulation's. Addresses have no memory. Arguments are not checked, except that a null pointer for a result is an
//! error. Only exported descriptors are real: all refer to one sparse file of 2 MiB.

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use hsa_sys::*;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The first address: above the 47-bit user address space, so that no returned address equals a real address.
const FIRST_ADDRESS: usize = 1 << 47;
/// The size of the range that a thread takes from the common counter at a time.
const CHUNK_SIZE: usize = 1 << 44;
/// The minimum alignment of addresses.
const GRANULE: usize = 2 << 20;

/// Returns the virtual memory functions of a runtime with this extension version.
pub(crate) const fn vmem(extension: u32) -> Result<Vmem, MissingSymbol> {
    if extension < 4 {
        return Err(MissingSymbol("hsa_amd_vmem_address_reserve"));
    }
    Ok(Vmem {
        hsa_amd_vmem_address_reserve: reserve,
        hsa_amd_vmem_address_free: free,
        hsa_amd_vmem_handle_create: create,
        hsa_amd_vmem_handle_release: release,
        hsa_amd_vmem_map: map,
        hsa_amd_vmem_unmap: unmap,
        hsa_amd_vmem_set_access: set_access,
        hsa_amd_vmem_get_access: get_access,
        hsa_amd_vmem_export_shareable_handle: export,
        hsa_amd_vmem_import_shareable_handle: import,
        hsa_amd_vmem_retain_alloc_handle: retain,
        hsa_amd_vmem_get_alloc_properties_from_handle: properties,
        hsa_amd_vmem_address_reserve_align: if extension >= 6 { Some(reserve_align) } else { None },
        hsa_amd_vmem_export_fabric_handle: None,
        hsa_amd_vmem_import_fabric_handle: None,
    })
}

/// Returns the start of the next free range. Each thread has its own counter, so that threads do
/// not slow each other down. Returns `None` on overflow. `alignment` must not be 0.
fn next_range(size: usize, alignment: usize) -> Option<usize> {
    static NEXT_CHUNK: AtomicUsize = AtomicUsize::new(FIRST_ADDRESS);
    thread_local! {
        static NEXT: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    }
    let (next, end) = NEXT.get();
    let start = next.checked_next_multiple_of(alignment)?;
    if start.saturating_add(size) < end {
        NEXT.set((start + size, end));
        return Some(start);
    }
    let chunk =
        size.checked_add(alignment)?.max(CHUNK_SIZE).checked_next_multiple_of(CHUNK_SIZE)?;
    let add = |at: usize| at.checked_add(chunk);
    let begin = NEXT_CHUNK.fetch_update(Relaxed, Relaxed, add).ok()?;
    let start = begin.checked_next_multiple_of(alignment)?;
    NEXT.set((start + size, begin + chunk));
    Some(start)
}

/// Writes a result through a caller's pointer. A null pointer is an error.
///
/// # Safety
/// `to` must be null or writable.
unsafe fn write_out<T>(to: *mut T, value: T) -> hsa_status_t {
    if to.is_null() {
        return HSA_STATUS_ERROR_INVALID_ARGUMENT;
    }
    // SAFETY: not null, therefore writable (`# Safety`).
    unsafe { to.write(value) };
    HSA_STATUS_SUCCESS
}

/// Writes a new handle.
///
/// # Safety
/// `to` must be null or writable.
unsafe fn write_handle(to: *mut hsa_amd_vmem_alloc_handle_t) -> hsa_status_t {
    match next_range(1, 1) {
        // SAFETY: `to` is null or writable, as the caller promises.
        Some(handle) => unsafe {
            write_out(to, hsa_amd_vmem_alloc_handle_t { handle: handle as u64 })
        },
        None => HSA_STATUS_ERROR_OUT_OF_RESOURCES,
    }
}

unsafe extern "C" fn reserve(
    to: *mut *mut c_void,
    size: usize,
    hint: u64,
    flags: u64,
) -> hsa_status_t {
    // SAFETY: both functions require that `to` is null or writable.
    unsafe { reserve_align(to, size, hint, 0, flags) }
}

unsafe extern "C" fn reserve_align(
    to: *mut *mut c_void,
    size: usize,
    _: u64,
    alignment: u64,
    _: u64,
) -> hsa_status_t {
    let Some(start) = next_range(size, (alignment as usize).max(GRANULE)) else {
        return HSA_STATUS_ERROR_OUT_OF_RESOURCES;
    };
    // SAFETY: HSA requires that `to` is null or writable.
    unsafe { write_out(to, start as *mut c_void) }
}

unsafe extern "C" fn free(_: *mut c_void, _: usize) -> hsa_status_t {
    HSA_STATUS_SUCCESS
}

unsafe extern "C" fn create(
    _: hsa_amd_memory_pool_t,
    _: usize,
    _: hsa_amd_memory_type_t,
    _: u64,
    to: *mut hsa_amd_vmem_alloc_handle_t,
) -> hsa_status_t {
    // SAFETY: HSA requires that `to` is null or writable.
    unsafe { write_handle(to) }
}

unsafe extern "C" fn release(_: hsa_amd_vmem_alloc_handle_t) -> hsa_status_t {
    HSA_STATUS_SUCCESS
}

unsafe extern "C" fn map(
    _: *mut c_void,
    _: usize,
    _: usize,
    _: hsa_amd_vmem_alloc_handle_t,
    _: u64,
) -> hsa_status_t {
    HSA_STATUS_SUCCESS
}

unsafe extern "C" fn unmap(_: *mut c_void, _: usize) -> hsa_status_t {
    HSA_STATUS_SUCCESS
}

unsafe extern "C" fn set_access(
    _: *mut c_void,
    _: usize,
    _: *const hsa_amd_memory_access_desc_t,
    _: usize,
) -> hsa_status_t {
    HSA_STATUS_SUCCESS
}

unsafe extern "C" fn get_access(
    _: *mut c_void,
    to: *mut hsa_access_permission_t,
    _: hsa_agent_t,
) -> hsa_status_t {
    // SAFETY: HSA requires that `to` is null or writable.
    unsafe { write_out(to, HSA_ACCESS_PERMISSION_RW) }
}

/// Returns the file of all exported descriptors: one granule of zeros. -1 on failure.
fn file() -> c_int {
    static FILE: OnceLock<c_int> = OnceLock::new();
    *FILE.get_or_init(|| {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name ends with a zero.
        let file = unsafe { libc::memfd_create(c"nothing".as_ptr(), flags) };
        // SAFETY: the call accesses no memory; it rejects -1 as a descriptor.
        unsafe { libc::ftruncate(file, GRANULE as libc::off_t) };
        // The size of the file never changes, like that of a dma-buf. SAFETY: the call accesses no
        // memory; it rejects -1 as a descriptor.
        unsafe { libc::fcntl(file, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) };
        file
    })
}

unsafe extern "C" fn export(
    to: *mut c_int,
    _: hsa_amd_vmem_alloc_handle_t,
    _: u64,
) -> hsa_status_t {
    // SAFETY: the file is never closed; the caller owns the duplicate.
    let descriptor = unsafe { libc::fcntl(file(), libc::F_DUPFD_CLOEXEC, 0) };
    if descriptor < 0 {
        return HSA_STATUS_ERROR_OUT_OF_RESOURCES;
    }
    // SAFETY: HSA requires that `to` is null or writable.
    unsafe { write_out(to, descriptor) }
}

unsafe extern "C" fn import(_: c_int, to: *mut hsa_amd_vmem_alloc_handle_t) -> hsa_status_t {
    // SAFETY: HSA requires that `to` is null or writable.
    unsafe { write_handle(to) }
}

unsafe extern "C" fn retain(
    to: *mut hsa_amd_vmem_alloc_handle_t,
    address: *mut c_void,
) -> hsa_status_t {
    // SAFETY: HSA requires that `to` is null or writable.
    unsafe { write_out(to, hsa_amd_vmem_alloc_handle_t { handle: address as u64 }) }
}

/// Reports no pool, because the owner of the memory is unknown.
unsafe extern "C" fn properties(
    _: hsa_amd_vmem_alloc_handle_t,
    pool: *mut hsa_amd_memory_pool_t,
    memory_type: *mut hsa_amd_memory_type_t,
) -> hsa_status_t {
    // SAFETY: HSA requires that both pointers are null or writable.
    unsafe {
        write_out(pool, hsa_amd_memory_pool_t { handle: 0 });
        write_out(memory_type, MEMORY_TYPE_PINNED)
    }
}
