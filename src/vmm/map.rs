//! Mapping and unmapping, one or many at once.

use super::journal::{Journal, Listing};
use super::ledger::{Range, Serial};
use super::permission::{check_disjoint, sorted_ranges};
use super::{AccessDescriptor, Address, Expected, Handle, Shared, Vmm};
use crate::error::{Argument, Error, ErrorKind, Operation, Problem};
use smallvec::SmallVec;

/// A mapping that [`Vmm::map_many`] is to make.
///
/// ```
/// use hsa_vmm::vmm::NewMapping;
/// # fn f(address: hsa_vmm::Address, handle: hsa_vmm::Handle) -> NewMapping {
/// NewMapping { address, size: 2 << 20, handle }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewMapping {
    /// Where it begins, a multiple of the granule.
    pub address: Address,
    /// Its size in bytes, a multiple of the granule.
    pub size: usize,
    /// The memory, whose first `size` bytes appear there.
    pub handle: Handle,
}

impl Vmm {
    /// Maps physical memory at reserved addresses (`hipMemMap`, `hsa_amd_vmem_map`).
    ///
    /// The first `size` bytes of the handle appear at `address`; no agent may access them before
    /// [`set_access`](Vmm::set_access). `address` and `size` are multiples of the granule, the range is
    /// inside one reservation and empty, and `offset` is 0. One handle may be mapped at several
    /// addresses, which then are the same memory.
    ///
    /// To other threads a map that succeeds is two steps: with the first it holds the handle, so that a
    /// release does not end the memory; with the second the mapping exists. In between, another thread
    /// may release the last reference and find nothing mapped yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] says which of this does not hold.
    pub fn map(
        &self,
        address: Address,
        size: usize,
        offset: usize,
        handle: Handle,
    ) -> Result<(), Error> {
        self.run(Operation::Map, |shared| {
            let range = Range::new(address, size)?;
            if offset != 0 {
                return Err(ErrorKind::invalid(Argument::Offset, offset, Problem::MustBeZero));
            }
            shared.map(&[(range, handle)], &[], None).map(drop)
        })
    }

    /// Maps many at once and sets access to them, all or nothing (`hipMemMap`, `hipMemSetAccess`;
    /// `hsa_amd_vmem_map`, `hsa_amd_vmem_set_access`).
    ///
    /// The ranges may be in any order and in several reservations. For each of them the conditions of
    /// [`map`](Self::map) hold, and none may share bytes with another. All get the access that
    /// `descriptors` says, as by [`set_access`](Self::set_access); none if that is empty. Neighbours get
    /// it by one call of the runtime. To other threads it is a single step.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for the first invalid one, by address, or for an empty list; else as
    /// for `map` and `set_access`. Nothing is mapped then, except that what could not be unmapped again is
    /// quarantined ([`ErrorKind::Quarantined`]).
    pub fn map_many(
        &self,
        mappings: &[NewMapping],
        descriptors: &[AccessDescriptor],
    ) -> Result<(), Error> {
        self.run(Operation::Map, |shared| {
            let wanted: Result<SmallVec<[_; 1]>, ErrorKind> = mappings
                .iter()
                .map(|it| Ok((Range::new(it.address, it.size)?, it.handle)))
                .collect();
            let mut wanted = wanted?;
            wanted.sort_by_key(|(range, _)| range.start);
            shared.map(&wanted, descriptors, None).map(drop)
        })
    }

    /// Unmaps a run of whole mappings (`hipMemUnmap`, `hsa_amd_vmem_unmap`).
    ///
    /// Access need not be taken away first; the addresses stay reserved. There is one exception: until
    /// ROCm 7.1, and only where dma-bufs cannot be mapped so that the runtime has mapped the memory for
    /// the CPU, it leaves an address-space hole for a moment. The hole is filled at once; if another thread
    /// has mapped something there, that is not touched and the range is quarantined. GPUs must have
    /// finished using the memory. What is in the memory stays there as long as its handle is referenced
    /// or mapped elsewhere.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the range splits a mapping, is not mapped throughout, or reaches
    /// out of the reservation; [`ErrorKind::Quarantined`] if the addresses could not be kept reserved.
    pub fn unmap(&self, address: Address, size: usize) -> Result<(), Error> {
        self.run(Operation::Unmap, |shared| shared.unmap(&[(address, size)], Expected::Any))
    }

    /// Unmaps many runs of whole mappings at once, all or nothing (`hipMemUnmap`,
    /// `hsa_amd_vmem_unmap`).
    ///
    /// Each run is an address and a size; otherwise as [`unmap`](Self::unmap). From ROCm 7.0 on, one call
    /// of the runtime unmaps all neighbours. To other threads it is a single step.
    ///
    /// # Errors
    /// As for `unmap`; [`ErrorKind::InvalidArgument`] also for an empty list, and for runs that share
    /// bytes.
    pub fn unmap_many(&self, runs: &[(Address, usize)]) -> Result<(), Error> {
        self.run(Operation::Unmap, |shared| shared.unmap(runs, Expected::Any))
    }
}

impl Shared {
    /// Maps ranges, which are sorted, and sets access to them. With the serial of a reservation only
    /// inside that one. Returns the serials of the mappings, by address.
    pub(super) fn map(
        &self,
        wanted: &[(Range, Handle)],
        descriptors: &[AccessDescriptor],
        reservation: Option<u64>,
    ) -> Result<SmallVec<[Serial; 1]>, ErrorKind> {
        let ranges: SmallVec<[Range; 1]> = wanted.iter().map(|&(range, _)| range).collect();
        check_disjoint(&ranges)?;
        let changes = match descriptors {
            [] => Default::default(),
            descriptors => self.access_changes(descriptors)?,
        };
        // An invalid handle is reported before an invalid range.
        for &(_, handle) in wanted {
            self.ledger.handles.with(handle, |_| ())?;
        }
        self.transact(Operation::Map, &ranges, |journal| {
            for &(range, handle) in wanted {
                self.add_mapping(journal, range, handle, reservation)?;
            }
            for target in &journal.targets {
                self.check_reach(target.now.owner, &changes)?;
            }
            for index in 0..wanted.len() {
                journal.map(index)?;
            }
            if !changes.is_empty() {
                let mut first = 0;
                for count in journal.rows() {
                    journal.change_access(first, count, &changes)?;
                    first += count;
                }
            }
            Ok(())
        })
    }

    /// Adds a mapping to be made, if it may be.
    fn add_mapping(
        &self,
        journal: &mut Journal<'_>,
        range: Range,
        handle: Handle,
        serial: Option<u64>,
    ) -> Result<(), ErrorKind> {
        let reservation = journal.around(range)?.reservation;
        // If it was freed, its addresses are another's by now.
        if serial.is_some_and(|serial| serial != reservation.serial) {
            return Err(range.invalid(Problem::NotReserved));
        }
        // Before the handle's lock, which comes after the map's.
        let empty = reservation.mappings().check_empty(range);
        let mapping = self.begin_map(range, handle, || empty)?;
        journal.add_new(mapping, Listing::default());
        Ok(())
    }

    /// Unmaps runs of whole mappings, if they are the expected ones.
    pub(super) fn unmap(
        &self,
        runs: &[(Address, usize)],
        expected: Expected<'_>,
    ) -> Result<(), ErrorKind> {
        let ranges = sorted_ranges(runs)?;
        let act = |journal: &mut Journal<'_>| {
            for &range in &ranges {
                journal.add_run(range)?;
            }
            expected.check_targets(journal, ranges[0])?;
            let mut first = 0;
            for count in journal.rows() {
                let together = if self.quirks.unmap_of_several_fails { 1 } else { count };
                for start in (first..first + count).step_by(together) {
                    journal.unmap(start, together)?;
                }
                first += count;
            }
            Ok(())
        };
        self.transact(Operation::Unmap, &ranges, act).map(drop)
    }
}
