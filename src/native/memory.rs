//! Loads and stores of this process, on memory that agents and other threads also use.
//!
//! Each byte is accessed by one relaxed atomic access. A race with another access of this module therefore only
//! mixes bytes, and is never undefined behaviour. The public documentation is the section "Memory
//! model" of [`crate::vmm`].
//!
//! On x86-64, one instruction accesses eight bytes, because each read over PCIe costs a round trip. The instruction is
//! inline assembly. An `AtomicU64` would be undefined behaviour: callers choose the offsets, so accesses could overlap
//! partly, and Rust forbids races between atomic accesses of different sizes.
//!
//! This module also maps memory inside ranges that the runtime reserved for this library. [`map_shared`],
//! [`block_access`] and [`replace_mapping`] are unsafe, because they replace the mappings in a range (`MAP_FIXED`).
//! [`fill_hole`] fills an address-space hole and replaces nothing.

use core::ffi::c_void;
use core::ptr::null_mut;
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// Copies eight bytes at a time, and the last `size % 8` bytes one by one.
///
/// # Safety
/// Until the function returns, the source is mapped and readable for the CPU, the destination is mapped and writable,
/// and the two ranges do not overlap. If other threads or agents also use a byte, this process accesses the byte only
/// atomically.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_bytes(destination: usize, source: usize, size: usize) {
    // SAFETY: reads and writes only the ranges that the caller guarantees. In Rust's memory model this is
    // a relaxed load and a relaxed store of each byte.
    unsafe {
        core::arch::asm!(
            "rep movsq",
            "mov rcx, {rest}",
            "rep movsb",
            rest = in(reg) size % 8,
            inout("rcx") size / 8 => _,
            inout("rdi") destination => _,
            inout("rsi") source => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Returns the byte at an address.
///
/// # Safety
/// While the reference lives, the address is mapped, and this process accesses the byte only atomically.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn byte_at<'a>(address: usize) -> &'a AtomicU8 {
    // SAFETY: the caller guarantees that the address is mapped, and that this process accesses the byte only
    // atomically. A byte is always aligned.
    unsafe { AtomicU8::from_ptr(address as *mut u8) }
}

/// Copies from mapped memory.
///
/// # Safety
/// Until the function returns, `bytes.len()` bytes at `address` are mapped and readable for the CPU, and this
/// process accesses them only atomically.
pub(crate) unsafe fn read_memory(address: usize, bytes: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller guarantees that the source is mapped and readable; the destination is borrowed for this call.
    unsafe {
        copy_bytes(bytes.as_mut_ptr() as usize, address, bytes.len());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    for (at, byte) in (address..).zip(bytes) {
        // SAFETY: the caller guarantees that this byte is mapped, readable, and accessed only atomically.
        *byte = unsafe { byte_at(at) }.load(Relaxed);
    }
}

/// Copies to mapped memory.
///
/// # Safety
/// As for [`read_memory`], of memory that is writable for the CPU.
pub(crate) unsafe fn write_memory(address: usize, bytes: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller guarantees that the destination is mapped and writable; the source is borrowed for this call.
    unsafe {
        copy_bytes(address, bytes.as_ptr() as usize, bytes.len());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    for (at, &byte) in (address..).zip(bytes) {
        // SAFETY: the caller guarantees that this byte is mapped, writable, and accessed only atomically.
        unsafe { byte_at(at) }.store(byte, Relaxed);
    }
}

/// The size in bytes of the buffer for copies and fills. The buffer is on the stack: at the kernel's limit of mappings,
/// an allocation could fail, and end the process.
const BUFFER_SIZE: usize = 4096;

/// Copies from mapped memory to mapped memory through a buffer.
///
/// # Safety
/// As for [`read_memory`] of the source and [`write_memory`] of the destination.
pub(super) unsafe fn copy_memory(destination: usize, source: usize, size: usize) {
    let mut buffer = [0; BUFFER_SIZE];
    for offset in (0..size).step_by(BUFFER_SIZE) {
        let part = &mut buffer[..BUFFER_SIZE.min(size - offset)];
        // SAFETY: the caller guarantees the conditions of both functions for the whole ranges.
        unsafe {
            read_memory(source + offset, part);
            write_memory(destination + offset, part);
        }
    }
}

/// Fills mapped memory with a 32-bit value. `size` is in bytes.
///
/// # Safety
/// As for [`write_memory`].
pub(super) unsafe fn fill_memory(address: usize, value: u32, size: usize) {
    let mut pattern = [0; BUFFER_SIZE];
    pattern.chunks_exact_mut(4).for_each(|part| part.copy_from_slice(&value.to_ne_bytes()));
    for offset in (0..size).step_by(BUFFER_SIZE) {
        // SAFETY: the caller guarantees the conditions of `write_memory` for the whole range.
        unsafe { write_memory(address + offset, &pattern[..BUFFER_SIZE.min(size - offset)]) };
    }
}

/// Fails near the kernel's limit of mappings (`vm.max_map_count`), where starting a thread could end the process: a
/// thread of the standard library maps a stack for signal handlers, and aborts if this fails (rust-lang/rust#78497).
pub(crate) fn check_room_for_thread() -> std::io::Result<()> {
    /// More mappings than a thread needs: its stack, the stack for signal handlers, guard pages and memory for `malloc`.
    const MAPPINGS: usize = 16;
    Ok(check_room(MAPPINGS)?)
}

/// Fails if the kernel does not allow this process `count` more mappings. Other threads can reach the limit after this
/// check.
pub(crate) fn check_room(count: usize) -> Result<(), Errno> {
    /// A multiple of every page size.
    const SIZE: usize = 64 << 10;
    // SAFETY: the kernel chooses a free address, so the call replaces no mapping.
    let start =
        unsafe { mmap_anonymous(null_mut(), count * SIZE, ProtFlags::empty(), MapFlags::PRIVATE)? };
    // The kernel does not merge adjacent mappings with different protection.
    let split = (1..count).step_by(2).try_for_each(|index| {
        let address = start.wrapping_byte_add(index * SIZE);
        // SAFETY: this part was just mapped, and nothing uses it.
        unsafe { mprotect(address, SIZE, MprotectFlags::READ) }
    });
    // SAFETY: this range was just mapped, and nothing uses it.
    unsafe { munmap(start, count * SIZE)? };
    split
}

/// Why the mappings in a range were not replaced.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NotReplaced {
    /// The process has reached a limit, so that the old mappings are still there; or no descriptor is free to find out
    /// whether they are. Contains the error of `mmap`.
    Kept(Errno),
    /// The old mappings may still be there, or the kernel has unmapped a part of them.
    Failed(Errno),
    /// The old mappings are gone, and the range could not be reserved again. Any mapping in it belongs to other code.
    Hole(Errno),
}

/// Replaces the mappings in a range by the mapping that `map` creates with the given flag. At the kernel's limit of
/// mappings, the kernel even rejects a `mmap` that leaves their number as it is, so this function unmaps the range
/// first. This makes room only if no mapping extends past the range; otherwise the function changes nothing.
///
/// If `mmap` with `FIXED` fails for another reason, the kernel may have unmapped the range first (up to Linux 6.11), and
/// another thread may have mapped memory there. At the limit of mappings, `mmap` fails before it looks at the range
/// (`do_mmap` in mm/mmap.c), even with `FIXED_NOREPLACE`. At the limits of locked memory and of addresses, `mmap` with
/// `FIXED` changes nothing, and with `FIXED_NOREPLACE` finds the old mappings. This tells the cases apart.
///
/// # Safety
/// Only this library and the runtime use the mappings in the range.
unsafe fn replace(
    address: usize,
    size: usize,
    map: impl Fn(MapFlags) -> Result<(), Errno>,
) -> Result<(), NotReplaced> {
    let Err(errno) = map(MapFlags::FIXED) else { return Ok(()) };
    match fill_hole(address, size) {
        Err(Errno::NOMEM) if errno == Errno::NOMEM => {
            if is_merged(address, size) {
                return Err(NotReplaced::Kept(errno));
            }
            // SAFETY: the caller guarantees that the old mappings may be replaced.
            unsafe { munmap(address as *mut c_void, size) }.map_err(NotReplaced::Failed)?;
            // Fails if another thread has mapped memory in the hole.
            map(MapFlags::FIXED_NOREPLACE).or_else(|errno| {
                fill_hole(address, size).map_err(NotReplaced::Hole)?;
                Err(NotReplaced::Failed(errno))
            })
        }
        Err(Errno::EXIST)
            if matches!(errno, Errno::NOMEM | Errno::AGAIN)
                && is_covered(address, size, is_own) != Some(false) =>
        {
            Err(NotReplaced::Kept(errno))
        }
        _ => Err(NotReplaced::Failed(errno)),
    }
}

/// Maps a memory file or dma-buf, from an offset on, over a range.
///
/// # Safety
/// The call replaces the mappings in the range. Only this library and the runtime may use these mappings.
pub(crate) unsafe fn map_shared(
    descriptor: BorrowedFd<'_>,
    offset: usize,
    address: usize,
    size: usize,
    protection: ProtFlags,
) -> Result<(), NotReplaced> {
    let map = |fixed| {
        let (flags, start) = (MapFlags::SHARED | fixed, address as *mut c_void);
        // SAFETY: the caller guarantees that the old mappings may be replaced.
        unsafe { mmap(start, size, protection, flags, descriptor, offset as u64) }.map(drop)
    };
    // SAFETY: the caller guarantees that the old mappings may be replaced.
    unsafe { replace(address, size, map) }
}

/// Tests whether the first page of a memory file or dma-buf can be mapped, by mapping it at an unused address and
/// unmapping it. At a used address, the kernel could unmap the old mapping before the driver fails (`mmap_region` up
/// to Linux 6.11).
///
/// # Errors
/// The errors of the driver that owns the memory.
pub(crate) fn try_map_shared(
    descriptor: BorrowedFd<'_>,
    protection: ProtFlags,
) -> Result<(), Errno> {
    let size = 4096;
    // SAFETY: without MAP_FIXED, the kernel replaces no mapping.
    unsafe {
        let page = mmap(null_mut(), size, protection, MapFlags::SHARED, descriptor, 0)?;
        munmap(page, size)
    }
}

/// Changes the protection of a range that [`map_shared`] or the runtime has mapped.
///
/// # Safety
/// As for [`map_shared`].
pub(crate) unsafe fn protect(
    address: usize,
    size: usize,
    protection: ProtFlags,
) -> Result<(), Errno> {
    let protection = MprotectFlags::from_bits_retain(protection.bits());
    // SAFETY: the caller guarantees that only this library and the runtime use the range.
    unsafe { mprotect(address as *mut c_void, size, protection) }
}

/// Creates an inaccessible mapping without memory over the range.
///
/// # Safety
/// As for [`map_shared`], unless `fixed` is `FIXED_NOREPLACE`.
unsafe fn map_inaccessible(address: usize, size: usize, fixed: MapFlags) -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | fixed;
    // SAFETY: the caller guarantees that the old mappings may be replaced.
    unsafe { mmap_anonymous(address as *mut c_void, size, ProtFlags::empty(), flags) }.map(drop)
}

/// How [`block_access`] has removed the access to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// The mappings were replaced.
    Replaced,
    /// The mappings were kept. A dma-buf stays allocated while it is mapped.
    Kept,
}

/// Replaces the mappings in a range by one inaccessible mapping. The range has no holes. If the process has reached
/// the kernel's limit of mappings, keeps the mappings and removes all access to them.
///
/// # Errors
/// `NOMEM` if the kernel would have to split a mapping, and the process has reached the limit of mappings. Another error
/// of `mmap` if the kernel has failed for another reason: it may have unmapped the range, so that another thread could
/// map memory there.
///
/// # Safety
/// As for [`map_shared`].
pub(crate) unsafe fn block_access(address: usize, size: usize) -> Result<Blocked, Errno> {
    // SAFETY: the caller guarantees that only this library and the runtime use the range.
    unsafe {
        match map_inaccessible(address, size, MapFlags::FIXED) {
            Ok(()) => Ok(Blocked::Replaced),
            Err(_) => match fill_hole(address, size) {
                // The kernel had unmapped the range before it failed.
                Ok(()) => Ok(Blocked::Replaced),
                // At the limit, the kernel rejects every `mmap` before it looks at the range (see `replace`).
                Err(Errno::NOMEM) => {
                    protect(address, size, ProtFlags::empty()).map(|()| Blocked::Kept)
                }
                Err(errno) => Err(errno),
            },
        }
    }
}

/// Replaces the mappings in a range by one inaccessible mapping.
///
/// # Safety
/// As for [`map_shared`].
pub(crate) unsafe fn replace_mapping(address: usize, size: usize) -> Result<(), NotReplaced> {
    // SAFETY: the caller guarantees that only this library and the runtime use the range.
    let map = |fixed| unsafe { map_inaccessible(address, size, fixed) };
    // SAFETY: as above.
    unsafe { replace(address, size, map) }
}

/// Creates an inaccessible mapping over an empty range, without replacing anything.
///
/// # Errors
/// `EXIST` if something is mapped in the range.
pub(crate) fn fill_hole(address: usize, size: usize) -> Result<(), Errno> {
    // SAFETY: with `FIXED_NOREPLACE`, the kernel replaces no mapping.
    unsafe { map_inaccessible(address, size, MapFlags::FIXED_NOREPLACE) }
}

/// Fills the address-space hole that a failed call may have left in a range.
///
/// An inaccessible mapping in the range cannot be told from the mapping that the failed call has left. Therefore this
/// function also accepts inaccessible mappings that other code has created in the hole. Needs a free descriptor.
///
/// # Errors
/// `EXIST` if an accessible mapping may be in the range; otherwise the error of `mmap`.
pub(crate) fn fill_possible_hole(address: usize, size: usize) -> Result<(), Errno> {
    match fill_hole(address, size) {
        // The failed call has left no hole. Accepts all errors, because at the kernel's limit of mappings the error is
        // not `EXIST`.
        Err(_) if is_inaccessible(address, size) => Ok(()),
        result => result,
    }
}

/// Does the same as [`fill_possible_hole`] after a failed `hsa_amd_vmem_map`, which hardly ever leaves a hole. Therefore
/// also succeeds if it cannot find out what is mapped in the range, because no descriptor is free.
pub(crate) fn fill_possible_hole_of_map(address: usize, size: usize) -> Result<(), Errno> {
    match fill_hole(address, size) {
        Err(_) if is_covered(address, size, |it| it.starts_with("---")) != Some(false) => Ok(()),
        result => result,
    }
}

/// Returns whether the whole range is mapped without access; `false` if the list of mappings cannot be read.
pub(crate) fn is_inaccessible(address: usize, size: usize) -> bool {
    is_covered(address, size, |permissions| permissions.starts_with("---")).unwrap_or(false)
}

/// Returns whether a mapping can be of this library or the runtime: theirs are inaccessible or shared.
fn is_own(permissions: &str) -> bool {
    permissions.starts_with("---") || permissions.as_bytes().get(3) == Some(&b's')
}

/// Returns whether the range is completely mapped, with permissions that `accepts` accepts. Returns `None` if the
/// kernel's list of mappings cannot be read.
fn is_covered(address: usize, size: usize, accepts: fn(&str) -> bool) -> Option<bool> {
    let end = address + size;
    let mut covered = address;
    find_in_mappings(|mapping, rest| {
        if mapping.end <= covered {
            return None;
        }
        if mapping.start > covered || !accepts(rest) {
            return Some(false);
        }
        covered = mapping.end;
        (covered >= end).then_some(true)
    })
}

/// Returns whether the range contains an accessible private mapping. The runtime's mappings for the CPU are shared.
/// Returns `false` if the kernel's list of mappings cannot be read.
pub(crate) fn contains_private_mapping(address: usize, size: usize) -> bool {
    let answer = find_in_mappings(|mapping, permissions| {
        let is_inside = mapping.start < address + size && mapping.end > address;
        (is_inside && !is_own(permissions)).then_some(true)
    });
    answer.unwrap_or(false)
}

/// Returns whether a mapping in the range extends past the range: the kernel merges adjacent mappings. Returns `true` if
/// the kernel's list of mappings cannot be read.
fn is_merged(address: usize, size: usize) -> bool {
    let end = address + size;
    let answer = find_in_mappings(|mapping, _| {
        let is_inside = mapping.start >= address && mapping.end <= end;
        (mapping.end > address && !is_inside).then_some(mapping.start < end)
    });
    answer.unwrap_or(true)
}

/// Calls `decide` with each mapping of this process, by address, and with the rest of its line in `/proc/self/maps`,
/// until `decide` returns an answer. Returns `None` if there is no answer, or if the list cannot be read.
///
/// Does not allocate, because the allocator can fail at the kernel's limit of mappings.
fn find_in_mappings<T>(mut decide: impl FnMut(Range<usize>, &str) -> Option<T>) -> Option<T> {
    let mut maps = File::open("/proc/self/maps").ok()?;
    let mut bytes = [0; 4096];
    // The first bytes of a line. They contain the addresses and the access.
    let (mut line, mut length) = ([0; 64], 0);
    while let Ok(count @ 1..) = maps.read(&mut bytes) {
        for &byte in &bytes[..count] {
            if byte != b'\n' {
                if let Some(slot) = line.get_mut(length) {
                    (*slot, length) = (byte, length + 1);
                }
                continue;
            }
            let (mapping, rest) = parse_mapping(core::str::from_utf8(&line[..length]).ok()?)?;
            length = 0;
            if let Some(answer) = decide(mapping, rest) {
                return Some(answer);
            }
        }
    }
    None
}

/// Parses a line of `/proc/self/maps`, such as `7f0000000000-7f0000200000 ---p 00000000 00:00 0`. Returns the addresses
/// of the mapping, and the rest of the line, which begins with the permissions.
pub(crate) fn parse_mapping(line: &str) -> Option<(Range<usize>, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some((number(start)?..number(end)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

    /// Returns bytes whose neighbours differ.
    fn pattern(size: usize) -> Vec<u8> {
        (0..size).map(|index| (index % 251) as u8).collect()
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
                let mut target = vec![0xff; offset + size + 9];
                let begin = target.as_mut_ptr() as usize + offset;
                let check = |target: &[u8], operation: &str| {
                    let (before, rest) = target.split_at(offset);
                    let (part, after) = rest.split_at(size);
                    let untouched = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0xff);
                    assert!(part == expected, "{operation} {size} bytes at {offset}");
                    assert!(untouched(before) && untouched(after), "{operation} outside");
                };
                // SAFETY: bytes of the test's own.
                unsafe { write_memory(begin, expected) };
                check(&target, "written");
                target.fill(0xff);
                let (copy_start, source_start) =
                    (target.as_mut_ptr() as usize + offset, source.as_ptr() as usize + skip);
                // SAFETY: bytes of the test's own.
                unsafe { copy_memory(copy_start, source_start, size) };
                check(&target, "copied");
            }
        }
    }

    /// Miri and the thread sanitizer would report a data race. Each thread begins at another offset, so that accesses
    /// overlap partly.
    #[test]
    fn racing_accesses_mix_bytes() {
        let memory: Vec<AtomicU8> = (0..64).map(|_| AtomicU8::new(0)).collect();
        let start = memory.as_ptr().expose_provenance();
        std::thread::scope(|scope| {
            for writer in 0..3_usize {
                // SAFETY: the range is 61 of the 64 atomic bytes above.
                scope.spawn(move || unsafe {
                    write_memory(start + writer, &[writer as u8 + 1; 61]);
                });
                scope.spawn(move || {
                    let mut bytes = [0; 61];
                    // SAFETY: the range is 61 of the 64 atomic bytes above.
                    unsafe { read_memory(start + writer * 3 % 4, &mut bytes) };
                    assert!(bytes.iter().all(|&byte| byte <= 3), "{bytes:?}");
                });
            }
        });
        assert!(memory[..63].iter().all(|byte| (1..=3).contains(&byte.load(Relaxed))));
    }
}
