//! One operation on the mappings of locked reservations: its steps in the runtime, and how they are
//! rolled back.
//!
//! An operation records each step in the journal before it performs it. If a later step fails, the steps are
//! undone in reverse order. If that fails too, the reservation is quarantined: no operation touches it
//! again. At the end, after success and after a rollback, [`Journal::finish`] writes the runtime's current
//! state to the ledger; to all other threads that is a single step.
//!
//! | step | inverse |
//! |---|---|
//! | [`Step::Map`] | unmap |
//! | [`Step::Unmap`] | map, and restore the access |
//! | [`Step::Access`] | restore the access; if a GPU was granted access for the first time, unmap and map again |

use super::Shared;
use super::access_change::AccessChange;
use super::ledger::{
    Guards, MappedRange, Range, Reservation, ReservationGuard, locked_containing, remember,
};
use crate::access::{AccessState, AgentSet};
use crate::error::{Argument, ErrorKind, Operation, Problem, Quarantined};
use core::ops::Range as Indexes;
use smallvec::SmallVec;
use std::sync::Arc;

/// A mapping that the operation changes, creates or removes.
#[derive(Debug)]
pub(super) struct Target {
    /// The runtime's state of it, now or when it was last mapped.
    pub now: MappedRange,
    /// The access before the operation.
    pub before: AccessState,
    /// The requested change of access.
    pub change: AccessChange,
    /// The agents that the operation asked the runtime to grant access, successfully or not.
    pub asked: AgentSet,
    /// Whether it is mapped in the runtime.
    pub mapped: bool,
    /// Whether the operation has mapped it, so that unmapping it undoes all changes to it.
    pub fresh: bool,
    /// Whether its state is unknown. The ledger then still lists it, so that its memory stays.
    lost: bool,
    /// Whether the ledger lists it already.
    listed: bool,
    /// Its name, if it is not listed yet.
    name: Option<Arc<str>>,
}

/// A step on a target, or on a group of adjacent targets.
#[derive(Clone, Copy, Debug)]
enum Step {
    Map,
    Unmap,
    Access,
}

/// The steps of one operation.
#[derive(Debug)]
pub(super) struct Journal<'a> {
    pub shared: &'a Shared,
    operation: Operation,
    guards: &'a [ReservationGuard<'a>],
    pub targets: SmallVec<[Target; 1]>,
    steps: SmallVec<[(Step, Indexes<usize>); 4]>,
    /// The first reservation that this operation quarantined.
    quarantined: Option<Arc<Quarantined>>,
    /// The reservations that it quarantined because a rollback failed.
    broken: Vec<usize>,
}

impl<'a> Journal<'a> {
    /// Returns the locked reservation that contains all of a range.
    pub fn containing(&self, range: Range) -> Result<&'a Reservation, ErrorKind> {
        locked_containing(self.guards, range)
    }

    /// Adds the mappings of a range as targets.
    pub fn add_targets(&mut self, range: Range, change: AccessChange) -> Result<(), ErrorKind> {
        let mappings = self.containing(range)?.mappings();
        match mappings.only(range) {
            Some(one) => self.add(one, change, true, None),
            None => mappings.adjacent(range)?.for_each(|it| self.add(it, change, true, None)),
        }
        Ok(())
    }

    /// Adds a mapping to create, which its handle already counts.
    pub fn add_new(&mut self, it: MappedRange, change: AccessChange, name: Option<Arc<str>>) {
        self.add(MappedRange { access: AccessState::default(), ..it }, change, false, name);
    }

    fn add(
        &mut self,
        now: MappedRange,
        change: AccessChange,
        listed: bool,
        name: Option<Arc<str>>,
    ) {
        self.targets.push(Target {
            now,
            before: now.access,
            change,
            asked: AgentSet::NONE,
            mapped: listed,
            fresh: false,
            lost: false,
            listed,
            name,
        });
    }

    /// Calls `act` with each group of adjacent targets in one reservation, whose access changes alike.
    pub fn each_group(
        &mut self,
        targets: Indexes<usize>,
        mut act: impl FnMut(&mut Self, Indexes<usize>) -> Result<(), ErrorKind>,
    ) -> Result<(), ErrorKind> {
        let mut first = targets.start;
        for next in first + 1..=targets.end {
            if next == targets.end || !self.continues(next) {
                act(self, first..next)?;
                first = next;
            }
        }
        Ok(())
    }

    /// Returns whether a target is in the same group as the one before it.
    fn continues(&self, index: usize) -> bool {
        let [before, it] = [&self.targets[index - 1], &self.targets[index]];
        before.now.range().end() == it.now.start
            && before.change == it.change
            && self.guards.iter().all(|guard| guard.reservation.base != it.now.start)
    }

    /// Maps a target.
    pub fn map(&mut self, index: usize) -> Result<(), ErrorKind> {
        self.steps.push((Step::Map, index..index + 1));
        self.raw_map(index)
    }

    /// Unmaps adjacent targets by one call of the runtime. A reservation whose addresses could not be kept
    /// is quarantined; see [`check_quarantine`](Self::check_quarantine).
    pub fn unmap(&mut self, group: Indexes<usize>) -> Result<(), ErrorKind> {
        self.steps.push((Step::Unmap, group.clone()));
        if let Some(lost) = self.raw_unmap(group.clone())? {
            self.quarantine(group.start, lost, None);
        }
        Ok(())
    }

    /// Records that the access to adjacent targets is about to change.
    pub fn enter_access(&mut self, group: Indexes<usize>) {
        self.steps.push((Step::Access, group));
    }

    /// Fails if this operation has quarantined a reservation.
    pub fn check_quarantine(&self) -> Result<(), ErrorKind> {
        match &self.quarantined {
            Some(range) => Err(ErrorKind::Quarantined { range: range.clone(), now: true }),
            None => Ok(()),
        }
    }

    fn roll_back(&mut self, failure: &ErrorKind) {
        while let Some((step, group)) = self.steps.pop() {
            let Some(reservation) = self.reservation_of(group.start) else { continue };
            if reservation.quarantined().is_none()
                && let Err(rollback) = self.undo(step, group.clone())
            {
                self.quarantine(group.start, failure.clone(), Some(rollback));
                self.broken.push(reservation.base);
            }
            // A target that was only to be unmapped is dropped; any other keeps its memory.
            let gone =
                self.operation == Operation::Unmap && !self.broken.contains(&reservation.base);
            if !gone && reservation.quarantined().is_some() {
                self.targets[group].iter_mut().for_each(|target| target.lost = true);
            }
        }
    }

    /// Undoes a step, whether it succeeded, failed or failed half-way.
    fn undo(&mut self, step: Step, group: Indexes<usize>) -> Result<(), ErrorKind> {
        let alone = group.len() == 1;
        group.rev().try_for_each(|index| match step {
            Step::Map if self.targets[index].mapped => self.undo_map(index),
            Step::Map => Ok(()),
            Step::Unmap => self.undo_unmap(index, alone),
            Step::Access => self.undo_access(index),
        })
    }

    fn undo_map(&mut self, index: usize) -> Result<(), ErrorKind> {
        let unmapped = self.raw_unmap(index..index + 1);
        if unmapped.is_err() {
            // Every agent that was requested may have access.
            let target = &mut self.targets[index];
            let granted = target.now.access.runtime_granted;
            target.now.access.runtime_granted = granted.union(target.asked);
        }
        unmapped?.map_or(Ok(()), Err)
    }

    /// Undoes an unmap, of this mapping `alone` or of a group of adjacent mappings.
    fn undo_unmap(&mut self, index: usize, alone: bool) -> Result<(), ErrorKind> {
        if !self.targets[index].mapped {
            return self.map_as_before(index);
        }
        // The runtime failed. It may have unmapped some of the adjacent mappings, and revoked the access of
        // some agents to the next one. A single mapping is most likely unchanged.
        let now = self.targets[index].now;
        if alone || self.shared.is_mapped(&now)? {
            match self.shared.grant_again(&now) {
                Ok(granted) => {
                    self.targets[index].now.access.runtime_granted = granted;
                    return Ok(());
                }
                Err(failure) if !alone => return Err(failure),
                // Unmaps it, unless the runtime had unmapped it already and fails.
                Err(_) => {
                    if let Ok(Some(lost)) = self.raw_unmap(index..index + 1) {
                        return Err(lost);
                    }
                }
            }
        } else {
            // The runtime would map over anything at these addresses.
            self.shared.keep_reserved(&now)?;
        }
        self.targets[index].mapped = false;
        self.map_as_before(index)
    }

    fn undo_access(&mut self, index: usize) -> Result<(), ErrorKind> {
        let target = &self.targets[index];
        if target.fresh || !target.mapped {
            return Ok(());
        }
        let known = target.before.runtime_granted.union(self.shared.cpus);
        if target.asked.difference(known).is_empty() {
            let restored = self.shared.restore_access(&target.now, target.before, target.asked)?;
            self.targets[index].now = restored;
            return Ok(());
        }
        // A GPU has access that it did not have before: only unmapping revokes it.
        self.raw_unmap(index..index + 1)?.map_or(Ok(()), Err)?;
        self.map_as_before(index)
    }

    /// Maps a target that is not mapped, with the access before the operation. If the runtime maps it
    /// but refuses the access, tries once more.
    fn map_as_before(&mut self, index: usize) -> Result<(), ErrorKind> {
        let target = &self.targets[index];
        let before = MappedRange { access: target.before, ..target.now };
        match self.map_with_access(index, &before, true) {
            Err(_) if self.targets[index].mapped => {
                self.undo_map(index)?;
                self.map_with_access(index, &before, true)
            }
            done => done,
        }
    }

    /// Maps a target, and sets its access.
    ///
    /// Where the owner of imported memory is unknown and must be granted access last, every GPU that
    /// may be the owner is tried.
    pub fn map_with_access(
        &mut self,
        index: usize,
        wanted: &MappedRange,
        roll_back: bool,
    ) -> Result<(), ErrorKind> {
        let mut owners = self.shared.possible_owners(wanted).iter().peekable();
        loop {
            let owner = owners.next().map(|owner| owner as u8).or(wanted.owner);
            let wanted = MappedRange { owner, ..*wanted };
            let shared = self.shared;
            shared.with_descriptor(|| {
                if roll_back { self.raw_map(index) } else { self.map(index) }
            })?;
            let mut granted = AgentSet::NONE;
            let outcome = self.shared.grant(&wanted, AgentSet::NONE, &mut granted);
            let target = &mut self.targets[index];
            target.now.access = AccessState { runtime_granted: granted, ..wanted.access };
            match outcome {
                Ok(()) => {
                    target.asked = if roll_back { AgentSet::NONE } else { granted };
                    target.fresh = !roll_back;
                    return Ok(());
                }
                Err(failure) => {
                    target.asked = (0..self.shared.runtime.agents().len()).collect();
                    if owners.peek().is_none() || self.undo_map(index).is_err() {
                        return Err(failure);
                    }
                }
            }
        }
    }

    fn raw_map(&mut self, index: usize) -> Result<(), ErrorKind> {
        let target = &mut self.targets[index];
        self.shared.map_in_runtime(&target.now)?;
        (target.mapped, target.fresh) = (true, true);
        target.now.access = AccessState::default();
        Ok(())
    }

    /// Unmaps adjacent targets. The inner error says that their addresses could not be kept reserved.
    fn raw_unmap(&mut self, group: Indexes<usize>) -> Result<Option<ErrorKind>, ErrorKind> {
        let group = &mut self.targets[group];
        let start = group.first().map_or(0, |target| target.now.start);
        let size = group.iter().map(|target| target.now.size).sum();
        self.shared.unmap_in_runtime(Range { start, size })?;
        let mut lost = None;
        for target in group {
            target.mapped = false;
            lost = lost.or(self.shared.keep_reserved(&target.now).err());
        }
        Ok(lost)
    }

    fn reservation_of(&self, index: usize) -> Option<&'a Reservation> {
        self.containing(self.targets[index].now.range()).ok()
    }

    fn quarantine(&mut self, index: usize, failure: ErrorKind, rollback: Option<ErrorKind>) {
        let Some(reservation) = self.reservation_of(index) else { return };
        let range = reservation.range();
        let entry = self.shared.quarantine(self.operation, range, failure, rollback);
        reservation.quarantine(entry.clone());
        self.quarantined.get_or_insert(entry);
    }

    /// Writes the runtime's state to the ledger, and releases memory that nothing keeps alive.
    fn finish(&mut self) {
        let handles = &self.shared.ledger.handles;
        let mut dead = Vec::new();
        {
            let guards = self.guards.iter();
            let mut locked: SmallVec<[_; 1]> =
                guards.map(|guard| guard.reservation.mappings_mut()).collect();
            let at = |start: usize| {
                let behind = self.guards.partition_point(|it| it.reservation.base <= start);
                behind.saturating_sub(1)
            };
            // Removes first: a new mapping may have the same address.
            let is_replaced = |lost: &Target| {
                let mut new = self.targets.iter().filter(|it| it.mapped && !it.listed);
                new.any(|it| it.now.start == lost.now.start)
            };
            for target in self.targets.iter().filter(|target| !target.mapped) {
                if target.listed {
                    if target.lost && !is_replaced(target) {
                        continue;
                    }
                    locked[at(target.now.start)].remove(target.now.start);
                }
                dead.extend(handles.end(target.now.handle, |record| record.mappings -= 1));
            }
            for target in self.targets.iter_mut().filter(|target| target.mapped) {
                let MappedRange { start, access, .. } = target.now;
                let mappings = &mut locked[at(start)];
                if !target.listed {
                    mappings.insert(target.now, target.name.take());
                } else if access != target.before {
                    mappings.set_access(start, access);
                }
            }
        }
        for record in dead {
            self.shared.release_memory(self.operation, &record);
        }
    }
}

impl Shared {
    /// Runs an operation on mappings, all of it or nothing. Locks the reservations that contain the ranges,
    /// of which there must be at least one, against other operations.
    pub(super) fn transact<T>(
        &self,
        operation: Operation,
        ranges: impl Iterator<Item = Range> + Clone,
        act: impl FnOnce(&mut Journal<'_>) -> Result<T, ErrorKind>,
    ) -> Result<T, ErrorKind> {
        if ranges.clone().next().is_none() {
            return Err(ErrorKind::without_value(Argument::List, Problem::Empty));
        }
        self.with_locked(ranges, |guards| {
            let mut journal = Journal {
                shared: self,
                operation,
                guards,
                targets: SmallVec::new(),
                steps: SmallVec::new(),
                quarantined: None,
                broken: Vec::new(),
            };
            let outcome = act(&mut journal);
            match &outcome {
                Err(failure) => journal.roll_back(failure),
                Ok(_) => {
                    for it in journal.targets.iter().filter(|it| it.mapped && !it.fresh) {
                        self.drop_unused_view(&it.now, &it.before);
                    }
                }
            }
            journal.finish();
            journal.check_quarantine()?;
            outcome
        })
    }

    /// Locks the reservations that contain the ranges for `act`.
    pub(super) fn with_locked<T>(
        &self,
        ranges: impl Iterator<Item = Range> + Clone,
        act: impl FnOnce(&[ReservationGuard<'_>]) -> Result<T, ErrorKind>,
    ) -> Result<T, ErrorKind> {
        loop {
            let mut found: SmallVec<[Arc<Reservation>; 1]> = SmallVec::new();
            for range in ranges.clone() {
                if found.last().is_some_and(|last| last.contains_range(range)) {
                    continue;
                }
                let reservation = self.ledger.reservations.containing(range)?;
                self.check_usable(&reservation)?;
                found.push(reservation);
            }
            found.sort_by_key(|it| it.base);
            found.dedup_by_key(|it| it.base);
            // A reservation that was freed or quarantined meanwhile is looked up again.
            let done = {
                let guards: Option<Guards<'_>> = found.iter().map(|it| it.lock()).collect();
                let Some(guards) = guards else { continue };
                act(&guards)
            };
            found.into_iter().take(1).for_each(remember);
            return done;
        }
    }
}
