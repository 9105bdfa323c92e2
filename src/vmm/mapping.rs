//! Mapping and unmapping.

use super::ledger::{Entered, HandleRecord, MappingRecord, Range};
use super::{
    Access, Address, Argument, Feature, Handle, Operation, Physical, Problem, Refusal, Shared, Vmm,
    VmmError, no_flags,
};
use crate::access::AgentSet;
use crate::agent::AgentKind;
use crate::native::{Native, NativeHandle, close, plug};
use crate::vmm::permission::Unfinished;
use rustix::io::Errno;
use smallvec::SmallVec;

/// Something of each mapping of a run, which mostly is one.
pub(super) type Run<T> = SmallVec<[T; 1]>;

/// A mapping and what is needed to make it anew.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub start: usize,
    pub record: MappingRecord,
    pub native: NativeHandle,
    pub owner: Option<usize>,
}

/// Why a mapping could not be taken down or made anew, and what there is now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Broken {
    pub error: VmmError,
    pub left: Left,
}

/// What is left of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// All of it, as it was.
    Whole,
    /// The mapping that there was: the runtime refused to unmap it, most likely before it did
    /// anything.
    Refused,
    /// One made anew, which not everybody may use as before, and the agents that the runtime was
    /// told of.
    Mapping {
        granted: AgentSet,
    },
    Nothing,
}

/// Names a mapping that may have gone, and its address been used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Serial(pub(super) u64);

/// The mappings that an operation may act on. An owned value names its own: at their addresses may
/// be others by now, which somebody mapped by address.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expected<'a> {
    /// Whatever is mapped: the caller named addresses.
    Any,
    /// Exactly these, by address.
    Only(&'a [Serial]),
}

impl Expected<'_> {
    /// Refuses mappings that are not the expected ones. The caller is inside the reservation, so that
    /// they stay what they are until it has acted on them.
    pub fn check(
        self,
        argument: Argument,
        start: usize,
        mut found: impl Iterator<Item = u64>,
    ) -> Result<(), Refusal> {
        let Self::Only(serials) = self else { return Ok(()) };
        if serials.iter().all(|serial| found.next() == Some(serial.0)) && found.next().is_none() {
            return Ok(());
        }
        Err(Refusal::new(argument, Problem::NotMapped { at: Address::new(start) }))
    }

    /// The same of the mappings that a range touches.
    pub fn check_range(
        self,
        argument: Argument,
        entered: &Entered<'_>,
        range: Range,
    ) -> Result<(), Refusal> {
        match self {
            Self::Any => Ok(()),
            Self::Only(_) => {
                let mappings = entered.around(range)?.mappings();
                self.check(argument, range.start, mappings.serials_in(range))
            }
        }
    }
}

impl Vmm {
    /// Maps physical memory at reserved addresses (`hipMemMap`, `hsa_amd_vmem_map`).
    ///
    /// The first `size` bytes of the handle appear at `address`; nobody may use them before
    /// [`set_access`](Vmm::set_access). `address` and `size` are multiples of the granule, the
    /// range is inside one reservation and empty, `offset` and `flags` are 0. One handle may be
    /// mapped at several addresses, which are then the same memory.
    ///
    /// To other threads a map that succeeds is two steps: from the first on it holds the handle, so
    /// that a release does not end the memory; with the second the mapping is there. In between,
    /// another thread may release the last reference and find nothing mapped yet.
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] says which of this does not hold.
    pub fn map(
        &self,
        address: Address,
        size: usize,
        offset: usize,
        handle: Handle,
        flags: u64,
    ) -> Result<(), VmmError> {
        self.shared.map(address, size, offset, handle, flags, None).map(|_| ())
    }

    /// Unmaps a run of whole mappings (`hipMemUnmap`, `hsa_amd_vmem_unmap`).
    ///
    /// Access need not be taken away first; the addresses stay reserved. There is one exception: until
    /// ROCm 7.1, and only where dma-bufs cannot be mapped so that the runtime has mapped the memory for
    /// the CPU, it leaves a hole for a moment. The hole is filled at once; if another thread has mapped
    /// something there, that is not touched and the range is put into the quarantine. Work of GPUs that still
    /// uses the memory must have ended. What is in the memory stays there as long as its handle
    /// is referenced or mapped elsewhere.
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] if the range cuts a mapping, has a hole, or reaches out of
    /// the reservation; [`VmmError::Quarantined`] if the addresses could not be kept reserved.
    pub fn unmap(&self, address: Address, size: usize) -> Result<(), VmmError> {
        let operation = Operation::Unmap;
        self.shared.alive(operation)?;
        let range = Range::new(address, size).map_err(|refusal| refusal.during(operation))?;
        self.shared.unmap(operation, range, Expected::Any)
    }

    /// Maps parts of sparse arrays (`hipMemMapArrayAsync`): not supported, as in HIP on AMD.
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] for an empty list, else [`VmmError::NotSupported`].
    pub fn map_array_async(&self, entries: usize) -> Result<(), VmmError> {
        let operation = Operation::MapArrayAsync;
        self.shared.alive(operation)?;
        if entries == 0 {
            return Err(Refusal::new(Argument::List, Problem::Zero).during(operation));
        }
        Err(VmmError::NotSupported { operation, feature: Feature::SparseArrays })
    }
}

impl Shared {
    /// Maps, and returns the mapping's serial; with that of a reservation only inside it.
    #[allow(clippy::too_many_arguments, reason = "HIP's five, and the reservation")]
    pub(super) fn map(
        &self,
        address: Address,
        size: usize,
        offset: usize,
        handle: Handle,
        flags: u64,
        reservation: Option<u64>,
    ) -> Result<Serial, VmmError> {
        let operation = Operation::Map;
        let refused = |refusal: Refusal| refusal.during(operation);
        self.alive(operation)?;
        no_flags(flags).map_err(refused)?;
        let range = Range::new(address, size).map_err(refused)?;
        if offset != 0 {
            let problem = Problem::NotZero(offset);
            return Err(refused(Refusal::new(Argument::Offset, problem)));
        }
        let mut is_inside = false;
        let mapped = self.at_gate(operation, range, |entered| {
            is_inside = true;
            let inside = entered.around(range).map_err(refused)?;
            if reservation.is_some_and(|serial| serial != inside.reserved.serial) {
                // It was freed, and its addresses are another's by now.
                return Err(refused(Refusal::new(Argument::Address, Problem::NotReserved)));
            }
            let native = |record: &HandleRecord<Physical>| record.payload.native;
            let begun = self.ledger.begin_map(inside, range, handle, native);
            let (slot, native) = begun.map_err(refused)?;
            match self.call_locked(|runtime| runtime.map(range.start, range.size, native)) {
                Ok(()) => Ok(Serial(self.ledger.add_mapping(entered, range, slot))),
                Err(failure) => {
                    self.end_mapping(operation, slot);
                    Err(self.failure(operation, failure, size))
                }
            }
        });
        if mapped.is_err() && !is_inside {
            // A bad handle is told before a bad range.
            self.ledger.handles.with(handle, |_| ()).map_err(refused)?;
        }
        mapped
    }

    /// Ends a use of a handle, and gives its memory back if that was the last of it.
    pub(super) fn end_use(&self, operation: Operation, slot: u32) {
        if let Some(record) = self.ledger.handles.end_use(slot) {
            self.give_back(operation, &record.payload, record.size);
        }
    }

    /// Ends a mapping of a handle that is none, or not any more; else the same.
    pub(super) fn end_mapping(&self, operation: Operation, slot: u32) {
        if let Some(record) = self.ledger.handles.end_mapping(slot) {
            self.give_back(operation, &record.payload, record.size);
        }
    }

    /// Unmaps a run of whole mappings, if they are the expected ones.
    pub(super) fn unmap(
        &self,
        operation: Operation,
        range: Range,
        expected: Expected<'_>,
    ) -> Result<(), VmmError> {
        self.at_gate(operation, range, |mut entered| {
            // Mostly it is one, and then there is no list.
            let (one, several);
            let run: &[(usize, MappingRecord)] = match only(&entered, range) {
                Some(record) => {
                    one = [(range.start, record)];
                    &one
                }
                None => {
                    several = self.mapped(operation, &entered, range)?;
                    &several
                }
            };
            let found = run.iter().map(|(_, record)| record.serial);
            expected
                .check(Argument::Address, range.start, found)
                .map_err(|refusal| refusal.during(operation))?;
            let mut torn = None;
            let mut down = 0;
            for (start, record) in run {
                match self.take_down(operation, *start, record) {
                    Ok(kept) => torn = torn.or(kept.err().map(|errno| (*start, errno))),
                    // What a stranger has taken must not be mapped over.
                    Err(_) if torn.is_some() => break,
                    Err(broken) => {
                        let pieces: Vec<Piece> =
                            run[..=down].iter().filter_map(|&mapped| self.piece(mapped)).collect();
                        return Err(self.put_back(operation, &mut entered, &pieces, broken));
                    }
                }
                down += 1;
            }
            // Before it is left: who waits must not be let in to map over a stranger's memory.
            let torn =
                torn.map(|(start, errno)| Err(self.quarantine(operation, start, torn_by(errno))));
            self.remove(operation, entered, run[..down].iter().map(|&(start, _)| start));
            torn.unwrap_or(Ok(()))
        })
    }

    /// Removes mappings from the ledger, all at once for those who ask, and leaves; gives memory back
    /// that was mapped nowhere else and is not referenced.
    pub(super) fn remove(
        &self,
        operation: Operation,
        entered: Entered<'_>,
        starts: impl Iterator<Item = usize>,
    ) {
        for record in self.ledger.remove_mappings(entered, starts) {
            self.give_back(operation, &record.payload, record.size);
        }
    }

    /// The mappings of a run inside a reservation, or why it is none.
    fn mapped(
        &self,
        operation: Operation,
        entered: &Entered<'_>,
        range: Range,
    ) -> Result<Run<(usize, MappingRecord)>, VmmError> {
        let refused = |refusal: Refusal| refusal.during(operation);
        let mappings = entered.around(range).map_err(refused)?.mappings();
        mappings.check_run(range).map_err(refused)?;
        Ok(mappings.inside(range).collect())
    }

    /// A mapping with what is needed to make it anew.
    // Inlined: to copy what has just been written costs more than to write it where it is to be.
    #[inline(always)]
    fn piece(&self, (start, record): (usize, MappingRecord)) -> Option<Piece> {
        let (native, owner) = self.of_handle(record.slot)?;
        Some(Piece { start, record, native, owner })
    }

    /// What the runtime knows the memory in a slot by, and whose it is, where known.
    fn of_handle(&self, slot: u32) -> Option<(NativeHandle, Option<usize>)> {
        let look = |it: &HandleRecord<Physical>| (it.payload.native, it.payload.owner);
        self.ledger.handles.in_slot(slot, look)
    }

    /// The mapping that is all of a range, as mostly one is.
    #[inline(always)]
    pub(super) fn only_piece(&self, entered: &Entered<'_>, range: Range) -> Option<Piece> {
        self.piece((range.start, only(entered, range)?))
    }

    /// The mappings of a run inside a reservation, or why it is none.
    pub(super) fn run(
        &self,
        operation: Operation,
        entered: &Entered<'_>,
        range: Range,
    ) -> Result<Run<Piece>, VmmError> {
        self.run_of(operation, entered, range, |piece| piece)
    }

    /// Something of each mapping of a run inside a reservation, or why it is none.
    pub(super) fn run_of<T>(
        &self,
        operation: Operation,
        entered: &Entered<'_>,
        range: Range,
        of: impl Fn(Piece) -> T,
    ) -> Result<Run<T>, VmmError> {
        let mapped = self.mapped(operation, entered, range)?;
        Ok(mapped.into_iter().filter_map(|mapped| self.piece(mapped).map(&of)).collect())
    }

    /// Unmaps one mapping in the runtime, and then removes the CPU's view of it.
    ///
    /// The inner result says whether the addresses are still reserved.
    pub(super) fn take_down(
        &self,
        operation: Operation,
        start: usize,
        record: &MappingRecord,
    ) -> Result<Result<(), Errno>, Broken> {
        let size = record.size;
        self.call_locked(|native| native.unmap(start, size)).map_err(|failure| Broken {
            error: self.failure(operation, failure, size),
            left: Left::Refused,
        })?;
        Ok(self.keep_reserved(start, record))
    }

    /// Makes a mapping that is down, with the access that `record` says.
    ///
    /// Returns the agents that the runtime was told of: those that may do something.
    pub(super) fn set_up(
        &self,
        operation: Operation,
        piece: &Piece,
        record: &MappingRecord,
    ) -> Result<AgentSet, Broken> {
        let size = record.size;
        let mut owners = self.possible_owners(piece, record).into_iter().peekable();
        loop {
            let owner = owners.next().or(piece.owner);
            let piece = Piece { owner, ..*piece };
            let map = |native: &Native| native.map(piece.start, size, piece.native);
            self.with_descriptor(|| {
                self.call_locked(map).map_err(|failure| self.failure(operation, failure, size))
            })
            .map_err(|error| Broken { error, left: Left::Nothing })?;
            match self.let_use(operation, &piece, record, AgentSet::NONE) {
                Ok(granted) => return Ok(granted),
                Err(Unfinished { error, granted }) => {
                    let broken = Broken { error, left: Left::Mapping { granted } };
                    if owners.peek().is_none() {
                        return Err(broken);
                    }
                    // One that is not the owner was last.
                    let left = MappingRecord { granted, ..*record };
                    if !matches!(self.take_down(operation, piece.start, &left), Ok(Ok(()))) {
                        return Err(broken);
                    }
                }
            }
        }
    }

    /// Makes a mapping that is down as it was.
    pub(super) fn set_up_as_before(
        &self,
        operation: Operation,
        piece: &Piece,
    ) -> Result<AgentSet, VmmError> {
        self.set_up(operation, piece, &piece.record).map_err(|broken| broken.error)
    }

    /// Where the owner of an import is to be granted access last and is not known: the GPUs that
    /// it may be, each to be tried.
    fn possible_owners(&self, piece: &Piece, record: &MappingRecord) -> Vec<usize> {
        if !self.quirks.peer_after_owner_fails || piece.owner.is_some() {
            return Vec::new();
        }
        let agents = self.runtime.agents().iter().enumerate();
        agents
            .filter(|(_, agent)| agent.kind() == AgentKind::Gpu)
            .map(|(index, _)| index)
            .filter(|&index| record.access.get(index) != Access::None)
            .collect()
    }

    /// Takes a mapping down and makes it anew: the only way to take memory away from a GPU.
    pub(super) fn rebuild(
        &self,
        operation: Operation,
        piece: &Piece,
        record: &MappingRecord,
    ) -> Result<AgentSet, Broken> {
        match self.take_down(operation, piece.start, &piece.record)? {
            Ok(()) => self.set_up(operation, piece, record),
            Err(errno) => {
                let error = self.quarantine(operation, piece.start, torn_by(errno));
                Err(Broken { error, left: Left::Nothing })
            }
        }
    }

    /// Makes mappings anew that were taken down, when the last of `pieces` could not be.
    pub(super) fn put_back(
        &self,
        operation: Operation,
        entered: &mut Entered<'_>,
        pieces: &[Piece],
        Broken { error, left }: Broken,
    ) -> VmmError {
        let Some((failed, down)) = pieces.split_last() else { return error };
        let set_up = |piece: &Piece| self.set_up_as_before(operation, piece);
        let first = if left == Left::Whole {
            Ok(failed.record.granted)
        } else {
            self.let_use_again(operation, failed).or_else(|_| set_up(failed))
        };
        let rest = down.iter().rev().map(|piece| (piece, set_up(piece)));
        for (piece, undone) in std::iter::once((failed, first)).chain(rest) {
            if let Err(worse) = self.note_undone(operation, entered, piece, undone, error) {
                return worse;
            }
        }
        error
    }

    /// Gives the agents of a mapping that the runtime refused to unmap what they had: changes
    /// nothing if it did nothing, and fails if the mapping is gone.
    ///
    /// The runtime goes on knowing those that were told later that they may do nothing.
    pub(super) fn let_use_again(
        &self,
        operation: Operation,
        piece: &Piece,
    ) -> Result<AgentSet, VmmError> {
        // If the CPU has what it had, the runtime is not asked: it might map over a foreign mapping.
        let told = match self.fill_hole(operation, piece)? {
            true => AgentSet::NONE,
            false => piece.record.granted,
        };
        let granted = self.let_use(operation, piece, &piece.record, told)?;
        Ok(granted.and(piece.record.granted))
    }

    /// Enters whom the runtime was told of again, after `error`; takes the range out of use if that could
    /// not be undone.
    pub(super) fn note_undone(
        &self,
        operation: Operation,
        entered: &mut Entered<'_>,
        before: &Piece,
        undone: Result<AgentSet, VmmError>,
        error: VmmError,
    ) -> Result<(), VmmError> {
        let granted =
            undone.map_err(|undo| self.not_undone(operation, before.start, error, undo))?;
        let record = MappingRecord { granted, ..before.record };
        entered.write_access([(before.start, &record)]);
        Ok(())
    }

    /// Takes a range out of use because an operation failed and undoing it failed too.
    pub(super) fn not_undone(
        &self,
        operation: Operation,
        address: usize,
        error: VmmError,
        undo: VmmError,
    ) -> VmmError {
        self.quarantine(operation, address, format!("{error}; and it could not be undone: {undo}"))
    }

    /// Keeps what was unmapped reserved, in runtimes that leave a hole or the old memory there.
    pub(super) fn keep_reserved(&self, start: usize, record: &MappingRecord) -> Result<(), Errno> {
        let size = record.size;
        if self.quirks.cpu_unmap_leaves_hole && self.cpu_was_granted_by_runtime(record) {
            return plug(start, size);
        }
        if self.quirks.unmap_keeps_memory || self.has_own_view(record) {
            return close(start, size);
        }
        Ok(())
    }
}

/// The mapping that is all of a range, as mostly one is.
#[inline]
fn only(entered: &Entered<'_>, range: Range) -> Option<MappingRecord> {
    entered.around(range).ok()?.mappings().only(range)
}

pub(in crate::vmm) fn torn_by(errno: Errno) -> String {
    match errno {
        Errno::EXIST => "a stranger's mapping has taken addresses that the runtime gave up while \
                         it unmapped"
            .to_owned(),
        errno => format!("the addresses could not be kept reserved: {errno}"),
    }
}
