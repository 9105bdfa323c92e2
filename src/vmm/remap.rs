//! Exchanges the memory of two ranges, and moves memory to other addresses, without copying.

use super::access_change::AccessChange;
use super::journal::Journal;
use super::ledger::{AddressRange, MappedRange};
use super::transfer::{for_operand, two_ranges};
use super::{ExpectedMappings, Shared, Vmm};
use crate::access::AccessState;
use crate::address::Address;
use crate::error::{Argument, Error, ErrorKind, Operation, Problem};
use smallvec::SmallVec;

#[cfg(doc)]
use super::Mapping;

impl Vmm {
    /// Exchanges the memory of two ranges without copying it. HIP has no such call.
    ///
    /// Both ranges consist of whole mappings. The mappings of one range have the same sizes, in the same order, as
    /// the mappings of the other. The access to each address does not change. No agent may use either range during
    /// the call. Other threads observe a single step. Calls `hsa_amd_vmem_unmap`, `hsa_amd_vmem_map` and
    /// `hsa_amd_vmem_set_access`.
    ///
    /// Owned values, such as a [`Mapping`], lose their mappings in the ranges: their calls return
    /// [`Problem::NotMapped`], as after [`unmap`](Self::unmap). To exchange the memory of owned mappings, call
    /// [`Mapping::exchange`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if a range does not consist of whole mappings, the mappings' sizes differ, the
    /// ranges overlap, or an agent with access to one range cannot access the memory of the other;
    /// [`ErrorKind::Quarantined`] if the runtime and the rollback failed.
    pub fn exchange(
        &self,
        destination: Address,
        source: Address,
        size: usize,
    ) -> Result<(), Error> {
        self.run(Operation::Exchange, |shared| {
            let (to, from) = two_ranges(destination, source, size)?;
            shared.exchange(to, from, (ExpectedMappings::Any, ExpectedMappings::Any))
        })
    }

    /// Moves the memory of a range to an empty range, without copying it. HIP has no such call.
    ///
    /// The source consists of adjacent whole mappings, and is empty afterwards. The access to the memory does
    /// not change. The destination may be in another reservation. No agent may use the memory during the
    /// call. Calls `hsa_amd_vmem_unmap`, `hsa_amd_vmem_map` and `hsa_amd_vmem_set_access`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the source does not consist of whole mappings, or the
    /// destination is not reserved, not empty or not aligned; [`ErrorKind::Quarantined`] as for
    /// [`exchange`](Self::exchange).
    pub fn relocate(
        &self,
        destination: Address,
        source: Address,
        size: usize,
    ) -> Result<(), Error> {
        self.run(Operation::Relocate, |shared| {
            let (to, from) = two_ranges(destination, source, size)?;
            shared.relocate(to, from, None, ExpectedMappings::Any).map(drop)
        })
    }
}

impl Shared {
    /// Exchanges the memory of two ranges. Fails if the ranges do not consist of the expected mappings.
    pub(super) fn exchange(
        &self,
        to: AddressRange,
        from: AddressRange,
        (expected_to, expected_from): (ExpectedMappings<'_>, ExpectedMappings<'_>),
    ) -> Result<(), ErrorKind> {
        self.transact(Operation::Exchange, &[to, from], |journal| {
            let old_to = add_expected(journal, to, Argument::Destination, expected_to)?;
            let old_from = add_expected(journal, from, Argument::Source, expected_from)?;
            if to.overlaps(from) {
                return Err(ErrorKind::invalid(Argument::Source, from, Problem::Overlapping));
            }
            let size = |it: &MappedRange| it.size;
            if old_from.iter().map(size).ne(old_to.iter().map(size)) {
                return Err(ErrorKind::invalid(Argument::Source, from, Problem::DifferentLayout));
            }
            let mappings = old_to.iter().chain(&old_from);
            let memory = old_from.iter().chain(&old_to);
            let by_address = matches!(expected_to, ExpectedMappings::Any);
            let with_memory = |(mapping, memory): (&MappedRange, &MappedRange)| {
                let MappedRange { handle, offset, native, owner, .. } = *memory;
                let serial = match by_address {
                    // A new serial invalidates the owned mappings, which still refer to the old memory.
                    true => journal.containing(mapping.range())?.1.new_serial(),
                    false => mapping.serial,
                };
                Ok(MappedRange { handle, offset, serial, native, owner, ..*mapping })
            };
            let after = mappings.zip(memory).map(with_memory);
            let after = after.collect::<Result<Vec<MappedRange>, ErrorKind>>()?;
            let (after_to, after_from) = after.split_at(old_to.len());
            self.check_granules(after_to, Argument::Destination)?;
            self.check_granules(after_from, Argument::Source)?;
            for it in &after {
                let access = it.access.requested;
                self.check_peers(it.owner, &AccessChange { agents: access.read, access })?;
            }
            self.move_memory(journal, &after)
        })
        .map_err(|error| for_operand(expected_to.as_not_mapped(&[to, from], error), to))
    }

    /// Moves the memory of `from`, which must consist of the expected mappings, to `to`. `reservation` is the serial
    /// of the reservation that must contain `to`. Returns the serials of the moved mappings.
    pub(super) fn relocate(
        &self,
        to: AddressRange,
        from: AddressRange,
        reservation: Option<u64>,
        expected: ExpectedMappings<'_>,
    ) -> Result<SmallVec<[u64; 1]>, ErrorKind> {
        if to.overlaps(from) {
            return Err(ErrorKind::invalid(Argument::Source, from, Problem::Overlapping));
        }
        self.transact(Operation::Relocate, &[to, from], |journal| {
            let old = add_expected(journal, from, Argument::Source, expected)?;
            let for_destination = |kind: ErrorKind| kind.for_argument(Argument::Destination);
            let (_, destination) = journal.containing(to).map_err(for_destination)?;
            destination.mappings().check_empty(to, |_| false).map_err(for_destination)?;
            if reservation.is_some_and(|serial| serial != destination.serial) {
                return Err(for_destination(to.invalid(Problem::NotReserved)));
            }
            let moved = |mapping: &MappedRange| MappedRange {
                start: to.start + (mapping.start - from.start),
                serial: destination.new_serial(),
                ..*mapping
            };
            let after: Vec<MappedRange> = old.iter().map(moved).collect();
            self.check_granules(&after, Argument::Destination)?;
            self.move_memory(journal, &after)?;
            Ok(after.iter().map(|it| it.serial).collect())
        })
        .map_err(|error| for_operand(expected.as_not_mapped(&[from], error), to))
    }

    /// Fails if the address of a mapping is not a multiple of its memory's granule.
    fn check_granules(
        &self,
        mappings: &[MappedRange],
        argument: Argument,
    ) -> Result<(), ErrorKind> {
        for it in mappings {
            let granule = self.ledger.handles.with_live(it.handle, |record| record.granule);
            let released = || ErrorKind::invalid(Argument::Handle, it.handle, Problem::Released);
            let granule = granule.ok_or_else(released)?;
            if !it.start.is_multiple_of(granule) {
                let problem = Problem::NotAligned { granule };
                return Err(it.range().invalid(problem).for_argument(argument));
            }
        }
        Ok(())
    }

    /// Unmaps all targets of the journal, and maps the mappings in `after` with their access.
    fn move_memory(
        &self,
        journal: &mut Journal<'_, '_>,
        after: &[MappedRange],
    ) -> Result<(), ErrorKind> {
        // Mapping the memory again needs descriptors.
        self.check_descriptor()?;
        for it in after {
            self.check_remap(it)?;
        }
        let old_count = journal.targets.len();
        journal.moved = old_count;
        for it in after {
            self.ledger.handles.with_live(it.handle, |record| record.mappings += 1);
            let (guard, _) = journal.containing(it.range())?;
            let created = MappedRange { access: AccessState::default(), ..*it };
            journal.add_new(&created, guard, &AccessChange::NONE);
        }
        for index in 0..old_count {
            journal.unmap(index..index + 1)?;
            journal.check_quarantine()?;
        }
        for (index, it) in (old_count..).zip(after) {
            journal.map_with_access(index, it.access, false)?;
        }
        Ok(())
    }
}

/// Adds the mappings of a range as targets, and returns them. Fails if they are not the expected mappings.
fn add_expected(
    journal: &mut Journal<'_, '_>,
    range: AddressRange,
    argument: Argument,
    expected: ExpectedMappings<'_>,
) -> Result<SmallVec<[MappedRange; 1]>, ErrorKind> {
    let first = journal.targets.len();
    let added = journal.add_targets(range, &AccessChange::NONE);
    let checked = added.and_then(|()| expected.check_targets(journal, first));
    checked.map_err(|error| expected.as_not_mapped(&[range], error).for_argument(argument))?;
    Ok(journal.targets[first..].iter().map(|target| *target.now()).collect())
}
