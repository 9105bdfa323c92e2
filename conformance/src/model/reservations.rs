//! Reserving and freeing addresses.

use super::verdict::{ADDRESS, ALIGNMENT, FLAGS, RANGE, Rules, SIZE, Verdict};
use super::{Model, Reservation, Wrong, common, lies_in, range};
use std::ops::Range;

/// The maximum size: a process has 47 bits of addresses.
const ALL_ADDRESSES: usize = 1 << 47;

impl Model {
    /// Checks a reservation. [`enter_reservation`](Self::enter_reservation) follows if it succeeded.
    ///
    /// # Errors
    /// Returns everything that is wrong with the call.
    pub fn check_reserve(&self, size: usize, alignment: usize, flags: u64) -> Verdict {
        Rules::default()
            .refuse(FLAGS, flags != 0)
            .refuse(SIZE, size == 0 || !size.is_multiple_of(self.world.granule))
            .refuse(ALIGNMENT, alignment != 0 && !alignment.is_power_of_two())
            .refuse(Wrong::OutOfMemory, size >= ALL_ADDRESSES || alignment >= ALL_ADDRESSES)
            .verdict()
    }

    /// Enters a reservation.
    ///
    /// # Errors
    /// Returns the rule that the address breaks.
    pub fn enter_reservation(
        &mut self,
        base: usize,
        size: usize,
        alignment: usize,
    ) -> Result<(), String> {
        let alignment = alignment.max(self.world.granule);
        if !base.is_multiple_of(alignment) {
            return Err(format!("the reserved address {base:#x} is not aligned to {alignment:#x}"));
        }
        let Some(wanted) = range(base, size) else {
            return Err(format!("the reserved range of {size:#x} bytes at {base:#x} is invalid"));
        };
        let taken = |other: &&Reservation| common(&other.range(), &wanted).is_some();
        if let Some(other) = self.reservations.iter().find(taken) {
            return Err(format!(
                "the reserved range {wanted:x?} overlaps the reservation {other:x?}"
            ));
        }
        self.reservations.push(Reservation { base, size });
        self.reservations.sort_by_key(|reservation| reservation.base);
        Ok(())
    }

    /// Frees a reservation.
    ///
    /// # Errors
    /// Returns everything that is wrong with the call.
    pub fn free(&mut self, address: usize, size: usize) -> Verdict {
        let found = self.reservations.iter().position(|it| it.base == address);
        let reservation = found.map(|index| self.reservations[index]);
        let in_use = |it: Reservation| {
            self.mappings.iter().any(|mapping| lies_in(&mapping.range(), &it.range()))
        };
        Rules::default()
            .refuse(ADDRESS, reservation.is_none())
            .refuse(SIZE, size == 0 || reservation.is_some_and(|it| it.size != size))
            .refuse(RANGE, address.checked_add(size).is_none())
            .refuse(ADDRESS, reservation.is_some_and(in_use))
            .verdict()?;
        self.reservations.retain(|it| it.base != address);
        Ok(())
    }

    /// Returns whether one reservation contains a range.
    pub(super) fn is_in_one_reservation(&self, range: &Range<usize>) -> bool {
        self.reservations.iter().any(|it| lies_in(range, &it.range()))
    }
}
