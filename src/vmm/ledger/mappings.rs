//! The mappings in one reservation: address, physical memory, and access.

use super::{AddressRange, not_mapped};
use crate::access::{Access, AccessState};
use crate::address::Address;
use crate::error::{Argument, ErrorKind, Problem, Quarantined};
use crate::handle::Handle;
use crate::native::NativeHandle;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A copy of a mapping, with all values that the runtime needs to map it again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MappedRange {
    pub start: usize,
    pub size: usize,
    pub handle: Handle,
    /// The start of the mapped part in the memory, in bytes. If this is not 0, the library writes the GPUs' page
    /// tables, because the runtime ignores offsets.
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
    pub fn range(&self) -> AddressRange {
        AddressRange { start: self.start, size: self.size }
    }
}

/// A mapping in the ledger.
#[derive(Debug)]
pub(super) struct Entry {
    pub size: usize,
    pub handle: Handle,
    pub serial: u64,
    native: NativeHandle,
    owner: Option<u8>,
    /// The offset in units of [`OFFSET_UNIT`], which keeps entries small.
    offset: u32,
    /// The slot of the mapping's access in [`AccessStates`]; without a slot, [`AccessStates::NO_ACCESS`] or
    /// [`AccessStates::MAX_SLOTS`].
    pub access: u8,
}

/// Offsets are multiples of this number of bytes, and of the granule.
pub(crate) const OFFSET_UNIT: usize = 4096;
/// The largest offset that the ledger can store, in bytes: 16 TiB.
pub(crate) const MAX_OFFSET: usize = u32::MAX as usize * OFFSET_UNIT;

/// The access states of the mappings in one reservation. Mappings with equal states share a slot, which keeps
/// entries small.
#[derive(Debug, Default)]
pub(super) struct AccessStates {
    /// Each state, and the number of mappings with this state. A slot without mappings can be used again.
    pub slots: SmallVec<[(AccessState, u32); 1]>,
    /// States without a slot, by the mapping's serial.
    pub others: BTreeMap<u64, AccessState>,
}

impl AccessStates {
    /// The value that an entry stores instead of a slot if no agent has access.
    pub const NO_ACCESS: u8 = u8::MAX;
    /// The maximum number of slots, and the value that an entry stores instead of a slot if no slot was free.
    pub const MAX_SLOTS: u8 = u8::MAX - 1;

    fn get(&self, slot: u8, serial: u64) -> &AccessState {
        if slot == Self::NO_ACCESS {
            return &AccessState::NONE;
        }
        let shared = self.slots.get(usize::from(slot)).map(|(state, _)| state);
        shared.or_else(|| self.others.get(&serial)).unwrap_or(&AccessState::NONE)
    }

    /// Stores the state of a mapping, and returns the value of [`Entry::access`].
    fn insert(&mut self, state: &AccessState, serial: u64) -> u8 {
        if *state == AccessState::NONE {
            return Self::NO_ACCESS;
        }
        let equal_slot = self.slots.iter().position(|(stored, _)| stored == state);
        let unused_slot = || self.slots.iter().position(|(_, mappings)| *mappings == 0);
        let slot = equal_slot.or_else(unused_slot).unwrap_or(self.slots.len());
        if slot == usize::from(Self::MAX_SLOTS) {
            self.others.insert(serial, *state);
        } else if let Some(stored) = self.slots.get_mut(slot) {
            *stored = (*state, stored.1 + 1);
        } else {
            self.slots.push((*state, 1));
        }
        slot as u8
    }

    fn remove(&mut self, slot: u8, serial: u64) {
        match self.slots.get_mut(usize::from(slot)) {
            Some((_, mappings)) => *mappings -= 1,
            None => drop(self.others.remove(&serial)),
        }
    }
}

/// All mappings of one reservation, by address.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    pub(super) entries: BTreeMap<usize, Entry>,
    pub(super) access: AccessStates,
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
        Some(self.mapped_range(start, entry))
    }

    fn mapped_range(&self, start: usize, entry: &Entry) -> MappedRange {
        let Entry { size, handle, serial, native, owner, .. } = *entry;
        let offset = entry.offset as usize * OFFSET_UNIT;
        let access = *self.access.get(entry.access, serial);
        MappedRange { start, size, handle, offset, serial, native, owner, access }
    }

    /// Returns the access of an agent at an address; `None` if the address is not mapped. With a serial, the
    /// mapping must have this serial.
    pub fn access_at(&self, address: usize, agent: usize, serial: Option<u64>) -> Option<Access> {
        let (_, entry) = self.entry_at(address)?;
        if serial.is_some_and(|serial| serial != entry.serial) {
            return None;
        }
        Some(self.access.get(entry.access, entry.serial).requested.get(agent))
    }

    /// Returns the mapping whose addresses are exactly a range; `None` if there is no such mapping.
    pub fn exact(&self, range: AddressRange) -> Option<MappedRange> {
        let entry = self.entries.get(&range.start).filter(|entry| entry.size == range.size)?;
        Some(self.mapped_range(range.start, entry))
    }

    /// Returns the mappings of a range. Fails if the range does not consist of adjacent whole mappings.
    pub fn adjacent(
        &self,
        range: AddressRange,
    ) -> Result<impl Iterator<Item = MappedRange>, ErrorKind> {
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
    pub fn overlapping(&self, range: AddressRange) -> impl Iterator<Item = MappedRange> {
        let first = self.entry_at(range.start).map_or(range.start, |(start, _)| start);
        self.entries
            .range(first..range.end())
            .map(|(&start, entry)| self.mapped_range(start, entry))
    }

    /// Returns the mappings that overlap a range. Fails if a part of the range is not mapped. Unlike with
    /// [`adjacent`](Self::adjacent), the range may begin and end inside mappings.
    pub fn covering(
        &self,
        range: AddressRange,
    ) -> Result<impl Iterator<Item = MappedRange>, ErrorKind> {
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

    /// Checks that nothing is mapped in a range. Ignores mappings for whose start address `except` returns true.
    pub fn check_empty(
        &self,
        range: AddressRange,
        except: impl Fn(usize) -> bool,
    ) -> Result<(), ErrorKind> {
        // If any mapping overlaps the range, the last mapping that begins before the range's end overlaps it.
        let last = self.entries.range(..range.end()).next_back();
        if last.is_none_or(|(start, entry)| start + entry.size <= range.start) {
            return Ok(());
        }
        let Some(found) = self.overlapping(range).find(|it| !except(it.start)) else {
            return Ok(());
        };
        // The message of `AlreadyMapped` advises the caller to unmap, which would fail for a quarantined
        // mapping.
        self.check_not_quarantined(core::iter::once(found.serial))?;
        Err(range.invalid(Problem::AlreadyMapped(Address::new(found.start))))
    }

    /// Returns all mappings, by address.
    pub fn iter(&self) -> impl Iterator<Item = MappedRange> {
        self.entries.iter().map(|(&start, entry)| self.mapped_range(start, entry))
    }

    /// Adds a mapping at unmapped addresses.
    pub fn insert(&mut self, mapping: &MappedRange, name: Option<Arc<str>>) {
        let MappedRange { start, size, handle, offset, serial, native, owner, .. } = *mapping;
        let access = self.access.insert(&mapping.access, serial);
        let offset = (offset / OFFSET_UNIT) as u32;
        let entry = Entry { size, handle, offset, serial, native, owner, access };
        self.entries.insert(start, entry);
        self.names.extend(name.map(|name| (serial, name)));
        self.debug_check();
    }

    /// Changes the access state of the mapping that begins at `start`.
    pub fn set_access(&mut self, start: usize, access: &AccessState) {
        if let Some(entry) = self.entries.get_mut(&start) {
            self.access.remove(entry.access, entry.serial);
            entry.access = self.access.insert(access, entry.serial);
        }
        self.debug_check();
    }

    /// Removes the mapping that begins at `start`, and its name.
    pub fn remove(&mut self, start: usize) {
        let Some(entry) = self.entries.remove(&start) else { return };
        self.names.remove(&entry.serial);
        self.quarantined.remove(&entry.serial);
        self.access.remove(entry.access, entry.serial);
        self.debug_check();
    }

    /// Quarantines the mapping with this serial: no later operation changes or unmaps the mapping.
    pub fn mark_quarantined(&mut self, serial: u64, reason: Arc<Quarantined>) {
        self.quarantined.insert(serial, reason);
    }

    /// Returns why the mapping with this serial is quarantined; `None` if it is not.
    pub fn quarantined(&self, serial: u64) -> Option<&Arc<Quarantined>> {
        self.quarantined.get(&serial)
    }

    /// Returns whether agents may still use the mapping with this serial: it is quarantined because a signal did not
    /// fire in time.
    pub fn may_be_in_use(&self, serial: u64) -> bool {
        let entry = self.quarantined(serial);
        entry.is_some_and(|entry| matches!(entry.failure, ErrorKind::NotSignaled { .. }))
    }

    /// Rejects mappings with these serials if one of them is quarantined.
    pub fn check_not_quarantined(
        &self,
        mut serials: impl Iterator<Item = u64>,
    ) -> Result<(), ErrorKind> {
        if self.quarantined.is_empty() {
            return Ok(());
        }
        reject(serials.find_map(|serial| self.quarantined(serial)))
    }

    /// Fails if any mapping is quarantined.
    pub fn check_none_quarantined(&self) -> Result<(), ErrorKind> {
        reject(self.quarantined.values().next())
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
        let found_serial = self.entry_at(address).map(|(_, entry)| entry.serial);
        let found_serial =
            found_serial.filter(|found| serial.is_none_or(|serial| serial == *found));
        let found_serial = found_serial.ok_or_else(|| not_mapped(address))?;
        match name {
            Some(name) => self.names.insert(found_serial, name),
            None => self.names.remove(&found_serial),
        };
        Ok(())
    }

    /// Checks the invariants in debug builds, if there are at most 64 mappings.
    fn debug_check(&self) {
        if cfg!(debug_assertions) && self.len() <= 64 {
            debug_assert_eq!(self.check(), Ok(()));
        }
    }
}

pub(super) fn reject(quarantined: Option<&Arc<Quarantined>>) -> Result<(), ErrorKind> {
    match quarantined {
        Some(range) => Err(ErrorKind::Quarantined { range: range.clone(), now: false }),
        None => Ok(()),
    }
}
