//! Granting: everything that is asked for or, if the runtime fails, nothing.

use super::{Change, is_quarantined};
use crate::agent::{Agent, AgentKind};
use crate::native::NativeAccess;
use crate::vmm::access::{AccessSet, AgentSet};
use crate::vmm::ledger::{MappingRecord, Range};
use crate::vmm::mapping::{Left, Piece};
use crate::vmm::{
    Access, Argument, Feature, Operation, Problem, Refusal, Shared, VmmError, out_of_descriptors,
};

impl Shared {
    /// Changes access over a run: everything or, if the runtime fails, nothing.
    pub(super) fn change_access(
        &self,
        operation: Operation,
        range: Range,
        changes: &[Change],
    ) -> Result<(), VmmError> {
        let pieces = self.run(operation, range)?;
        for piece in &pieces {
            self.check_reach(operation, piece.owner, changes)?;
        }
        let mut done: Vec<(Piece, Progress)> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let mut progress =
                Progress { record: piece.record, asked: AgentSet::default(), mapped: true };
            let changed = self.change_piece(operation, &piece, changes, &mut progress);
            done.push((piece, progress));
            if let Err(error) = changed {
                return Err(self.undo(operation, &done, error));
            }
        }
        self.write_run(done.iter().map(|(piece, progress)| (piece.start, &progress.record)));
        Ok(())
    }

    /// Refuses what the hardware can never do with memory of this agent.
    pub(in crate::vmm) fn check_reach(
        &self,
        operation: Operation,
        owner: Option<usize>,
        changes: &[Change],
    ) -> Result<(), VmmError> {
        // Of imported memory the owner may be unknown; then the runtime has the last word.
        let Some(owner) = owner.and_then(|owner| self.runtime.agents().get(owner)) else {
            // But of a CPU it grants what then faults, so that any GPU's memory must be in reach.
            let for_cpu =
                |&&(index, access): &&Change| access != Access::None && self.is_cpu(index);
            let all_in_reach = self.runtime.gpus().all(Agent::large_bar);
            return match changes.iter().find(for_cpu) {
                Some(_) if !all_in_reach => {
                    Err(VmmError::NotSupported { operation, feature: Feature::CpuAccess })
                }
                _ => Ok(()),
            };
        };
        for &(index, access) in changes {
            let Some(agent) = self.runtime.agents().get(index) else { continue };
            if access == Access::None || agent.reaches(owner.id()) {
                continue;
            }
            return Err(if agent.kind() == AgentKind::Cpu {
                VmmError::NotSupported { operation, feature: Feature::CpuAccess }
            } else {
                let problem = Problem::Unreachable { agent: agent.id(), owner: owner.id() };
                Refusal::new(Argument::Agent, problem).during(operation)
            });
        }
        Ok(())
    }

    /// Changes one mapping in the runtime, and notes how far it came.
    ///
    /// The CPUs come first and by themselves, so that it is known what is to be undone.
    fn change_piece(
        &self,
        operation: Operation,
        piece: &Piece,
        changes: &[Change],
        progress: &mut Progress,
    ) -> Result<(), VmmError> {
        let after = changed(&piece.record, changes);
        let (cpus, gpus): (Vec<Change>, Vec<Change>) =
            changes.iter().partition(|&&(index, _)| self.is_cpu(index));
        if !cpus.is_empty() {
            if !self.change_cpu_view(operation, piece, &after)? {
                // All CPUs share this address space: the runtime is told of one.
                let cpu = (self.host_index(), self.cpu_access_of(&after));
                self.tell_news(operation, piece, progress, &[cpu])?;
            }
            for &(index, access) in &cpus {
                progress.record.access.set(index, access);
            }
        }
        if self.comes_after_owner(piece, &gpus) {
            return self.grant_anew(operation, piece, &after, progress);
        }
        self.tell_news(operation, piece, progress, &gpus)?;
        progress.record.access = after;
        Ok(())
    }

    /// Whether a GPU is to be granted access to a mapping whose owner has some already, or may have,
    /// where the runtime cannot do that.
    fn comes_after_owner(&self, piece: &Piece, gpus: &[Change]) -> bool {
        let granted = |index| piece.record.granted.contains(index);
        let is_new = |&&(index, access): &&Change| access != Access::None && !granted(index);
        let new = gpus.iter().filter(is_new).count();
        self.quirks.peer_after_owner_fails
            && new > 0
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
        piece: &Piece,
        after: &AccessSet,
        progress: &mut Progress,
    ) -> Result<(), VmmError> {
        let now = Piece { record: progress.record, ..*piece };
        let wanted = MappingRecord { access: *after, ..progress.record };
        match self.rebuild(operation, &now, &wanted) {
            Ok(granted) => {
                progress.record = MappingRecord { granted, ..wanted };
                progress.asked = granted;
                Ok(())
            }
            Err(broken) => {
                match broken.left {
                    Left::Whole => {}
                    Left::Nothing => progress.mapped = false,
                    // Everybody has lost it, or some have it anew.
                    Left::Refused | Left::Mapping => {
                        let nobody = MappingRecord { granted: AgentSet::default(), ..wanted };
                        let nobody = Piece { record: nobody, ..*piece };
                        let there = if broken.left == Left::Refused { &now } else { &nobody };
                        progress.mapped = self.take_down(operation, there).is_err();
                        progress.asked = (0..self.runtime.agents().len()).collect();
                    }
                }
                Err(broken.error)
            }
        }
    }

    /// Tells the runtime those of the changes that are any, and notes whom it was told of.
    fn tell_news(
        &self,
        operation: Operation,
        piece: &Piece,
        progress: &mut Progress,
        changes: &[Change],
    ) -> Result<(), VmmError> {
        let before = &piece.record;
        let is_news = |&&(index, access): &&Change| {
            // To forbid what was never allowed would make AMD's runtime map it; to repeat what
            // is so already costs a call.
            let known = before.granted.contains(index);
            if known {
                self.access_in_runtime(&before.access, index) != access
            } else {
                access != Access::None
            }
        };
        let told: Vec<Change> = changes.iter().filter(is_news).copied().collect();
        self.check_descriptors(operation, before.granted, &told)?;
        let mut record = progress.record;
        for &(index, access) in &told {
            record.granted.insert(index);
            record.access.set(index, access);
            progress.asked.insert(index);
        }
        self.tell(operation, piece, &record, &told)?;
        progress.record.granted = record.granted;
        Ok(())
    }

    /// Tells the runtime of changes to one mapping, its owner last (ROCm 7.14 corrupts the
    /// mapping if a peer comes after it: rocm-systems#9908).
    fn tell(
        &self,
        operation: Operation,
        piece: &Piece,
        after: &MappingRecord,
        told: &[Change],
    ) -> Result<(), VmmError> {
        if told.is_empty() {
            return Ok(());
        }
        let mut list = Vec::with_capacity(told.len());
        if self.quirks.set_access_drops_unnamed_agents {
            let named = |&index: &usize| told.iter().any(|&(other, _)| other == index);
            let unnamed = after.granted.iter().filter(|index| !named(index));
            let access = |index| self.access_in_runtime(&after.access, index);
            list.extend(unnamed.map(|index| (index, access(index))));
        }
        // In the caller's order: whose an import is may be known to nobody else.
        list.extend(told);
        list.sort_by_key(|&(index, _)| Some(index) == piece.owner);
        let list: Vec<NativeAccess> = list
            .into_iter()
            .filter_map(|(index, access)| {
                Some((self.runtime.agents().get(index)?.native, access.to_bits()))
            })
            .collect();
        self.call(|native| native.set_access(piece.start, piece.record.size, &list))
            .map_err(|failure| self.failure(operation, failure, piece.record.size))
    }

    /// Lets the agents use a mapping as `record` says, and returns those that the runtime was
    /// told of. What they may do already is not changed.
    pub(in crate::vmm) fn let_use(
        &self,
        operation: Operation,
        piece: &Piece,
        record: &MappingRecord,
    ) -> Result<AgentSet, VmmError> {
        let cpu_is_ours = self.show_to_cpu(operation, piece, &record.access)?;
        let mut after = MappingRecord { granted: AgentSet::default(), ..*record };
        let mut told = Vec::new();
        for index in 0..self.runtime.agents().len() {
            if self.is_cpu(index) && (cpu_is_ours || index != self.host_index()) {
                continue;
            }
            let access = self.access_in_runtime(&after.access, index);
            if access != Access::None {
                after.granted.insert(index);
                told.push((index, access));
            }
        }
        self.check_descriptors(operation, AgentSet::default(), &told)?;
        self.tell(operation, piece, &after, &told)?;
        Ok(after.granted)
    }

    /// Refuses to let a GPU in that was not `granted` access before, where the runtime would need
    /// a descriptor and end the process for want of one.
    fn check_descriptors(
        &self,
        operation: Operation,
        granted: AgentSet,
        told: &[Change],
    ) -> Result<(), VmmError> {
        let is_let_in = |&(index, _): &Change| !self.is_cpu(index) && !granted.contains(index);
        if told.iter().any(is_let_in) { self.check_a_descriptor(operation) } else { Ok(()) }
    }

    /// Refuses what the runtime needs a descriptor for, if there is none left.
    pub(in crate::vmm) fn check_a_descriptor(&self, operation: Operation) -> Result<(), VmmError> {
        if self.quirks.grant_without_descriptor_aborts && out_of_descriptors() {
            return Err(VmmError::OutOfDescriptors { operation });
        }
        Ok(())
    }

    /// Puts access back to what it was, after `error` in the last piece.
    fn undo(&self, operation: Operation, done: &[(Piece, Progress)], error: VmmError) -> VmmError {
        if is_quarantined(&error) {
            return error;
        }
        for (before, progress) in done.iter().rev() {
            let now = Piece { record: progress.record, ..*before };
            let is_new =
                |index: usize| !self.is_cpu(index) && !before.record.granted.contains(index);
            let undone = if !progress.mapped {
                self.set_up(operation, before, &before.record).map_err(|broken| broken.error)
            } else if progress.asked.iter().any(is_new) {
                // A GPU that could not reach the memory before can now: only unmapping helps.
                self.rebuild(operation, &now, &before.record).map_err(|broken| broken.error)
            } else {
                self.restore(operation, &now, before, progress.asked)
            };
            match undone {
                Ok(granted) => {
                    self.write_access(before.start, &MappingRecord { granted, ..before.record });
                }
                Err(undo) => return self.not_undone(operation, before.start, error, undo),
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
        if !self.cpu_was_granted_by_runtime(now) {
            self.change_cpu_view(operation, now, &before.record.access)?;
        }
        let told: Vec<Change> = asked
            .iter()
            .filter(|&index| now.record.granted.contains(index))
            .map(|index| (index, self.access_in_runtime(&before.record.access, index)))
            .collect();
        let record = MappingRecord { granted: now.record.granted, ..before.record };
        self.tell(operation, before, &record, &told)?;
        Ok(record.granted)
    }
}

/// How far changing one mapping has come.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// What is so by now.
    record: MappingRecord,
    /// The agents that the runtime was asked to grant something, successfully or not.
    asked: AgentSet,
    /// Whether it is mapped at all.
    mapped: bool,
}

/// A mapping's access after changes.
fn changed(record: &MappingRecord, changes: &[Change]) -> AccessSet {
    let mut access = record.access;
    for &(index, wanted) in changes {
        access.set(index, wanted);
    }
    access
}
