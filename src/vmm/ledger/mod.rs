//! What is reserved, allocated, mapped and granted: one state machine that never calls anybody.
//!
//! ```text
//! directory      base    -> reservation                    disjoint; changed by reserving and freeing
//! reservation    address -> mapping: size, handle, access  disjoint; a lock for each reservation
//! handles        slot    -> size, references, mappings     alive while either is not zero; a lock each
//! ```
//!
//! It has 22 invariants; [`check`] lists them, and where each is kept. Every operation first looks
//! (`check_…`, or the first half of a `begin_…`) and then changes everything or nothing. Look-ups
//! do not allocate, range operations are linear in the mappings they touch.
//!
//! Threads that work in different reservations on different memory share nothing but the directory,
//! and that only until each has found its reservation. A thread that takes several locks takes them in
//! this order:
//!
//! 1. the entry to reservations ([`Reserved::enter`]), by address
//! 2. the directory's
//! 3. looks into reservations, or the change of one that it has entered, by address
//! 4. the name of a reservation
//! 5. the stock of handles
//! 6. one handle
//!
//! While the directory is locked, no thread waits to enter a reservation. None of these locks is
//! waited for under the library's (`native::library_lock`), which is held for one call of the runtime.
//!
//! `H` is what the caller keeps with a handle; the ledger does not look at it.

mod address_map;
mod check;
mod directory;
mod entered;
mod handles;
mod mappings;
mod names;
mod numbers;
mod reserved;
mod rights;
mod serials;

pub(crate) use directory::Frozen;
pub(crate) use entered::{Entered, Inside};
pub(crate) use handles::HandleRecord;
pub(crate) use mappings::{MappingRecord, Mappings};
pub(crate) use reserved::Reserved;

use super::error::{Argument, Problem, Refusal};
use crate::address::Address;
use directory::Directory;
use handles::Handles;
use serials::Serials;

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
pub(crate) struct Ledger<H> {
    directory: Directory,
    pub handles: Handles<H>,
    serials: Serials,
}

impl<H> Ledger<H> {
    /// An empty ledger.
    pub fn new() -> Self {
        Self {
            directory: Directory::default(),
            handles: Handles::new(),
            serials: Serials::default(),
        }
    }

    /// How many reservations, live handles and mappings there are.
    pub fn counts(&self) -> (usize, usize, usize) {
        self.at_one_moment(|reservations| {
            let mappings = reservations.iter().map(|it| it.mappings.len()).sum();
            (reservations.len(), self.handles.len(), mappings)
        })
    }
}

#[cfg(test)]
mod tests;
