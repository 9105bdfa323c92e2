//! The page table of a GPU. `set_access` adds entries, and [`Instance::replace_entries`] changes them as the kernel
//! driver's `AMDGPU_VA_OP_REPLACE` does.

use crate::address_space::PAGE;
use crate::agents::Agent;
use crate::config::PageTableUpdates;
use crate::instance::Instance;
use crate::physical::Memory;
use crate::status::HsaResult;
use core::ops::Range;
use hsa_sys::*;
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The entry of a GPU's page table for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// Whether the GPU can read the page.
    pub readable: bool,
    /// Whether the GPU can write the page.
    pub writable: bool,
    /// The mapped handle; 0 if [`Simulation::replace_entries`](crate::Simulation::replace_entries) has mapped other
    /// memory here.
    pub handle: u64,
    /// The offset of the address in the memory.
    pub offset: u64,
}

/// One mapping in a GPU's page table.
#[derive(Debug)]
pub(crate) struct Entry {
    end: usize,
    /// The offset of the first mapped byte in the memory. With the fault `shifted`, the mapping wraps at the
    /// end of the memory.
    offset: u64,
    pub(crate) memory: Arc<Memory>,
    handle: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// Whether the GPU has used the entry, so that its TLB contains the entry.
    used: AtomicBool,
}

impl Clone for Entry {
    fn clone(&self) -> Self {
        let (memory, used) = (Arc::clone(&self.memory), AtomicBool::new(self.used.load(Relaxed)));
        Self { memory, used, ..*self }
    }
}

impl Entry {
    /// Converts an offset in the mapping to an offset in the memory. Also returns the number of bytes
    /// up to the end of the memory.
    pub(crate) fn offset_at(&self, offset_in_mapping: usize) -> (u64, usize) {
        let size = self.memory.size.next_multiple_of(PAGE as u64);
        let offset = (self.offset + offset_in_mapping as u64) % size;
        (offset, (size - offset) as usize)
    }
}

/// Entries that do not overlap, by their start.
type Entries = BTreeMap<usize, Entry>;

/// A GPU's page table.
#[derive(Debug, Default)]
pub(crate) struct PageTable {
    updates: PageTableUpdates,
    entries: Entries,
    /// With [`PageTableUpdates::NotFlushed`], these are removed entries that the TLB contains. With
    /// [`PageTableUpdates::Late`], these are the entries that the GPU uses.
    old: Entries,
}

/// The error for a range that is already mapped, at least in part.
#[derive(Debug)]
pub(crate) struct AlreadyMapped;

impl PageTable {
    pub(crate) fn new(updates: PageTableUpdates) -> Self {
        Self { updates, ..Self::default() }
    }

    /// Maps memory at a range of whole pages.
    pub(crate) fn insert(
        &mut self,
        address: usize,
        size: usize,
        (memory, handle): (Arc<Memory>, u64),
        (readable, writable): (bool, bool),
    ) -> Result<(), AlreadyMapped> {
        let end = address + size;
        if overlapping(&self.entries, address..end).is_some() {
            return Err(AlreadyMapped);
        }
        let used = AtomicBool::new(false);
        let entry = Entry { end, offset: 0, memory, handle, readable, writable, used };
        self.entries.insert(address, entry);
        Ok(())
    }

    /// Makes the mapping at `address` start at this offset of its memory.
    pub(crate) fn set_offset(&mut self, address: usize, offset: u64) {
        if let Some(entry) = self.entries.get_mut(&address) {
            entry.offset = offset;
        }
    }

    /// Removes the entry that starts at `address`. Other entries into which replacements have split the mapping stay,
    /// as in the kernel.
    pub(crate) fn remove(&mut self, address: usize) {
        if let Some(entry) = self.entries.remove(&address) {
            self.keep_in_tlb(address, entry);
        }
    }

    /// Removes the entries in a range. Splits entries that extend beyond the range.
    fn remove_range(&mut self, range: Range<usize>) {
        while let Some(start) = overlapping(&self.entries, range.clone()) {
            let Some(entry) = self.entries.remove(&start) else { return };
            if start < range.start {
                self.entries.insert(start, Entry { end: range.start, ..entry.clone() });
            }
            if entry.end > range.end {
                let offset = entry.offset + (range.end - start) as u64;
                self.entries.insert(range.end, Entry { offset, ..entry.clone() });
            }
            self.keep_in_tlb(start, entry);
        }
    }

    /// Keeps a removed entry in effect, if the TLB contains the entry and the driver does not flush the TLB.
    fn keep_in_tlb(&mut self, start: usize, entry: Entry) {
        let is_cached = entry.used.load(Relaxed);
        if self.updates == PageTableUpdates::NotFlushed && is_cached {
            self.old.insert(start, entry);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.old.clear();
    }

    /// Makes all earlier changes take effect.
    pub(crate) fn flush(&mut self) {
        match self.updates {
            PageTableUpdates::Immediate => {}
            PageTableUpdates::NotFlushed => {
                self.old.clear();
                self.entries.values().for_each(|entry| entry.used.store(false, Relaxed));
            }
            PageTableUpdates::Late => self.old = self.entries.clone(),
        }
    }

    /// Finds the mapping that the GPU uses for an address. Returns its start, its end and its entry, and marks the
    /// entry as used.
    pub(crate) fn find(&self, address: usize) -> Option<(usize, usize, &Entry)> {
        let old = || find(&self.old, address);
        let found = match self.updates {
            PageTableUpdates::Immediate => find(&self.entries, address),
            PageTableUpdates::NotFlushed => old().or_else(|| find(&self.entries, address)),
            PageTableUpdates::Late => old(),
        };
        found.inspect(|(_, _, entry)| entry.used.store(true, Relaxed))
    }

    pub(crate) fn page(&self, address: usize) -> Option<Page> {
        let (start, _, entry) = self.find(address)?;
        let Entry { readable, writable, handle, .. } = *entry;
        let (offset, _) = entry.offset_at(address - start);
        Some(Page { readable, writable, handle, offset })
    }
}

/// Returns the start of the last entry that overlaps a range.
fn overlapping(entries: &Entries, range: Range<usize>) -> Option<usize> {
    let (start, entry) = entries.range(..range.end).next_back()?;
    (entry.end > range.start).then_some(*start)
}

fn find(entries: &Entries, address: usize) -> Option<(usize, usize, &Entry)> {
    let (start, entry) = entries.range(..=address).next_back()?;
    (address < entry.end).then_some((*start, entry.end, entry))
}

impl Instance {
    /// Maps the memory of a descriptor, from `offset` on, at a range of a GPU's page table. Replaces the entries there.
    /// `permissions` is the sum of 1 (readable) and 2 (writable).
    pub(crate) fn replace_entries(
        &self,
        agent: hsa_agent_t,
        descriptor: RawFd,
        range: Range<usize>,
        offset: usize,
        permissions: u32,
    ) -> HsaResult {
        const INVALID: hsa_status_t = HSA_STATUS_ERROR_INVALID_ARGUMENT;
        let Agent::Gpu(gpu) = self.agent(agent)? else {
            return Err(HSA_STATUS_ERROR_INVALID_AGENT);
        };
        let is_aligned = |number: &usize| number.is_multiple_of(PAGE);
        if range.is_empty() || ![range.start, range.end, offset].iter().all(is_aligned) {
            return Err(INVALID);
        }
        let mut state = self.lock();
        let memory = state.memory_of_descriptor(descriptor).ok_or(INVALID)?;
        let offset = offset as u64;
        let end_in_memory = offset.checked_add(range.len() as u64).ok_or(INVALID)?;
        if end_in_memory > memory.size.next_multiple_of(PAGE as u64) {
            return Err(INVALID);
        }
        let table = state.page_tables.get_mut(gpu).ok_or(INVALID)?;
        let replaced = find(&table.entries, range.start);
        let replaced = replaced.filter(|(_, _, entry)| Arc::ptr_eq(&entry.memory, &memory));
        let handle = replaced.map_or(0, |(_, _, entry)| entry.handle);
        table.remove_range(range.clone());
        let (readable, writable) = (permissions & 1 != 0, permissions & 2 != 0);
        let (end, used) = (range.end, AtomicBool::new(false));
        let entry = Entry { end, offset, memory, handle, readable, writable, used };
        table.entries.insert(range.start, entry);
        Ok(())
    }
}
