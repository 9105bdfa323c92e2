//! What a GPU sees: its own page table, which only `set_access` fills.

use crate::address_space::PAGE;
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

/// One mapping as a GPU sees it.
#[derive(Debug)]
pub(crate) struct Entry {
    end: usize,
    /// Where in the memory it begins; not at 0 by a fault alone, and then it goes round the end.
    start: u64,
    pub(crate) memory: Arc<Memory>,
    handle: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

impl Entry {
    /// Where in the memory it is so many bytes on, and how many bytes follow there.
    pub(crate) fn offset_at(&self, into: usize) -> (u64, usize) {
        let size = self.memory.size.next_multiple_of(PAGE as u64);
        let at = (self.start + into as u64) % size;
        (at, (size - at) as usize)
    }
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
        self.entries.insert(address, Entry { end, start: 0, memory, handle, readable, writable });
        Ok(())
    }

    /// Has a mapping begin at another place of its memory.
    pub(crate) fn shift(&mut self, address: usize, by: u64) {
        if let Some(entry) = self.entries.get_mut(&address) {
            entry.start = by;
        }
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
        let (offset, _) = entry.offset_at(address - start);
        Some(Page { readable, writable, handle, offset })
    }
}
