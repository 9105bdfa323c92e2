//! The mappings in one reservation: address, physical memory, and access.

use super::{Range, not_mapped};
use crate::access::{Access, AccessState};
use crate::address::Address;
use crate::error::{Argument, ErrorKind, Problem, Quarantined};
use crate::handle::Handle;
use crate::native::NativeHandle;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A copy of a mapping, with all values that the runtime needs to map it again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MappedRange {
    pub start: usize,
    pub size: usize,
    pub handle: Handle,
    /// Where the mapped part of the memory begins. If it is not 0, agents only have access through the
    /// library's control of page tables.
    pub offset: usize,
    /// Unique in the process, unlike the address.
    pub serial: u64,
    /// The runtime's handle of the memory.
    pub native: NativeHandle,
    /// The index of the agent that owns the memory, if known.
    pub owner: Option<u8>,
    pub access: AccessState,
}

impl MappedRange {
    pub fn range(&self) -> Range {
        Range { start: self.start, size: self.size }
    }
}

/// A mapping in the ledger. Equal access states are interned, which keeps the entries of millions of mappings
/// small.
#[derive(Debug)]
pub(super) struct Entry {
    pub size: usize,
    pub handle: Handle,
    pub serial: u64,
    native: NativeHandle,
    owner: Option<u8>,
    /// The offset in units of [`OFFSET_UNIT`], which keeps entries small.
    offset: u32,
    /// `None` if no agent has access.
    pub access: Option<Arc<AccessState>>,
}

/// Offsets are multiples of this number of bytes, and of the granule.
pub(crate) const OFFSET_UNIT: usize = 4096;
/// The largest offset that the ledger can store, in bytes: 16 TiB.
pub(crate) const MAX_OFFSET: usize = u32::MAX as usize * OFFSET_UNIT;

impl Entry {
    fn mapped_at(&self, start: usize) -> MappedRange {
        let Self { size, handle, serial, native, owner, .. } = *self;
        let offset = self.offset as usize * OFFSET_UNIT;
        let access = self.access.as_deref().copied().unwrap_or_default();
        MappedRange { start, size, handle, offset, serial, native, owner, access }
    }
}

/// All mappings of one reservation, by address.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    pub(super) entries: BTreeMap<usize, Entry>,
    /// The access states in use, interned.
    pub(super) access: BTreeSet<Arc<AccessState>>,
    /// Names of mappings, by serial.
    pub(super) names: BTreeMap<u64, Arc<str>>,
    /// The reasons why single mappings are quarantined, by serial.
    quarantined: BTreeMap<u64, Arc<Quarantined>>,
    /// The reservation's own name.
    pub name: Option<Arc<str>>,
}

impl Mappings {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    fn entry_at(&self, address: usize) -> Option<(usize, &Entry)> {
        let (&start, entry) = self.entries.range(..=address).next_back()?;
        (address - start < entry.size).then_some((start, entry))
    }

    /// Returns the mapping that contains an address.
    pub fn at(&self, address: usize) -> Option<MappedRange> {
        let (start, entry) = self.entry_at(address)?;
        Some(entry.mapped_at(start))
    }

    /// Returns the access of an agent at an address; `None` if the address is not mapped. With a serial, the
    /// mapping must have this serial.
    pub fn access_at(&self, address: usize, agent: usize, serial: Option<u64>) -> Option<Access> {
        let (_, entry) = self.entry_at(address)?;
        if serial.is_some_and(|serial| serial != entry.serial) {
            return None;
        }
        let access = entry.access.as_ref();
        Some(access.map_or(Access::None, |access| access.requested.get(agent)))
    }

    /// Returns the mapping of exactly a range, if there is one. This is the usual case.
    pub fn exact(&self, range: Range) -> Option<MappedRange> {
        let entry = self.entries.get(&range.start).filter(|entry| entry.size == range.size)?;
        Some(entry.mapped_at(range.start))
    }

    /// Returns the mappings of a range, which must consist of adjacent whole mappings.
    pub fn adjacent(&self, range: Range) -> Result<impl Iterator<Item = MappedRange>, ErrorKind> {
        if let Some((start, _)) = self.entry_at(range.start)
            && start != range.start
        {
            return Err(range.invalid(Problem::SplitsMapping(Address::new(start))));
        }
        let mut next = range.start;
        for (&start, entry) in self.entries.range(range.start..range.end()) {
            if start != next {
                break;
            }
            next = start + entry.size;
            if next > range.end() {
                let problem = Problem::SplitsMapping(Address::new(start));
                return Err(ErrorKind::invalid(Argument::Size, range.size, problem));
            }
        }
        if next != range.end() {
            return Err(range.invalid(Problem::NotMapped(Address::new(next))));
        }
        Ok(self.overlapping(range))
    }

    /// Returns the mappings that overlap a range, by address.
    pub fn overlapping(&self, range: Range) -> impl Iterator<Item = MappedRange> {
        let first = self.entry_at(range.start).map_or(range.start, |(start, _)| start);
        self.entries.range(first..range.end()).map(|(&start, entry)| entry.mapped_at(start))
    }

    /// Returns the mappings that overlap a range, which must be mapped completely. Unlike for
    /// [`adjacent`](Self::adjacent), the range may begin and end inside mappings.
    pub fn covering(&self, range: Range) -> Result<impl Iterator<Item = MappedRange>, ErrorKind> {
        let mut next = range.start;
        for it in self.overlapping(range) {
            if it.start > next {
                break;
            }
            next = it.range().end();
        }
        if next < range.end() {
            return Err(range.invalid(Problem::NotMapped(Address::new(next))));
        }
        Ok(self.overlapping(range))
    }

    /// Checks that nothing is mapped in a range except mappings whose start `except` accepts.
    pub fn check_empty(
        &self,
        range: Range,
        except: impl Fn(usize) -> bool,
    ) -> Result<(), ErrorKind> {
        // If any mapping overlaps, the last mapping that begins before the range's end does.
        let last = self.entries.range(..range.end()).next_back();
        if last.is_none_or(|(start, entry)| start + entry.size <= range.start) {
            return Ok(());
        }
        match self.overlapping(range).map(|it| it.start).find(|&start| !except(start)) {
            None => Ok(()),
            Some(at) => Err(range.invalid(Problem::AlreadyMapped(Address::new(at)))),
        }
    }

    /// Returns all mappings, by address.
    pub fn iter(&self) -> impl Iterator<Item = MappedRange> {
        self.entries.iter().map(|(&start, entry)| entry.mapped_at(start))
    }

    /// Adds a mapping at unmapped addresses.
    pub fn insert(&mut self, mapping: MappedRange, name: Option<Arc<str>>) {
        let MappedRange { start, size, handle, offset, serial, native, owner, access } = mapping;
        let access = self.intern(access);
        let offset = (offset / OFFSET_UNIT) as u32;
        let entry = Entry { size, handle, offset, serial, native, owner, access };
        self.entries.insert(start, entry);
        self.names.extend(name.map(|name| (serial, name)));
        self.debug_check();
    }

    /// Changes the access state of the mapping that begins at `start`.
    pub fn set_access(&mut self, start: usize, access: AccessState) {
        let interned = self.intern(access);
        if let Some(entry) = self.entries.get_mut(&start) {
            let before = core::mem::replace(&mut entry.access, interned);
            self.release(before);
        }
        self.debug_check();
    }

    /// Removes the mapping that begins at `start`, and its name.
    pub fn remove(&mut self, start: usize) {
        let Some(entry) = self.entries.remove(&start) else { return };
        self.names.remove(&entry.serial);
        self.quarantined.remove(&entry.serial);
        self.release(entry.access);
        self.debug_check();
    }

    /// Quarantines the mapping with this serial: it is never changed or unmapped.
    pub fn quarantine(&mut self, serial: u64, reason: Arc<Quarantined>) {
        self.quarantined.insert(serial, reason);
    }

    /// Returns why the mapping with this serial is quarantined, if it is.
    pub fn quarantined(&self, serial: u64) -> Option<&Arc<Quarantined>> {
        self.quarantined.get(&serial)
    }

    /// Rejects mappings if one of them is quarantined.
    pub fn check_not_quarantined(
        &self,
        mut mappings: impl Iterator<Item = MappedRange>,
    ) -> Result<(), ErrorKind> {
        if self.quarantined.is_empty() {
            return Ok(());
        }
        match mappings.find_map(|it| self.quarantined(it.serial)) {
            Some(range) => Err(ErrorKind::Quarantined { range: range.clone(), now: false }),
            None => Ok(()),
        }
    }

    /// Returns the name of the mapping with this serial.
    pub fn name_of(&self, serial: u64) -> Option<&Arc<str>> {
        self.names.get(&serial)
    }

    /// Names the mapping that contains an address. With a serial, the mapping must have this serial.
    pub fn set_name(
        &mut self,
        address: usize,
        serial: Option<u64>,
        name: Option<Arc<str>>,
    ) -> Result<(), ErrorKind> {
        let found = self.entry_at(address).map(|(_, entry)| entry.serial);
        let found = found.filter(|found| serial.is_none_or(|serial| serial == *found));
        let found = found.ok_or_else(|| not_mapped(address))?;
        match name {
            Some(name) => self.names.insert(found, name),
            None => self.names.remove(&found),
        };
        Ok(())
    }

    /// Returns the interned copy of this access.
    fn intern(&mut self, access: AccessState) -> Option<Arc<AccessState>> {
        if access == AccessState::default() {
            return None;
        }
        if let Some(interned) = self.access.get(&access) {
            return Some(interned.clone());
        }
        let new = Arc::new(access);
        self.access.insert(new.clone());
        Some(new)
    }

    /// Drops a mapping's access state, and removes it from the interner if no other mapping has it.
    fn release(&mut self, access: Option<Arc<AccessState>>) {
        // The interner holds one of the two references.
        if let Some(access) = access
            && Arc::strong_count(&access) == 2
        {
            self.access.remove(&access);
        }
    }

    /// Checks the invariants in debug builds, if there are few mappings.
    fn debug_check(&self) {
        if cfg!(debug_assertions) && self.len() <= 64 {
            debug_assert_eq!(self.check(), Ok(()));
        }
    }
}
