//! What a GPU sees: its own page table, which only `set_access` fills.

use crate::physical::Memory;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a GPU's page table says about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// Whether the GPU may read it.
    pub readable: bool,
    /// Whether the GPU may write it.
    pub writable: bool,
    /// The handle that is mapped there.
    pub handle: u64,
    /// How far into the handle's memory the address is.
    pub offset: u64,
}

/// One mapping as a GPU sees it; it begins at offset 0 of the memory.
#[derive(Debug)]
pub(crate) struct Entry {
    end: usize,
    pub(crate) memory: Arc<Memory>,
    handle: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

/// A GPU's page table.
#[derive(Debug, Default)]
pub(crate) struct PageTable {
    entries: BTreeMap<usize, Entry>,
}

/// The addresses are taken.
#[derive(Debug)]
pub(crate) struct Taken;

impl PageTable {
    /// Maps memory at a range of whole pages.
    pub(crate) fn insert(
        &mut self,
        address: usize,
        size: usize,
        (memory, handle): (Arc<Memory>, u64),
        (readable, writable): (bool, bool),
    ) -> Result<(), Taken> {
        let end = address + size;
        let before = self.entries.range(..end).next_back();
        if before.is_some_and(|(_, entry)| entry.end > address) {
            return Err(Taken);
        }
        self.entries.insert(address, Entry { end, memory, handle, readable, writable });
        Ok(())
    }

    pub(crate) fn remove(&mut self, address: usize) {
        self.entries.remove(&address);
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// The mapping at an address, with its start and its end.
    pub(crate) fn find(&self, address: usize) -> Option<(usize, usize, &Entry)> {
        let (start, entry) = self.entries.range(..=address).next_back()?;
        (address < entry.end).then_some((*start, entry.end, entry))
    }

    pub(crate) fn page(&self, address: usize) -> Option<Page> {
        let (start, _, entry) = self.find(address)?;
        let Entry { readable, writable, handle, .. } = *entry;
        Some(Page { readable, writable, handle, offset: (address - start) as u64 })
    }
}
