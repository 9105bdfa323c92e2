//! Mappings: physical memory at an address, and who may use it there.

use super::{Ledger, Range, ReservationRecord};
use crate::vmm::access::{AccessSet, AgentSet};
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

impl<R, H> Ledger<R, H> {
    /// The start and record of the mapping that holds this address.
    pub fn mapping_at(&self, address: usize) -> Option<(usize, &MappingRecord)> {
        let (&start, record) = self.mappings.range(..=address).next_back()?;
        (address - start < record.size).then_some((start, record))
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
        let record = MappingRecord {
            size: range.size,
            slot,
            serial,
            access: AccessSet::default(),
            granted: AgentSet::default(),
        };
        self.mappings.insert(range.start, record);
        self.use_became_mapping(slot);
        if let Some(base) = self.around(range).map(|(base, _)| base)
            && let Some(reservation) = self.reservations.get_mut(&base)
        {
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
        if let Some((start, _)) = self.mapping_at(range.start)
            && start != range.start
        {
            return refuse(Problem::CutsMapping { at: Address::new(start) });
        }
        for (&start, record) in self.mappings.range(range.start..range.end()) {
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
        let below = self.mapping_at(range.start).map(|(start, _)| start);
        let inside =
            || self.mappings.range(range.start..range.end()).next().map(|(&start, _)| start);
        match below.or_else(inside).map(Address::new) {
            Some(at) => Err(Refusal::new(Argument::Address, Problem::AlreadyMapped { at })),
            None => Ok(()),
        }
    }

    /// The mappings that begin in the range, by address.
    pub fn mappings_in(&self, range: Range) -> impl Iterator<Item = (usize, &MappingRecord)> {
        self.mappings.range(range.start..range.end()).map(|(&start, record)| (start, record))
    }

    /// Whether every byte of the range is mapped; else the first that is not. Unlike
    /// [`check_run`](Self::check_run) the range may begin and end inside mappings.
    pub fn check_mapped(&self, range: Range) -> Result<(), Refusal> {
        let mut next = range.start;
        while next < range.end() {
            let Some((start, record)) = self.mapping_at(next) else {
                let at = Address::new(next);
                return Err(Refusal::new(Argument::Address, Problem::NotMapped { at }));
            };
            next = start + record.size;
        }
        Ok(())
    }

    /// Changes who may use the mapping that begins here, and whom the runtime was told of.
    pub fn write_access(&mut self, start: usize, access: AccessSet, granted: AgentSet) {
        if let Some(mapping) = self.mappings.get_mut(&start) {
            (mapping.access, mapping.granted) = (access, granted);
        }
        self.checked();
    }

    /// Removes the mapping that begins here. Its handle is in use until
    /// [`end_use`](Self::end_use).
    pub fn remove_mapping(&mut self, start: usize) -> Option<MappingRecord> {
        let record = self.mappings.remove(&start)?;
        self.mapping_names.remove(&record.serial);
        self.mapping_became_use(record.slot);
        if let Some((base, _)) = self.reservation_at(start)
            && let Some(reservation) = self.reservations.get_mut(&base)
        {
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
            if self.mappings.remove(&start).is_some()
                && let Some(reservation) = self.reservation_mut(start)
            {
                reservation.mappings -= 1;
            }
        }
        for (start, record) in after {
            self.mappings.insert(start, record);
            if let Some(reservation) = self.reservation_mut(start) {
                reservation.mappings += 1;
            }
        }
        self.checked();
    }

    fn reservation_mut(&mut self, address: usize) -> Option<&mut ReservationRecord<R>> {
        self.reservations.range_mut(..=address).next_back().map(|(_, record)| record)
    }

    /// All mappings, by address.
    pub fn mappings(&self) -> impl Iterator<Item = (usize, &MappingRecord)> {
        self.mappings.iter().map(|(&start, record)| (start, record))
    }
}
