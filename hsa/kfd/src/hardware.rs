//! The page table as a GPU's engines read it, and their TLB.
//!
//! By default the engines read amdgpu's list of mappings ([`PageTable`](crate::page_table::PageTable)),
//! as if each change took effect at once. With one of three keys of `HSA_KFD` ([`Updates`]), changes take effect as on
//! real hardware. The engines then read the entries of this module, which the emulated amdgpu writes.

use crate::buffer::Buffer;
use crate::page_table::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How changes of page tables reach the engines: three keys of `HSA_KFD`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Updates {
    /// `pte_delay`: SDMA jobs write the entries this long after `GEM_VA` has returned, as on a GPU without
    /// large BAR. `None`: the CPU writes them before the call returns.
    pub(crate) delay: Option<Duration>,
    /// `tlb`: the engines keep the translations that they have used. An SDMA job that clears
    /// entries flushes the translations. A write by the CPU does not flush them.
    pub(crate) tlb: bool,
    /// `split_bug`: after `CLEAR` or `REPLACE` has removed a part of a mapping, amdgpu forgets the
    /// remainder (`bo_va->invalids`). `UNMAP` and `GEM_CLOSE` then leave the remainder's entries in the hardware.
    pub(crate) split_bug: bool,
}

impl Updates {
    /// Returns whether each change takes effect at once.
    pub(crate) fn are_immediate(self) -> bool {
        self == Self::default()
    }
}

/// An entry in the hardware. It does not keep the memory allocated.
#[derive(Clone, Debug)]
struct Pte {
    size: u64,
    offset: u64,
    flags: u32,
    /// `None` for user memory, doorbells and registers.
    buffer: Option<Weak<Buffer>>,
}

impl Pte {
    fn new(entry: &Entry) -> Self {
        let Entry { size, offset, flags, .. } = *entry;
        Self { size, offset, flags, buffer: entry.buffer.as_ref().map(Arc::downgrade) }
    }

    /// Returns the entry, or its size if the memory was freed.
    fn entry(&self) -> Result<Entry, u64> {
        let Self { size, offset, flags, .. } = *self;
        let buffer = match &self.buffer {
            Some(buffer) => Some(buffer.upgrade().ok_or(size)?),
            None => None,
        };
        Ok(Entry { size, offset, flags, buffer })
    }
}

/// The result of a look-up: the start of the entry, and the entry. If the memory was freed, `Err` has the size of the
/// entry.
pub(crate) type LookUp = (u64, Result<Entry, u64>);

/// A change that amdgpu makes.
#[derive(Clone, Debug)]
enum Change {
    Write(u64, Pte),
    Clear(Range<u64>),
}

/// The entries of one page table.
#[derive(Debug)]
pub(crate) struct Hardware {
    updates: Updates,
    entries: BTreeMap<u64, Pte>,
    /// The changes that SDMA jobs have not made yet, in order, each with the time at which its job
    /// runs.
    pending: VecDeque<(Instant, Change)>,
    /// The translations that the engines keep. If two translations overlap, the engines use the
    /// older translation.
    tlb: Vec<(u64, Pte)>,
}

impl Hardware {
    pub(crate) fn new(updates: Updates) -> Self {
        Self { updates, entries: BTreeMap::new(), pending: VecDeque::new(), tlb: Vec::new() }
    }

    /// Writes an entry, which replaces the entries in its range.
    pub(crate) fn write(&mut self, address: u64, entry: &Entry) {
        self.change(Change::Write(address, Pte::new(entry)));
    }

    pub(crate) fn clear(&mut self, range: Range<u64>) {
        self.change(Change::Clear(range));
    }

    fn change(&mut self, change: Change) {
        match self.updates.delay {
            Some(delay) => self.pending.push_back((Instant::now() + delay, change)),
            None => self.apply(change),
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Write(address, pte) => {
                self.remove_range(address..address + pte.size);
                self.entries.insert(address, pte);
            }
            Change::Clear(range) => self.remove_range(range),
        }
    }

    /// Removes the entries in a range. Splits entries that extend beyond the range.
    fn remove_range(&mut self, range: Range<u64>) {
        while let Some((&start, pte)) = self.entries.range(..range.end).next_back()
            && start + pte.size > range.start
        {
            let Some(pte) = self.entries.remove(&start) else { return };
            let end = start + pte.size;
            if end > range.end {
                let offset = pte.offset + (range.end - start);
                let tail = Pte { size: end - range.end, offset, ..pte.clone() };
                self.entries.insert(range.end, tail);
            }
            if start < range.start {
                self.entries.insert(start, Pte { size: range.start - start, ..pte });
            }
        }
    }

    /// Makes the changes of all SDMA jobs that have run by the time `now`.
    fn run_jobs(&mut self, now: Instant) {
        while self.pending.front().is_some_and(|(due, _)| *due <= now) {
            let Some((_, change)) = self.pending.pop_front() else { return };
            if matches!(change, Change::Clear(_)) {
                self.tlb.clear();
            }
            self.apply(change);
        }
    }

    /// Makes all changes and flushes the TLB. When amdkfd maps or unmaps memory, it waits for all
    /// changes. The emulation makes all changes at once instead.
    pub(crate) fn synchronize(&mut self) {
        while let Some((_, change)) = self.pending.pop_front() {
            self.apply(change);
        }
        self.tlb.clear();
    }

    /// Translates an address as the engines do.
    pub(crate) fn find(&mut self, address: u64) -> Option<LookUp> {
        self.run_jobs(Instant::now());
        let contains = |start: u64, pte: &Pte| (start..start + pte.size).contains(&address);
        if let Some((start, pte)) = self.tlb.iter().find(|(start, pte)| contains(*start, pte)) {
            return Some((*start, pte.entry()));
        }
        let (&start, pte) = self.entries.range(..=address).next_back()?;
        if !contains(start, pte) {
            return None;
        }
        if self.updates.tlb {
            self.tlb.push((start, pte.clone()));
        }
        Some((start, pte.entry()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffers;
    use crate::kfd::abi::flags;
    use crate::page_table::{PAGE, READABLE, WRITABLE};
    use crate::vram::{LimitedMemory, MemoryUsage};

    const ADDRESS: u64 = 0x10000;
    /// A delay that is longer than every test.
    const LONG: Duration = Duration::from_secs(600);

    fn entry(offset: u64, flags: u32) -> Entry {
        Entry { size: 4 * PAGE, offset, flags, buffer: None }
    }

    /// Returns the offset and the flags of the page at an address.
    fn page(hardware: &mut Hardware, address: u64) -> Option<(u64, u32)> {
        let (start, found) = hardware.find(address)?;
        let entry = found.expect("user memory");
        Some((entry.offset + (address - start), entry.flags))
    }

    #[test]
    fn tlb_keeps_translations_until_synchronized() {
        let mut hardware = Hardware::new(Updates { tlb: true, ..Updates::default() });
        assert_eq!(
            page(&mut hardware, ADDRESS),
            None,
            "no translation is kept for unmapped addresses"
        );
        hardware.write(ADDRESS, &entry(0, READABLE | WRITABLE));
        assert_eq!(page(&mut hardware, ADDRESS), Some((0, READABLE | WRITABLE)));
        hardware.clear(ADDRESS..ADDRESS + 4 * PAGE);
        hardware.write(ADDRESS, &entry(0, READABLE));
        assert_eq!(
            page(&mut hardware, ADDRESS + PAGE),
            Some((PAGE, READABLE | WRITABLE)),
            "the old entry"
        );
        hardware.synchronize();
        assert_eq!(page(&mut hardware, ADDRESS), Some((0, READABLE)));
        hardware.clear(ADDRESS..ADDRESS + 4 * PAGE);
        assert_eq!(page(&mut hardware, ADDRESS), Some((0, READABLE)), "the old entry");
        hardware.synchronize();
        assert_eq!(page(&mut hardware, ADDRESS), None);
    }

    #[test]
    fn sdma_jobs_write_entries_late() {
        let updates = Updates { delay: Some(LONG), tlb: true, split_bug: false };
        let mut hardware = Hardware::new(updates);
        hardware.write(ADDRESS, &entry(0, READABLE));
        assert_eq!(page(&mut hardware, ADDRESS), None, "the job has not run");
        hardware.synchronize();
        assert_eq!(page(&mut hardware, ADDRESS), Some((0, READABLE)));
        hardware.clear(ADDRESS + PAGE..ADDRESS + 2 * PAGE);
        assert_eq!(page(&mut hardware, ADDRESS + PAGE), Some((PAGE, READABLE)));
        // The job that clears entries also flushes the TLB.
        hardware.run_jobs(Instant::now() + LONG);
        assert_eq!(page(&mut hardware, ADDRESS + PAGE), None);
        assert_eq!(page(&mut hardware, ADDRESS), Some((0, READABLE)));
        assert_eq!(page(&mut hardware, ADDRESS + 2 * PAGE), Some((2 * PAGE, READABLE)));
    }

    #[test]
    fn entries_do_not_keep_memory_allocated() {
        let vram = LimitedMemory::new(MemoryUsage::unshared(), 0, PAGE);
        let buffer =
            Buffers::new().create(0, flags::VRAM, PAGE, vram.claim(PAGE).unwrap()).unwrap();
        let mut hardware = Hardware::new(Updates { split_bug: true, ..Updates::default() });
        let entry = Entry { size: PAGE, offset: 0, flags: READABLE, buffer: Some(buffer.clone()) };
        hardware.write(ADDRESS, &entry);
        assert!(hardware.find(ADDRESS).is_some_and(|(_, found)| found.is_ok()));
        drop((buffer, entry));
        assert!(
            hardware.find(ADDRESS).is_some_and(|(_, found)| found.is_err_and(|size| size == PAGE))
        );
    }
}
