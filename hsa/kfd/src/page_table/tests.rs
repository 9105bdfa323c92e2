//! Tests of page tables.

use super::*;
use crate::buffer::Buffers;
use crate::kfd::abi;
use crate::vram::{LimitedMemory, MemoryUsage};

fn entry(size: u64) -> Entry {
    Entry { size, offset: 0, flags: READABLE | WRITABLE | EXECUTABLE, buffer: None }
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
fn translate_applies_planned_faults() {
    let vram = LimitedMemory::new(MemoryUsage::unshared(), 0, 8 * PAGE);
    let buffers = Buffers::new();
    let [old, new] = [(); 2]
        .map(|()| buffers.create(0, abi::flags::VRAM, PAGE, vram.claim(PAGE).unwrap()).unwrap());
    let entry_of = |buffer: &Arc<Buffer>| Entry { buffer: Some(buffer.clone()), ..entry(PAGE) };
    let target = |table: &mut PageTable| match table.translate(0x10000).unwrap() {
        Translation::Entry(_, entry) => Some(entry.buffer.unwrap().label.token),
        Translation::NoMemory(_) => None,
    };
    let (long, none) = (Duration::from_secs(600), Duration::ZERO);
    let mut table = PageTable::default();
    table.map(0x10000, entry_of(&old)).unwrap();
    table.hide(0x10000, long);
    assert_eq!(target(&mut table), None);
    table.hide(0x10000, none);
    assert_eq!(target(&mut table), Some(old.label.token));
    table.invalidate(&old);
    assert_eq!(target(&mut table), None);
    table.validate(&old);
    assert_eq!(target(&mut table), Some(old.label.token));
    let removed = table.unmap(0x10000, Some(&old)).unwrap();
    table.keep_stale(0x10000, &removed, long);
    drop(removed);
    table.map(0x10000, entry_of(&new)).unwrap();
    assert_eq!(target(&mut table), Some(old.label.token));
    drop(old);
    assert_eq!(target(&mut table), None, "the memory was freed");
    assert_eq!(vram.used(), PAGE, "the translation does not keep the memory");
    table.stale.iter_mut().for_each(|stale| stale.until = Instant::now());
    assert_eq!(target(&mut table), Some(new.label.token));
}

/// A deterministic random generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

const PAGES: usize = 64;

/// The token of each page's buffer, and the page's number in the buffer.
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
    let vram = LimitedMemory::new(MemoryUsage::unshared(), 0, 48 * PAGE);
    let memory = [(); 3].map(|()| {
        buffers.create(0, abi::flags::VRAM, 16 * PAGE, vram.claim(16 * PAGE).unwrap()).unwrap()
    });
    for seed in 1..=200 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed));
        let (mut table, mut model): (_, Model) = (PageTable::default(), [None; PAGES]);
        for _ in 0..200 {
            let buffer = &memory[random.below(3) as usize];
            let token = buffer.label.token;
            let (page, count) = (random.below(PAGES as u64), 1 + random.below(12));
            let pages = page as usize..(page + count).min(PAGES as u64) as usize;
            let (address, size) = (page * PAGE, pages.len() as u64 * PAGE);
            match random.below(8) {
                choice @ 0..4 => {
                    let offset = random.below(8) * PAGE;
                    let allowed = choice == 0 || model[pages.clone()].iter().all(Option::is_none);
                    let fits = offset + size <= buffer.size;
                    let entry =
                        Entry { size, offset, flags: READABLE, buffer: Some(buffer.clone()) };
                    let result = match choice {
                        0 => table.replace(address, entry),
                        _ => table.map(address, entry),
                    };
                    assert_eq!(result.is_ok(), allowed && fits);
                    for (index, page) in pages.enumerate().filter(|_| allowed && fits) {
                        model[page] = Some((token, offset / PAGE + index as u64));
                    }
                }
                4..6 => {
                    let found = table.find(address).filter(|found| found.0 == address);
                    let matches = found.is_some_and(|(_, entry)| {
                        entry.buffer.is_some_and(|other| Arc::ptr_eq(&other, buffer))
                    });
                    match table.unmap(address, Some(buffer)) {
                        Ok(entry) => {
                            let pages = (entry.size / PAGE) as usize;
                            model[page as usize..page as usize + pages].fill(None);
                            assert!(matches);
                        }
                        Err(error) => assert_eq!((error, matches), (ENOENT, false)),
                    }
                }
                6 => {
                    table.clear(address, size).unwrap();
                    model[pages].fill(None);
                }
                _ => {
                    table.unmap_buffer(buffer);
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
