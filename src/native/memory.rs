//! Loads and stores of this process to memory that agents and other threads use too.
//!
//! Every byte is one relaxed atomic access, so that a race with another access of this module is
//! never undefined behaviour: the bytes of the two are mixed. The public documentation is the
//! section "Memory model" of [`crate::vmm`].
//!
//! On x86-64, one instruction accesses eight bytes, because reads over PCIe cost a round trip each. It
//! is inline assembly and not an `AtomicU64`: Rust forbids races between atomic accesses of different sizes,
//! and callers choose the offsets.
//!
//! It also maps memory inside ranges that the runtime reserved for this library. [`map_shared`]
//! and [`close`] replace what is in a range (`MAP_FIXED`), so that they are unsafe. [`fill_hole`] fills an
//! address-space hole and replaces nothing.

use core::ffi::c_void;
use core::ptr::null_mut;
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use std::os::fd::BorrowedFd;

/// Copies bytes, eight by one instruction and the rest one by one.
///
/// # Safety
/// Until it returns, the source is mapped and readable for the CPU and the destination is mapped and
/// writable, and the two do not overlap. This process accesses what it shares of them only atomically.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_bytes(to: usize, from: usize, size: usize) {
    // SAFETY: reads and writes only the ranges that the caller guarantees. To Rust it is a relaxed load
    // and a relaxed store of each byte.
    unsafe {
        core::arch::asm!(
            "rep movsq",
            "mov rcx, {rest}",
            "rep movsb",
            rest = in(reg) size % 8,
            inout("rcx") size / 8 => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
}

/// The byte at an address.
///
/// # Safety
/// The address is mapped for as long as the reference lives, and this process accesses the byte
/// only atomically meanwhile.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn byte_at<'a>(address: usize) -> &'a AtomicU8 {
    // SAFETY: the caller's promise; a byte is always aligned.
    unsafe { AtomicU8::from_ptr(address as *mut u8) }
}

/// Copies from mapped memory.
///
/// # Safety
/// Until it returns, `bytes.len()` bytes at `address` are mapped and readable for the CPU, and this
/// process accesses them only atomically.
pub(crate) unsafe fn read_memory(address: usize, bytes: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller vouches for the source; the destination is borrowed for this call.
    unsafe {
        copy_bytes(bytes.as_mut_ptr() as usize, address, bytes.len());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    for (at, byte) in (address..).zip(bytes) {
        // SAFETY: one readable byte (the caller's promise).
        *byte = unsafe { byte_at(at) }.load(Relaxed);
    }
}

/// Copies to mapped memory.
///
/// # Safety
/// As for [`read_memory`], of memory that is writable for the CPU.
pub(crate) unsafe fn write_memory(address: usize, bytes: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller vouches for the destination; the source is borrowed for this call.
    unsafe {
        copy_bytes(address, bytes.as_ptr() as usize, bytes.len());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    for (at, &byte) in (address..).zip(bytes) {
        // SAFETY: one writable byte (the caller's promise).
        unsafe { byte_at(at) }.store(byte, Relaxed);
    }
}

/// The bytes that are copied or filled at a time.
const PORTION: usize = 64 << 10;

/// Copies from mapped memory to mapped memory, a portion at a time.
///
/// # Safety
/// As for [`read_memory`] of the source and [`write_memory`] of the destination.
pub(super) unsafe fn copy_memory(to: usize, from: usize, size: usize) {
    let mut portion = vec![0; size.min(PORTION)];
    for done in (0..size).step_by(PORTION) {
        let part = &mut portion[..PORTION.min(size - done)];
        // SAFETY: the caller's promise.
        unsafe {
            read_memory(from + done, part);
            write_memory(to + done, part);
        }
    }
}

/// Fills mapped memory with a 32-bit value. `size` is in bytes.
///
/// # Safety
/// As for [`write_memory`].
pub(super) unsafe fn fill_memory(address: usize, value: u32, size: usize) {
    let pattern = value.to_ne_bytes().repeat(size.min(PORTION).div_ceil(4));
    for done in (0..size).step_by(PORTION) {
        // SAFETY: the caller's promise.
        unsafe { write_memory(address + done, &pattern[..PORTION.min(size - done)]) };
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
    protection: ProtFlags,
) -> Result<(), Errno> {
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the caller promises that what is replaced may be.
    unsafe { mmap(address as *mut c_void, size, protection, flags, descriptor, 0)? };
    Ok(())
}

/// Maps the first page of a memory file or dma-buf anywhere, and removes it again.
///
/// # Errors
/// Those of the driver that owns the memory. A driver may refuse after the kernel has unmapped the old
/// mapping at the address (`mmap_region` until Linux 6.11), so it is asked at an unused address.
pub(crate) fn try_shared(descriptor: BorrowedFd<'_>, protection: ProtFlags) -> Result<(), Errno> {
    let size = 4096;
    // SAFETY: without MAP_FIXED nothing is replaced.
    unsafe {
        let page = mmap(null_mut(), size, protection, MapFlags::SHARED, descriptor, 0)?;
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
    protection: ProtFlags,
) -> Result<(), Errno> {
    let protection = MprotectFlags::from_bits_retain(protection.bits());
    // SAFETY: the caller promises that nothing else is in the range.
    unsafe { mprotect(address as *mut c_void, size, protection) }
}

/// Maps an inaccessible mapping without memory over the range.
///
/// # Safety
/// As for [`map_shared`], unless `fixed` is `FIXED_NOREPLACE`.
unsafe fn map_nothing(address: usize, size: usize, fixed: MapFlags) -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | fixed;
    // SAFETY: the caller promises that what is replaced may be.
    unsafe { mmap_anonymous(address as *mut c_void, size, ProtFlags::empty(), flags)? };
    Ok(())
}

/// Replaces everything in a range, which is mapped throughout, with an inaccessible mapping. If the
/// process has reached the kernel's limit of mappings, only takes all access away.
///
/// # Errors
/// `NOMEM` if a part is not mapped and the process has reached the limit of mappings.
///
/// # Safety
/// As for [`map_shared`].
pub(crate) unsafe fn close(address: usize, size: usize) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        map_nothing(address, size, MapFlags::FIXED)
            .or_else(|_| protect(address, size, ProtFlags::empty()))
    }
}

/// Maps an inaccessible mapping over a range that should be empty, without replacing anything.
///
/// # Errors
/// `EXIST` if something is mapped in it.
pub(crate) fn fill_hole(address: usize, size: usize) -> Result<(), Errno> {
    // SAFETY: nothing is replaced.
    unsafe { map_nothing(address, size, MapFlags::FIXED_NOREPLACE) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

    /// Returns bytes of which neighbours differ.
    fn pattern(size: usize) -> Vec<u8> {
        (0..size).map(|at| (at % 251) as u8).collect()
    }

    #[test]
    fn copies_write_exactly_their_range() {
        for size in [0, 1, 7, 8, 9, 23, 64 << 10, (128 << 10) + 13] {
            for (skip, offset) in [(0, 0), (1, 0), (0, 3), (5, 5), (7, 2)] {
                let source = pattern(skip + size);
                let expected = &source[skip..];
                let mut read = vec![0; size];
                // SAFETY: bytes of the test's own.
                unsafe { read_memory(source.as_ptr() as usize + skip, &mut read) };
                assert!(read == expected, "{size} bytes from {skip}: read");
                let mut whole = vec![0xff; offset + size + 9];
                let begin = whole.as_mut_ptr() as usize + offset;
                let inside = |whole: &[u8], what: &str| {
                    let (before, rest) = whole.split_at(offset);
                    let (part, after) = rest.split_at(size);
                    let untouched = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0xff);
                    assert!(part == expected, "{size} bytes to {offset}: {what}");
                    assert!(untouched(before) && untouched(after), "{what} beside");
                };
                // SAFETY: bytes of the test's own.
                unsafe { write_memory(begin, expected) };
                inside(&whole, "written");
                whole.fill(0xff);
                let (to, from) =
                    (whole.as_mut_ptr() as usize + offset, source.as_ptr() as usize + skip);
                // SAFETY: bytes of the test's own.
                unsafe { copy_memory(to, from, size) };
                inside(&whole, "copied");
            }
        }
    }

    /// Miri and the thread sanitizer judge it; the offsets make accesses of all sizes overlap.
    #[test]
    fn racing_accesses_mix_bytes() {
        let memory: Vec<AtomicU8> = (0..64).map(|_| AtomicU8::new(0)).collect();
        let start = memory.as_ptr().expose_provenance();
        std::thread::scope(|scope| {
            for writer in 0..3_usize {
                // SAFETY: 61 of the 64 atomic bytes above.
                scope.spawn(move || unsafe {
                    write_memory(start + writer, &[writer as u8 + 1; 61]);
                });
                scope.spawn(move || {
                    let mut bytes = [0; 61];
                    // SAFETY: as above.
                    unsafe { read_memory(start + writer * 3 % 4, &mut bytes) };
                    assert!(bytes.iter().all(|&byte| byte <= 3), "{bytes:?}");
                });
            }
        });
        assert!(memory[..63].iter().all(|byte| (1..=3).contains(&byte.load(Relaxed))));
    }
}
