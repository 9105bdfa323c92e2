//! The page table of one GPU in one process: which address leads to which memory.

use crate::buffer::Buffer;
use crate::errno::{EINVAL, ENOENT, Result};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

const PAGE: u64 = 4096;

/// `AMDGPU_VM_PAGE_READABLE` and its like.
pub(crate) const READABLE: u32 = 1 << 1;
pub(crate) const WRITABLE: u32 = 1 << 2;
pub(crate) const EXECUTABLE: u32 = 1 << 3;

/// A range of addresses and what is behind it.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) size: u64,
    /// From where in the buffer, or the process's own address of its memory.
    pub(crate) offset: u64,
    /// Readable, writable, executable: `AMDGPU_VM_PAGE_*`.
    pub(crate) flags: u32,
    /// None for memory of the process itself that the GPU was told about.
    pub(crate) buffer: Option<Arc<Buffer>>,
}

/// Entries that never overlap.
#[derive(Debug, Default)]
pub(crate) struct PageTable {
    entries: BTreeMap<u64, Entry>,
    /// How many entries lead to each buffer, by its token.
    counts: HashMap<u64, usize>,
}

impl PageTable {
    /// Adds an entry; `EINVAL` if it is not made of pages or overlaps another, as in amdgpu.
    pub(crate) fn map(&mut self, address: u64, entry: Entry) -> Result<()> {
        let whole =
            [address, entry.offset, entry.size].iter().all(|number| number.is_multiple_of(PAGE));
        let end = address.checked_add(entry.size).ok_or(EINVAL)?;
        if !whole || entry.size == 0 {
            return Err(EINVAL);
        }
        if let Some(buffer) = &entry.buffer {
            let last = entry.offset.checked_add(entry.size).ok_or(EINVAL)?;
            if last > buffer.size.next_multiple_of(PAGE) {
                return Err(EINVAL);
            }
        }
        let below = self.entries.range(..end).next_back();
        if below.is_some_and(|(start, entry)| start + entry.size > address) {
            return Err(EINVAL);
        }
        self.insert(address, entry);
        Ok(())
    }

    fn insert(&mut self, address: u64, entry: Entry) {
        if let Some(buffer) = &entry.buffer {
            *self.counts.entry(buffer.label.token).or_default() += 1;
        }
        self.entries.insert(address, entry);
    }

    fn remove(&mut self, address: u64) -> Option<Entry> {
        let entry = self.entries.remove(&address)?;
        if let Some(buffer) = &entry.buffer
            && let Some(count) = self.counts.get_mut(&buffer.label.token)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&buffer.label.token);
            }
        }
        Some(entry)
    }

    /// The entry an address lies in, and where it starts.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, Entry)> {
        let (start, entry) = self.entries.range(..=address).next_back()?;
        (address - start < entry.size).then(|| (*start, entry.clone()))
    }

    /// Removes the entry that starts at an address and leads to that memory.
    pub(crate) fn unmap(&mut self, address: u64, buffer: Option<&Arc<Buffer>>) -> Result<Entry> {
        let found = self.entries.get(&address).ok_or(ENOENT)?;
        let same = match (&found.buffer, buffer) {
            (Some(found), Some(wanted)) => Arc::ptr_eq(found, wanted),
            (None, None) => true,
            _ => false,
        };
        if !same {
            return Err(ENOENT);
        }
        self.remove(address).ok_or(ENOENT)
    }

    /// Removes whatever lies in a range, cutting entries that reach out of it.
    pub(crate) fn clear(&mut self, address: u64, size: u64) -> Result<()> {
        let end = address.checked_add(size).ok_or(EINVAL)?;
        let touched = self.entries.range(..end).rev();
        let touched = touched.take_while(|(start, entry)| *start + entry.size > address);
        let starts: Vec<u64> = touched.map(|(start, _)| *start).collect();
        for start in starts {
            let Some(entry) = self.remove(start) else { continue };
            let after = start + entry.size;
            if after > end {
                let tail = Entry {
                    size: after - end,
                    offset: entry.offset + (end - start),
                    ..entry.clone()
                };
                self.insert(end, tail);
            }
            if start < address {
                self.insert(start, Entry { size: address - start, ..entry });
            }
        }
        Ok(())
    }

    /// Removes every entry of a buffer: what closing its last handle does.
    pub(crate) fn forget(&mut self, buffer: &Arc<Buffer>) {
        if self.counts.remove(&buffer.label.token).is_none() {
            return;
        }
        self.entries.retain(|_, entry| {
            !entry.buffer.as_ref().is_some_and(|known| Arc::ptr_eq(known, buffer))
        });
    }

    #[cfg(test)]
    fn ranges(&self) -> Vec<(u64, u64)> {
        self.entries.iter().map(|(start, entry)| (*start, entry.size)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(size: u64) -> Entry {
        Entry { size, offset: 0, flags: 0xe, buffer: None }
    }

    #[test]
    fn an_overlap_is_refused_and_a_hole_is_cut() {
        let mut table = PageTable::default();
        table.map(0x10000, entry(0x4000)).unwrap();
        for (address, size) in [(0x10000, 0x1000), (0xf000, 0x2000), (0x13000, 0x1000)] {
            assert_eq!(table.map(address, entry(size)), Err(EINVAL));
        }
        assert_eq!(table.map(0x14001, entry(0x1000)), Err(EINVAL));
        table.map(0x14000, entry(0x1000)).unwrap();
        table.clear(0x11000, 0x1000).unwrap();
        assert_eq!(table.ranges(), [(0x10000, 0x1000), (0x12000, 0x2000), (0x14000, 0x1000)]);
        assert!(table.unmap(0x10000, None).is_ok());
        assert_eq!(table.unmap(0x10000, None).map(drop), Err(ENOENT));
    }
}
