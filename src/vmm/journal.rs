//! One operation on the mappings of locked reservations: its steps in the runtime, and their rollback.
//!
//! An operation records each step in the journal before it performs the step. If a later step fails, the
//! steps are undone in reverse order. If that also fails, the reservation is quarantined: no operation uses
//! it again. At the end, after success and after a rollback, [`Journal::finish`] writes the runtime's current
//! state to the ledger; other threads observe that as a single step.
//!
//! | step | inverse |
//! |---|---|
//! | [`Step::Map`] | unmap |
//! | [`Step::Unmap`] | map, and restore the access |
//! | [`Step::Access`] | restore the access; if a GPU was granted access for the first time, unmap and map again |

use super::Shared;
use super::access_change::AccessChange;
use super::ledger::{
    Guards, MappedRange, Range, Reservation, ReservationGuard, cache, locked_containing,
};
use crate::access::{AccessState, AgentSet};
use crate::error::{Argument, ErrorKind, Operation, Problem, Quarantined};
use core::ops::Range as Indexes;
use smallvec::SmallVec;
use std::sync::Arc;

/// A mapping that the operation changes, creates or removes.
#[derive(Debug)]
pub(super) struct Target {
    /// Its state in the runtime: the current one, or the last one before it was unmapped.
    pub now: MappedRange,
    /// The access before the operation.
    pub before: AccessState,
    /// The requested change of access.
    pub change: AccessChange,
    /// The agents in the operation's requests to the runtime, successful or not.
    pub attempted: AgentSet,
    /// Whether the runtime has mapped it.
    pub mapped: bool,
    /// Whether the operation has mapped it, so that unmapping it undoes all changes to it.
    pub is_new: bool,
    /// Whether its state is unknown. The ledger then still lists it, which keeps its memory.
    lost: bool,
    /// Whether the ledger listed it before the operation.
    listed: bool,
    /// Its name, if it was not listed before.
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
    /// The base addresses of the reservations that it quarantined because a rollback failed.
    broken: Vec<usize>,
}

impl<'a> Journal<'a> {
    /// Returns the locked reservation that contains all of a range.
    pub fn containing(&self, range: Range) -> Result<&'a Reservation, ErrorKind> {
        locked_containing(self.guards, range)
    }

    /// Adds the mappings of a range as targets. Rejects quarantined ones.
    pub fn add_targets(&mut self, range: Range, change: AccessChange) -> Result<(), ErrorKind> {
        let mappings = self.containing(range)?.mappings();
        let first = self.targets.len();
        match mappings.exact(range) {
            Some(mapping) => self.add(mapping, change, true, None),
            None => mappings.adjacent(range)?.for_each(|it| self.add(it, change, true, None)),
        }
        mappings.check_not_quarantined(self.targets[first..].iter().map(|target| target.now))
    }

    /// Adds a mapping to create as a target. Its handle already counts the mapping.
    pub fn add_new(&mut self, mapping: MappedRange, change: AccessChange, name: Option<Arc<str>>) {
        self.add(MappedRange { access: AccessState::default(), ..mapping }, change, false, name);
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
            attempted: AgentSet::NONE,
            mapped: listed,
            is_new: false,
            lost: false,
            listed,
            name,
        });
    }

    /// Calls `act` with each group of adjacent targets that are in one reservation and have the same change.
    pub fn each_group(
        &mut self,
        targets: Indexes<usize>,
        mut act: impl FnMut(&mut Self, Indexes<usize>) -> Result<(), ErrorKind>,
    ) -> Result<(), ErrorKind> {
        let mut first = targets.start;
        for next in first + 1..=targets.end {
            if next == targets.end || !self.continues_group(next) {
                act(self, first..next)?;
                first = next;
            }
        }
        Ok(())
    }

    /// Returns whether a target is in the same group as the target before it.
    fn continues_group(&self, index: usize) -> bool {
        let [previous, target] = [&self.targets[index - 1], &self.targets[index]];
        previous.now.range().end() == target.now.start
            && previous.change == target.change
            && self.guards.iter().all(|guard| guard.reservation.base != target.now.start)
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

    /// Records a step that changes the access to adjacent targets.
    pub fn record_access(&mut self, group: Indexes<usize>) {
        self.steps.push((Step::Access, group));
    }

    /// Returns whether the operation has changed, or tried to change, entries in page tables of GPUs, and must wait
    /// for them.
    fn changes_gpus(&self) -> bool {
        if !self.shared.waits_for_gpus() {
            return false;
        }
        let gpus = |agents: AgentSet| !agents.difference(self.shared.cpus).is_empty();
        self.targets.iter().any(|target| {
            let was_unmapped = target.listed && (target.is_new || !target.mapped);
            gpus(target.attempted) || was_unmapped && gpus(target.before.runtime_granted)
        })
    }

    /// Fails if this operation has quarantined a reservation.
    pub fn check_quarantine(&self) -> Result<(), ErrorKind> {
        match &self.quarantined {
            Some(range) => Err(ErrorKind::Quarantined { range: range.clone(), now: true }),
            None => Ok(()),
        }
    }

    /// Undoes all steps in reverse order, and quarantines reservations in which that fails.
    fn roll_back(&mut self, failure: &ErrorKind) {
        while let Some((step, group)) = self.steps.pop() {
            let Some(reservation) = self.reservation_of(group.start) else { continue };
            if reservation.quarantined().is_none()
                && let Err(rollback) = self.undo(step, group.clone())
            {
                self.quarantine(group.start, failure.clone(), Some(rollback));
                self.broken.push(reservation.base);
            }
            // An unmap removes its targets from a quarantined reservation, unless the rollback has failed.
            // Otherwise the targets keep their memory.
            let is_unmapped =
                self.operation == Operation::Unmap && !self.broken.contains(&reservation.base);
            if !is_unmapped && reservation.quarantined().is_some() {
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
            // Every agent of a request may have access.
            let target = &mut self.targets[index];
            let granted = target.now.access.runtime_granted;
            target.now.access.runtime_granted = granted.union(target.attempted);
        }
        unmapped?.map_or(Ok(()), Err)
    }

    /// Undoes the unmap of a mapping. `alone` is false if the runtime unmapped adjacent mappings with it.
    fn undo_unmap(&mut self, index: usize, alone: bool) -> Result<(), ErrorKind> {
        if !self.targets[index].mapped {
            return self.map_as_before(index);
        }
        // The runtime failed. It may have unmapped some of the adjacent mappings, and revoked the access of
        // some agents to the next one. A single mapping is most likely unchanged.
        let now = self.targets[index].now;
        if alone || self.shared.is_mapped(&now)? {
            match self.shared.restore_grants(&now) {
                Ok(granted) => {
                    self.targets[index].now.access.runtime_granted = granted;
                    return Ok(());
                }
                Err(failure) if !alone => return Err(failure),
                // Unmaps the mapping, which fails if the runtime had unmapped it already.
                Err(_) => {
                    if let Ok(Some(lost)) = self.raw_unmap(index..index + 1) {
                        return Err(lost);
                    }
                }
            }
        } else {
            // Protects foreign mappings, which mapping again would replace.
            self.shared.keep_reserved(&now)?;
        }
        self.targets[index].mapped = false;
        self.map_as_before(index)
    }

    fn undo_access(&mut self, index: usize) -> Result<(), ErrorKind> {
        let target = &self.targets[index];
        if target.is_new || !target.mapped {
            return Ok(());
        }
        let granted = target.before.runtime_granted.union(self.shared.cpus);
        if target.attempted.difference(granted).is_empty() {
            let (now, before) = (target.now, target.before);
            self.targets[index].now = self.shared.restore_access(&now, before, target.attempted)?;
            return Ok(());
        }
        // Only unmapping revokes access that a GPU did not have before.
        self.raw_unmap(index..index + 1)?.map_or(Ok(()), Err)?;
        self.map_as_before(index)
    }

    /// Maps a target that is not mapped, with the access before the operation. If the runtime maps it but
    /// fails to set the access, tries once more.
    fn map_as_before(&mut self, index: usize) -> Result<(), ErrorKind> {
        let target = &self.targets[index];
        let before = MappedRange { access: target.before, ..target.now };
        match self.map_with_access(index, &before, true) {
            Err(_) if self.targets[index].mapped => {
                self.undo_map(index)?;
                self.map_with_access(index, &before, true)
            }
            result => result,
        }
    }

    /// Maps a target, and sets the access of `mapping`. With `roll_back`, records no step.
    ///
    /// If the owner of imported memory is unknown and must be granted access last, tries every GPU that may
    /// be the owner.
    pub fn map_with_access(
        &mut self,
        index: usize,
        mapping: &MappedRange,
        roll_back: bool,
    ) -> Result<(), ErrorKind> {
        let mut owners = self.shared.possible_owners(mapping).iter().peekable();
        loop {
            let owner = owners.next().map(|owner| owner as u8).or(mapping.owner);
            let mapping = MappedRange { owner, ..*mapping };
            let shared = self.shared;
            shared.with_descriptor(|| {
                if roll_back { self.raw_map(index) } else { self.map(index) }
            })?;
            let mut granted = AgentSet::NONE;
            let outcome = self.shared.grant(&mapping, AgentSet::NONE, &mut granted);
            let target = &mut self.targets[index];
            target.now.access = AccessState { runtime_granted: granted, ..mapping.access };
            match outcome {
                Ok(()) => {
                    target.attempted = if roll_back { AgentSet::NONE } else { granted };
                    target.is_new = !roll_back;
                    return Ok(());
                }
                Err(failure) => {
                    target.attempted = (0..self.shared.runtime.agents().len()).collect();
                    if owners.peek().is_none() || self.undo_map(index).is_err() {
                        return Err(failure);
                    }
                }
            }
        }
    }

    /// Maps a target without recording a step.
    fn raw_map(&mut self, index: usize) -> Result<(), ErrorKind> {
        let target = &mut self.targets[index];
        self.shared.map_in_runtime(&target.now)?;
        (target.mapped, target.is_new) = (true, true);
        target.now.access = AccessState::default();
        Ok(())
    }

    /// Unmaps adjacent targets without recording a step. Returns the error if their addresses could not be
    /// kept reserved.
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

    /// Quarantines the reservation of a target.
    fn quarantine(&mut self, index: usize, failure: ErrorKind, rollback: Option<ErrorKind>) {
        let Some(reservation) = self.reservation_of(index) else { return };
        let range = reservation.range();
        let entry = self.shared.quarantine(self.operation, range, failure, rollback);
        reservation.quarantine(entry.clone());
        self.quarantined.get_or_insert(entry);
    }

    /// Writes the runtime's state to the ledger, and releases memory that is not referenced, mapped or used.
    fn finish(&mut self) {
        let handles = &self.shared.ledger.handles;
        let mut dead = Vec::new();
        {
            let guards = self.guards.iter();
            let mut locked: SmallVec<[_; 1]> =
                guards.map(|guard| guard.reservation.mappings_mut()).collect();
            let reservation_at = |start: usize| {
                let next = self.guards.partition_point(|it| it.reservation.base <= start);
                next.saturating_sub(1)
            };
            // Removes mappings before it inserts others, which may have the same addresses.
            let is_replaced = |lost: &Target| {
                let mut new = self.targets.iter().filter(|it| it.mapped && !it.listed);
                new.any(|it| it.now.start == lost.now.start)
            };
            for target in self.targets.iter().filter(|target| !target.mapped) {
                if target.listed {
                    if target.lost && !is_replaced(target) {
                        continue;
                    }
                    locked[reservation_at(target.now.start)].remove(target.now.start);
                }
                dead.extend(handles.decrement(target.now.handle, |record| record.mappings -= 1));
            }
            for target in self.targets.iter_mut().filter(|target| target.mapped) {
                let MappedRange { start, access, .. } = target.now;
                let mappings = &mut locked[reservation_at(start)];
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
    /// Runs an operation on mappings: all of it, or nothing. Locks the reservations that contain the ranges
    /// against other operations. Rejects an empty list of ranges.
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
            let outcome = act(&mut journal).and_then(|done| {
                if journal.changes_gpus() { self.wait_for_gpus() } else { Ok(()) }.map(|()| done)
            });
            match &outcome {
                Err(failure) => {
                    // A failed step, and its rollback, may also change entries of GPUs that no request names.
                    let has_steps = !journal.steps.is_empty();
                    journal.roll_back(failure);
                    if has_steps
                        && let Err(error) = self.wait_for_gpus()
                    {
                        crate::log::event!(WARN, %error, "a rollback may not have taken effect yet");
                        self.set_wait_due();
                    }
                }
                Ok(_) => {
                    for it in journal.targets.iter().filter(|it| it.mapped && !it.is_new) {
                        self.drop_unused_view(&it.now, &it.before);
                    }
                }
            }
            journal.finish();
            journal.check_quarantine()?;
            outcome
        })
    }

    /// Calls `act` with the reservations that contain the ranges locked.
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
            // Starts again if another thread has freed or quarantined a reservation before it was locked.
            let result = {
                let guards: Option<Guards<'_>> = found.iter().map(|it| it.lock()).collect();
                let Some(guards) = guards else { continue };
                act(&guards)
            };
            found.into_iter().take(1).for_each(cache);
            return result;
        }
    }
}
