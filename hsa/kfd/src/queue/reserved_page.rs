//! Atomic additions of an engine to a buffer's memory.
//!
//! An addition maps a page of the buffer. A thread that waits for the new value can continue before the
//! page is unmapped. If each addition used a new address, that thread could find an additional mapping in its
//! process. Each queue therefore reserves one page of addresses, where every addition maps the buffer's page.

use crate::errno::{EINVAL, Result};
use crate::memory_file::MemoryFile;
use crate::page_table::PAGE;
use crate::real::{self, Mapping};
use libc::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A reserved page of addresses.
#[derive(Debug)]
pub(super) struct ReservedPage {
    /// The address. The lock serialises additions.
    address: Mutex<usize>,
}

impl ReservedPage {
    /// Reserves an inaccessible page.
    pub(super) fn new() -> Result<Self> {
        // SAFETY: without MAP_FIXED the kernel chooses unused addresses.
        let address = unsafe { remap(0, None)? };
        Ok(Self { address: Mutex::new(address) })
    }

    /// Adds to the number at an offset, a multiple of eight. Returns the previous value.
    pub(super) fn add(&self, file: &MemoryFile, offset: u64, summand: u64) -> Result<u64> {
        if !offset.is_multiple_of(8) {
            return Err(EINVAL);
        }
        let address = self.address.lock().unwrap_or_else(PoisonError::into_inner);
        let offset_in_page = offset % PAGE;
        // SAFETY: only this object uses the page, and nothing refers to it.
        unsafe { remap(*address, Some((file.descriptor(), offset - offset_in_page)))? };
        // SAFETY: the number is in the page, aligned, and mapped until the lock is released.
        let number = unsafe { &*((*address + offset_in_page as usize) as *const AtomicU64) };
        let before = number.fetch_add(summand, Ordering::AcqRel);
        // Unmap the buffer, so that the reserved page does not keep the buffer's memory allocated. If the unmapping
        // fails, the next addition replaces the mapping. SAFETY: only this object uses the page, and `number` is no
        // longer used.
        let _ = unsafe { remap(*address, None) };
        Ok(before)
    }
}

impl Drop for ReservedPage {
    fn drop(&mut self) {
        let address = *self.address.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: only this object uses the page.
        unsafe { libc::syscall(libc::SYS_munmap, address, PAGE as usize) };
    }
}

/// Maps a page of a file, or an inaccessible page, at an address. If `address` is 0, the kernel
/// chooses the address.
///
/// # Safety
///
/// The caller must own the mapping at the address, which the call replaces.
unsafe fn remap(address: usize, page: Option<(c_int, u64)>) -> Result<usize> {
    let fixed = if address == 0 { 0 } else { libc::MAP_FIXED };
    let (protection, anonymous) = match page {
        Some(_) => (libc::PROT_READ | libc::PROT_WRITE, 0),
        None => (libc::PROT_NONE, libc::MAP_ANONYMOUS),
    };
    let mapping = Mapping {
        address: address as *mut c_void,
        length: PAGE as usize,
        protection,
        flags: libc::MAP_SHARED | fixed | anonymous,
    };
    let (descriptor, offset) = page.unwrap_or((-1, 0));
    // SAFETY: with `MAP_FIXED`, the caller owns the replaced range.
    unsafe { real::map(mapping, descriptor, offset) }.map(|address| address as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    /// Returns the permissions of the page at an address, if it is mapped.
    fn permissions(address: usize) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().find_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            (number(start)..number(end)).contains(&address).then(|| rest[..4].to_owned())
        })
    }

    #[test]
    fn add_changes_the_file() {
        let file = MemoryFile::plain("count", 3 * PAGE).unwrap();
        let reserved_page = ReservedPage::new().unwrap();
        assert_eq!(reserved_page.add(&file, 2 * PAGE + 16, 7), Ok(0));
        assert_eq!(reserved_page.add(&file, 2 * PAGE + 16, u64::MAX), Ok(7));
        assert_eq!(reserved_page.add(&file, 12, 1), Err(EINVAL));
        let mut bytes = [0; 8];
        file.read(2 * PAGE + 16, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), 6);
    }

    #[test]
    fn add_keeps_the_page_mapped() {
        let file = MemoryFile::plain("count", PAGE).unwrap();
        let reserved_page = ReservedPage::new().unwrap();
        let address = *reserved_page.address.lock().unwrap();
        assert_eq!(permissions(address).as_deref(), Some("---s"));
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    reserved_page.add(&file, 0, 1).unwrap();
                }
            });
            for _ in 0..200 {
                let mode = permissions(address).expect("the page is mapped");
                assert!(mode.ends_with('s'), "{mode}");
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(permissions(address).as_deref(), Some("---s"));
    }
}
