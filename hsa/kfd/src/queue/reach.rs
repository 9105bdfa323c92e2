//! Memory as a GPU sees it: by its page table, and by nothing else.

use crate::drm::DrmFile;
use crate::errno::{EFAULT, Errno, Result};
use crate::page_table::{Entry, READABLE, WRITABLE};
use crate::real::{self, Mapping};
use libc::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory of the process itself, which may be gone: the kernel does the copying.
pub(super) mod host {
    use super::{EFAULT, Errno, Result};

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

    pub(in crate::queue) fn read(address: u64, bytes: &mut [u8]) -> Result<()> {
        let (ours, theirs) = vectors(bytes.as_mut_ptr(), bytes.len(), address);
        // SAFETY: the kernel writes to the slice alone, and checks the other address.
        let moved = unsafe {
            libc::process_vm_readv(libc::getpid(), &raw const ours, 1, &raw const theirs, 1, 0)
        };
        whole(moved, bytes.len())
    }

    pub(in crate::queue) fn write(address: u64, bytes: &[u8]) -> Result<()> {
        let (ours, theirs) = vectors(bytes.as_ptr().cast_mut(), bytes.len(), address);
        // SAFETY: the kernel reads the slice, and checks the other address, which the program
        // has given to the GPU to write to.
        let moved = unsafe {
            libc::process_vm_writev(libc::getpid(), &raw const ours, 1, &raw const theirs, 1, 0)
        };
        whole(moved, bytes.len())
    }

    pub(in crate::queue) fn read_u64(address: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// An address that the GPU cannot reach, or not so.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub(super) address: u64,
    pub(super) error: Errno,
}

type Access<T> = std::result::Result<T, Fault>;

/// A GPU's page table, as its engines use it.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    pub(super) space: Arc<DrmFile>,
}

impl Reach {
    /// What is behind an address and how far it goes; a fault if nothing is.
    fn look_up(&self, address: u64, needed: u32) -> Access<(Entry, u64, u64)> {
        let found = self.space.state().table.find(address);
        let (start, entry) = found.ok_or(Fault { address, error: EFAULT })?;
        if entry.flags & needed != needed {
            return Err(Fault { address, error: crate::errno::EACCES });
        }
        let into = address - start;
        let left = entry.size - into;
        Ok((entry, into, left))
    }

    /// Walks a range entry by entry.
    fn walk(
        &self,
        address: u64,
        length: u64,
        needed: u32,
        mut visit: impl FnMut(&Entry, u64, std::ops::Range<usize>) -> Result<()>,
    ) -> Access<()> {
        let mut done = 0;
        while done < length {
            let address = address + done;
            let (entry, into, left) = self.look_up(address, needed)?;
            let count = left.min(length - done);
            visit(&entry, into, done as usize..(done + count) as usize)
                .map_err(|error| Fault { address, error })?;
            done += count;
        }
        Ok(())
    }

    pub(super) fn read(&self, address: u64, bytes: &mut [u8]) -> Access<()> {
        self.walk(address, bytes.len() as u64, READABLE, |entry, into, range| {
            let bytes = &mut bytes[range];
            let Some(buffer) = &entry.buffer else { return host::read(entry.offset + into, bytes) };
            let spot = buffer.spot()?;
            spot.file.read(spot.offset + entry.offset + into, bytes)
        })
    }

    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> Access<()> {
        self.walk(address, bytes.len() as u64, WRITABLE, |entry, into, range| {
            let bytes = &bytes[range];
            let Some(buffer) = &entry.buffer else {
                return host::write(entry.offset + into, bytes);
            };
            let spot = buffer.spot()?;
            spot.file.write(spot.offset + entry.offset + into, bytes)
        })
    }

    /// Copies; the pieces are small enough for a buffer of the engine's own.
    pub(super) fn copy(&self, from: u64, to: u64, length: u64) -> Access<()> {
        let mut piece = vec![0; length.min(1 << 20) as usize];
        let mut done = 0;
        while done < length {
            let count = (length - done).min(piece.len() as u64);
            let piece = &mut piece[..count as usize];
            self.read(from + done, piece)?;
            self.write(to + done, piece)?;
            done += count;
        }
        Ok(())
    }

    /// Fills with a word.
    pub(super) fn fill(&self, to: u64, length: u64, word: u32) -> Access<()> {
        let piece = word.to_le_bytes().repeat((length.min(1 << 20) as usize).div_ceil(4));
        let mut done = 0;
        while done < length {
            let count = (length - done).min(piece.len() as u64);
            self.write(to + done, &piece[..count as usize])?;
            done += count;
        }
        Ok(())
    }

    /// Adds to a number that the processor may be changing too, and gives what it was.
    pub(super) fn add(&self, address: u64, summand: u64) -> Access<u64> {
        let fault = |error| Fault { address, error };
        if !address.is_multiple_of(8) {
            return Err(fault(crate::errno::EINVAL));
        }
        let (entry, into, _) = self.look_up(address, READABLE | WRITABLE)?;
        let Some(buffer) = &entry.buffer else {
            let address = entry.offset + into;
            host::read_u64(address).map_err(fault)?;
            // SAFETY: it was readable just now, is aligned, and the program gave it to the GPU
            // to count in; the processor's own accesses to it are atomic too.
            let number = unsafe { &*(address as *const AtomicU64) };
            return Ok(number.fetch_add(summand, Ordering::AcqRel));
        };
        let spot = buffer.spot().map_err(fault)?;
        let at = spot.offset + entry.offset + into;
        let page = spot.file.page(at & !4095).map_err(fault)?;
        let inside = (at & 4095) as usize;
        // SAFETY: within the page, which stays mapped until `page` is dropped, and aligned.
        let number = unsafe { &*page.start().add(inside).cast::<AtomicU64>() };
        Ok(number.fetch_add(summand, Ordering::AcqRel))
    }
}

/// A page of a memory file, mapped for as long as this lives.
#[derive(Debug)]
pub(crate) struct Page(*mut c_void);

impl Page {
    /// Maps a page; `offset` is where it starts in the file.
    pub(crate) fn new(descriptor: libc::c_int, offset: u64) -> Result<Self> {
        let mapping = Mapping {
            address: std::ptr::null_mut(),
            length: 4096,
            protection: libc::PROT_READ | libc::PROT_WRITE,
            flags: libc::MAP_SHARED,
        };
        // SAFETY: without MAP_FIXED the kernel chooses an address where nothing is.
        unsafe { real::map_at(mapping, descriptor, offset) }.map(Self)
    }

    fn start(&self) -> *mut u8 {
        self.0.cast()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` and by nobody else.
        unsafe { libc::syscall(libc::SYS_munmap, self.0, 4096usize) };
    }
}
