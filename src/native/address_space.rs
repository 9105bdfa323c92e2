//! This process's own address space, inside ranges that the runtime reserved for this library.
//!
//! [`map_shared`] and [`close`] replace what is in a range (`MAP_FIXED`), so that they are unsafe. An
//! address-space hole is filled by [`plug`], which replaces nothing.

use core::ffi::c_void;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use std::os::fd::BorrowedFd;

/// What this process's own loads and stores may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protection {
    Nothing,
    Read,
    ReadWrite,
}

fn bits(protection: Protection) -> (ProtFlags, MprotectFlags) {
    match protection {
        Protection::Nothing => (ProtFlags::empty(), MprotectFlags::empty()),
        Protection::Read => (ProtFlags::READ, MprotectFlags::READ),
        Protection::ReadWrite => {
            (ProtFlags::READ | ProtFlags::WRITE, MprotectFlags::READ | MprotectFlags::WRITE)
        }
    }
}

/// Maps the start of a memory file or dma-buf over a range.
///
/// # Safety
/// Nothing but this library and the runtime uses what is mapped in the range: it is replaced.
pub(crate) unsafe fn map_shared(
    descriptor: BorrowedFd<'_>,
    address: usize,
    size: usize,
    protection: Protection,
) -> Result<(), Errno> {
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the caller promises that what is replaced may be.
    unsafe { mmap(address as *mut c_void, size, bits(protection).0, flags, descriptor, 0)? };
    Ok(())
}

/// Maps the first page of a memory file or dma-buf anywhere, and removes it again.
///
/// # Errors
/// Those of the driver that the memory is of. A driver may refuse after the kernel has removed what
/// was at the address (`mmap_region` until Linux 6.11), so it is asked where nothing is.
pub(crate) fn try_shared(descriptor: BorrowedFd<'_>, protection: Protection) -> Result<(), Errno> {
    let (anywhere, size) = (core::ptr::null_mut(), 4096);
    // SAFETY: without MAP_FIXED nothing is replaced.
    unsafe {
        let page = mmap(anywhere, size, bits(protection).0, MapFlags::SHARED, descriptor, 0)?;
        munmap(page, size)
    }
}

/// Changes what loads and stores may do in a range that [`map_shared`], or the runtime, mapped.
///
/// # Safety
/// As for [`map_shared`].
pub(crate) unsafe fn protect(
    address: usize,
    size: usize,
    protection: Protection,
) -> Result<(), Errno> {
    // SAFETY: the caller promises that nothing else is in the range.
    unsafe { mprotect(address as *mut c_void, size, bits(protection).1) }
}

/// Replaces whatever is in the range by reserved addresses without memory.
///
/// # Safety
/// As for [`map_shared`].
unsafe fn map_nothing(address: usize, size: usize) -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the caller promises that what is replaced may be.
    unsafe { mmap_anonymous(address as *mut c_void, size, ProtFlags::empty(), flags)? };
    Ok(())
}

/// Makes a range that is mapped throughout hold nothing, or at least nothing that could be
/// touched: the kernel allows a process only so many mappings, and a new one needs room for it.
///
/// # Errors
/// `NOMEM` if some of it is not mapped, and room for a new mapping is lacking.
///
/// # Safety
/// As for [`map_shared`].
pub(crate) unsafe fn close(address: usize, size: usize) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { map_nothing(address, size).or_else(|_| protect(address, size, Protection::Nothing)) }
}

/// Takes a range that should be empty, without replacing anything.
///
/// # Errors
/// `EXIST` if something is mapped in it.
pub(crate) fn plug(address: usize, size: usize) -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE | MapFlags::NORESERVE;
    // SAFETY: without replacing nothing can be harmed.
    unsafe { mmap_anonymous(address as *mut c_void, size, ProtFlags::empty(), flags)? };
    Ok(())
}
