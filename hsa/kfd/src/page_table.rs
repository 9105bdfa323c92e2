//! The page table of one open render node.

use crate::buffer::Buffer;
use crate::errno::{EINVAL, ENOENT, Result};
use crate::hardware::{Hardware, Updates};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

pub(crate) const PAGE: u64 = 4096;

/// The permissions, `AMDGPU_VM_PAGE_*`.
pub(crate) const READABLE: u32 = 1 << 1;
pub(crate) const WRITABLE: u32 = 1 << 2;
pub(crate) const EXECUTABLE: u32 = 1 << 3;

/// The mapping of a range of addresses.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) size: u64,
    /// The offset in the buffer. For user memory, the address of the memory in the process.
    pub(crate) offset: u64,
    /// The permissions and the caching mode: `AMDGPU_VM_PAGE_*`.
    pub(crate) flags: u32,
    /// `None` for user memory, doorbells and registers.
    pub(crate) buffer: Option<Arc<Buffer>>,
}

impl Entry {
    /// Returns the end of the entry's range at an address, or `EINVAL` if the range is not
    /// page-aligned or exceeds the buffer.
    fn checked_end(&self, address: u64) -> Result<u64> {
        if !self.offset.is_multiple_of(PAGE) {
            return Err(EINVAL);
        }
        if let Some(buffer) = &self.buffer {
            let end = self.offset.checked_add(self.size).ok_or(EINVAL)?;
            if end > buffer.size.next_multiple_of(PAGE) {
                return Err(EINVAL);
            }
        }
        range_end(address, self.size)
    }
}

/// The target of a GPU engine's access.
#[derive(Debug)]
pub(crate) enum Translation {
    /// An entry, and its start address.
    Entry(u64, Entry),
    /// No memory for this many bytes: reads return zeros, writes are lost.
    NoMemory(u64),
}

/// A removed entry that the engines still use. Its memory may have been freed.
#[derive(Debug)]
struct StaleEntry {
    address: u64,
    size: u64,
    offset: u64,
    flags: u32,
    buffer: Weak<Buffer>,
    until: Instant,
}

/// A page table, whose entries never overlap.
#[derive(Debug, Default)]
pub(crate) struct PageTable {
    entries: BTreeMap<u64, Entry>,
    /// The time from which the engines see a new entry, by its address.
    unseen: BTreeMap<u64, Instant>,
    /// The addresses of entries whose memory has moved.
    moved: BTreeSet<u64>,
    stale: Vec<StaleEntry>,
    /// The addresses of the entries of each buffer, by the buffer's token.
    addresses: HashMap<u64, BTreeSet<u64>>,
    /// The addresses of the remainders of split entries, until the next update of their buffer
    /// (`bo_va->invalids`). Only with [`Updates::split_bug`].
    split: Option<BTreeSet<u64>>,
    /// The entries that the engines read, if changes do not take effect at once.
    hardware: Option<Hardware>,
}

impl PageTable {
    pub(crate) fn new(updates: Updates) -> Self {
        Self {
            split: updates.split_bug.then(BTreeSet::new),
            hardware: (!updates.are_immediate()).then(|| Hardware::new(updates)),
            ..Self::default()
        }
    }

    /// Adds an entry. As in amdgpu, returns `EINVAL` if the entry is not page-aligned or overlaps
    /// another entry.
    pub(crate) fn map(&mut self, address: u64, entry: Entry) -> Result<()> {
        let end = entry.checked_end(address)?;
        let previous = self.entries.range(..end).next_back();
        if previous.is_some_and(|(start, entry)| start + entry.size > address) {
            return Err(EINVAL);
        }
        self.write(address, entry);
        Ok(())
    }

    /// Inserts an entry. Removes other entries in its range, and splits entries that extend beyond
    /// the range.
    pub(crate) fn replace(&mut self, address: u64, entry: Entry) -> Result<()> {
        entry.checked_end(address)?;
        self.clear(address, entry.size)?;
        self.write(address, entry);
        Ok(())
    }

    /// Inserts an entry, also in the hardware. An update of a buffer ends the effect of
    /// [`Updates::split_bug`] on the buffer's split entries.
    fn write(&mut self, address: u64, entry: Entry) {
        if let Some(hardware) = &mut self.hardware {
            hardware.write(address, &entry);
        }
        if let Some(split) = &mut self.split
            && let Some(buffer) = &entry.buffer
        {
            for address in self.addresses.get(&buffer.label.token).into_iter().flatten() {
                split.remove(address);
            }
        }
        self.insert(address, entry);
    }

    fn insert(&mut self, address: u64, entry: Entry) {
        if let Some(buffer) = &entry.buffer {
            self.addresses.entry(buffer.label.token).or_default().insert(address);
        }
        self.entries.insert(address, entry);
    }

    fn remove(&mut self, address: u64) -> Option<Entry> {
        let entry = self.entries.remove(&address)?;
        self.unseen.remove(&address);
        self.moved.remove(&address);
        if let Some(split) = &mut self.split {
            split.remove(&address);
        }
        if let Some(buffer) = &entry.buffer
            && let Some(addresses) = self.addresses.get_mut(&buffer.label.token)
        {
            addresses.remove(&address);
            if addresses.is_empty() {
                self.addresses.remove(&buffer.label.token);
            }
        }
        Some(entry)
    }

    /// Finds the entry of an address, and its start.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, Entry)> {
        let (start, entry) = self.entries.range(..=address).next_back()?;
        (address - start < entry.size).then(|| (*start, entry.clone()))
    }

    /// Translates the address of an engine's access, with planned faults: stale translations, entries
    /// that are not seen yet, and memory that has moved.
    pub(crate) fn translate(&mut self, address: u64) -> Option<Translation> {
        let now = Instant::now();
        self.stale.retain(|stale| stale.until > now);
        let contains =
            |stale: &&StaleEntry| (stale.address..stale.address + stale.size).contains(&address);
        if let Some(stale) = self.stale.iter().find(contains) {
            let StaleEntry { size, offset, flags, .. } = *stale;
            return Some(match stale.buffer.upgrade() {
                Some(buffer) => {
                    let entry = Entry { size, offset, flags, buffer: Some(buffer) };
                    Translation::Entry(stale.address, entry)
                }
                None => Translation::NoMemory(stale.address + size - address),
            });
        }
        let (start, entry) = match &mut self.hardware {
            None => self.find(address)?,
            Some(hardware) => match hardware.find(address)? {
                (start, Ok(entry)) => (start, entry),
                (start, Err(size)) => return Some(Translation::NoMemory(start + size - address)),
            },
        };
        let unseen = self.unseen.get(&start).is_some_and(|from| *from > now);
        if unseen || self.moved.contains(&start) {
            return Some(Translation::NoMemory(start + entry.size - address));
        }
        Some(Translation::Entry(start, entry))
    }

    /// Hides an entry from the engines for a time.
    pub(crate) fn hide(&mut self, address: u64, time: Duration) {
        self.unseen.insert(address, Instant::now() + time);
    }

    /// Keeps a removed entry usable for the engines for a time.
    pub(crate) fn keep_stale(&mut self, address: u64, entry: &Entry, time: Duration) {
        let Some(buffer) = entry.buffer.as_ref().map(Arc::downgrade) else { return };
        let Entry { size, offset, flags, .. } = *entry;
        let until = Instant::now() + time;
        self.stale.push(StaleEntry { address, size, offset, flags, buffer, until });
    }

    /// Marks the entries of a buffer as outdated: its memory has moved. Returns whether there are entries.
    pub(crate) fn invalidate(&mut self, buffer: &Buffer) -> bool {
        let addresses = self.addresses.get(&buffer.label.token);
        self.moved.extend(addresses.into_iter().flatten());
        addresses.is_some_and(|addresses| !addresses.is_empty())
    }

    /// Updates the entries of a buffer whose memory has moved.
    pub(crate) fn validate(&mut self, buffer: &Buffer) {
        for address in self.addresses.get(&buffer.label.token).into_iter().flatten() {
            self.moved.remove(address);
        }
    }

    /// Shifts an entry by one page of its memory. `GpuAddressSpace::look_up` wraps at the end of the buffer.
    pub(crate) fn shift(&mut self, address: u64) {
        if let Some(entry) = self.entries.get_mut(&address) {
            entry.offset += PAGE;
            if let Some(hardware) = &mut self.hardware {
                hardware.write(address, entry);
            }
        }
    }

    /// Removes the entry that starts at an address. Returns `ENOENT` if no entry starts there, or if the entry does not
    /// map `buffer` (`None` for user memory, doorbells and registers).
    pub(crate) fn unmap(&mut self, address: u64, buffer: Option<&Arc<Buffer>>) -> Result<Entry> {
        let found = self.entries.get(&address).ok_or(ENOENT)?;
        let matches = match (&found.buffer, buffer) {
            (Some(found), Some(buffer)) => Arc::ptr_eq(found, buffer),
            (None, None) => true,
            _ => false,
        };
        if !matches {
            return Err(ENOENT);
        }
        let is_forgotten = self.split.as_ref().is_some_and(|split| split.contains(&address));
        let entry = self.remove(address).ok_or(ENOENT)?;
        if !is_forgotten {
            self.clear_in_hardware(address..address + entry.size);
        }
        Ok(entry)
    }

    fn clear_in_hardware(&mut self, range: Range<u64>) {
        if let Some(hardware) = &mut self.hardware {
            hardware.clear(range);
        }
    }

    fn mark_as_split(&mut self, address: u64) {
        if let Some(split) = &mut self.split {
            split.insert(address);
        }
    }

    /// Makes all pending changes in the hardware, and flushes the TLB.
    pub(crate) fn synchronize(&mut self) {
        if let Some(hardware) = &mut self.hardware {
            hardware.synchronize();
        }
    }

    /// Removes the entries in a range. Splits entries that extend beyond the range.
    pub(crate) fn clear(&mut self, address: u64, size: u64) -> Result<()> {
        let end = range_end(address, size)?;
        let overlapping = self.entries.range(..end).rev();
        let overlapping = overlapping.take_while(|(start, entry)| *start + entry.size > address);
        let starts: Vec<u64> = overlapping.map(|(start, _)| *start).collect();
        for start in starts {
            let Some(entry) = self.remove(start) else { continue };
            let entry_end = start + entry.size;
            self.clear_in_hardware(start.max(address)..entry_end.min(end));
            if entry_end > end {
                self.mark_as_split(end);
                let tail = Entry {
                    size: entry_end - end,
                    offset: entry.offset + (end - start),
                    ..entry.clone()
                };
                self.insert(end, tail);
            }
            if start < address {
                self.mark_as_split(start);
                self.insert(start, Entry { size: address - start, ..entry });
            }
        }
        Ok(())
    }

    /// Removes every entry of a buffer, when its last handle is closed.
    pub(crate) fn unmap_buffer(&mut self, buffer: &Arc<Buffer>) {
        for address in self.addresses.get(&buffer.label.token).cloned().unwrap_or_default() {
            // Cannot fail: each address is that of an entry of the buffer.
            drop(self.unmap(address, Some(buffer)));
        }
    }

    /// Returns every entry, by its address.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u64, &Entry)> {
        self.entries.iter().map(|(address, entry)| (*address, entry))
    }
}

/// Returns the end of a range, or `EINVAL` if the range is empty or not page-aligned.
fn range_end(address: u64, size: u64) -> Result<u64> {
    if size == 0 || !address.is_multiple_of(PAGE) || !size.is_multiple_of(PAGE) {
        return Err(EINVAL);
    }
    address.checked_add(size).ok_or(EINVAL)
}

#[cfg(test)]
mod tests;
