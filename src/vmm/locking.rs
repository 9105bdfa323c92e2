//! Locks the reservations that an operation changes.

use super::Shared;
use super::ledger::{AddressRange, Guards, ReservationGuard, ReservationRecord, cache_reservation};
use crate::error::ErrorKind;
use smallvec::SmallVec;
use std::sync::Arc;

impl Shared {
    /// Locks the reservations that contain the ranges, and calls `act` with their guards.
    pub(super) fn with_locked<T>(
        &self,
        ranges: &[AddressRange],
        act: impl FnOnce(&[ReservationGuard<'_>]) -> Result<T, ErrorKind>,
    ) -> Result<T, ErrorKind> {
        loop {
            let mut reservations = self.reservations_of(ranges)?;
            // Starts again if another thread has freed or quarantined a reservation before it was locked.
            let result = {
                let Some(guards) = lock_all(&reservations) else { continue };
                act(&guards)
            };
            reservations.pop().into_iter().for_each(cache_reservation);
            return result;
        }
    }

    /// Returns the reservations that contain the ranges, by address.
    fn reservations_of(
        &self,
        ranges: &[AddressRange],
    ) -> Result<SmallVec<[Arc<ReservationRecord>; 1]>, ErrorKind> {
        let mut reservations: SmallVec<[Arc<ReservationRecord>; 1]> = SmallVec::new();
        for &range in ranges {
            if reservations.last().is_some_and(|last| last.contains_range(range)) {
                continue;
            }
            let reservation = self.ledger.reservations.containing(range)?;
            reservation.check_usable()?;
            reservation.check_lockable()?;
            reservations.push(reservation);
        }
        if reservations.len() > 1 {
            reservations.sort_by_key(|it| it.base);
            reservations.dedup_by_key(|it| it.base);
        }
        Ok(reservations)
    }
}

/// Locks reservations, which are sorted by address. Returns `None` if any of them was freed or quarantined before.
fn lock_all(reservations: &[Arc<ReservationRecord>]) -> Option<Guards<'_>> {
    let mut guards = Guards::new();
    for reservation in reservations {
        guards.push(reservation.lock()?);
    }
    Some(guards)
}
