//! A GPU's accesses to memory, through its page table.

use super::frame::Frame;
use crate::drm::DrmFile;
use crate::errno::{EACCES, EFAULT, EINVAL, Errno, Result};
use crate::page_table::{Entry, PAGE, READABLE, Translation, WRITABLE};
use crate::user;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A failed access of a GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub(super) address: u64,
    pub(super) error: Errno,
}

type Access<T> = std::result::Result<T, Fault>;

/// A GPU's page table, as its engines use it.
#[derive(Clone, Debug)]
pub(super) struct GpuMemory {
    pub(super) space: Arc<DrmFile>,
    /// The page through which engines add to a buffer's memory atomically.
    pub(super) frame: Arc<Frame>,
}

impl GpuMemory {
    /// Looks up an address: the memory (`None` if accesses have no effect), the offset in it, and the
    /// length up to the end of the entry. Fails if the address is not mapped or its entry lacks a
    /// `needed` flag.
    fn look_up(&self, address: u64, needed: u32) -> Access<(Option<Entry>, u64, u64)> {
        let found = self.space.state().table.translate(address);
        let (start, entry) = match found.ok_or(Fault { address, error: EFAULT })? {
            Translation::Entry(start, entry) => (start, entry),
            Translation::Nowhere(remaining) => return Ok((None, 0, remaining)),
        };
        if entry.flags & needed != needed {
            return Err(Fault { address, error: EACCES });
        }
        let into = address - start;
        let (at, remaining) = (entry.offset + into, entry.size - into);
        match &entry.buffer {
            // Only a shifted entry extends beyond the end of its buffer.
            Some(buffer) if at + remaining > buffer.size.next_multiple_of(PAGE) => {
                let end = buffer.size.next_multiple_of(PAGE);
                Ok((Some(entry), at % end, remaining.min(end - at % end)))
            }
            _ => Ok((Some(entry), at, remaining)),
        }
    }

    /// Walks a range entry by entry.
    fn walk(
        &self,
        address: u64,
        length: u64,
        needed: u32,
        mut visit: impl FnMut(Option<&Entry>, u64, std::ops::Range<usize>) -> Result<()>,
    ) -> Access<()> {
        let mut done = 0;
        while done < length {
            let address = address.wrapping_add(done);
            let (entry, at, remaining) = self.look_up(address, needed)?;
            let count = remaining.min(length - done);
            visit(entry.as_ref(), at, done as usize..(done + count) as usize)
                .map_err(|error| Fault { address, error })?;
            done += count;
        }
        Ok(())
    }

    pub(super) fn read(&self, address: u64, bytes: &mut [u8]) -> Access<()> {
        self.walk(address, bytes.len() as u64, READABLE, |entry, at, range| {
            let bytes = &mut bytes[range];
            match entry.map(|entry| &entry.buffer) {
                None => bytes.fill(0),
                Some(Some(buffer)) => buffer.file()?.read(at, bytes)?,
                Some(None) => user::read(at, bytes)?,
            }
            Ok(())
        })
    }

    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> Access<()> {
        self.walk(address, bytes.len() as u64, WRITABLE, |entry, at, range| {
            let bytes = &bytes[range];
            match entry.map(|entry| &entry.buffer) {
                None => Ok(()),
                Some(Some(buffer)) => buffer.file()?.write(at, bytes),
                Some(None) => user::write(at, bytes),
            }
        })
    }

    /// Copies memory, at most 1 MiB at a time.
    pub(super) fn copy(&self, from: u64, to: u64, length: u64) -> Access<()> {
        let mut piece = vec![0; length.min(1 << 20) as usize];
        let mut done = 0;
        while done < length {
            let count = (length - done).min(piece.len() as u64);
            let piece = &mut piece[..count as usize];
            self.read(from.wrapping_add(done), piece)?;
            self.write(to.wrapping_add(done), piece)?;
            done += count;
        }
        Ok(())
    }

    /// Fills memory with a word.
    pub(super) fn fill(&self, to: u64, length: u64, word: u32) -> Access<()> {
        let piece = word.to_le_bytes().repeat((length.min(1 << 20) as usize).div_ceil(4));
        let mut done = 0;
        while done < length {
            let count = (length - done).min(piece.len() as u64);
            self.write(to.wrapping_add(done), &piece[..count as usize])?;
            done += count;
        }
        Ok(())
    }

    /// Flips one bit of the byte at an address.
    pub(super) fn garble(&self, address: u64) -> Access<()> {
        let mut byte = [0];
        self.read(address, &mut byte)?;
        self.write(address, &[byte[0] ^ 1])
    }

    /// Adds to a number that the CPU may change concurrently; returns the previous value.
    pub(super) fn add(&self, address: u64, summand: u64) -> Access<u64> {
        let fault = |error| Fault { address, error };
        if !address.is_multiple_of(8) {
            return Err(fault(EINVAL));
        }
        let (entry, at, _) = self.look_up(address, READABLE | WRITABLE)?;
        let Some(entry) = entry else { return Ok(0) };
        let Some(buffer) = &entry.buffer else {
            let address = at;
            user::get::<u64>(address).map_err(fault)?;
            // SAFETY: the address was readable just now, and is aligned. A program that unmaps memory
            // that the GPU is changing crashes here; on hardware the GPU would fault. The program
            // also accesses this number atomically.
            let number = unsafe { &*(address as *const AtomicU64) };
            return Ok(number.fetch_add(summand, Ordering::AcqRel));
        };
        let previous = buffer.file().and_then(|file| self.frame.add(file, at, summand));
        previous.map_err(fault)
    }
}
