//! A GPU's accesses to memory, through its page table.

use super::reserved_page::ReservedPage;
use crate::drm::DrmFile;
use crate::errno::{EACCES, EFAULT, EINVAL, Errno, Result};
use crate::page_table::{Entry, PAGE, READABLE, Translation, WRITABLE};
use crate::user;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of bytes that are copied or filled at a time.
const CHUNK_SIZE: u64 = 1 << 20;

/// A failed access of a GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct AccessFault {
    pub(super) address: u64,
    pub(super) error: Errno,
}

type AccessResult<T> = std::result::Result<T, AccessFault>;

/// The addresses that a GPU's engines can access, through the page table of a process.
#[derive(Clone, Debug)]
pub(super) struct GpuAddressSpace {
    /// The file of the render node, which has the page table.
    pub(super) drm_file: Arc<DrmFile>,
    /// The page at which a buffer is mapped while an engine atomically adds to a number in the buffer.
    pub(super) reserved_page: Arc<ReservedPage>,
}

impl GpuAddressSpace {
    /// Looks up an address. Returns the entry, the offset in the entry's memory, and the length up
    /// to the end of the entry or of the buffer. For user memory, the offset is the address. Fails
    /// if the address is not mapped or its entry lacks a `required` flag. Returns no entry for
    /// [`Translation::NoMemory`]: reads return zeros, and writes are lost.
    fn look_up(&self, address: u64, required: u32) -> AccessResult<(Option<Entry>, u64, u64)> {
        let found = self.drm_file.state().table.translate(address);
        let (start, entry) = match found.ok_or(AccessFault { address, error: EFAULT })? {
            Translation::Entry(start, entry) => (start, entry),
            Translation::NoMemory(remaining) => return Ok((None, 0, remaining)),
        };
        if entry.flags & required != required {
            return Err(AccessFault { address, error: EACCES });
        }
        let offset_in_entry = address - start;
        let (offset, remaining) = (entry.offset + offset_in_entry, entry.size - offset_in_entry);
        match &entry.buffer {
            // Only an entry that a planned fault has shifted extends beyond the end of its buffer.
            Some(buffer) if offset + remaining > buffer.size.next_multiple_of(PAGE) => {
                let end = buffer.size.next_multiple_of(PAGE);
                Ok((Some(entry), offset % end, remaining.min(end - offset % end)))
            }
            _ => Ok((Some(entry), offset, remaining)),
        }
    }

    /// Calls `visit` for each entry of a range: with the entry, the offset in its memory, and the part of the
    /// range.
    fn walk(
        &self,
        address: u64,
        length: u64,
        required: u32,
        mut visit: impl FnMut(Option<&Entry>, u64, std::ops::Range<usize>) -> Result<()>,
    ) -> AccessResult<()> {
        let mut done = 0;
        while done < length {
            let address = address.wrapping_add(done);
            let (entry, offset, remaining) = self.look_up(address, required)?;
            let count = remaining.min(length - done);
            visit(entry.as_ref(), offset, done as usize..(done + count) as usize)
                .map_err(|error| AccessFault { address, error })?;
            done += count;
        }
        Ok(())
    }

    pub(super) fn read(&self, address: u64, bytes: &mut [u8]) -> AccessResult<()> {
        self.walk(address, bytes.len() as u64, READABLE, |entry, offset, range| {
            let bytes = &mut bytes[range];
            match entry.map(|entry| &entry.buffer) {
                None => bytes.fill(0),
                Some(Some(buffer)) => buffer.file()?.read(offset, bytes)?,
                Some(None) => user::read(offset, bytes)?,
            }
            Ok(())
        })
    }

    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> AccessResult<()> {
        self.walk(address, bytes.len() as u64, WRITABLE, |entry, offset, range| {
            let bytes = &bytes[range];
            match entry.map(|entry| &entry.buffer) {
                None => Ok(()),
                Some(Some(buffer)) => buffer.file()?.write(offset, bytes),
                Some(None) => user::write(offset, bytes),
            }
        })
    }

    /// Copies memory in chunks.
    pub(super) fn copy(&self, from: u64, to: u64, length: u64) -> AccessResult<()> {
        let mut chunk = vec![0; length.min(CHUNK_SIZE) as usize];
        let mut done = 0;
        while done < length {
            let count = (length - done).min(chunk.len() as u64);
            let chunk = &mut chunk[..count as usize];
            self.read(from.wrapping_add(done), chunk)?;
            self.write(to.wrapping_add(done), chunk)?;
            done += count;
        }
        Ok(())
    }

    /// Fills memory with a word.
    pub(super) fn fill(&self, to: u64, length: u64, word: u32) -> AccessResult<()> {
        let chunk = word.to_le_bytes().repeat((length.min(CHUNK_SIZE) as usize).div_ceil(4));
        let mut done = 0;
        while done < length {
            let count = (length - done).min(chunk.len() as u64);
            self.write(to.wrapping_add(done), &chunk[..count as usize])?;
            done += count;
        }
        Ok(())
    }

    /// Flips one bit of the byte at an address.
    pub(super) fn garble(&self, address: u64) -> AccessResult<()> {
        let mut byte = [0];
        self.read(address, &mut byte)?;
        self.write(address, &[byte[0] ^ 1])
    }

    /// Adds to a number that the CPU may change concurrently. Returns the previous value.
    pub(super) fn add(&self, address: u64, summand: u64) -> AccessResult<u64> {
        let fault = |error| AccessFault { address, error };
        if !address.is_multiple_of(8) {
            return Err(fault(EINVAL));
        }
        let (entry, offset, _) = self.look_up(address, READABLE | WRITABLE)?;
        let Some(entry) = entry else { return Ok(0) };
        let Some(buffer) = &entry.buffer else {
            let address = offset;
            user::read_value::<u64>(address).map_err(fault)?;
            // SAFETY: the address was readable just now, and is aligned. A program that unmaps memory
            // that the GPU is changing crashes here; on hardware the GPU would fault. The program
            // also accesses this number atomically.
            let number = unsafe { &*(address as *const AtomicU64) };
            return Ok(number.fetch_add(summand, Ordering::AcqRel));
        };
        let previous = buffer.file().and_then(|file| self.reserved_page.add(file, offset, summand));
        previous.map_err(fault)
    }
}
