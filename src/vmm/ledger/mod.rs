//! What is reserved, allocated, mapped and granted: one state machine that never calls anybody.
//!
//! ```text
//! reservations   base    -> size, mappings in it           disjoint
//! handles        slot    -> size, references, uses         alive while either is not zero
//! mappings       address -> size, handle, access           disjoint, each inside one reservation
//! ```
//!
//! Section 6.1 of the reference this project was written from has 22 invariants; [`Ledger::check`]
//! checks those that speak of state. Every operation first looks (`check_…`, or the first half
//! of a `begin_…`) and then changes everything or nothing. Look-ups and updates are logarithmic,
//! look-ups do not allocate, range operations are linear in the mappings they touch.
//!
//! `R` and `H` are what the caller keeps with a reservation and with a handle; the ledger does
//! not look at them.

mod handles;
mod mappings;
mod reservations;

pub(crate) use mappings::MappingRecord;
pub(crate) use reservations::ReservationRecord;

use super::address::Address;
use super::error::{Argument, Problem, Refusal};
use handles::Handles;
use std::collections::BTreeMap;

/// A range of addresses that is not empty and does not wrap around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub start: usize,
    pub size: usize,
}

impl Range {
    /// Refuses null, zero, and what reaches beyond the address space.
    pub fn new(address: Address, size: usize) -> Result<Self, Refusal> {
        if address == Address::NULL {
            return Err(Refusal::new(Argument::Address, Problem::Null));
        }
        if size == 0 {
            return Err(Refusal::new(Argument::Size, Problem::Zero));
        }
        if address.checked_add(size).is_none() {
            return Err(Refusal::new(Argument::Size, Problem::Overflow));
        }
        Ok(Self { start: address.get(), size })
    }

    pub fn end(self) -> usize {
        self.start + self.size
    }
}

/// The state of one `Vmm`.
#[derive(Debug)]
pub(crate) struct Ledger<R, H> {
    reservations: BTreeMap<usize, ReservationRecord<R>>,
    handles: Handles<H>,
    mappings: BTreeMap<usize, MappingRecord>,
    next_serial: u64,
}

impl<R, H> Ledger<R, H> {
    /// An empty ledger whose handles carry this mark.
    pub fn new(owner: u16) -> Self {
        Self {
            reservations: BTreeMap::new(),
            handles: Handles::new(owner),
            mappings: BTreeMap::new(),
            next_serial: 1,
        }
    }

    /// How many reservations, live handles and mappings there are.
    pub fn counts(&self) -> (usize, usize, usize) {
        (self.reservations.len(), self.handles.len(), self.mappings.len())
    }

    fn serial(&mut self) -> u64 {
        let serial = self.next_serial;
        self.next_serial += 1;
        serial
    }

    /// Checks the invariants; says which one does not hold.
    pub fn check(&self) -> Result<(), String> {
        let mut end = 0;
        for (&base, reservation) in &self.reservations {
            if base < end {
                return Err(format!("the reservation at {base:#x} overlaps the one before it"));
            }
            end = base + reservation.size;
        }
        let mut end = 0;
        let mut in_reservation: BTreeMap<usize, usize> = BTreeMap::new();
        let mut uses = vec![0u32; self.handles.slots()];
        for (&start, mapping) in &self.mappings {
            if start < end {
                return Err(format!("the mapping at {start:#x} overlaps the one before it"));
            }
            end = start + mapping.size;
            match self.around(Range { start, size: mapping.size }) {
                Some((base, _)) => *in_reservation.entry(base).or_default() += 1,
                None => return Err(format!("the mapping at {start:#x} is in no reservation")),
            }
            match self.handles.by_slot(mapping.slot) {
                Some(handle) if mapping.size <= handle.size => uses[mapping.slot as usize] += 1,
                Some(_) => return Err(format!("the mapping at {start:#x} exceeds its handle")),
                None => return Err(format!("the mapping at {start:#x} has no handle")),
            }
        }
        for (&base, reservation) in &self.reservations {
            let counted = in_reservation.get(&base).copied().unwrap_or_default();
            if reservation.mappings != counted {
                return Err(format!(
                    "the reservation at {base:#x} counts {} mappings and has {counted}",
                    reservation.mappings
                ));
            }
        }
        self.handles.check(&uses)
    }

    /// Checks after a step in debug builds, as long as that costs little.
    fn checked(&self) {
        let (reservations, handles, mappings) = self.counts();
        if cfg!(debug_assertions) && reservations + handles + mappings <= 256 {
            debug_assert_eq!(self.check(), Ok(()));
        }
    }
}

#[cfg(test)]
mod tests;
