//! Access to the caller's memory at untrusted addresses. The kernel copies, so that an invalid
//! address is `EFAULT` and not a crash.

use crate::abi::Plain;
use crate::descriptors::owner;
use crate::errno::{EFAULT, Errno, Result};
use crate::page_table::PAGE;

fn vectors(buffer: *mut u8, length: usize, address: u64) -> (libc::iovec, libc::iovec) {
    let ours = libc::iovec { iov_base: buffer.cast(), iov_len: length };
    (ours, libc::iovec { iov_base: address as *mut _, iov_len: length })
}

fn whole(moved: isize, length: usize) -> Result<()> {
    match moved {
        ..0 => Err(Errno::last()),
        moved if moved as usize == length => Ok(()),
        _ => Err(EFAULT),
    }
}

/// Copies from the process.
pub(crate) fn read(address: u64, bytes: &mut [u8]) -> Result<()> {
    let (ours, theirs) = vectors(bytes.as_mut_ptr(), bytes.len(), address);
    // SAFETY: the kernel writes to the slice alone, and checks the other address.
    let moved =
        unsafe { libc::process_vm_readv(owner(), &raw const ours, 1, &raw const theirs, 1, 0) };
    whole(moved, bytes.len())
}

/// Copies to the process.
pub(crate) fn write(address: u64, bytes: &[u8]) -> Result<()> {
    let (ours, theirs) = vectors(bytes.as_ptr().cast_mut(), bytes.len(), address);
    // SAFETY: the kernel reads the slice, and checks the other address, which the program has
    // named to be written to.
    let moved =
        unsafe { libc::process_vm_writev(owner(), &raw const ours, 1, &raw const theirs, 1, 0) };
    whole(moved, bytes.len())
}

/// The maximum number of addresses in one system call (`IOV_MAX`).
const AT_ONCE: usize = 1024;

/// Returns `EFAULT` if a page of a range is not readable. A driver pins every page of user memory;
/// this reads one byte of each.
pub(crate) fn check(address: u64, size: u64) -> Result<()> {
    address.checked_add(size).ok_or(EFAULT)?;
    let mut pages = (address..address + size).step_by(PAGE as usize);
    let mut bytes = [0u8; AT_ONCE];
    loop {
        let page = |address| libc::iovec { iov_base: address as *mut _, iov_len: 1 };
        let theirs: Vec<_> = pages.by_ref().take(AT_ONCE).map(page).collect();
        if theirs.is_empty() {
            return Ok(());
        }
        let ours = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: theirs.len() };
        let (count, first) = (theirs.len() as libc::c_ulong, theirs.as_ptr());
        // SAFETY: the kernel writes as many bytes as the array has at most, and checks the other
        // addresses.
        let moved = unsafe { libc::process_vm_readv(owner(), &raw const ours, 1, first, count, 0) };
        whole(moved, theirs.len())?;
    }
}

/// Copies a value from the process.
pub(crate) fn get<T: Plain>(address: u64) -> Result<T> {
    let mut value = T::zero();
    read(address, value.bytes_mut())?;
    Ok(value)
}

/// Copies a struct to the process, or as much of it as fits.
pub(crate) fn write_struct<T: Plain>(address: u64, room: usize, value: &T) -> Result<()> {
    let bytes = value.bytes();
    write(address, &bytes[..room.min(bytes.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_address_is_an_error() {
        let number = 7u64;
        assert_eq!(get((&raw const number) as u64), Ok(7u64));
        assert_eq!(get::<u64>(0), Err(EFAULT));
        assert_eq!(write_struct(8, 8, &1u64), Err(EFAULT));
        assert_eq!(write_struct(u64::MAX - 3, 8, &1u64), Err(EFAULT));
        let constant: &'static [u8; 8] = b"constant";
        assert_eq!(write_struct(constant.as_ptr() as u64, 8, &1u64), Err(EFAULT));
    }
}
