//! One operation on the mappings of locked reservations: its steps in the runtime, and their rollback.
//!
//! An operation records each step in the journal before it performs the step. If a step fails, the journal undoes all
//! recorded steps in reverse order. If the rollback also fails, the journal quarantines the reservation: no later
//! operation uses the reservation. At the end, after success or a rollback, [`Journal::finish`] writes the runtime's
//! current state to the ledger. Other threads observe this update as a single step.
//!
//! | step | inverse |
//! |---|---|
//! | [`Step::Map`] | unmap |
//! | [`Step::Unmap`] | map, and restore the access |
//! | [`Step::Access`] | restore the access; if a GPU was granted access for the first time, unmap and map again |
//!
//! What `finish` does with a target depends on the target's state, and on whether the ledger listed the target before:
//!
//! | state | listed before | not listed before |
//! |---|---|---|
//! | [`State::AsBefore`], [`State::MappedAnew`] | stays; its access is updated | is inserted |
//! | [`State::Unmapped`] | is removed; its handle counts one mapping less | its handle counts one mapping less |
//! | [`State::Unknown`] | stays, unless a new mapping has its addresses | as `Unmapped` |
//!
//! The handle of a new mapping counts the mapping before the operation starts.
//!
//! The journal's guards lock the reservations of all targets. Only the journal maps and unmaps the targets: the SAFETY
//! comments in this module rely on these facts.

mod target;

pub(super) use target::Target;

use super::Shared;
use super::access_change::AccessChange;
use super::ledger::{AddressRange, MappedRange, ReservationGuard, ReservationRecord, guard_index};
use crate::access::{AccessState, AgentSet};
use crate::error::{Argument, ErrorKind, Operation, Problem, Quarantined};
use core::ops::Range as Indexes;
use core::ptr;
use smallvec::SmallVec;
use std::sync::Arc;
use target::State;

/// A step on a target, or on a group of adjacent targets.
#[derive(Clone, Copy, Debug)]
enum Step {
    Map,
    Unmap,
    Access,
}

/// The steps of one operation. `'c` is the lifetime of the changes of access.
#[derive(Debug)]
pub(super) struct Journal<'a, 'c> {
    pub shared: &'a Shared,
    operation: Operation,
    /// The locked reservations, by address.
    guards: &'a [ReservationGuard<'a>],
    pub targets: SmallVec<[Target<'c>; 1]>,
    /// The first `moved` targets are old mappings, and the following targets are new ones. The mapping of target
    /// `moved + i` gets the name of the mapping of target `i`. 0 unless the operation relocates or exchanges mappings.
    pub moved: usize,
    steps: SmallVec<[(Step, Indexes<usize>); 4]>,
    /// The first reservation that this operation quarantined, or could not roll back because another thread
    /// quarantined it.
    quarantined: Option<Arc<Quarantined>>,
    /// The base addresses of the reservations that this operation has quarantined because their rollback failed.
    failed_rollbacks: Vec<usize>,
}

impl<'a, 'c> Journal<'a, 'c> {
    /// Returns the index of the locked reservation that contains all of a range, and the reservation.
    pub fn containing(
        &self,
        range: AddressRange,
    ) -> Result<(usize, &'a ReservationRecord), ErrorKind> {
        guard_index(self.guards, range).map(|index| (index, self.guards[index].reservation))
    }

    /// Adds the mappings of a range as targets. Rejects quarantined mappings.
    pub fn add_targets(
        &mut self,
        range: AddressRange,
        change: &'c AccessChange,
    ) -> Result<(), ErrorKind> {
        let (guard, reservation) = self.containing(range)?;
        let mappings = reservation.mappings();
        let first = self.targets.len();
        match mappings.exact(range) {
            Some(mapping) => self.add(&mapping, guard, change, true),
            None => mappings.adjacent(range)?.for_each(|it| self.add(&it, guard, change, true)),
        }
        mappings.check_not_quarantined(self.targets[first..].iter().map(|target| target.now.serial))
    }

    /// Adds a target for a mapping to create, to which no agent has access yet. Its handle already counts the mapping.
    pub fn add_new(&mut self, mapping: &MappedRange, guard: usize, change: &'c AccessChange) {
        self.add(mapping, guard, change, false);
    }

    fn add(&mut self, now: &MappedRange, guard: usize, change: &'c AccessChange, listed: bool) {
        self.targets.push(Target {
            now: *now,
            before: now.access,
            change,
            guard,
            attempted: AgentSet::NONE,
            state: if listed { State::AsBefore } else { State::Unmapped },
            listed,
        });
    }

    /// Returns the end of the group of targets that begins at index `first`. The targets of a group are adjacent, are
    /// in one reservation and have equal changes. The group ends at `end` at the latest.
    pub fn group_end(&self, first: usize, end: usize) -> usize {
        let continues = |next: &usize| {
            let [previous, target] = [&self.targets[next - 1], &self.targets[*next]];
            previous.guard == target.guard
                && previous.now.range().end() == target.now.start
                && (ptr::eq(previous.change, target.change) || previous.change == target.change)
        };
        (first + 1..end).find(|next| !continues(next)).unwrap_or(end)
    }

    /// Maps a target. First waits if a wait is due: until then, GPUs may still use the memory at other addresses.
    pub fn map(&mut self, index: usize) -> Result<(), ErrorKind> {
        self.record_map(index)?;
        let mapped = self.raw_map(index);
        self.shared.fill_hole_of_map(self.targets[index].now.range(), mapped)
    }

    fn record_map(&mut self, index: usize) -> Result<(), ErrorKind> {
        self.shared.wait_for_gpus_if_due()?;
        self.steps.push((Step::Map, index..index + 1));
        Ok(())
    }

    /// Unmaps adjacent targets by one call of the runtime. If the addresses could not be kept reserved, quarantines the
    /// reservation and returns `Ok`: the caller then calls [`check_quarantine`](Self::check_quarantine).
    pub fn unmap(&mut self, group: Indexes<usize>) -> Result<(), ErrorKind> {
        self.steps.push((Step::Unmap, group.clone()));
        if let Some(failure) = self.raw_unmap(group.clone())? {
            self.quarantine(group.start, failure, None);
        }
        Ok(())
    }

    /// Records a step that changes the access to adjacent targets.
    pub fn record_access(&mut self, group: Indexes<usize>) {
        self.steps.push((Step::Access, group));
    }

    /// Fails if a reservation was quarantined during this operation.
    pub fn check_quarantine(&self) -> Result<(), ErrorKind> {
        match &self.quarantined {
            Some(range) => Err(ErrorKind::Quarantined { range: range.clone(), now: true }),
            None => Ok(()),
        }
    }

    /// Undoes all steps in reverse order. If a step cannot be undone, quarantines its reservation. Undoes no step in a
    /// quarantined reservation.
    fn roll_back(&mut self, failure: &ErrorKind) {
        while let Some((step, group)) = self.steps.pop() {
            let reservation = self.reservation_of(group.start);
            if let Some(entry) = reservation.quarantined() {
                self.quarantined.get_or_insert(entry.clone());
            } else if let Err(rollback) = self.undo(step, group.clone()) {
                self.quarantine(group.start, failure.clone(), Some(rollback));
                self.failed_rollbacks.push(reservation.base);
            }
            // The ledger keeps the unmapped targets of a quarantined reservation, so that their memory stays allocated.
            // `Vmm::unmap` is the exception: if no rollback has failed, they were unmapped as requested.
            let removes_unmapped = self.operation == Operation::Unmap
                && !self.failed_rollbacks.contains(&reservation.base);
            if !removes_unmapped && reservation.quarantined().is_some() {
                let unmapped = |target: &&mut Target<'_>| !target.is_mapped();
                let targets = self.targets[group].iter_mut().filter(unmapped);
                targets.for_each(|target| target.state = State::Unknown);
            }
        }
    }

    /// Undoes a step that succeeded, failed, or took effect only in part.
    fn undo(&mut self, step: Step, group: Indexes<usize>) -> Result<(), ErrorKind> {
        let is_alone = group.len() == 1;
        group.rev().try_for_each(|index| match step {
            Step::Map if self.targets[index].is_mapped() => self.undo_map(index),
            Step::Map => Ok(()),
            Step::Unmap => self.undo_unmap(index, is_alone),
            Step::Access => self.undo_access(index),
        })
    }

    fn undo_map(&mut self, index: usize) -> Result<(), ErrorKind> {
        let unmapped = self.raw_unmap(index..index + 1);
        if unmapped.is_err() {
            // Every agent in `attempted` may have access.
            let target = &mut self.targets[index];
            let granted = target.now.access.runtime_granted;
            target.now.access.runtime_granted = granted.union(target.attempted);
        }
        unmapped?.map_or(Ok(()), Err)
    }

    /// Undoes the unmap of a mapping. `is_alone` is false if the same call of the runtime unmaps adjacent mappings,
    /// too.
    fn undo_unmap(&mut self, index: usize, is_alone: bool) -> Result<(), ErrorKind> {
        let (shared, now) = (self.shared, self.targets[index].now);
        if !self.targets[index].is_mapped() {
            // A new mapping stays unmapped.
            return if self.targets[index].listed { self.map_as_before(index) } else { Ok(()) };
        }
        // The runtime has failed to unmap the group. If the group has several mappings, the runtime may have unmapped
        // some of them, and may have revoked agents' access to one that is still mapped. If the group has one mapping,
        // that mapping is still mapped.
        if !is_alone && !shared.is_mapped_in_runtime(&now)? {
            // Fills a hole that the runtime has left. Fails if a foreign mapping is in the hole, because mapping the
            // target again would replace the foreign mapping.
            // SAFETY: the target is locked, and was just unmapped.
            unsafe { shared.keep_reserved(&now, false) }?;
        } else if shared.can_restore_grants(&now.access)
            // SAFETY: the target is locked, and mapped.
            && unsafe { shared.restore_access(&now, now.access, now.access.runtime_granted) }
                .is_ok()
        {
            return Ok(());
        } else {
            shared.prepare_second_unmap(&now)?;
            self.undo_map(index)?;
        }
        self.targets[index].state = State::Unmapped;
        self.map_as_before(index)
    }

    fn undo_access(&mut self, index: usize) -> Result<(), ErrorKind> {
        let target = &self.targets[index];
        if target.state != State::AsBefore {
            return Ok(());
        }
        let granted = target.before.runtime_granted.union(self.shared.cpus);
        if target.attempted.difference(granted).is_empty() {
            let (now, before) = (target.now, target.before);
            // SAFETY: the target is locked, and mapped.
            let restored = unsafe { self.shared.restore_access(&now, before, target.attempted) };
            self.targets[index].now = restored?;
            return Ok(());
        }
        // To revoke access that a GPU did not have before the operation, the mapping must be unmapped.
        self.undo_map(index)?;
        self.map_as_before(index)
    }

    /// Maps an unmapped target, with the access before the operation. If the runtime maps the target but fails to set
    /// the access, unmaps the target and tries once more.
    fn map_as_before(&mut self, index: usize) -> Result<(), ErrorKind> {
        let before = self.targets[index].before;
        match self.map_with_access(index, before, true) {
            Err(failure) if self.targets[index].is_mapped() && !failure.leaves_hole() => {
                self.undo_map(index)?;
                self.map_with_access(index, before, true)
            }
            result => result,
        }
    }

    /// Maps a target, and sets this access. Records no step if `is_rollback`.
    ///
    /// Some runtimes require that the owner is granted access last. If the library does not know which GPU owns the
    /// memory, tries each possible owner in turn, and records a step for each try.
    ///
    /// After an error, the target can still be mapped: the caller rolls the steps back, or, if `is_rollback`, tries again
    /// (`map_as_before`). If it is not mapped although undoing the last try has failed, its reservation is quarantined.
    pub fn map_with_access(
        &mut self,
        index: usize,
        access: AccessState,
        is_rollback: bool,
    ) -> Result<(), ErrorKind> {
        let mapping = MappedRange { access, ..self.targets[index].now };
        let mut owners = self.shared.possible_owners(&mapping).iter().peekable();
        loop {
            let owner = owners.next().map(|owner| owner as u8).or(mapping.owner);
            let mapping = MappedRange { owner, ..mapping };
            if !is_rollback {
                self.record_map(index)?;
            }
            let mapped = self.shared.with_free_descriptor(is_rollback, || self.raw_map(index));
            self.shared.fill_hole_of_map(mapping.range(), mapped)?;
            let mut granted = AgentSet::NONE;
            // SAFETY: the target is locked, and was just mapped.
            let outcome = unsafe { self.shared.grant(&mapping, &mut granted, is_rollback) };
            let target = &mut self.targets[index];
            target.now.access = AccessState { runtime_granted: granted, ..mapping.access };
            match outcome {
                Ok(()) => {
                    target.attempted = if is_rollback { AgentSet::NONE } else { granted };
                    target.state = if is_rollback { State::AsBefore } else { State::MappedAnew };
                    return Ok(());
                }
                Err(failure) => {
                    target.attempted = (0..self.shared.runtime.agents().len()).collect();
                    if owners.peek().is_none() || failure.leaves_hole() {
                        return Err(failure);
                    }
                    if let Err(error) = self.undo_map(index) {
                        if !self.targets[index].is_mapped() {
                            self.quarantine(index, failure.clone(), Some(error));
                        }
                        return Err(failure);
                    }
                }
            }
        }
    }

    /// Maps a target without recording a step.
    fn raw_map(&mut self, index: usize) -> Result<(), ErrorKind> {
        let target = &mut self.targets[index];
        // SAFETY: the target is locked, not mapped, and counted by its handle.
        unsafe { self.shared.map_in_runtime(&target.now) }?;
        target.state = State::MappedAnew;
        target.now.access = AccessState::default();
        Ok(())
    }

    /// Unmaps adjacent targets without recording a step. `Some`: addresses could not be kept.
    fn raw_unmap(&mut self, group: Indexes<usize>) -> Result<Option<ErrorKind>, ErrorKind> {
        let (shared, group) = (self.shared, &mut self.targets[group]);
        let start = group.first().map_or(0, |target| target.now.start);
        let size = group.iter().map(|target| target.now.size).sum();
        // SAFETY: the targets are locked, and mapped.
        unsafe { shared.unmap_in_runtime(AddressRange { start, size }) }?;
        let mut not_kept = None;
        for target in group {
            target.state = State::Unmapped;
            // The operation can have removed the CPU's access already; the view stays until `drop_unused_view`.
            let had_view = shared.library_mapped_for_cpu(&target.before);
            // SAFETY: the target is locked, and was just unmapped.
            not_kept = not_kept.or(unsafe { shared.keep_reserved(&target.now, had_view) }.err());
        }
        Ok(not_kept)
    }

    pub fn reservation_of(&self, index: usize) -> &'a ReservationRecord {
        self.guards[self.targets[index].guard].reservation
    }

    /// Quarantines the reservation of a target, unless it is quarantined already.
    pub fn quarantine(&mut self, index: usize, failure: ErrorKind, rollback: Option<ErrorKind>) {
        let reservation = self.reservation_of(index);
        let entry = reservation.quarantined().cloned().unwrap_or_else(|| {
            let range = reservation.range();
            let entry = self.shared.list_quarantine(self.operation, range, failure, rollback);
            reservation.mark_quarantined(entry.clone());
            entry
        });
        self.quarantined.get_or_insert(entry);
    }

    /// Waits until the changes have taken effect on the GPUs, and writes the changes to the ledger. If the wait fails,
    /// undoes all steps.
    fn commit(&mut self) -> Result<(), ErrorKind> {
        if self.must_wait_for_gpus()
            && let Err(failure) = self.shared.wait_for_gpus()
        {
            return Err(self.abort(failure));
        }
        self.drop_unused_views();
        self.finish();
        self.check_quarantine()
    }

    /// Undoes all steps, and writes the resulting state to the ledger. Returns the error of the operation.
    fn abort(&mut self, failure: ErrorKind) -> ErrorKind {
        let has_steps = !self.steps.is_empty();
        if let ErrorKind::HoleNotFilled { address, .. } = &failure {
            // A rollback in this reservation would replace the foreign mapping in the hole. In a quarantined
            // reservation, no step is undone.
            let with_hole = self.targets.iter().position(|it| it.now.start == address.get());
            if let Some(index) = with_hole {
                self.quarantine(index, failure.clone(), None);
            }
        }
        self.roll_back(&failure);
        // Waits whichever GPUs the steps concerned: a failed step, and its rollback, may also change page tables of
        // others.
        if has_steps && let Err(error) = self.shared.wait_for_gpus() {
            crate::log::event!(WARN, %error, "a rollback may not have taken effect yet");
            self.shared.set_wait_due();
        }
        self.finish();
        self.check_quarantine().err().unwrap_or(failure)
    }

    /// Writes the runtime's state to the ledger, and releases memory that is not referenced, mapped or used.
    fn finish(&mut self) {
        let handles = &self.shared.ledger.handles;
        let mut dead = Vec::new();
        {
            let mut locked: SmallVec<[_; 1]> = SmallVec::new();
            for guard in self.guards {
                locked.push(guard.reservation.mappings_mut());
            }
            // Reads the names only now, because another thread may have set one during the operation.
            let name = |old: &Target<'_>| locked[old.guard].name_of(old.now.serial).cloned();
            let names: Vec<_> = self.targets[..self.moved].iter().map(name).collect();
            // Removes old mappings first, because new mappings may have the same addresses.
            let is_replaced = |removed: &Target| {
                let mut new = self.targets.iter().filter(|it| it.is_mapped() && !it.listed);
                new.any(|it| it.now.range().overlaps(removed.now.range()))
            };
            for target in self.targets.iter().filter(|target| !target.is_mapped()) {
                if target.listed {
                    if target.state == State::Unknown && !is_replaced(target) {
                        continue;
                    }
                    locked[target.guard].remove(target.now.start);
                }
                dead.extend(handles.decrement(target.now.handle, |record| record.mappings -= 1));
            }
            for (index, target) in self.targets.iter().enumerate().filter(|it| it.1.is_mapped()) {
                let (mappings, now) = (&mut locked[target.guard], &target.now);
                if !target.listed {
                    let old = index.checked_sub(self.moved);
                    mappings.insert(now, old.and_then(|old| names.get(old)?.clone()));
                } else if now.access != target.before {
                    mappings.set_access(now.start, &now.access);
                }
            }
        }
        for record in dead {
            self.shared.release_memory(self.operation, record);
        }
    }
}

impl Shared {
    /// Locks the reservations that contain the ranges, and runs an operation on their mappings. If a step fails, undoes
    /// all steps. Rejects an empty list of ranges.
    pub(super) fn transact<'c, T>(
        &self,
        operation: Operation,
        ranges: &[AddressRange],
        act: impl FnOnce(&mut Journal<'_, 'c>) -> Result<T, ErrorKind>,
    ) -> Result<T, ErrorKind> {
        if ranges.is_empty() {
            return Err(ErrorKind::without_value(Argument::List, Problem::Empty));
        }
        self.with_locked(ranges, |guards| {
            let mut journal = Journal {
                shared: self,
                operation,
                guards,
                targets: SmallVec::new(),
                moved: 0,
                steps: SmallVec::new(),
                quarantined: None,
                failed_rollbacks: Vec::new(),
            };
            match act(&mut journal) {
                Ok(value) => journal.commit().map(|()| value),
                Err(failure) => Err(journal.abort(failure)),
            }
        })
    }
}
