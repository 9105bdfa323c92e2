//! The address space of the process: wrappers of `mmap`.

use core::ptr::{null_mut, without_provenance_mut};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::{fs, io};

/// The size of a page in bytes.
pub(crate) const PAGE: usize = 4096;

/// The protection of CPU mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    None,
    Read,
    Write,
    ReadWrite,
}

impl Protection {
    fn flags(self) -> libc::c_int {
        match self {
            Self::None => libc::PROT_NONE,
            Self::Read => libc::PROT_READ,
            Self::Write => libc::PROT_WRITE,
            Self::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

/// The flags of mappings without a file.
const ANONYMOUS: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Calls `mmap`.
///
/// # Safety
/// With `MAP_FIXED` in `flags` the caller must own the range, whose mappings are replaced.
unsafe fn map(
    address: usize,
    size: usize,
    protection: Protection,
    flags: libc::c_int,
    file: Option<(BorrowedFd<'_>, usize)>,
) -> io::Result<usize> {
    let offset = file.map_or(0, |(_, offset)| offset as libc::off_t);
    let descriptor = file.map_or(-1, |(file, _)| file.as_raw_fd());
    let hint = without_provenance_mut(address);
    // SAFETY: with MAP_FIXED, the caller owns the range; without it, the kernel picks unused addresses.
    let mapped = unsafe { libc::mmap(hint, size, protection.flags(), flags, descriptor, offset) };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(mapped.addr()) }
}

/// Reserves unused addresses. `alignment` must be a power of two of at least a page.
pub(crate) fn reserve(size: usize, alignment: usize, access: Protection) -> io::Result<usize> {
    let too_large = || io::Error::from_raw_os_error(libc::ENOMEM);
    let total = size.checked_add(alignment - PAGE).ok_or_else(too_large)?;
    // SAFETY: without MAP_FIXED no existing mapping is changed.
    let start = unsafe { map(0, total, access, ANONYMOUS, None)? };
    let aligned = start.next_multiple_of(alignment);
    // SAFETY: both released ranges are part of the new mapping, and outside of the returned range.
    unsafe {
        release(start, aligned - start);
        release(aligned + size, start + total - aligned - size);
    }
    Ok(aligned)
}

/// Reserves exactly these addresses. Returns `None` if one of them is in use or invalid.
pub(crate) fn reserve_at(address: usize, size: usize, access: Protection) -> Option<usize> {
    let flags = ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: MAP_FIXED_NOREPLACE replaces nothing.
    let mapped = unsafe { map(address, size, access, flags, None).ok()? };
    if mapped != address {
        // A kernel that does not know the flag treats the address as a hint.
        // SAFETY: `map` has just mapped the range, and no other code knows its address.
        unsafe { release(mapped, size) };
        return None;
    }
    Some(mapped)
}

/// Reserves addresses that the kernel chooses, preferably at the hint. Does not round `size`.
pub(crate) fn reserve_near(hint: usize, size: usize, access: Protection) -> io::Result<usize> {
    // SAFETY: without MAP_FIXED no existing mapping is changed.
    unsafe { map(hint, size, access, ANONYMOUS, None) }
}

/// Unmaps a range. Does nothing for size 0.
///
/// # Safety
/// The caller must own the range, which must no longer be in use.
pub(crate) unsafe fn release(address: usize, size: usize) {
    if size > 0 {
        // SAFETY: the caller owns the range. The call fails only if it splits a mapping and the kernel has no
        // memory for that; the range then stays reserved, which is harmless.
        unsafe { libc::munmap(without_provenance_mut(address), size) };
    }
}

/// Replaces a range by a mapping without access.
///
/// # Safety
/// The caller must own the range.
pub(crate) unsafe fn map_none(address: usize, size: usize) -> io::Result<()> {
    // SAFETY: the caller owns the range.
    unsafe { map(address, size, Protection::None, ANONYMOUS | libc::MAP_FIXED, None) }.map(drop)
}

/// Replaces a range by a shared mapping without access.
///
/// # Safety
/// The caller must own the range.
pub(crate) unsafe fn map_none_shared(address: usize, size: usize) -> io::Result<()> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the caller owns the range.
    unsafe { map(address, size, Protection::None, flags, None) }.map(drop)
}

/// Returns the ranges of the process that are mapped shared, in ascending order.
pub(crate) fn shared_ranges() -> io::Result<Vec<Range<usize>>> {
    // The path of a mapped file need not be UTF-8.
    let maps = fs::read("/proc/self/maps")?;
    let range_of = |line: &str| {
        // For example "7f0000000000-7f0000200000 ---s 00000000 00:01 1 /dev/zero (deleted)".
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        (rest.as_bytes().get(3) == Some(&b's')).then_some(number(start)?..number(end)?)
    };
    Ok(String::from_utf8_lossy(&maps).lines().filter_map(range_of).collect())
}

/// Replaces a range by a shared mapping of a file from an offset.
///
/// # Safety
/// The caller must own the range.
pub(crate) unsafe fn map_file(
    address: usize,
    size: usize,
    access: Protection,
    file: BorrowedFd<'_>,
    offset: usize,
) -> io::Result<()> {
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: the caller owns the range.
    unsafe { map(address, size, access, flags, Some((file, offset))) }.map(drop)
}

/// Advises the kernel to use huge pages.
pub(crate) fn advise_huge_pages(address: usize, size: usize) {
    // SAFETY: MADV_HUGEPAGE changes neither contents nor access.
    unsafe { libc::madvise(null_mut::<u8>().with_addr(address).cast(), size, libc::MADV_HUGEPAGE) };
}

/// Excludes a range from forked children, as AMD's runtime does for pool memory.
pub(crate) fn exclude_from_children(address: usize, size: usize) {
    // SAFETY: MADV_DONTFORK only affects the address space of later children.
    unsafe { libc::madvise(null_mut::<u8>().with_addr(address).cast(), size, libc::MADV_DONTFORK) };
}
