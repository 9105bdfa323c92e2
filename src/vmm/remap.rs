//! Exchanging the memory at addresses, and moving memory to other addresses, without copying.

use super::access_change::AccessChange;
use super::journal::Journal;
use super::ledger::{MappedRange, Range};
use super::transfer::{about_one_of, two_ranges};
use super::{Expected, Shared, Vmm};
use crate::address::Address;
use crate::error::{Argument, Error, ErrorKind, Operation, Problem};
use smallvec::SmallVec;

impl Vmm {
    /// Exchanges the memory behind two ranges without copying it. HIP has no such call.
    ///
    /// Both are ranges of whole mappings of the same sizes. The access to each address does not
    /// change. No agent may be using either range meanwhile; to other threads it is a
    /// single step. Done by `hsa_amd_vmem_unmap`, `hsa_amd_vmem_map` and `hsa_amd_vmem_set_access`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if one does not consist of whole mappings, their sizes differ,
    /// they share bytes, or an agent cannot access the memory that it would get;
    /// [`ErrorKind::Quarantined`] if the runtime failed and the rollback failed, too.
    pub fn exchange(
        &self,
        destination: Address,
        source: Address,
        size: usize,
    ) -> Result<(), Error> {
        self.run(Operation::Exchange, |shared| {
            let (to, from) = two_ranges(destination, source, size)?;
            shared.exchange(to, from, (Expected::Any, Expected::Any))
        })
    }

    /// Moves the memory behind a range to addresses where nothing is mapped, without copying it. HIP
    /// has no such call.
    ///
    /// The source is adjacent whole mappings and is empty afterwards. The access to the memory does not
    /// change. The destination may be in another reservation. No agent may be using the memory
    /// meanwhile. Done by `hsa_amd_vmem_unmap`, `hsa_amd_vmem_map` and `hsa_amd_vmem_set_access`.
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
            shared.relocate(to, from, None, Expected::Any).map(drop)
        })
    }
}

impl Shared {
    /// Exchanges, if both ranges are the expected mappings.
    pub(super) fn exchange(
        &self,
        to: Range,
        from: Range,
        (expected_to, expected_from): (Expected<'_>, Expected<'_>),
    ) -> Result<(), ErrorKind> {
        if to.overlaps(from) {
            return Err(ErrorKind::invalid(Argument::Source, from, Problem::Overlapping));
        }
        self.transact(Operation::Exchange, [to, from].into_iter(), |journal| {
            let there = mapped_run(journal, to, Argument::Destination, expected_to)?;
            let here = mapped_run(journal, from, Argument::Source, expected_from)?;
            let size = |it: &MappedRange| it.size;
            if here.iter().map(size).ne(there.iter().map(size)) {
                return Err(ErrorKind::invalid(Argument::Source, from, Problem::DifferentLayout));
            }
            let places = there.iter().chain(&here);
            let memory = here.iter().chain(&there);
            let with_memory = |(place, memory): (&MappedRange, &MappedRange)| {
                let MappedRange { handle, native, owner, .. } = *memory;
                MappedRange { handle, native, owner, ..*place }
            };
            let after: Vec<MappedRange> = places.zip(memory).map(with_memory).collect();
            for it in &after {
                let access = it.access.requested;
                self.check_reach(it.owner, &AccessChange { agents: access.read, access })?;
            }
            self.remap(journal, &after)
        })
        .map_err(|kind| about_one_of(kind, to))
    }

    /// Moves, if the source is the expected mappings; with a serial only into the reservation of that serial.
    /// Returns the serials of the mappings at their new addresses.
    pub(super) fn relocate(
        &self,
        to: Range,
        from: Range,
        reservation: Option<u64>,
        expected: Expected<'_>,
    ) -> Result<SmallVec<[u64; 1]>, ErrorKind> {
        if to.overlaps(from) {
            return Err(ErrorKind::invalid(Argument::Source, from, Problem::Overlapping));
        }
        self.transact(Operation::Relocate, [to, from].into_iter(), |journal| {
            let before = mapped_run(journal, from, Argument::Source, expected)?;
            let about = |kind: ErrorKind| kind.for_argument(Argument::Destination);
            let destination = journal.containing(to).map_err(about)?;
            destination.mappings().check_empty(to, |_| false).map_err(about)?;
            if reservation.is_some_and(|serial| serial != destination.serial) {
                return Err(about(to.invalid(Problem::NotReserved)));
            }
            let move_it = |it: &MappedRange| MappedRange {
                start: to.start + (it.start - from.start),
                serial: destination.new_serial(),
                ..*it
            };
            let after: Vec<MappedRange> = before.iter().map(move_it).collect();
            for it in &after {
                let granule = self.ledger.handles.with_live(it.handle, |record| record.granule);
                let granule = granule.unwrap_or(self.granule);
                if !it.start.is_multiple_of(granule) {
                    return Err(about(it.range().invalid(Problem::NotAligned { granule })));
                }
            }
            self.remap(journal, &after)?;
            Ok(after.iter().map(|it| it.serial).collect())
        })
        .map_err(|kind| about_one_of(kind, to))
    }

    /// Unmaps all targets of the journal and maps others in their place, with the access of each.
    fn remap(&self, journal: &mut Journal<'_>, after: &[MappedRange]) -> Result<(), ErrorKind> {
        // Without a descriptor, the memory could not be mapped again.
        self.check_descriptor()?;
        for it in after {
            self.check_remap(&it.access)?;
        }
        let before = journal.targets.len();
        // Each gets the address or the memory of the target with the same index.
        for (index, it) in after.iter().enumerate() {
            self.ledger.handles.with_live(it.handle, |record| record.mappings += 1);
            let place = &journal.targets[index].now;
            let name = journal.containing(place.range())?.mappings().name_of(place.serial).cloned();
            journal.add_new(*it, AccessChange::default(), name);
        }
        for index in 0..before {
            journal.unmap(index..index + 1)?;
            journal.check_quarantine()?;
        }
        for (index, it) in (before..).zip(after) {
            journal.map_with_access(index, it, false)?;
        }
        Ok(())
    }
}

/// Adds the mappings of a range as targets, if they are the expected ones, and returns them.
fn mapped_run(
    journal: &mut Journal<'_>,
    range: Range,
    argument: Argument,
    expected: Expected<'_>,
) -> Result<SmallVec<[MappedRange; 1]>, ErrorKind> {
    let first = journal.targets.len();
    let added = journal.add_targets(range, AccessChange::default());
    let checked = added.and_then(|()| expected.check_targets(journal, first));
    checked.map_err(|kind| kind.for_argument(argument))?;
    Ok(journal.targets[first..].iter().map(|target| target.now).collect())
}
