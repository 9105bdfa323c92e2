//! What is reserved, allocated, mapped and granted: one state machine that never calls anybody.
//!
//! ```text
//! reservations   base    -> size, mappings in it           disjoint
//! handles        slot    -> size, references, mappings     alive while either is not zero
//! mappings       address -> size, handle, access           disjoint, each inside one reservation
//! ```
//!
//! It has 22 invariants; [`check`] lists them, and where each is kept. Every operation first looks
//! (`check_…`, or the first half of a `begin_…`) and then changes everything or nothing. Look-ups
//! and updates are logarithmic, look-ups do not allocate, range operations are linear in the
//! mappings they touch.
//!
//! `R` and `H` are what the caller keeps with a reservation and with a handle; the ledger does
//! not look at them.

mod address_map;
mod check;
mod handles;
mod mappings;
mod names;
mod reservations;
mod rights;

pub(crate) use mappings::MappingRecord;
pub(crate) use reservations::ReservationRecord;

use super::address::Address;
use super::error::{Argument, Problem, Refusal};
use address_map::AddressMap;
use handles::Handles;
use mappings::Entry;
use rights::RightsTable;
use std::collections::BTreeMap;
use std::sync::Arc;

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
    mappings: AddressMap<Entry>,
    rights: RightsTable,
    /// The names of those mappings that have one, by serial.
    mapping_names: BTreeMap<u64, Arc<str>>,
    next_serial: u64,
}

impl<R, H> Ledger<R, H> {
    /// An empty ledger whose handles carry this mark.
    pub fn new(owner: u16) -> Self {
        Self {
            reservations: BTreeMap::new(),
            handles: Handles::new(owner),
            mappings: AddressMap::new(),
            rights: RightsTable::new(),
            mapping_names: BTreeMap::new(),
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
}

#[cfg(test)]
mod tests;
