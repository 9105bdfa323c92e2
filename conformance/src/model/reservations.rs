//! Reserving and freeing addresses.

use super::verdict::{ADDRESS, ALIGNMENT, FLAGS, RANGE, Rules, SIZE, Verdict};
use super::{Model, Reason, Reservation, intersection, is_inside, range};
use std::ops::Range;

/// The size of a process's address space. Addresses have 47 bits.
const ALL_ADDRESSES: usize = 1 << 47;

impl Model {
    /// Checks a reservation. If the library succeeds, call
    /// [`record_reservation`](Self::record_reservation).
    ///
    /// # Errors
    /// Returns all reasons for rejecting the call.
    pub fn check_reserve(&self, size: usize, alignment: usize, flags: u64) -> Verdict {
        Rules::default()
            .reject_if(FLAGS, flags != 0)
            .reject_if(SIZE, size == 0 || !size.is_multiple_of(self.machine.granule))
            .reject_if(ALIGNMENT, alignment != 0 && !alignment.is_power_of_two())
            .reject_if(Reason::OutOfMemory, size >= ALL_ADDRESSES || alignment >= ALL_ADDRESSES)
            .verdict()
    }

    /// Records a reservation.
    ///
    /// # Errors
    /// Returns the rule that the address breaks.
    pub fn record_reservation(
        &mut self,
        base: usize,
        size: usize,
        alignment: usize,
    ) -> Result<(), String> {
        let alignment = alignment.max(self.machine.granule);
        if !base.is_multiple_of(alignment) {
            return Err(format!("the reserved address {base:#x} is not aligned to {alignment:#x}"));
        }
        let Some(reserved) = range(base, size) else {
            return Err(format!("the reserved range of {size:#x} bytes at {base:#x} is invalid"));
        };
        let overlaps = |other: &&Reservation| intersection(&other.range(), &reserved).is_some();
        if let Some(other) = self.reservations.iter().find(overlaps) {
            return Err(format!(
                "the reserved range {reserved:x?} overlaps the reservation {other:x?}"
            ));
        }
        self.reservations.push(Reservation { base, size });
        self.reservations.sort_by_key(|reservation| reservation.base);
        Ok(())
    }

    /// Frees a reservation.
    ///
    /// # Errors
    /// Returns all reasons for rejecting the call.
    pub fn free(&mut self, address: usize, size: usize) -> Verdict {
        let found = self.reservations.iter().position(|it| it.base == address);
        let reservation = found.map(|index| self.reservations[index]);
        let is_in_use = |it: Reservation| {
            self.mappings.iter().any(|mapping| is_inside(&mapping.range(), &it.range()))
        };
        Rules::default()
            .reject_if(ADDRESS, reservation.is_none())
            .reject_if(SIZE, size == 0 || reservation.is_some_and(|it| it.size != size))
            .reject_if(RANGE, address.checked_add(size).is_none())
            .reject_if(ADDRESS, reservation.is_some_and(is_in_use))
            .verdict()?;
        self.reservations.retain(|it| it.base != address);
        Ok(())
    }

    /// Returns whether one reservation contains a range.
    pub(super) fn is_in_one_reservation(&self, range: &Range<usize>) -> bool {
        self.reservations.iter().any(|it| is_inside(range, &it.range()))
    }
}
