//! Addresses without a gap that may be several reservations.

use crate::vmm::{Address, Reservation, Vmm, VmmError};
use std::ops::Range;

/// Reserved addresses: one reservation, or several of which each begins where the last one ends.
#[derive(Debug)]
pub(super) struct Addresses {
    start: Address,
    size: usize,
    /// Each with where it begins, in bytes from the start of the first.
    reservations: Vec<(usize, Reservation)>,
}

impl Addresses {
    pub fn new(first: Reservation) -> Self {
        Self { start: first.address(), size: first.size(), reservations: vec![(0, first)] }
    }

    /// Reserves more at the end, exactly there or not at all.
    pub fn extend(&mut self, vmm: &Vmm, size: usize) -> Result<(), VmmError> {
        let next = Reservation::of(size).exactly_at(self.at(self.size)).reserve(vmm)?;
        self.reservations.push((self.size, next));
        self.size += size;
        Ok(())
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// The address so many bytes from the start; the caller knows that there are so many.
    pub fn at(&self, offset: usize) -> Address {
        Address::new(self.start.get() + offset)
    }

    /// The reservation that holds the byte at an offset, and the offset in it.
    pub fn reservation_at(&self, offset: usize) -> Option<(&Reservation, usize)> {
        let (start, reservation) = self.reservations.get(self.index_at(offset))?;
        Some((reservation, offset - start))
    }

    /// Bytes cut where one reservation ends and the next begins, for no call of virtual-memory
    /// management reaches over that.
    pub fn parts(&self, bytes: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let from_there = self.reservations.iter().skip(self.index_at(bytes.start));
        from_there
            .map(move |(start, reservation)| {
                bytes.start.max(*start)..bytes.end.min(start + reservation.size())
            })
            .take_while(|part| !part.is_empty())
    }

    fn index_at(&self, offset: usize) -> usize {
        self.reservations.partition_point(|&(start, _)| start <= offset).saturating_sub(1)
    }
}
