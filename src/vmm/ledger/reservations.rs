//! Reservations: ranges of addresses, disjoint, freed as a whole and only when empty.

use super::{Ledger, Range};
use crate::vmm::address::Address;
use crate::vmm::error::{Argument, Problem, Refusal};
use std::sync::Arc;

/// A reservation.
#[derive(Debug)]
pub(crate) struct ReservationRecord<R> {
    pub size: usize,
    /// How many mappings are in it.
    pub mappings: usize,
    /// Never used twice, unlike the address.
    pub serial: u64,
    /// Not to be used, and never to be freed.
    pub quarantined: bool,
    pub name: Option<Arc<str>>,
    pub payload: R,
}

impl<R, H> Ledger<R, H> {
    /// The base and record of the reservation that holds this address.
    pub fn reservation_at(&self, address: usize) -> Option<(usize, &ReservationRecord<R>)> {
        let (&base, record) = self.reservations.range(..=address).next_back()?;
        (address - base < record.size).then_some((base, record))
    }

    /// The base and record of the reservation that holds all of the range.
    pub(super) fn around(&self, range: Range) -> Option<(usize, &ReservationRecord<R>)> {
        let (base, record) = self.reservation_at(range.start)?;
        (range.size <= record.size - (range.start - base)).then_some((base, record))
    }

    /// The same, or what to tell the caller.
    pub fn reservation_around(
        &self,
        range: Range,
    ) -> Result<(usize, &ReservationRecord<R>), Refusal> {
        self.around(range).ok_or(Refusal::new(Argument::Address, Problem::NotReserved))
    }

    /// An address of a reservation that shares some with the range; there should be none before
    /// the range is added.
    pub fn overlapping_reservation(&self, range: Range) -> Option<usize> {
        if self.reservation_at(range.start).is_some() {
            return Some(range.start);
        }
        self.reservations.range(range.start..range.end()).next().map(|(&base, _)| base)
    }

    /// Adds a reservation; the caller has made sure that it overlaps none.
    pub fn reserve(&mut self, range: Range, payload: R) -> u64 {
        let serial = self.serial();
        let record = ReservationRecord {
            size: range.size,
            mappings: 0,
            serial,
            quarantined: false,
            name: None,
            payload,
        };
        self.reservations.insert(range.start, record);
        self.checked();
        serial
    }

    /// Whether exactly this range is a reservation with nothing in it.
    pub fn check_free(&self, range: Range) -> Result<&ReservationRecord<R>, Refusal> {
        let refuse = |argument, problem| Err(Refusal::new(argument, problem));
        let Some(record) = self.reservations.get(&range.start) else {
            return refuse(Argument::Address, Problem::NotAReservation);
        };
        if record.size != range.size {
            return refuse(Argument::Size, Problem::WrongSize { expected: record.size });
        }
        if record.mappings > 0 {
            let mappings = record.mappings;
            return refuse(Argument::Address, Problem::StillMapped { mappings });
        }
        Ok(record)
    }

    /// Removes a reservation that [`check_free`](Self::check_free) allowed.
    pub fn remove_reservation(&mut self, base: usize) -> Option<ReservationRecord<R>> {
        let record = self.reservations.remove(&base);
        debug_assert!(record.as_ref().is_none_or(|record| record.mappings == 0));
        self.checked();
        record
    }

    /// Puts back what [`remove_reservation`](Self::remove_reservation) took.
    pub fn restore_reservation(&mut self, base: usize, record: ReservationRecord<R>) {
        self.reservations.insert(base, record);
        self.checked();
    }

    /// Marks the reservation that holds this address as not to be used any more.
    pub fn quarantine(&mut self, address: usize) -> Option<(Address, usize)> {
        let (base, _) = self.reservation_at(address)?;
        let record = self.reservations.get_mut(&base)?;
        record.quarantined = true;
        let size = record.size;
        self.checked();
        Some((Address::new(base), size))
    }

    /// All reservations, by address.
    pub fn reservations(&self) -> impl Iterator<Item = (usize, &ReservationRecord<R>)> {
        self.reservations.iter().map(|(&base, record)| (base, record))
    }
}
