//! The record of reservations, handles, mappings and access: a state machine that makes no runtime calls.
//!
//! ```text
//! reservations   base    -> reservation                    disjoint
//! reservation    address -> mapping: size, handle, access  disjoint
//! handles        number  -> size, references, mappings     alive while referenced, mapped or used
//! ```
//!
//! [`check`] lists the 22 invariants. Every operation first checks, then changes everything or nothing. Look-ups do not
//! allocate. An operation on a range takes time linear in the number of mappings in the range.
//!
//! An operation that changes mappings holds the mutex of each of its reservations ([`ReservationGuard`])
//! while it calls the runtime. This excludes other operations on these reservations. At its end, the operation changes
//! the reservation's mappings under a second lock ([`ReservationRecord::mappings`]). Look-ups take only the second
//! lock, so they never wait for the runtime. [`Rank`](crate::sync::Rank) is the order of the locks.

mod check;
mod handles;
mod mappings;
mod reservations;

pub(crate) use handles::{HandleRecord, Handles};
pub(crate) use mappings::{MAX_OFFSET, MappedRange, Mappings, OFFSET_UNIT};
pub(crate) use reservations::{
    Guards, ReservationGuard, ReservationRecord, ReservationSnapshot, Reservations,
    cache_reservation, guard_index, locked_containing,
};

use crate::address::Address;
use crate::error::{Argument, ErrorKind, Problem, Value};
use crate::handle::Handle;
use crate::vmm::Usage;

/// A range of addresses that is not empty and does not wrap around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressRange {
    pub start: usize,
    pub size: usize,
}

impl AddressRange {
    /// Creates a range. Rejects null, zero, and ranges that extend past the end of the address space.
    pub fn new(address: Address, size: usize) -> Result<Self, ErrorKind> {
        if address == Address::NULL {
            return Err(ErrorKind::invalid(Argument::Address, address, Problem::Null));
        }
        Argument::Size.check_not_zero(size)?;
        if address.checked_add(size).is_none() {
            return Err(ErrorKind::invalid(Argument::Size, size, Problem::Overflow));
        }
        Ok(Self { start: address.get(), size })
    }

    pub fn end(self) -> usize {
        self.start + self.size
    }

    pub fn address(self) -> Address {
        Address::new(self.start)
    }

    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    /// Returns the error for an invalid argument whose value is this range.
    pub fn invalid(self, problem: Problem) -> ErrorKind {
        ErrorKind::invalid(Argument::Address, self, problem)
    }
}

impl From<AddressRange> for Value {
    fn from(range: AddressRange) -> Self {
        Self::Range(range.address(), range.size)
    }
}

/// The state of one `Vmm`.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub reservations: Reservations,
    pub handles: Handles,
}

impl Ledger {
    /// Counts reservations, live handles and mappings.
    pub fn usage(&self) -> Usage {
        self.reservations.snapshot(|all| {
            let mappings = all.iter().map(|it| it.mappings.len()).sum();
            Usage { reservations: all.len(), handles: self.handles.len(), mappings }
        })
    }

    /// Adds a reference to the memory that is mapped at an address. The memory may have no reference, because the
    /// mapping keeps the memory alive.
    ///
    /// # Errors
    /// [`Problem::NotMapped`]; [`ErrorKind::LimitReached`] if the memory has the maximum number of references.
    pub fn retain(&self, address: usize) -> Result<Handle, ErrorKind> {
        let retained = self.reservations.at(address, |reservation| {
            // While the mappings are locked, no other thread removes the mapping.
            let mappings = reservation.mappings();
            let handle = mappings.at(address)?.handle;
            // The mapping keeps the handle live, so only a full counter makes this fail.
            Some(self.handles.retain(handle).then_some(handle))
        });
        match retained.flatten() {
            Some(retained) => retained.ok_or(ErrorKind::LimitReached {
                table: "references to one handle",
                limit: u32::MAX as usize,
                advice: "release some",
            }),
            None => Err(not_mapped(address)),
        }
    }
}

/// Returns the error for an address at which nothing is mapped.
pub(crate) fn not_mapped(address: usize) -> ErrorKind {
    let address = Address::new(address);
    ErrorKind::invalid(Argument::Address, address, Problem::NotMapped(address))
}

#[cfg(all(test, not(feature = "interleavings")))]
mod tests;
