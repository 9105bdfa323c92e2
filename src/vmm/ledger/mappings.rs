//! Mappings: physical memory at an address, and who may use it there.

use super::rights::{NOBODY, Rights, RightsTable, Row};
use super::{Ledger, Range, ReservationRecord};
use crate::vmm::access::{Access, AccessSet, AgentSet};
use crate::vmm::address::Address;
use crate::vmm::error::{Argument, Problem, Refusal};
use crate::vmm::handle::Handle;

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
#[derive(Clone, Copy, Debug, Default)]
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

impl<R, H> Ledger<R, H> {
    /// The start of the mapping that holds this address, as it is kept.
    fn entry_at(&self, address: usize) -> Option<(usize, &Entry)> {
        let (start, entry) = self.mappings.below(address)?;
        (address - start < entry.size).then_some((start, entry))
    }

    /// The start and record of the mapping that holds this address.
    pub fn mapping_at(&self, address: usize) -> Option<(usize, MappingRecord)> {
        let (start, entry) = self.entry_at(address)?;
        Some((start, entry.record(&self.rights)))
    }

    /// What an agent may do at this address, if something is mapped there.
    pub fn access_at(&self, address: usize, agent: usize) -> Option<Access> {
        let (_, entry) = self.entry_at(address)?;
        Some(self.rights.get(entry.rights).access.get(agent))
    }

    /// The slot of the handle that is mapped at this address.
    pub(super) fn slot_at(&self, address: usize) -> Option<u32> {
        Some(self.entry_at(address)?.1.slot)
    }

    /// Whether the handle may be mapped over the range, and keeps it alive for that; undone by
    /// [`end_use`](Self::end_use), made true by [`add_mapping`](Self::add_mapping).
    pub fn begin_map(&mut self, range: Range, handle: Handle) -> Result<u32, Refusal> {
        let refuse = |argument, problem| Err(Refusal::new(argument, problem));
        let record = self.handle(handle)?;
        let granule = record.granule;
        for (argument, value) in [(Argument::Address, range.start), (Argument::Size, range.size)] {
            if value % granule != 0 {
                return refuse(argument, Problem::NotAligned { value, granule });
            }
        }
        if range.size > record.size {
            return refuse(Argument::Size, Problem::BeyondHandle { handle: record.size });
        }
        self.check_empty(range)?;
        self.begin_use(handle)
    }

    /// Adds a mapping that [`begin_map`](Self::begin_map) allowed. Nobody may use it yet.
    pub fn add_mapping(&mut self, range: Range, slot: u32) -> u64 {
        let serial = self.serial();
        let entry = Entry { size: range.size, serial, slot, rights: NOBODY };
        self.mappings.insert(range.start, entry);
        self.use_became_mapping(slot);
        if let Some(reservation) = self.reservation_mut(range.start) {
            reservation.mappings += 1;
        }
        self.checked();
        serial
    }

    /// Whether the range is exactly a run of whole mappings inside one reservation.
    pub fn check_run(&self, range: Range) -> Result<(), Refusal> {
        let refuse = |problem| Err(Refusal::new(Argument::Address, problem));
        self.reservation_around(range)?;
        let mut next = range.start;
        match self.entry_at(range.start) {
            Some((start, _)) if start != range.start => {
                return refuse(Problem::CutsMapping { at: Address::new(start) });
            }
            // Most runs are one mapping.
            Some((_, entry)) if entry.size == range.size => return Ok(()),
            _ => {}
        }
        for (start, record) in self.mappings.range(range.start..range.end()) {
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

    /// Whether all of the range is in one reservation and nothing is mapped in it.
    pub fn check_empty(&self, range: Range) -> Result<(), Refusal> {
        self.reservation_around(range)?;
        // If any reaches into it, the last one that begins before its end does.
        match self.mappings.below(range.end() - 1) {
            Some((last, entry)) if last + entry.size > range.start => {
                let first = self.entry_at(range.start).map(|(start, _)| start);
                let inside = || self.mappings_in(range).next().map(|(start, _)| start);
                let at = Address::new(first.or_else(inside).unwrap_or(last));
                Err(Refusal::new(Argument::Address, Problem::AlreadyMapped { at }))
            }
            _ => Ok(()),
        }
    }

    /// The mappings that begin in the range, by address.
    pub fn mappings_in(&self, range: Range) -> impl Iterator<Item = (usize, MappingRecord)> {
        let inside = self.mappings.range(range.start..range.end());
        inside.map(|(start, entry)| (start, entry.record(&self.rights)))
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

    /// Changes who may use the mapping that begins here, and whom the runtime was told of.
    pub fn write_access(&mut self, start: usize, access: AccessSet, granted: AgentSet) {
        if let Some(entry) = self.mappings.get_mut(start) {
            let before = entry.rights;
            entry.rights = self.rights.take(Rights { access, granted });
            self.rights.give_back(before);
        }
        self.checked();
    }

    /// Removes the mapping that begins here. Its handle is in use until
    /// [`end_use`](Self::end_use).
    pub fn remove_mapping(&mut self, start: usize) -> Option<MappingRecord> {
        let entry = self.mappings.remove(start)?;
        let record = entry.record(&self.rights);
        self.rights.give_back(entry.rights);
        self.mapping_names.remove(&record.serial);
        self.mapping_became_use(record.slot);
        if let Some(reservation) = self.reservation_mut(start) {
            reservation.mappings -= 1;
        }
        self.checked();
        Some(record)
    }

    /// Puts mappings of the same memory in the place of others, all at once. The serials are the
    /// caller's.
    pub fn rehang(
        &mut self,
        before: impl Iterator<Item = usize>,
        after: impl Iterator<Item = (usize, MappingRecord)>,
    ) {
        for start in before {
            let Some(entry) = self.mappings.remove(start) else { continue };
            self.rights.give_back(entry.rights);
            if let Some(reservation) = self.reservation_mut(start) {
                reservation.mappings -= 1;
            }
        }
        for (start, record) in after {
            let MappingRecord { size, slot, serial, access, granted } = record;
            let rights = self.rights.take(Rights { access, granted });
            self.mappings.insert(start, Entry { size, serial, slot, rights });
            if let Some(reservation) = self.reservation_mut(start) {
                reservation.mappings += 1;
            }
        }
        self.checked();
    }

    /// The reservation that holds this address, which is in one.
    fn reservation_mut(&mut self, address: usize) -> Option<&mut ReservationRecord<R>> {
        self.reservations.range_mut(..=address).next_back().map(|(_, record)| record)
    }

    /// All mappings, by address.
    pub fn mappings(&self) -> impl Iterator<Item = (usize, MappingRecord)> {
        self.mappings.iter().map(|(start, entry)| (start, entry.record(&self.rights)))
    }
}
