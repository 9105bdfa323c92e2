//! Maps and unmaps memory, one or many mappings in one call.

use super::access_change::AccessChange;
use super::journal::Journal;
use super::ledger::{AddressRange, MAX_OFFSET, MappedRange, OFFSET_UNIT};
use super::permission::check_disjoint;
use super::{AccessDescriptor, Address, ExpectedMappings, Handle, Shared, Vmm};
use crate::access::AccessState;
use crate::error::{Argument, Error, ErrorKind, Feature, Operation, Problem};
use smallvec::SmallVec;
use std::cell::Cell;

/// A mapping for [`Vmm::map_many`] to create.
///
/// ```
/// use hsa_vmm::vmm::NewMapping;
/// # fn f(address: hsa_vmm::Address, handle: hsa_vmm::Handle) -> NewMapping {
/// NewMapping { address, size: 2 << 20, offset: 0, handle }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewMapping {
    /// The address, a multiple of the granule.
    pub address: Address,
    /// The size in bytes, a multiple of the granule.
    pub size: usize,
    /// Where the part to map begins in the memory, in bytes; see [`Vmm::map`].
    pub offset: usize,
    /// The memory.
    pub handle: Handle,
}

impl Vmm {
    /// Maps physical memory at reserved addresses (`hipMemMap`, `hsa_amd_vmem_map`).
    ///
    /// Maps `size` bytes of the handle's memory, from `offset` on, at `address`. No agent has access before
    /// [`set_access`](Vmm::set_access). `address`, `size` and `offset` are multiples of the granule, and the range is
    /// inside one reservation and empty. One handle may be mapped at several addresses. Accesses at each of these
    /// addresses reach the same memory.
    ///
    /// AMD's runtime ignores the offset. `offset` must be 0, unless the library controls the page table of every GPU
    /// ([`with_page_tables`](crate::vmm::VmmOptions::with_page_tables)). During a call that first grants a GPU access to
    /// a mapping with an offset, that GPU has access to the start of the memory.
    ///
    /// Other threads observe a successful map as two steps. The first step counts the mapping, so that releasing the
    /// handle does not free the memory; the second creates the mapping. Between the steps, another thread can release
    /// the last reference although it finds nothing mapped yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] names the condition that does not hold; [`ErrorKind::NotSupported`] for an offset
    /// without control of the page tables.
    pub fn map(
        &self,
        address: Address,
        size: usize,
        offset: usize,
        handle: Handle,
    ) -> Result<(), Error> {
        self.run(Operation::Map, |shared| {
            let new = NewRange::new(AddressRange::new(address, size)?, offset, handle, None);
            shared.unmap_and_map(Operation::Map, &[], ExpectedMappings::Any, &mut [new])
        })
    }

    /// Creates many mappings and sets access to them, all or nothing (`hipMemMap`, `hipMemSetAccess`;
    /// `hsa_amd_vmem_map`, `hsa_amd_vmem_set_access`).
    ///
    /// The ranges may be in any order and in several reservations. Each range must meet the conditions of
    /// [`map`](Self::map), and the ranges must not overlap. Each mapping gets the access in `descriptors`, as if by
    /// [`set_access`](Self::set_access). If `descriptors` is empty, no agent gets access. From ROCm 6.4 on, one call of
    /// the runtime sets GPUs' access to adjacent mappings. As for `map`, other threads observe two steps: the first
    /// counts all mappings, and the second creates all of them.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an invalid range, for ranges that overlap, or for an empty list; otherwise as
    /// for `map` and `set_access`. After an error nothing is mapped; a reservation in which a mapping could not be
    /// unmapped again is quarantined ([`ErrorKind::Quarantined`]).
    pub fn map_many(
        &self,
        mappings: &[NewMapping],
        descriptors: &[AccessDescriptor],
    ) -> Result<(), Error> {
        self.run(Operation::Map, |shared| {
            let mut new = Vec::with_capacity(mappings.len());
            for it in mappings {
                let range = AddressRange::new(it.address, it.size)?;
                new.push(NewRange::new(range, it.offset, it.handle, None));
            }
            if !descriptors.is_empty() {
                let change = shared.access_change(descriptors)?;
                new.iter_mut().for_each(|it| it.change = change);
            }
            shared.unmap_and_map(Operation::Map, &[], ExpectedMappings::Any, &mut new)
        })
    }

    /// Unmaps adjacent whole mappings (`hipMemUnmap`, `hsa_amd_vmem_unmap`).
    ///
    /// Access need not be revoked first. GPUs must have finished using the memory. The contents stay as long
    /// as the handle is referenced or mapped elsewhere.
    ///
    /// The addresses stay reserved, with two exceptions. Usually, the library itself maps a dma-buf for the CPU. If this
    /// is impossible, the runtime maps the memory for the CPU. Up to ROCm 7.1, the runtime leaves an address-space hole
    /// when it unmaps memory that it has mapped for the CPU. The library leaves a hole itself when it removes the CPU's
    /// view at the kernel's limit of mappings (`vm.max_map_count`). In both cases, the library fills the hole
    /// immediately. If another thread has created a mapping in the hole, that mapping is not changed, and the
    /// reservation is quarantined. From ROCm 7.2 on, the runtime itself fills the hole, and replaces a mapping that
    /// another thread creates there in between. The library cannot prevent or detect this.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the range splits a mapping, is not mapped completely, or extends
    /// past the reservation; [`ErrorKind::Quarantined`] if the addresses could not be kept reserved.
    pub fn unmap(&self, address: Address, size: usize) -> Result<(), Error> {
        self.run(Operation::Unmap, |shared| {
            let range = AddressRange::new(address, size)?;
            shared.unmap_and_map(Operation::Unmap, &[range], ExpectedMappings::Any, &mut [])
        })
    }

    /// Unmaps many ranges of whole mappings, all or nothing (`hipMemUnmap`, `hsa_amd_vmem_unmap`).
    ///
    /// Each range is an address and a size, and must meet the conditions of [`unmap`](Self::unmap). From ROCm 7.0 on,
    /// one call of the runtime unmaps adjacent mappings together. Other threads observe a single step.
    ///
    /// # Errors
    /// As for `unmap`; [`ErrorKind::InvalidArgument`] also for an empty list, and for ranges that overlap. If addresses
    /// could not be kept reserved, the call quarantines their reservations, and unmaps the ranges in all reservations.
    /// If the runtime then fails to unmap another range, the ranges in all other reservations stay mapped; the error is
    /// nevertheless [`ErrorKind::Quarantined`].
    pub fn unmap_many(&self, ranges: &[(Address, usize)]) -> Result<(), Error> {
        self.run(Operation::Unmap, |shared| {
            let range = |&(address, size): &_| AddressRange::new(address, size);
            let mut ranges: SmallVec<[AddressRange; 1]> =
                ranges.iter().map(range).collect::<Result<_, _>>()?;
            ranges.sort_by_key(|range| range.start);
            shared.unmap_and_map(Operation::Unmap, &ranges, ExpectedMappings::Any, &mut [])
        })
    }
}

/// A mapping to create.
#[derive(Clone, Debug)]
pub(super) struct NewRange {
    pub range: AddressRange,
    pub handle: Handle,
    /// Where the part to map begins in the memory, in bytes.
    pub offset: usize,
    /// The access to set; empty for none.
    pub change: AccessChange,
    /// The serial of the reservation that must contain the range; `None` if any reservation may contain the range.
    pub reservation: Option<u64>,
    /// The mapping's serial, once it exists.
    pub serial: Cell<u64>,
}

impl NewRange {
    /// Describes a mapping to which no agent has access.
    pub fn new(
        range: AddressRange,
        offset: usize,
        handle: Handle,
        reservation: Option<u64>,
    ) -> Self {
        Self {
            range,
            handle,
            offset,
            change: AccessChange::default(),
            reservation,
            serial: Cell::default(),
        }
    }
}

impl Shared {
    /// Unmaps all ranges in `old` and creates all mappings in `new`. After a failure, nothing has changed. `old` is
    /// sorted by address and must consist of the expected whole mappings. `new` may have the addresses of `old`; this
    /// method sorts `new` by address, and sets the serials in `new`.
    pub(super) fn unmap_and_map(
        &self,
        operation: Operation,
        old: &[AddressRange],
        expected: ExpectedMappings<'_>,
        new: &mut [NewRange],
    ) -> Result<(), ErrorKind> {
        new.sort_by_key(|it| it.range.start);
        let new = &*new;
        let mut ranges: SmallVec<[AddressRange; 1]> = SmallVec::new();
        for it in new {
            ranges.push(it.range);
        }
        let new_count = ranges.len();
        ranges.extend_from_slice(old);
        let replaced = self.transact(operation, &ranges, |journal| {
            for &range in old {
                journal.add_targets(range, &AccessChange::NONE)?;
            }
            expected.check_targets(journal, 0)?;
            check_disjoint(old)?;
            let old_count = journal.targets.len();
            for it in new {
                self.add_mapping(journal, it, old_count)?;
            }
            check_disjoint(&ranges[..new_count])?;
            let mut next = 0;
            while next < old_count {
                let start = next;
                next = match self.quirks.unmap_of_several_fails {
                    true => start + 1,
                    false => journal.group_end(start, old_count),
                };
                journal.unmap(start..next)?;
            }
            // A call that only unmaps goes on after a quarantine, so that all mappings are unmapped. The commit then
            // returns the quarantine.
            if !new.is_empty() {
                journal.check_quarantine()?;
            }
            let added = old_count..journal.targets.len();
            added.clone().try_for_each(|index| journal.map(index))?;
            journal.change_access(added)
        });
        // If both a handle and a range are invalid, returns the error of the handle.
        if let Err(ErrorKind::InvalidArgument { problem: Problem::NotReserved, .. }) = replaced {
            new.iter().try_for_each(|it| self.ledger.handles.with(it.handle, |_| ()))?;
        }
        replaced.map_err(|error| expected.as_not_mapped(old, error))
    }

    /// Adds `new` to the journal, as a mapping to create. `new` must be valid once the first `old_count` targets of
    /// the journal are unmapped. Counts the mapping in its handle.
    fn add_mapping<'c>(
        &self,
        journal: &mut Journal<'_, 'c>,
        new: &'c NewRange,
        old_count: usize,
    ) -> Result<(), ErrorKind> {
        let NewRange { range, handle, offset, .. } = *new;
        let (guard, reservation) = journal.containing(range)?;
        // If the expected reservation was freed, another reservation may have its addresses now.
        if new.reservation.is_some_and(|serial| serial != reservation.serial) {
            return Err(range.invalid(Problem::NotReserved));
        }
        let old_targets = &journal.targets[..old_count];
        let is_old = |start| old_targets.binary_search_by_key(&start, |it| it.now().start).is_ok();
        // Locks the mappings before the handle, as the lock order requires.
        let checked_empty = reservation.mappings().check_empty(range, is_old);
        let (native, owner) = self.ledger.handles.with(handle, |record| {
            let granule = record.granule;
            if !range.start.is_multiple_of(granule) {
                return Err(range.invalid(Problem::NotAligned { granule }));
            }
            Argument::Size.check_multiple(range.size, granule)?;
            Argument::Offset.check_multiple(offset, granule)?;
            Argument::Offset.check_multiple(offset, OFFSET_UNIT)?;
            let maximum = record.size.min(MAX_OFFSET);
            if offset > maximum {
                let problem = Problem::TooLarge { maximum, whole: Argument::Handle };
                return Err(ErrorKind::invalid(Argument::Offset, offset, problem));
            }
            if range.size > record.size {
                let problem = Problem::TooLarge { maximum: record.size, whole: Argument::Handle };
                return Err(ErrorKind::invalid(Argument::Size, range.size, problem));
            }
            Argument::Offset.check_bounds(offset, range.size, record.size)?;
            if offset != 0 && !self.can_map_offsets() {
                return Err(Feature::MapAtOffset(offset).into());
            }
            checked_empty?;
            record.mappings += 1;
            Ok((record.native, record.owner))
        })??;
        let (AddressRange { start, size }, access) = (range, AccessState::default());
        let serial = reservation.new_serial();
        new.serial.set(serial);
        let it = MappedRange { start, size, handle, offset, serial, native, owner, access };
        journal.add_new(&it, guard, &new.change);
        self.check_peers(owner, &new.change)
    }
}
