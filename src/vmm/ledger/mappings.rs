//! Mappings: physical memory at an address, and who may use it there.

use super::address_map::AddressMap;
use super::entered::Open;
use super::rights::{NOBODY, Rights, RightsTable, Row};
use super::serials::Serials;
use super::{Entered, HandleRecord, Inside, Ledger, Range};
use crate::access::{Access, AccessSet, AgentSet};
use crate::address::Address;
use crate::handle::Handle;
use crate::vmm::error::{Argument, Problem, Refusal};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MappingRecord {
    pub size: usize,
    /// The handle's slot.
    pub slot: u32,
    /// Never used twice, unlike the address.
    pub serial: u64,
    /// What each agent may do.
    pub access: AccessSet,
    /// The agents that the runtime has been told of. A GPU among them can reach the memory,
    /// whatever `access` says, until the mapping is made anew.
    pub granted: AgentSet,
}

/// A mapping as it is kept. A look-up reads as little memory as can be: there may be millions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub size: usize,
    pub serial: u64,
    pub slot: u32,
    pub rights: Row,
}

impl Entry {
    fn record(&self, table: &RightsTable) -> MappingRecord {
        let &Self { size, slot, serial, rights } = self;
        let &Rights { access, granted } = table.get(rights);
        MappingRecord { size, slot, serial, access, granted }
    }
}

/// What is mapped in one reservation.
#[derive(Debug)]
pub(crate) struct Mappings {
    pub(super) entries: AddressMap<Entry>,
    pub(super) rights: RightsTable,
    /// The names of those that have one, by serial.
    pub(super) names: BTreeMap<u64, Arc<str>>,
    /// Numbers for those to come.
    pub(super) serials: core::ops::Range<u64>,
}

impl Default for Mappings {
    fn default() -> Self {
        Self {
            entries: AddressMap::new(),
            rights: RightsTable::default(),
            names: BTreeMap::new(),
            serials: 0..0,
        }
    }
}

impl Mappings {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The start of the mapping that holds this address, as it is kept.
    fn entry_at(&self, address: usize) -> Option<(usize, &Entry)> {
        let (start, entry) = self.entries.below(address)?;
        (address - start < entry.size).then_some((start, entry))
    }

    /// The start and record of the mapping that holds this address.
    pub fn at(&self, address: usize) -> Option<(usize, MappingRecord)> {
        let (start, entry) = self.entry_at(address)?;
        Some((start, entry.record(&self.rights)))
    }

    /// What an agent may do at this address, if something is mapped there.
    pub fn access_at(&self, address: usize, agent: usize) -> Option<Access> {
        let (_, entry) = self.entry_at(address)?;
        Some(self.rights.get(entry.rights).access.get(agent))
    }

    /// The slot of the handle that is mapped at this address.
    pub fn slot_at(&self, address: usize) -> Option<u32> {
        Some(self.entry_at(address)?.1.slot)
    }

    /// The mapping that is all of a run; `None` if that is several or none.
    pub fn only(&self, range: Range) -> Option<MappingRecord> {
        let entry = self.entries.get(range.start)?;
        (entry.size == range.size).then(|| entry.record(&self.rights))
    }

    /// Whether the range is exactly a run of whole mappings.
    pub fn check_run(&self, range: Range) -> Result<(), Refusal> {
        let refuse = |problem| Err(Refusal::new(Argument::Address, problem));
        let mut next = range.start;
        if let Some((start, _)) = self.entry_at(range.start)
            && start != range.start
        {
            return refuse(Problem::CutsMapping { at: Address::new(start) });
        }
        for (start, record) in self.entries.range(range.start..range.end()) {
            if start != next {
                break;
            }
            next = start + record.size;
            if next > range.end() {
                let at = Address::new(start);
                return Err(Refusal::new(Argument::Size, Problem::CutsMapping { at }));
            }
        }
        if next != range.end() {
            return refuse(Problem::NotMapped { at: Address::new(next) });
        }
        Ok(())
    }

    /// Whether nothing is mapped in the range.
    pub fn check_empty(&self, range: Range) -> Result<(), Refusal> {
        // If any reaches into it, the last one that begins before its end does.
        match self.entries.below(range.end() - 1) {
            Some((last, entry)) if last + entry.size > range.start => {
                let first = self.entry_at(range.start).map(|(start, _)| start);
                let inside = || self.inside(range).next().map(|(start, _)| start);
                let at = Address::new(first.or_else(inside).unwrap_or(last));
                Err(Refusal::new(Argument::Address, Problem::AlreadyMapped { at }))
            }
            _ => Ok(()),
        }
    }

    /// Whether every byte of the range is mapped; else the first that is not. Unlike
    /// [`check_run`](Self::check_run) the range may begin and end inside mappings.
    pub fn check_mapped(&self, range: Range) -> Result<(), Refusal> {
        let mut next = range.start;
        while next < range.end() {
            let Some((start, record)) = self.entry_at(next) else {
                let at = Address::new(next);
                return Err(Refusal::new(Argument::Address, Problem::NotMapped { at }));
            };
            next = start + record.size;
        }
        Ok(())
    }

    /// The serials of the mappings that share bytes with the range, by address.
    pub fn serials_in(&self, range: Range) -> impl Iterator<Item = u64> {
        let first = self.entry_at(range.start).map_or(range.start, |(start, _)| start);
        self.entries.range(first..range.end()).map(|(_, entry)| entry.serial)
    }

    /// The mappings that begin in the range, by address.
    pub fn inside(&self, range: Range) -> impl Iterator<Item = (usize, MappingRecord)> {
        let inside = self.entries.range(range.start..range.end());
        inside.map(|(start, entry)| (start, entry.record(&self.rights)))
    }

    /// All mappings, by address.
    pub fn iter(&self) -> impl Iterator<Item = (usize, MappingRecord)> {
        self.entries.iter().map(|(start, entry)| (start, entry.record(&self.rights)))
    }

    /// Adds a mapping. Nobody may use it yet.
    fn add(&mut self, range: Range, slot: u32, serials: &Serials) -> u64 {
        let serial = serials.next_of(&mut self.serials);
        let entry = Entry { size: range.size, serial, slot, rights: NOBODY };
        self.entries.insert(range.start, entry);
        self.checked();
        serial
    }

    /// Changes who may use the mapping that begins here, and whom the runtime was told of.
    pub fn write_access(&mut self, start: usize, access: AccessSet, granted: AgentSet) {
        if let Some(entry) = self.entries.get_mut(start) {
            let before = entry.rights;
            entry.rights = self.rights.take(Rights { access, granted });
            self.rights.give_back(before);
        }
        self.checked();
    }

    /// Takes away the mapping that begins here, with its name.
    fn remove(&mut self, start: usize) -> Option<u32> {
        let entry = self.take(start)?;
        if !self.names.is_empty() {
            self.names.remove(&entry.serial);
        }
        self.checked();
        Some(entry.slot)
    }

    fn take(&mut self, start: usize) -> Option<Entry> {
        let entry = self.entries.remove(start)?;
        self.rights.give_back(entry.rights);
        Some(entry)
    }

    fn put(&mut self, start: usize, record: MappingRecord) {
        let MappingRecord { size, slot, serial, access, granted } = record;
        let rights = self.rights.take(Rights { access, granted });
        self.entries.insert(start, Entry { size, serial, slot, rights });
    }
}

impl<H> Ledger<H> {
    /// The start and record of the mapping that holds this address.
    pub fn mapping_at(&self, address: usize) -> Option<(usize, MappingRecord)> {
        self.at(address, |reserved| reserved.mappings().at(address))?
    }

    /// What an agent may do at this address, if something is mapped there.
    pub fn access_at(&self, address: usize, agent: usize) -> Option<Access> {
        self.at(address, |reserved| reserved.mappings().access_at(address, agent))?
    }

    /// Whether the handle may be mapped over the range, and keeps it alive for that; undone by
    /// [`end_mapping`](super::Handles::end_mapping), made true by [`add_mapping`](Self::add_mapping).
    pub fn begin_map<T>(
        &self,
        inside: &Inside<'_>,
        range: Range,
        handle: Handle,
        look: impl FnOnce(&HandleRecord<H>) -> T,
    ) -> Result<(u32, T), Refusal> {
        self.handles.begin_mapping(handle, |record| {
            let refuse = |argument, problem| Err(Refusal::new(argument, problem));
            let granule = record.granule;
            for (argument, value) in
                [(Argument::Address, range.start), (Argument::Size, range.size)]
            {
                if value % granule != 0 {
                    return refuse(argument, Problem::NotAligned { value, granule });
                }
            }
            if range.size > record.size {
                return refuse(Argument::Size, Problem::BeyondHandle { handle: record.size });
            }
            inside.mappings().check_empty(range)?;
            Ok(look(record))
        })
    }

    /// Adds a mapping that [`begin_map`](Self::begin_map) allowed. Nobody may use it yet.
    pub fn add_mapping(&self, entered: Entered<'_>, range: Range, slot: u32) -> u64 {
        entered.change_and_leave(|open| match open.at(range.start) {
            Some(mappings) => mappings.add(range, slot, &self.serials),
            None => 0,
        })
    }

    /// Adds mappings that [`begin_map`](Self::begin_map) allowed, with who may use them; the serials
    /// are this ledger's.
    pub fn add_mappings<'a>(
        &self,
        entered: &mut Entered<'_>,
        new: impl Iterator<Item = (usize, &'a MappingRecord)>,
    ) {
        entered.change(|open| {
            for (start, record) in new {
                let Some(mappings) = open.at(start) else { continue };
                mappings.add(Range { start, size: record.size }, record.slot, &self.serials);
                mappings.write_access(start, record.access, record.granted);
            }
        });
    }

    /// Puts mappings of the same memory in the place of others. The serials are the caller's.
    pub fn rehang(
        &self,
        entered: &mut Entered<'_>,
        before: impl Iterator<Item = usize>,
        after: impl Iterator<Item = (usize, MappingRecord)>,
    ) {
        entered.change(|open| {
            for start in before {
                open.at(start).and_then(|mappings| mappings.take(start));
            }
            for (start, record) in after {
                if let Some(mappings) = open.at(start) {
                    mappings.put(start, record);
                }
            }
            open.checked();
        });
    }

    /// Removes mappings. What nothing keeps alive any more is to be given back.
    #[must_use = "the memory is to be given back"]
    pub fn remove_mappings(
        &self,
        entered: Entered<'_>,
        starts: impl Iterator<Item = usize>,
    ) -> Vec<HandleRecord<H>> {
        entered.change_and_leave(|open| {
            let end = |start| self.handles.end_mapping(open.at(start)?.remove(start)?);
            starts.filter_map(end).collect()
        })
    }
}

impl Entered<'_> {
    /// Enters who may use mappings now.
    pub fn write_access<'a>(
        &mut self,
        records: impl IntoIterator<Item = (usize, &'a MappingRecord)>,
    ) {
        self.change(|open| open.write_access(records));
    }

    /// The same, and leaves.
    pub fn write_access_and_leave<'a>(
        self,
        records: impl IntoIterator<Item = (usize, &'a MappingRecord)>,
    ) {
        self.change_and_leave(|open| open.write_access(records));
    }
}

impl Open<'_> {
    /// Checks each after a step in debug builds, as long as that costs little.
    fn checked(&self) {
        match self {
            Self::One(_, mappings) => mappings.checked(),
            Self::Several(all) => all.iter().for_each(|(_, mappings)| mappings.checked()),
        }
    }

    fn write_access<'a>(&mut self, records: impl IntoIterator<Item = (usize, &'a MappingRecord)>) {
        for (start, record) in records {
            if let Some(mappings) = self.at(start) {
                mappings.write_access(start, record.access, record.granted);
            }
        }
    }
}
