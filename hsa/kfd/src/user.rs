//! Access to the caller's memory at untrusted addresses. The kernel copies the bytes, so that an
//! invalid address causes `EFAULT` instead of a crash.

use crate::abi::Pod;
use crate::descriptors::owner;
use crate::errno::{EFAULT, EINVAL, Errno, Result};
use crate::page_table::PAGE;

/// Returns the vectors of a copy between a buffer and an address of the caller.
fn vectors(buffer: *mut u8, length: usize, address: u64) -> (libc::iovec, libc::iovec) {
    let local = libc::iovec { iov_base: buffer.cast(), iov_len: length };
    (local, libc::iovec { iov_base: address as *mut _, iov_len: length })
}

fn check_complete(transferred: isize, length: usize) -> Result<()> {
    match transferred {
        ..0 => Err(Errno::last()),
        transferred if transferred as usize == length => Ok(()),
        _ => Err(EFAULT),
    }
}

/// Copies from the caller's memory.
pub(crate) fn read(address: u64, bytes: &mut [u8]) -> Result<()> {
    let (local, remote) = vectors(bytes.as_mut_ptr(), bytes.len(), address);
    // SAFETY: the kernel writes only into the slice, and checks the other address.
    let transferred =
        unsafe { libc::process_vm_readv(owner(), &raw const local, 1, &raw const remote, 1, 0) };
    check_complete(transferred, bytes.len())
}

/// Copies from memory of the calling process. Unlike [`read`], works before this object's initialisation has recorded
/// the [`owner`].
pub(crate) fn read_own(address: u64, bytes: &mut [u8]) -> Result<()> {
    let (local, remote) = vectors(bytes.as_mut_ptr(), bytes.len(), address);
    // SAFETY: the kernel writes only into the slice, and checks the other address.
    let transferred = unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    check_complete(transferred, bytes.len())
}

/// Copies to the caller's memory.
pub(crate) fn write(address: u64, bytes: &[u8]) -> Result<()> {
    let (local, remote) = vectors(bytes.as_ptr().cast_mut(), bytes.len(), address);
    // SAFETY: the kernel reads the slice, and checks the other address, which the program passed
    // as a destination.
    let transferred =
        unsafe { libc::process_vm_writev(owner(), &raw const local, 1, &raw const remote, 1, 0) };
    check_complete(transferred, bytes.len())
}

/// The maximum number of addresses in one system call (`IOV_MAX`).
const MAX_VECTORS: usize = 1024;

/// Returns `EFAULT` if a page of a range is not readable and writable. The real driver pins every page of user memory for
/// writing, even if the GPU only reads. Does not change the memory.
pub(crate) fn check_writable(address: u64, size: u64) -> Result<()> {
    let end = address.checked_add(size).and_then(|end| end.checked_next_multiple_of(PAGE));
    let (start, end) = (address / PAGE * PAGE, end.ok_or(EFAULT)?);
    let length = end - start;
    // SAFETY: the kernel checks the range, and only loads its pages.
    let done = unsafe { libc::madvise(start as *mut _, length as usize, libc::MADV_POPULATE_READ) };
    match Errno::last() {
        _ if done == 0 => {}
        // Linux before 5.14, or a mapping of a device.
        EINVAL => read_each_page(start, length)?,
        _ => return Err(EFAULT),
    }
    // `MADV_POPULATE_WRITE` would also check this, but it would allocate memory for every page.
    match std::fs::read_to_string("/proc/self/maps") {
        Ok(maps) if contains_read_only(&maps, start..end) => Err(EFAULT),
        _ => Ok(()),
    }
}

/// Returns whether a part of a range is mapped without write access. `maps` is the text of `/proc/self/maps`, whose
/// lines begin like `7f0000000000-7f0000200000 r--p`.
fn contains_read_only(maps: &str, range: core::ops::Range<u64>) -> bool {
    maps.lines().any(|line| {
        let mut words = line.split([' ', '-']);
        let mut address = || u64::from_str_radix(words.next()?, 16).ok();
        let (Some(start), Some(end)) = (address(), address()) else { return false };
        start < range.end && range.start < end && words.next().is_some_and(|it| !it.contains('w'))
    })
}

/// Returns `EFAULT` if a page of a range is not readable. Much slower than `MADV_POPULATE_READ`.
fn read_each_page(start: u64, length: u64) -> Result<()> {
    let mut pages = (start..start + length).step_by(PAGE as usize);
    let mut bytes = [0u8; MAX_VECTORS];
    loop {
        let page = |address| libc::iovec { iov_base: address as *mut _, iov_len: 1 };
        let remote: Vec<_> = pages.by_ref().take(MAX_VECTORS).map(page).collect();
        if remote.is_empty() {
            return Ok(());
        }
        let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: remote.len() };
        let (count, first) = (remote.len() as libc::c_ulong, remote.as_ptr());
        // SAFETY: the kernel writes at most as many bytes as the array has, and checks the addresses that it
        // reads.
        let transferred =
            unsafe { libc::process_vm_readv(owner(), &raw const local, 1, first, count, 0) };
        check_complete(transferred, remote.len())?;
    }
}

/// Copies a value from the caller's memory.
pub(crate) fn read_value<T: Pod>(address: u64) -> Result<T> {
    let mut value = T::zero();
    read(address, value.bytes_mut())?;
    Ok(value)
}

/// Copies at most `capacity` bytes of a struct to the caller's memory.
pub(crate) fn write_struct<T: Pod>(address: u64, capacity: usize, value: &T) -> Result<()> {
    let bytes = value.bytes();
    write(address, &bytes[..capacity.min(bytes.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maps `count` writable pages, which a page with other access (`last`) follows. Returns their address.
    fn map_before_page(count: usize, last: i32) -> u64 {
        let size = (count + 1) * PAGE as usize;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the pages are new, at an address that the kernel chooses, and only this test uses them.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), size, access, flags, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED);
        let page = address.wrapping_byte_add(count * PAGE as usize);
        // SAFETY: `page` is the last of these pages.
        assert_eq!(unsafe { libc::mprotect(page, PAGE as usize, last) }, 0);
        address as u64
    }

    #[test]
    fn pages_that_are_not_writable_are_rejected() {
        // More pages than one system call checks.
        const PAGES: usize = 2 * MAX_VECTORS;
        for check in [check_writable, read_each_page] {
            let address = map_before_page(PAGES, libc::PROT_NONE);
            let size = PAGES as u64 * PAGE;
            assert_eq!(check(address, size), Ok(()));
            assert_eq!(check(address, size + 1), Err(EFAULT));
            assert_eq!(check(0, PAGE), Err(EFAULT));
        }
        for last in [libc::PROT_NONE, libc::PROT_READ] {
            let address = map_before_page(1, last);
            assert_eq!(check_writable(address + 1, 0), Ok(()));
            assert_eq!(check_writable(address + 8, PAGE - 8), Ok(()));
            assert_eq!(check_writable(address + 8, PAGE - 7), Err(EFAULT), "{last}");
        }
        assert_eq!(check_writable(u64::MAX - 1, 1), Err(EFAULT));
        assert_eq!(check_writable(8, u64::MAX), Err(EFAULT));
    }

    #[test]
    fn invalid_address_causes_efault() {
        let number = 7u64;
        assert_eq!(read_value((&raw const number) as u64), Ok(7u64));
        assert_eq!(read_value::<u64>(0), Err(EFAULT));
        assert_eq!(write_struct(8, 8, &1u64), Err(EFAULT));
        assert_eq!(write_struct(u64::MAX - 3, 8, &1u64), Err(EFAULT));
        let constant: &'static [u8; 8] = b"constant";
        assert_eq!(write_struct(constant.as_ptr() as u64, 8, &1u64), Err(EFAULT));
    }
}
