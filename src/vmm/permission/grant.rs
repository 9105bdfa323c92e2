//! Granting: everything that is asked for or, if the runtime fails, nothing.

use super::{Change, is_quarantined};
use crate::access::{AccessSet, AgentSet};
use crate::agent::Agent;
use crate::native::Protection;
use crate::vmm::ledger::{Entered, MappingRecord, Range};
use crate::vmm::mapping::{Expected, Left, Piece, torn_by};
use crate::vmm::{Access, Argument, Feature, Operation, Problem, Refusal, Shared, VmmError};

impl Shared {
    /// Changes access over a run: everything or, if the runtime fails, nothing.
    pub(super) fn change_access(
        &self,
        operation: Operation,
        mut entered: Entered<'_>,
        range: Range,
        changes: &[Change],
        expected: Expected<'_>,
    ) -> Result<(), VmmError> {
        // Mostly it is one, and then there is no list.
        let (mut one, mut several);
        let run: &mut [Progress] = match self.only_piece(&entered, range) {
            Some(piece) => {
                one = [Progress::none(piece)];
                &mut one
            }
            None => {
                several = self.run_of(operation, &entered, range, Progress::none)?;
                &mut several
            }
        };
        let found = run.iter().map(|mapping| mapping.before.record.serial);
        expected
            .check(Argument::Address, range.start, found)
            .map_err(|refusal| refusal.during(operation))?;
        for mapping in &*run {
            self.check_reach(operation, mapping.before.owner, changes)?;
        }
        if let Err(error) = self.change_run(operation, run, changes) {
            return Err(self.undo(operation, &mut entered, run, error));
        }
        run.iter().for_each(|mapping| self.remove_view(&mapping.before, &mapping.record));
        // Of all at once: who asks meanwhile is told of no run that is half changed.
        entered.write_access_and_leave(
            run.iter().map(|mapping| (mapping.before.start, &mapping.record)),
        );
        Ok(())
    }

    /// Refuses what the hardware can never do with memory of this agent.
    pub(in crate::vmm) fn check_reach(
        &self,
        operation: Operation,
        owner: Option<usize>,
        changes: &[Change],
    ) -> Result<(), VmmError> {
        let let_in = |it: &&Change| it.access != Access::None;
        // Of imported memory the owner may be unknown; then the runtime has the last word.
        let Some((owner, reached_by)) = owner.and_then(|at| Some((at, self.reached_by.get(at)?)))
        else {
            // But of a CPU it grants what then faults, so that any GPU's memory must be in reach.
            let for_cpu = |change: &Change| self.is_cpu(change.agent());
            let all_in_reach = self.runtime.gpus().all(Agent::large_bar);
            return if !all_in_reach && changes.iter().filter(let_in).any(for_cpu) {
                Err(VmmError::NotSupported { operation, feature: Feature::CpuAccess })
            } else {
                Ok(())
            };
        };
        let out_of_reach = |it: &&Change| !reached_by.contains(it.agent());
        let unreached = changes.iter().filter(let_in).find(out_of_reach);
        let Some(agent) = unreached.map(|it| it.agent()) else { return Ok(()) };
        Err(if self.is_cpu(agent) {
            VmmError::NotSupported { operation, feature: Feature::CpuAccess }
        } else {
            let [agent, owner] = [agent, owner].map(|index| self.runtime.agents()[index].id());
            let problem = Problem::Unreachable { agent, owner };
            Refusal::new(Argument::Agent, problem).during(operation)
        })
    }

    /// Changes the mappings of a run in the runtime, and notes how far each of them came.
    ///
    /// The CPUs come first in the changes, and by themselves, so that it is known what is to be undone.
    pub(in crate::vmm) fn change_run(
        &self,
        operation: Operation,
        run: &mut [Progress],
        changes: &[Change],
    ) -> Result<(), VmmError> {
        let is_cpu = |it: &&Change| self.is_cpu(it.agent());
        let (cpus, gpus) = changes.split_at(changes.iter().take_while(is_cpu).count());
        if !cpus.is_empty() {
            for mapping in &mut *run {
                self.change_cpus(operation, mapping, cpus)?;
            }
        }
        let comes_after_owner = |mapping: &Progress| self.comes_after_owner(&mapping.before, gpus);
        let together = |one: &Progress, next: &Progress| {
            !comes_after_owner(one)
                && !comes_after_owner(next)
                && self.are_told_together(one, next, gpus)
        };
        for alike in run.chunk_by_mut(together) {
            match alike {
                [mapping] if comes_after_owner(mapping) => {
                    self.grant_anew(operation, mapping, gpus)?;
                }
                _ => self.tell_news(operation, alike, gpus)?,
            }
            for mapping in alike {
                change(&mut mapping.record.access, gpus);
            }
        }
        Ok(())
    }

    /// Changes what CPUs may do with one mapping.
    fn change_cpus(
        &self,
        operation: Operation,
        mapping: &mut Progress,
        cpus: &[Change],
    ) -> Result<(), VmmError> {
        let after = changed(mapping.record.access, cpus);
        if self.change_cpu_view(operation, &mapping.before, &after)? {
            mapping.record.access = after;
            return Ok(());
        }
        // All CPUs share this address space: the runtime is told of one. It maps once, for whatever
        // may be asked for later.
        let cpu = Change::new(self.host_index(), Access::ReadWrite);
        self.tell_news(operation, std::slice::from_mut(mapping), &[cpu])?;
        mapping.record.access = after;
        match self.protection(&after) {
            Protection::ReadWrite => Ok(()),
            less => self.protect_view(operation, &mapping.before, less),
        }
    }

    /// Whether a GPU is to be granted access to a mapping whose owner has some already, or may have,
    /// where the runtime cannot do that.
    fn comes_after_owner(&self, piece: &Piece, gpus: &[Change]) -> bool {
        if !self.quirks.peer_after_owner_fails {
            return false;
        }
        let granted = |index| piece.record.granted.contains(index);
        let is_new = |it: &&Change| it.access != Access::None && !granted(it.agent());
        let new = gpus.iter().filter(is_new).count();
        new > 0
            && match piece.owner {
                Some(owner) => granted(owner),
                // Any of several may be the owner.
                None => {
                    new + piece.record.granted.iter().filter(|&at| !self.is_cpu(at)).count() > 1
                }
            }
    }

    /// Makes a mapping anew to change who may use it.
    fn grant_anew(
        &self,
        operation: Operation,
        mapping: &mut Progress,
        gpus: &[Change],
    ) -> Result<(), VmmError> {
        let Progress { before, record, .. } = *mapping;
        let wanted = MappingRecord { access: changed(record.access, gpus), ..record };
        let now = Piece { record, ..before };
        self.check_rebuild(operation, &wanted.access)?;
        self.check_a_descriptor(operation)?;
        match self.rebuild(operation, &now, &wanted) {
            Ok(granted) => {
                mapping.record = MappingRecord { granted, ..wanted };
                mapping.asked = granted;
                Ok(())
            }
            Err(broken) => {
                match broken.left {
                    Left::Whole => {}
                    Left::Nothing => mapping.mapped = false,
                    // Everybody may have lost it, or some have it anew.
                    Left::Refused | Left::Mapping { .. } => {
                        mapping.asked = (0..self.runtime.agents().len()).collect();
                        let granted = match broken.left {
                            Left::Mapping { granted } => granted,
                            _ => now.record.granted,
                        };
                        let left = MappingRecord { granted, ..now.record };
                        match self.take_down(operation, now.start, &left) {
                            Ok(Ok(())) => mapping.mapped = false,
                            // It is down, but this process may still see what was there.
                            Ok(Err(errno)) => {
                                let reason = torn_by(errno);
                                return Err(self.quarantine(operation, before.start, reason));
                            }
                            Err(_) => {}
                        }
                    }
                }
                Err(broken.error)
            }
        }
    }

    /// Puts access back to what it was, after `error` somewhere in the run.
    fn undo(
        &self,
        operation: Operation,
        entered: &mut Entered<'_>,
        run: &[Progress],
        error: VmmError,
    ) -> VmmError {
        if is_quarantined(&error) { error } else { self.undo_run(operation, entered, run, error) }
    }

    /// The same, of a run that is still in use.
    pub(in crate::vmm) fn undo_run(
        &self,
        operation: Operation,
        entered: &mut Entered<'_>,
        run: &[Progress],
        error: VmmError,
    ) -> VmmError {
        for &Progress { ref before, record, asked, mapped, .. } in run.iter().rev() {
            let now = Piece { record, ..*before };
            let is_new =
                |index: usize| !self.is_cpu(index) && !before.record.granted.contains(index);
            let undone = if !mapped {
                self.set_up_as_before(operation, before)
            } else if asked.iter().any(is_new) {
                // A GPU that could not reach the memory before can now: only unmapping helps.
                self.rebuild(operation, &now, &before.record).map_err(|broken| broken.error)
            } else {
                self.restore(operation, &now, before, asked)
            };
            if let Err(worse) = self.note_undone(operation, entered, before, undone, error) {
                return worse;
            }
        }
        error
    }

    /// Gives the agents that were asked for what they had before, and returns those that the
    /// runtime knows of.
    fn restore(
        &self,
        operation: Operation,
        now: &Piece,
        before: &Piece,
        asked: AgentSet,
    ) -> Result<AgentSet, VmmError> {
        let (has, had) =
            (self.protection(&now.record.access), self.protection(&before.record.access));
        // The view that there was is still there, at worst without access.
        if has != had {
            self.protect_view(operation, before, had)?;
        }
        self.remove_view(now, &before.record);
        let told: Vec<Change> = asked
            .iter()
            .filter(|&index| !self.is_cpu(index) && now.record.granted.contains(index))
            .map(|index| Change::new(index, self.access_in_runtime(&before.record.access, index)))
            .collect();
        let record = MappingRecord { granted: now.record.granted, ..before.record };
        self.tell_again(operation, before, &record, &told)?;
        Ok(record.granted)
    }
}

/// How far changing one mapping has come.
#[derive(Clone, Copy, Debug)]
pub(in crate::vmm) struct Progress {
    /// The mapping as it was.
    pub before: Piece,
    /// What is so by now.
    pub record: MappingRecord,
    /// The agents that the runtime was asked to grant something, successfully or not.
    pub asked: AgentSet,
    /// Whether it is mapped at all.
    pub mapped: bool,
}

impl Progress {
    #[inline(always)]
    pub fn none(before: Piece) -> Self {
        Self { before, record: before.record, asked: AgentSet::NONE, mapped: true }
    }
}

/// Changes access, where it is kept.
fn change(access: &mut AccessSet, changes: &[Change]) {
    for change in changes {
        access.set(change.agent(), change.access);
    }
}

/// Access after changes.
fn changed(mut access: AccessSet, changes: &[Change]) -> AccessSet {
    change(&mut access, changes);
    access
}
