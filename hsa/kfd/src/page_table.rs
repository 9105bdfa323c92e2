//! The page table of one GPU in one process.

use crate::buffer::Buffer;
use crate::errno::{EINVAL, ENOENT, Result};
use std::collections::{BTreeMap, BTreeSet, HashMap};
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
    /// The offset in the buffer; for user memory, its address in the process.
    pub(crate) offset: u64,
    /// The permissions and the caching mode: `AMDGPU_VM_PAGE_*`.
    pub(crate) flags: u32,
    /// `None` for user memory, doorbells and registers.
    pub(crate) buffer: Option<Arc<Buffer>>,
}

impl Entry {
    /// Returns the end of the entry's range at an address; `EINVAL` if the range is not page-aligned
    /// or exceeds the buffer.
    fn checked_end(&self, address: u64) -> Result<u64> {
        if !self.offset.is_multiple_of(PAGE) {
            return Err(EINVAL);
        }
        if let Some(buffer) = &self.buffer {
            let last = self.offset.checked_add(self.size).ok_or(EINVAL)?;
            if last > buffer.size.next_multiple_of(PAGE) {
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
    Nowhere(u64),
}

/// A translation that the engines still use, although its entry was removed. The memory may be freed
/// meanwhile.
#[derive(Debug)]
struct Stale {
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
    stale: Vec<Stale>,
    /// The addresses of the entries of each buffer, by its token.
    addresses: HashMap<u64, BTreeSet<u64>>,
}

impl PageTable {
    /// Adds an entry; `EINVAL` if it is not page-aligned or overlaps another, as in amdgpu.
    pub(crate) fn map(&mut self, address: u64, entry: Entry) -> Result<()> {
        let end = entry.checked_end(address)?;
        let below = self.entries.range(..end).next_back();
        if below.is_some_and(|(start, entry)| start + entry.size > address) {
            return Err(EINVAL);
        }
        self.insert(address, entry);
        Ok(())
    }

    /// Inserts an entry; removes others in its range, and splits those that extend beyond it.
    pub(crate) fn replace(&mut self, address: u64, entry: Entry) -> Result<()> {
        entry.checked_end(address)?;
        self.clear(address, entry.size)?;
        self.insert(address, entry);
        Ok(())
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
            |stale: &&Stale| (stale.address..stale.address + stale.size).contains(&address);
        if let Some(stale) = self.stale.iter().find(contains) {
            let Stale { size, offset, flags, .. } = *stale;
            return Some(match stale.buffer.upgrade() {
                Some(buffer) => {
                    let entry = Entry { size, offset, flags, buffer: Some(buffer) };
                    Translation::Entry(stale.address, entry)
                }
                None => Translation::Nowhere(stale.address + size - address),
            });
        }
        let (start, entry) = self.find(address)?;
        let unseen = self.unseen.get(&start).is_some_and(|from| *from > now);
        if unseen || self.moved.contains(&start) {
            return Some(Translation::Nowhere(start + entry.size - address));
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
        self.stale.push(Stale { address, size, offset, flags, buffer, until });
    }

    /// Marks the entries of a buffer as outdated: its memory has moved.
    pub(crate) fn invalidate(&mut self, buffer: &Buffer) {
        self.moved.extend(self.addresses.get(&buffer.label.token).into_iter().flatten());
    }

    /// Updates the entries of a buffer whose memory has moved.
    pub(crate) fn validate(&mut self, buffer: &Buffer) {
        for address in self.addresses.get(&buffer.label.token).into_iter().flatten() {
            self.moved.remove(address);
        }
    }

    /// Shifts an entry by one page of its memory. `GpuMemory::look_up` wraps at the end of the buffer.
    pub(crate) fn shift(&mut self, address: u64) {
        if let Some(entry) = self.entries.get_mut(&address) {
            entry.offset += PAGE;
        }
    }

    /// Removes the entry of a buffer that starts at an address; `ENOENT` if there is none.
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
        self.remove(address).ok_or(ENOENT)
    }

    /// Removes the entries in a range; splits those that extend beyond it.
    pub(crate) fn clear(&mut self, address: u64, size: u64) -> Result<()> {
        let end = range_end(address, size)?;
        let overlapping = self.entries.range(..end).rev();
        let overlapping = overlapping.take_while(|(start, entry)| *start + entry.size > address);
        let starts: Vec<u64> = overlapping.map(|(start, _)| *start).collect();
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

    /// Removes every entry of a buffer, when its last handle is closed.
    pub(crate) fn forget(&mut self, buffer: &Arc<Buffer>) {
        for address in self.addresses.remove(&buffer.label.token).unwrap_or_default() {
            self.entries.remove(&address);
            self.unseen.remove(&address);
            self.moved.remove(&address);
        }
    }

    /// Returns every entry, by its address.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u64, &Entry)> {
        self.entries.iter().map(|(address, entry)| (*address, entry))
    }
}

/// Returns the end of a range; `EINVAL` if it is not page-aligned.
fn range_end(address: u64, size: u64) -> Result<u64> {
    if size == 0 || !address.is_multiple_of(PAGE) || !size.is_multiple_of(PAGE) {
        return Err(EINVAL);
    }
    address.checked_add(size).ok_or(EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffers;
    use crate::vram::{Memory, Vram};

    fn entry(size: u64) -> Entry {
        Entry { size, offset: 0, flags: 0xe, buffer: None }
    }

    fn ranges(table: &PageTable) -> Vec<(u64, u64)> {
        table.entries().map(|(start, entry)| (start, entry.size)).collect()
    }

    #[test]
    fn map_rejects_overlap_and_clear_splits() {
        let mut table = PageTable::default();
        table.map(0x10000, entry(0x4000)).unwrap();
        for (address, size) in [(0x10000, 0x1000), (0xf000, 0x2000), (0x13000, 0x1000)] {
            assert_eq!(table.map(address, entry(size)), Err(EINVAL));
        }
        assert_eq!(table.map(0x14001, entry(0x1000)), Err(EINVAL));
        assert_eq!(table.map(u64::MAX - 0xfff, entry(0x1000)), Err(EINVAL));
        table.map(0x14000, entry(0x1000)).unwrap();
        assert_eq!(table.clear(0x11000, 0), Err(EINVAL));
        table.clear(0x11000, 0x1000).unwrap();
        assert_eq!(ranges(&table), [(0x10000, 0x1000), (0x12000, 0x2000), (0x14000, 0x1000)]);
        assert!(table.unmap(0x10000, None).is_ok());
        assert_eq!(table.unmap(0x10000, None).map(drop), Err(ENOENT));
    }

    #[test]
    fn stale_translations_expire() {
        let vram = Vram::new(Memory::alone(), 0, 8 * PAGE);
        let buffers = Buffers::new();
        let [old, new] =
            [(); 2].map(|()| buffers.create(0, 1, PAGE, vram.claim(PAGE).unwrap()).unwrap());
        let of = |buffer: &Arc<Buffer>| Entry { buffer: Some(buffer.clone()), ..entry(PAGE) };
        let leads_to = |table: &mut PageTable| match table.translate(0x10000).unwrap() {
            Translation::Entry(_, entry) => Some(entry.buffer.unwrap().label.token),
            Translation::Nowhere(_) => None,
        };
        let (long, none) = (Duration::from_secs(600), Duration::ZERO);
        let mut table = PageTable::default();
        table.map(0x10000, of(&old)).unwrap();
        table.hide(0x10000, long);
        assert_eq!(leads_to(&mut table), None);
        table.hide(0x10000, none);
        assert_eq!(leads_to(&mut table), Some(old.label.token));
        table.invalidate(&old);
        assert_eq!(leads_to(&mut table), None);
        table.validate(&old);
        assert_eq!(leads_to(&mut table), Some(old.label.token));
        let removed = table.unmap(0x10000, Some(&old)).unwrap();
        table.keep_stale(0x10000, &removed, long);
        drop(removed);
        table.map(0x10000, of(&new)).unwrap();
        assert_eq!(leads_to(&mut table), Some(old.label.token));
        drop(old);
        assert_eq!(leads_to(&mut table), None, "the memory was freed");
        assert_eq!(vram.available(), 7 * PAGE, "the translation does not keep the memory");
        table.stale.iter_mut().for_each(|stale| stale.until = Instant::now());
        assert_eq!(leads_to(&mut table), Some(new.label.token));
    }

    /// A deterministic random generator.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, end: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % end
        }
    }

    const PAGES: usize = 64;

    /// The buffer of each page, and the page's number in it.
    type Model = [Option<(u64, u64)>; PAGES];

    fn as_model(table: &PageTable) -> Model {
        let mut model = [None; PAGES];
        for (address, entry) in table.entries() {
            let token = entry.buffer.as_ref().map_or(0, |buffer| buffer.label.token);
            for page in 0..entry.size / PAGE {
                let slot = &mut model[(address / PAGE + page) as usize];
                assert_eq!(*slot, None, "entries overlap");
                *slot = Some((token, entry.offset / PAGE + page));
            }
        }
        model
    }

    #[test]
    fn page_table_agrees_with_page_array() {
        let buffers = Buffers::new();
        let vram = Vram::new(Memory::alone(), 0, 48 * PAGE);
        let memory = [(); 3]
            .map(|()| buffers.create(0, 1, 16 * PAGE, vram.claim(16 * PAGE).unwrap()).unwrap());
        for seed in 1..=200 {
            let mut dice = Dice(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed));
            let (mut table, mut model): (_, Model) = (PageTable::default(), [None; PAGES]);
            for _ in 0..200 {
                let buffer = &memory[dice.below(3) as usize];
                let token = buffer.label.token;
                let (page, count) = (dice.below(PAGES as u64), 1 + dice.below(12));
                let pages = page as usize..(page + count).min(PAGES as u64) as usize;
                let (address, size) = (page * PAGE, pages.len() as u64 * PAGE);
                match dice.below(8) {
                    kind @ 0..4 => {
                        let offset = dice.below(8) * PAGE;
                        let free = kind == 0 || model[pages.clone()].iter().all(Option::is_none);
                        let fits = offset + size <= buffer.size;
                        let entry = Entry { size, offset, flags: 2, buffer: Some(buffer.clone()) };
                        let result = match kind {
                            0 => table.replace(address, entry),
                            _ => table.map(address, entry),
                        };
                        assert_eq!(result.is_ok(), free && fits);
                        for (index, page) in pages.enumerate().filter(|_| free && fits) {
                            model[page] = Some((token, offset / PAGE + index as u64));
                        }
                    }
                    4..6 => {
                        let found = table.find(address).filter(|found| found.0 == address);
                        let same = found.is_some_and(|(_, entry)| {
                            entry.buffer.is_some_and(|other| Arc::ptr_eq(&other, buffer))
                        });
                        match table.unmap(address, Some(buffer)) {
                            Ok(entry) => {
                                let pages = (entry.size / PAGE) as usize;
                                model[page as usize..page as usize + pages].fill(None);
                                assert!(same);
                            }
                            Err(error) => assert_eq!((error, same), (ENOENT, false)),
                        }
                    }
                    6 => {
                        table.clear(address, size).unwrap();
                        model[pages].fill(None);
                    }
                    _ => {
                        table.forget(buffer);
                        let of_buffer = |page: &&mut Option<(u64, u64)>| {
                            page.is_some_and(|(other, _)| other == token)
                        };
                        model.iter_mut().filter(of_buffer).for_each(|page| *page = None);
                    }
                }
                assert_eq!(as_model(&table), model, "seed {seed}");
            }
        }
    }
}
