//! Other memory behind the same addresses, or the same memory behind other addresses: nothing is
//! copied.

use super::ledger::{Entered, MappingRecord, Range, Reserved};
use super::mapping::{Expected, Left, Piece, Run, Serial, torn_by};
use super::permission::Change;
use super::transfer::two_ranges;
use super::{Address, Argument, Operation, Problem, Refusal, Shared, Vmm, VmmError};
use std::collections::BTreeSet;

impl Vmm {
    /// Exchanges the memory behind two ranges without copying it. HIP has no such call.
    ///
    /// Both are runs of whole mappings, and mapping by mapping of the same size. Who may use an
    /// address does not change: each agent finds the other memory where it may use some. Nobody may
    /// be using either range meanwhile; to a thread of this process that asks, both are exchanged at
    /// once. Done by `hsa_amd_vmem_unmap`, `hsa_amd_vmem_map` and `hsa_amd_vmem_set_access`.
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] if one is not exactly a run of whole mappings, they are not cut
    /// alike or share bytes, or an agent cannot reach the memory that it would get;
    /// [`VmmError::Quarantined`] if the runtime failed and what it had done could not be undone: then
    /// both reservations are.
    pub fn exchange(
        &self,
        destination: Address,
        source: Address,
        size: usize,
    ) -> Result<(), VmmError> {
        let operation = Operation::Exchange;
        self.shared.alive(operation)?;
        let (to, from) = two_ranges(operation, destination, source, size)?;
        self.shared.exchange(to, from, (Expected::Any, Expected::Any))
    }

    /// Moves the memory behind a range to addresses where nothing is mapped, without copying it. HIP
    /// has no such call.
    ///
    /// The source is a run of whole mappings and is empty afterwards; who may use the memory does not
    /// change. The destination may be in another reservation. Nobody may be using the memory
    /// meanwhile. Done by `hsa_amd_vmem_unmap`, `hsa_amd_vmem_map` and `hsa_amd_vmem_set_access`.
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] if the source is not exactly a run of whole mappings, or the
    /// destination is not reserved, not empty or not aligned; [`VmmError::Quarantined`] as for
    /// [`exchange`](Self::exchange).
    pub fn relocate(
        &self,
        destination: Address,
        source: Address,
        size: usize,
    ) -> Result<(), VmmError> {
        let operation = Operation::Relocate;
        self.shared.alive(operation)?;
        let (to, from) = two_ranges(operation, destination, source, size)?;
        self.shared.relocate(to, from, None)
    }
}

impl Shared {
    /// Exchanges, if both ranges are the expected mappings.
    pub(super) fn exchange(
        &self,
        to: Range,
        from: Range,
        (expected_to, expected_from): (Expected<'_>, Expected<'_>),
    ) -> Result<(), VmmError> {
        let operation = Operation::Exchange;
        let refuse = |argument, problem| Err(Refusal::new(argument, problem).during(operation));
        if overlap(to, from) {
            return refuse(Argument::Source, Problem::Overlapping);
        }
        self.at_both_gates(operation, to, from, |mut entered| {
            let there = (to, Argument::Destination);
            let there = self.mapped_run(operation, &entered, there, expected_to)?;
            let here = (from, Argument::Source);
            let here = self.mapped_run(operation, &entered, here, expected_from)?;
            let size = |piece: &Piece| piece.record.size;
            if here.iter().map(size).ne(there.iter().map(size)) {
                return refuse(Argument::Source, Problem::CutDifferently);
            }
            let forth = there.iter().zip(&here).map(|(place, memory)| behind(place, memory));
            let back = here.iter().zip(&there).map(|(place, memory)| behind(place, memory));
            let after: Vec<Piece> = forth.chain(back).collect();
            for piece in &after {
                let access = |index| Change::new(index, piece.record.access.get(index));
                let access: Vec<_> = (0..self.runtime.agents().len()).map(access).collect();
                self.check_reach(operation, piece.owner, &access)?;
            }
            let before: Vec<Piece> = there.iter().chain(&here).copied().collect();
            self.rehang(operation, &mut entered, &before, &after)
        })
    }

    /// Moves; with serials only if the source is still that mapping, and the destination still in
    /// that reservation.
    pub(super) fn relocate(
        &self,
        to: Range,
        from: Range,
        serials: Option<(u64, Serial)>,
    ) -> Result<(), VmmError> {
        let operation = Operation::Relocate;
        let refuse = |argument, problem| Err(Refusal::new(argument, problem).during(operation));
        if overlap(to, from) {
            return refuse(Argument::Source, Problem::Overlapping);
        }
        self.at_both_gates(operation, to, from, |mut entered| {
            let (reservation, serial) = serials.unzip();
            let source = (from, Argument::Source);
            let expected = serial
                .as_ref()
                .map_or(Expected::Any, |serial| Expected::Only(core::slice::from_ref(serial)));
            let before = self.mapped_run(operation, &entered, source, expected)?;
            let after: Vec<Piece> = before
                .iter()
                .map(|piece| Piece { start: to.start + (piece.start - from.start), ..*piece })
                .collect();
            let refused = |refusal: Refusal| refusal.during(operation).about(Argument::Destination);
            let destination = entered.around(to).map_err(refused)?;
            destination.mappings().check_empty(to).map_err(refused)?;
            if reservation.is_some_and(|serial| serial != destination.reserved.serial) {
                return refuse(Argument::Destination, Problem::NotReserved);
            }
            for piece in &after {
                let handles = &self.ledger.handles;
                let granule = handles.in_slot(piece.record.slot, |handle| handle.granule);
                let (value, granule) = (piece.start, granule.unwrap_or(self.granule));
                if !value.is_multiple_of(granule) {
                    let problem = Problem::NotAligned { value, granule };
                    return refuse(Argument::Destination, problem);
                }
            }
            self.rehang(operation, &mut entered, &before, &after)
        })
    }

    /// The mappings of a run, if they are the expected ones.
    fn mapped_run(
        &self,
        operation: Operation,
        entered: &Entered<'_>,
        (range, argument): (Range, Argument),
        expected: Expected<'_>,
    ) -> Result<Run<Piece>, VmmError> {
        let pieces = self.run(operation, entered, range).map_err(|error| error.about(argument))?;
        let found = pieces.iter().map(|piece| piece.record.serial);
        expected
            .check(argument, range.start, found)
            .map_err(|refusal| refusal.during(operation))?;
        Ok(pieces)
    }

    /// Takes mappings down and sets others of the same memory up in their stead; or puts all of them
    /// back; or, if that fails too, takes every reservation among them out of use.
    fn rehang(
        &self,
        operation: Operation,
        entered: &mut Entered<'_>,
        before: &[Piece],
        after: &[Piece],
    ) -> Result<(), VmmError> {
        // Without one, what is taken down could not be made anew.
        self.check_a_descriptor(operation)?;
        for piece in after {
            self.check_rebuild(operation, &piece.record.access)?;
        }
        let all = || before.iter().chain(after);
        for (down, piece) in before.iter().enumerate() {
            match self.take_down(operation, piece.start, &piece.record) {
                Ok(Ok(())) => {}
                Ok(Err(errno)) => return Err(self.give_up(operation, all(), torn_by(errno))),
                Err(broken) => {
                    let error = self.put_back(operation, entered, &before[..=down], broken);
                    if matches!(error, VmmError::Quarantined { .. }) {
                        self.give_up(operation, all(), error.to_string());
                    }
                    return Err(error);
                }
            }
        }
        let mut up = Vec::with_capacity(after.len());
        for piece in after {
            let with =
                |granted| Piece { record: MappingRecord { granted, ..piece.record }, ..*piece };
            match self.set_up(operation, piece, &piece.record) {
                Ok(granted) => up.push(with(granted)),
                Err(broken) => {
                    if let Left::Mapping { granted } = broken.left {
                        up.push(with(granted));
                    }
                    return Err(self.hang_back(operation, entered, before, &up, broken.error));
                }
            }
        }
        let (gone, here) =
            (before.iter().map(|it| it.start), up.iter().map(|it| (it.start, it.record)));
        self.ledger.rehang(entered, gone, here);
        Ok(())
    }

    /// Takes down what is `up` and sets up what was there before `error`.
    fn hang_back(
        &self,
        operation: Operation,
        entered: &mut Entered<'_>,
        before: &[Piece],
        up: &[Piece],
        error: VmmError,
    ) -> VmmError {
        let undone = up.iter().rev().try_for_each(|piece| {
            match self.take_down(operation, piece.start, &piece.record) {
                Ok(Ok(())) => Ok(()),
                Ok(Err(errno)) => Err(torn_by(errno)),
                Err(broken) => Err(broken.error.to_string()),
            }
        });
        let undone = undone.and_then(|()| {
            before.iter().try_for_each(|piece| {
                let granted = self
                    .set_up(operation, piece, &piece.record)
                    .map_err(|broken| broken.error.to_string())?;
                let record = MappingRecord { granted, ..piece.record };
                entered.write_access([(piece.start, &record)]);
                Ok(())
            })
        });
        match undone {
            Ok(()) => error,
            Err(undo) => {
                let reason = format!("{error}; and it could not be undone: {undo}");
                self.give_up(operation, before.iter().chain(up), reason)
            }
        }
    }

    /// Takes every reservation that these are in out of use.
    fn give_up<'a>(
        &self,
        operation: Operation,
        pieces: impl Iterator<Item = &'a Piece>,
        reason: String,
    ) -> VmmError {
        let bases: BTreeSet<usize> = {
            let base = |reserved: &Reserved| (!reserved.is_quarantined()).then_some(reserved.base);
            pieces.filter_map(|piece| self.ledger.at(piece.start, base)?).collect()
        };
        let mut address = Address::NULL;
        for base in bases {
            address = Address::new(base);
            self.quarantine(operation, base, reason.clone());
        }
        VmmError::Quarantined { operation, address, now: true }
    }
}

/// The mapping of one piece, with the memory of another behind it.
fn behind(place: &Piece, memory: &Piece) -> Piece {
    let record = MappingRecord { slot: memory.record.slot, ..place.record };
    Piece { start: place.start, record, native: memory.native, owner: memory.owner }
}

fn overlap(one: Range, other: Range) -> bool {
    one.start < other.end() && other.start < one.end()
}
