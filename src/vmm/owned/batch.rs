//! Calls on many owned mappings.
//!
//! A method that changes mappings takes effect for all of its mappings or for none. It first checks that each mapping
//! is still mapped. If a call by address has unmapped any of them, the method returns [`Problem::NotMapped`] and
//! changes nothing.
//!
//! [`Mapping::read_many`], [`Mapping::write_many`] and [`Mapping::fill_many`] access the bytes in one reservation after
//! the other. They first check that the mappings contain all bytes, and that each mapping that overlaps the bytes is
//! still mapped. If a later part then fails, for example because no CPU has access to it, earlier parts have been read
//! or written.

use super::reservation::size_of;
use super::{Allocation, Mapping, Reservation};
use crate::agent::AgentId;
use crate::error::{Argument, Error, ErrorKind, Operation, Problem, Rejected};
use crate::vmm::ledger::AddressRange;
use crate::vmm::map::NewRange;
use crate::vmm::transfer::check_fill_size;
use crate::vmm::{AccessDescriptor, Address, ExpectedMappings, Shared, Vmm};
use core::ops;

/// A mapping for [`Mapping::map_many`] or [`Mapping::replace_many`] to create. Maps the bytes `part` of `allocation`,
/// `offset` bytes from the start of `reservation`.
///
/// ```
/// use hsa_vmm::vmm::MapRequest;
/// use hsa_vmm::{Allocation, Error, Mapping, Reservation};
///
/// /// Maps allocations at adjacent addresses.
/// fn map_all(reservation: &Reservation, all: &[Allocation]) -> Result<Vec<Mapping>, Error> {
///     let mut offset = 0;
///     let mut requests = Vec::new();
///     for allocation in all {
///         let part = 0..allocation.size();
///         requests.push(MapRequest { reservation, offset, allocation, part, access: &[] });
///         offset += allocation.size();
///     }
///     Mapping::map_many(&requests)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct MapRequest<'a> {
    /// The reservation that contains the addresses.
    pub reservation: &'a Reservation,
    /// The offset from the start of the reservation in bytes, a multiple of the granule.
    pub offset: usize,
    /// The physical memory.
    pub allocation: &'a Allocation,
    /// The bytes of `allocation` to map; start and end are multiples of the granule. `0..allocation.size()` maps
    /// all of it. A start other than 0 has a condition: see the offset of [`Vmm::map`].
    pub part: ops::Range<usize>,
    /// The access to grant; empty for none.
    pub access: &'a [AccessDescriptor],
}

/// Mappings, sorted by address.
struct SortedMappings<'a> {
    mappings: Vec<&'a Mapping>,
    ranges: Vec<AddressRange>,
    serials: Vec<u64>,
}

impl<'a> SortedMappings<'a> {
    /// Sorts mappings. Rejects mappings of another `Vmm`.
    fn new(vmm: &Vmm, all: impl Iterator<Item = &'a Mapping>) -> Result<Self, ErrorKind> {
        let mut mappings: Vec<&Mapping> = all.collect();
        mappings.sort_by_key(|mapping| mapping.address);
        mappings.iter().try_for_each(|it| it.allocation.handle_of(vmm).map(drop))?;
        let ranges = mappings.iter().map(|mapping| mapping.range()).collect();
        let serials = mappings.iter().map(|mapping| mapping.serial).collect();
        Ok(Self { mappings, ranges, serials })
    }

    fn expected(&self) -> ExpectedMappings<'_> {
        ExpectedMappings::Only(&self.serials)
    }

    /// Returns the range from the start of the first to the end of the last mapping.
    fn range(&self) -> Option<AddressRange> {
        let (first, last) = (self.ranges.first()?, self.ranges.last()?);
        Some(AddressRange { start: first.start, size: last.end() - first.start })
    }

    /// Rejects mappings in several reservations.
    fn check_one_reservation(&self, argument: Argument) -> Result<(), ErrorKind> {
        let mut serials = self.mappings.iter().map(|mapping| mapping.reservation.serial());
        let first = serials.next();
        match self.range() {
            Some(range) if serials.any(|serial| Some(serial) != first) => {
                Err(ErrorKind::invalid(argument, range, Problem::NotReserved))
            }
            _ => Ok(()),
        }
    }
}

impl Mapping {
    /// Maps many allocations and grants access to them, all or none (`hipMemMap`,
    /// `hipMemSetAccess`). Returns the mappings in the order of the requests.
    ///
    /// # Errors
    /// As for [`Reservation::map`] and [`set_access`](Self::set_access). After an error nothing is
    /// mapped, unless the error is a quarantine.
    pub fn map_many(new: &[MapRequest<'_>]) -> Result<Vec<Self>, Error> {
        Ok(Self::replace_many(Vec::new(), new)?)
    }

    /// Unmaps many mappings, all or nothing (`hipMemUnmap`). The mappings may be in any order, in several reservations.
    ///
    /// # Errors
    /// As for [`unmap`](Self::unmap). The error contains all mappings that were passed. After a quarantine, it
    /// contains only those that are still mapped, in reservations that are not quarantined. There are none if the
    /// runtime has unmapped all mappings, but the addresses of some could not be kept reserved: the call then unmaps
    /// the mappings in all reservations.
    pub fn unmap_many(mappings: Vec<Self>) -> Result<(), Rejected<Vec<Self>>> {
        Self::replace_many(mappings, &[]).map(drop)
    }

    /// Unmaps many mappings and maps others, at the same or other addresses, all or nothing
    /// (`hipMemUnmap`, `hipMemMap`, `hipMemSetAccess`). Other threads observe a single step.
    ///
    /// # Errors
    /// As for [`map_many`](Self::map_many) and [`unmap_many`](Self::unmap_many). The error contains all old mappings,
    /// with their old access, and after a quarantine only those that are still mapped.
    pub fn replace_many(
        mut old: Vec<Self>,
        new: &[MapRequest<'_>],
    ) -> Result<Vec<Self>, Rejected<Vec<Self>>> {
        let vmm = match (old.first(), new.first()) {
            (Some(mapping), _) => mapping.vmm().clone(),
            (None, Some(request)) => request.reservation.vmm().clone(),
            (None, None) => return Ok(Vec::new()),
        };
        let operation = if new.is_empty() { Operation::Unmap } else { Operation::Map };
        match vmm.run(operation, |shared| replace(&vmm, shared, operation, &old, new)) {
            Ok(mappings) => {
                old.iter_mut().for_each(|mapping| mapping.unmaps_on_drop = false);
                Ok(mappings)
            }
            Err(error) => {
                // After a failed rollback, the state of each mapping in a quarantined reservation is unknown.
                if matches!(error.kind(), ErrorKind::Quarantined { now: true, .. }) {
                    old.retain_mut(|mapping| {
                        mapping.unmaps_on_drop = mapping.check_mapped().is_ok();
                        mapping.unmaps_on_drop
                    });
                }
                Err(Rejected { value: old, error })
            }
        }
    }

    /// Exchanges the memory of adjacent mappings with the memory of other adjacent mappings of the same sizes, without
    /// copying. Each mapping keeps its address and its access. The lists may be in any order: the mappings are paired
    /// in the order of their addresses. The mappings of one list must be in one reservation.
    ///
    /// # Errors
    /// As for [`exchange`](Self::exchange); [`Problem::NotReserved`] if the mappings of a list are in several
    /// reservations.
    pub fn exchange_many(mappings: &mut [Self], others: &mut [Self]) -> Result<(), Error> {
        let Some(first) = mappings.first().or(others.first()) else { return Ok(()) };
        let vmm = first.vmm().clone();
        vmm.run(Operation::Exchange, |shared| {
            let sorted = SortedMappings::new(&vmm, mappings.iter())?;
            let sorted_others = SortedMappings::new(&vmm, others.iter())?;
            let different_layout = Problem::DifferentLayout;
            let (Some(range), Some(other_range)) = (sorted.range(), sorted_others.range()) else {
                return Err(ErrorKind::without_value(Argument::Source, different_layout));
            };
            for (list, argument) in
                [(&sorted, Argument::Destination), (&sorted_others, Argument::Source)]
            {
                list.check_one_reservation(argument)?;
            }
            if other_range.size != range.size {
                return Err(ErrorKind::invalid(Argument::Source, other_range, different_layout));
            }
            let expected = (sorted.expected(), sorted_others.expected());
            shared.exchange(range, other_range, expected)
        })?;
        let [mut mappings, mut others] =
            [mappings, others].map(|all| all.iter_mut().collect::<Vec<_>>());
        mappings.sort_by_key(|mapping| mapping.address);
        others.sort_by_key(|mapping| mapping.address);
        let pairs = mappings.into_iter().zip(others);
        pairs.for_each(|(a, b)| core::mem::swap(&mut a.allocation, &mut b.allocation));
        Ok(())
    }

    /// Sets access to many mappings, with separate descriptors for each, all or nothing
    /// (`hipMemSetAccess`).
    ///
    /// # Errors
    /// As for [`set_access`](Self::set_access).
    pub fn set_access_many(changes: &[(&Self, &[AccessDescriptor])]) -> Result<(), Error> {
        let Some((first, _)) = changes.first() else { return Ok(()) };
        let vmm = first.vmm();
        vmm.run(Operation::SetAccess, |shared| {
            let sorted = SortedMappings::new(vmm, changes.iter().map(|&(mapping, _)| mapping))?;
            let change = |it: &(&Self, &[_])| Ok((it.0.range(), shared.access_change(it.1)?));
            let mut range_changes =
                changes.iter().map(change).collect::<Result<Vec<_>, ErrorKind>>()?;
            range_changes.sort_by_key(|(range, _)| range.start);
            shared.set_access(&range_changes, sorted.expected())
        })
    }

    /// Revokes all access of agents to many mappings, all or nothing.
    ///
    /// # Errors
    /// As for [`revoke`](Self::revoke).
    pub fn revoke_many(mappings: &[&Self], agents: &[AgentId]) -> Result<(), Error> {
        let Some(first) = mappings.first() else { return Ok(()) };
        let vmm = first.vmm();
        vmm.run(Operation::Revoke, |shared| {
            let sorted = SortedMappings::new(vmm, mappings.iter().copied())?;
            shared.revoke(&sorted.ranges, agents, sorted.expected())
        })
    }

    /// Copies from memory of one or more adjacent mappings. The mappings can be in different reservations.
    ///
    /// # Errors
    /// [`Problem::NotInMappings`] if the mappings do not contain the first byte; [`Problem::OutOfBounds`] if they do not
    /// contain all bytes; otherwise as for [`Vmm::read`], for the part in each reservation.
    pub fn read_many(mappings: &[&Self], address: Address, bytes: &mut [u8]) -> Result<(), Error> {
        let (size, mut rest) = (bytes.len(), bytes);
        for_each_reservation(
            mappings,
            Operation::Read,
            (address, size),
            |shared, expected, start, size| {
                let (part, remaining) = core::mem::take(&mut rest).split_at_mut(size);
                rest = remaining;
                shared.read(None, start, part, expected)
            },
        )
    }

    /// Copies to memory of one or more adjacent mappings. The mappings can be in different reservations.
    ///
    /// # Errors
    /// As for [`read_many`](Self::read_many) and [`Vmm::write`].
    pub fn write_many(mappings: &[&Self], address: Address, bytes: &[u8]) -> Result<(), Error> {
        let (size, mut rest) = (bytes.len(), bytes);
        for_each_reservation(
            mappings,
            Operation::Write,
            (address, size),
            |shared, expected, start, size| {
                let (part, remaining) = rest.split_at(size);
                rest = remaining;
                shared.write(None, start, part, expected)
            },
        )
    }

    /// Fills memory of one or more adjacent mappings. The mappings can be in different reservations.
    ///
    /// # Errors
    /// As for [`read_many`](Self::read_many) and [`Vmm::fill`].
    pub fn fill_many(
        mappings: &[&Self],
        address: Address,
        value: u32,
        size: usize,
    ) -> Result<(), Error> {
        Operation::Fill.run(|| check_fill_size(size))?;
        for_each_reservation(
            mappings,
            Operation::Fill,
            (address, size),
            |shared, expected, start, size| shared.fill(start, value, size, expected),
        )
    }
}

/// Unmaps the mappings in `old`, and creates the mappings that `new` requests.
fn replace(
    vmm: &Vmm,
    shared: &Shared,
    operation: Operation,
    old: &[Mapping],
    new: &[MapRequest<'_>],
) -> Result<Vec<Mapping>, ErrorKind> {
    let sorted = SortedMappings::new(vmm, old.iter())?;
    let mut ranges = Vec::with_capacity(new.len());
    for request in new {
        let handle = request.allocation.handle_of(vmm)?;
        let part = &request.part;
        let size = size_of(part)?;
        let range = request.reservation.part(request.offset, size)?;
        let reservation = Some(request.reservation.serial());
        let mut it = NewRange::new(range, part.start, handle, reservation);
        if !request.access.is_empty() {
            it.change = shared.access_change(request.access)?;
        }
        ranges.push(it);
    }
    shared.unmap_and_map(operation, &sorted.ranges, sorted.expected(), &mut ranges)?;
    let mappings = new.iter().map(|request| {
        let (reservation, allocation) = (request.reservation.clone(), request.allocation.clone());
        let start = reservation.address().get() + request.offset;
        let it = &ranges[ranges.partition_point(|it| it.range.start < start)];
        let (address, size, serial) = (it.range.address(), it.range.size, it.serial.get());
        Mapping { reservation, allocation, address, size, serial, unmaps_on_drop: true }
    });
    Ok(mappings.collect())
}

/// Splits a range of bytes at the ends of reservations, and calls `act` with each part. Before the first call, rejects
/// bytes that the mappings do not contain, and mappings that overlap the bytes but do not exist any more.
fn for_each_reservation(
    mappings: &[&Mapping],
    operation: Operation,
    (address, size): (Address, usize),
    mut act: impl FnMut(&Shared, ExpectedMappings<'_>, Address, usize) -> Result<(), ErrorKind>,
) -> Result<(), Error> {
    if size == 0 {
        return Ok(());
    }
    // `end` is the first address that the mappings do not contain. It is their end if they contain bytes before it.
    let outside = |end: usize| {
        let problem = match end == address.get() {
            true => Problem::NotInMappings,
            false => Problem::OutOfBounds { size, end },
        };
        ErrorKind::invalid(Argument::Address, address, problem)
    };
    let Some(first) = mappings.first() else {
        return Err(Error::new(operation, outside(address.get())));
    };
    first.vmm().run(operation, |shared| {
        let sorted = SortedMappings::new(first.vmm(), mappings.iter().copied())?;
        let mut next = address.get();
        let overflow = || ErrorKind::invalid(Argument::Address, address, Problem::Overflow);
        let end = next.checked_add(size).ok_or_else(overflow)?;
        let bytes = AddressRange { start: next, size };
        let mut used: Vec<_> = sorted.mappings;
        used.retain(|it| it.range().overlaps(bytes));
        used.dedup_by_key(|it| it.serial);
        let in_one_reservation =
            |a: &&Mapping, b: &&Mapping| a.reservation.serial() == b.reservation.serial();
        let mut parts = Vec::new();
        for group in used.chunk_by(in_one_reservation) {
            let serials: Vec<u64> = group.iter().map(|mapping| mapping.serial).collect();
            let group_end = group.last().map_or(next, |last| last.range().end()).min(end);
            let is_adjacent = group.first().is_none_or(|first| first.address.get() <= next);
            if !is_adjacent || group_end <= next {
                return Err(outside(next));
            }
            let is_gap = |pair: &&[&Mapping]| pair[0].range().end() < pair[1].address.get();
            if let Some(gap) = group.windows(2).find(is_gap) {
                return Err(outside(gap[0].range().end()));
            }
            let part = AddressRange { start: next, size: group_end - next };
            shared.check_mapped(part, ExpectedMappings::Only(&serials))?;
            parts.push((part, serials));
            next = group_end;
        }
        if next != end {
            return Err(outside(next));
        }
        parts.iter().try_for_each(|(part, serials)| {
            act(shared, ExpectedMappings::Only(serials), part.address(), part.size)
        })
    })
}
