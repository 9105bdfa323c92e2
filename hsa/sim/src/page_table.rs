//! The page table of a GPU. Only `set_access` adds entries.

use crate::address_space::PAGE;
use crate::physical::Memory;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The entry of a GPU's page table for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// Whether the GPU can read the page.
    pub readable: bool,
    /// Whether the GPU can write the page.
    pub writable: bool,
    /// The mapped handle.
    pub handle: u64,
    /// The offset of the address in the handle's memory.
    pub offset: u64,
}

/// One mapping in a GPU's page table.
#[derive(Debug)]
pub(crate) struct Entry {
    end: usize,
    /// The offset in the memory of the first mapped byte. Only the fault `shifted` makes it
    /// nonzero; the mapping then wraps at the end of the memory.
    offset: u64,
    pub(crate) memory: Arc<Memory>,
    handle: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

impl Entry {
    /// Returns the offset in the memory of byte `into` of the mapping, and the number of bytes up
    /// to the end of the memory.
    pub(crate) fn offset_at(&self, into: usize) -> (u64, usize) {
        let size = self.memory.size.next_multiple_of(PAGE as u64);
        let offset = (self.offset + into as u64) % size;
        (offset, (size - offset) as usize)
    }
}

/// A GPU's page table.
#[derive(Debug, Default)]
pub(crate) struct PageTable {
    entries: BTreeMap<usize, Entry>,
}

/// An error: the addresses are already mapped.
#[derive(Debug)]
pub(crate) struct AlreadyMapped;

impl PageTable {
    /// Maps memory at a range of whole pages.
    pub(crate) fn insert(
        &mut self,
        address: usize,
        size: usize,
        (memory, handle): (Arc<Memory>, u64),
        (readable, writable): (bool, bool),
    ) -> Result<(), AlreadyMapped> {
        let end = address + size;
        let before = self.entries.range(..end).next_back();
        if before.is_some_and(|(_, entry)| entry.end > address) {
            return Err(AlreadyMapped);
        }
        self.entries.insert(address, Entry { end, offset: 0, memory, handle, readable, writable });
        Ok(())
    }

    /// Makes the mapping at `address` start at this offset of its memory.
    pub(crate) fn shift(&mut self, address: usize, offset: u64) {
        if let Some(entry) = self.entries.get_mut(&address) {
            entry.offset = offset;
        }
    }

    pub(crate) fn remove(&mut self, address: usize) {
        self.entries.remove(&address);
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Finds the mapping that contains an address. Returns its start, its end and its entry.
    pub(crate) fn find(&self, address: usize) -> Option<(usize, usize, &Entry)> {
        let (start, entry) = self.entries.range(..=address).next_back()?;
        (address < entry.end).then_some((*start, entry.end, entry))
    }

    pub(crate) fn page(&self, address: usize) -> Option<Page> {
        let (start, _, entry) = self.find(address)?;
        let Entry { readable, writable, handle, .. } = *entry;
        let (offset, _) = entry.offset_at(address - start);
        Some(Page { readable, writable, handle, offset })
    }
}
