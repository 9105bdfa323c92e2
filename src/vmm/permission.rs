//! Who may use mapped memory: granting, asking, and really taking away.

use super::access::{AccessSet, AgentSet};
use super::ledger::{MappingRecord, Range};
use super::mapping::Piece;
use super::{
    Access, AccessDescriptor, Address, Argument, Feature, Operation, Problem, Refusal, Shared, Vmm,
    VmmError,
};
use crate::agent::{AgentId, AgentKind};
use crate::native::NativeAccess;

/// What an agent, by its index, is to be granted.
type Change = (usize, Access);

impl Vmm {
    /// Says who may do what with a run of whole mappings (`hipMemSetAccess`,
    /// `hsa_amd_vmem_set_access`).
    ///
    /// Agents that are not named keep what they have; one that is named twice gets the last.
    /// All of it is checked before the first takes effect, and undone if the runtime fails.
    ///
    /// For CPUs a permission is enforced by the memory's protection. For GPUs only the first
    /// grant has an effect: AMD's driver then maps the memory readable and writable, whatever
    /// was asked for, until [`revoke`](Vmm::revoke) or [`unmap`](Vmm::unmap).
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] if the range is not exactly a run of whole mappings, the
    /// list is empty, an agent unknown or out of reach; [`VmmError::NotSupported`] for the CPU
    /// where the GPU has no large BAR.
    pub fn set_access(
        &self,
        address: Address,
        size: usize,
        descriptors: &[AccessDescriptor],
    ) -> Result<(), VmmError> {
        let operation = Operation::SetAccess;
        let shared = &*self.shared;
        shared.alive(operation)?;
        let range = Range::new(address, size).map_err(|refusal| refusal.during(operation))?;
        if descriptors.is_empty() {
            return Err(Refusal::new(Argument::Descriptors, Problem::Zero).during(operation));
        }
        let mut changes: Vec<Change> = Vec::with_capacity(descriptors.len());
        for descriptor in descriptors {
            let (index, _) = shared
                .agent(descriptor.agent, Argument::Agent)
                .map_err(|refusal| refusal.during(operation))?;
            changes.retain(|&(other, _)| other != index);
            changes.push((index, descriptor.access));
        }
        shared.at_gate(operation, range, || shared.change_access(operation, range, &changes))
    }

    /// Asks what an agent may do at an address (`hipMemGetAccess`).
    ///
    /// Any address inside a mapping will do. An agent that was never granted anything has
    /// [`Access::None`]. The answer is this library's own: AMD's runtime answers for the address
    /// behind a mapping too, and not for CPUs.
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] if nothing is mapped there or the agent is unknown.
    pub fn get_access(&self, agent: AgentId, address: Address) -> Result<Access, VmmError> {
        let operation = Operation::GetAccess;
        let shared = &*self.shared;
        let refused = |refusal: Refusal| refusal.during(operation);
        shared.alive(operation)?;
        if address == Address::NULL {
            return Err(refused(Refusal::new(Argument::Address, Problem::Null)));
        }
        let (index, _) = shared.agent(agent, Argument::Agent).map_err(refused)?;
        let ledger = shared.ledger();
        match ledger.mapping_at(address.get()) {
            Some((_, record)) => Ok(record.access.get(index)),
            None => {
                let problem = Problem::NotMapped { at: address };
                Err(refused(Refusal::new(Argument::Address, problem)))
            }
        }
    }

    /// Really takes a run of whole mappings away from agents, GPUs too.
    ///
    /// HIP has no such call: there, `hipMemAccessFlagsProtNone` leaves a GPU's mapping in place.
    /// Here the memory is unmapped, mapped again and granted anew to all others; for that moment
    /// they cannot reach it either, so nobody may be using it. The contents stay.
    ///
    /// # Errors
    /// As for [`set_access`](Vmm::set_access).
    pub fn revoke(
        &self,
        address: Address,
        size: usize,
        agents: &[AgentId],
    ) -> Result<(), VmmError> {
        let operation = Operation::Revoke;
        let shared = &*self.shared;
        let refused = |refusal: Refusal| refusal.during(operation);
        shared.alive(operation)?;
        let range = Range::new(address, size).map_err(refused)?;
        if agents.is_empty() {
            return Err(refused(Refusal::new(Argument::Descriptors, Problem::Zero)));
        }
        let mut revoked = AgentSet::default();
        for &agent in agents {
            revoked.insert(shared.agent(agent, Argument::Agent).map_err(refused)?.0);
        }
        shared.at_gate(operation, range, || shared.take_away(operation, range, revoked))
    }
}

impl Shared {
    /// Changes access over a run: everything or, if the runtime fails, nothing.
    fn change_access(
        &self,
        operation: Operation,
        range: Range,
        changes: &[Change],
    ) -> Result<(), VmmError> {
        let pieces = self.run(operation, range)?;
        for piece in &pieces {
            self.check_reach(operation, piece, changes)?;
        }
        let mut done = Vec::with_capacity(pieces.len());
        for (count, piece) in pieces.iter().enumerate() {
            match self.change_piece(operation, piece, changes) {
                Ok(record) => done.push((piece.start, record)),
                Err(error) => return Err(self.undo(operation, &pieces[..=count], changes, error)),
            }
        }
        for (start, record) in done {
            self.write_access(start, &record);
        }
        Ok(())
    }

    /// Refuses what the hardware can never do.
    fn check_reach(
        &self,
        operation: Operation,
        piece: &Piece,
        changes: &[Change],
    ) -> Result<(), VmmError> {
        // Of imported memory the owner may be unknown; then the runtime has the last word.
        let Some(owner) = piece.owner.and_then(|owner| self.runtime.agents().get(owner)) else {
            return Ok(());
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

    /// Changes one mapping in the runtime and returns what its record becomes.
    ///
    /// The CPUs come first and by themselves, so that it is known what is to be undone.
    fn change_piece(
        &self,
        operation: Operation,
        piece: &Piece,
        changes: &[Change],
    ) -> Result<MappingRecord, VmmError> {
        let after = changed(&piece.record, changes);
        let (cpus, gpus): (Vec<Change>, Vec<Change>) =
            changes.iter().partition(|&&(index, _)| self.is_cpu(index));
        let mut record = MappingRecord { access: after, ..piece.record };
        if self.quirks.peer_after_owner_fails && self.adds_peer_after_owner(piece, &gpus) {
            record.granted = self.rebuild(operation, piece, &record)?;
            return Ok(record);
        }
        if !cpus.is_empty() && !self.change_cpu_view(operation, piece, &after)? {
            self.tell_news(operation, piece, &mut record, &cpus)?;
        }
        self.tell_news(operation, piece, &mut record, &gpus)?;
        Ok(record)
    }

    /// Whether the changes let a GPU in that comes after the memory's owner.
    fn adds_peer_after_owner(&self, piece: &Piece, gpus: &[Change]) -> bool {
        piece.owner.is_some_and(|owner| piece.record.granted.contains(owner))
            && gpus.iter().any(|&(index, access)| {
                access != Access::None && !piece.record.granted.contains(index)
            })
    }

    /// Tells the runtime those of the changes that are any, and notes whom it was told of.
    fn tell_news(
        &self,
        operation: Operation,
        piece: &Piece,
        record: &mut MappingRecord,
        changes: &[Change],
    ) -> Result<(), VmmError> {
        let is_news = |&&(index, access): &&Change| {
            // To forbid what was never allowed would make AMD's runtime map it; to repeat what
            // is so already costs a call.
            let known = piece.record.granted.contains(index);
            if known { piece.record.access.get(index) != access } else { access != Access::None }
        };
        let told: Vec<Change> = changes.iter().filter(is_news).copied().collect();
        for &(index, _) in &told {
            record.granted.insert(index);
        }
        self.tell(operation, piece, record, &told)
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
        let mut list = told.to_vec();
        if self.quirks.set_access_drops_unnamed_agents {
            list = after.granted.iter().map(|index| (index, after.access.get(index))).collect();
        }
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
    pub(super) fn let_use(
        &self,
        operation: Operation,
        piece: &Piece,
        record: &MappingRecord,
    ) -> Result<AgentSet, VmmError> {
        let cpu_is_ours = self.show_to_cpu(operation, piece, &record.access)?;
        let mut after = MappingRecord { granted: AgentSet::default(), ..*record };
        let mut told = Vec::new();
        for index in 0..self.runtime.agents().len() {
            let access = after.access.get(index);
            if access != Access::None && !(cpu_is_ours && self.is_cpu(index)) {
                after.granted.insert(index);
                told.push((index, access));
            }
        }
        self.tell(operation, piece, &after, &told)?;
        Ok(after.granted)
    }

    /// Puts access back to what it was, after `error` in the last of `pieces`.
    fn undo(
        &self,
        operation: Operation,
        pieces: &[Piece],
        changes: &[Change],
        error: VmmError,
    ) -> VmmError {
        for piece in pieces.iter().rev() {
            // What the mapping may have become, as far as it went.
            let mut attempted = *piece;
            attempted.record.access = changed(&piece.record, changes);
            let is_new = |&(index, access): &Change| {
                access != Access::None
                    && !self.is_cpu(index)
                    && !piece.record.granted.contains(index)
            };
            let undone = if changes.iter().any(is_new) {
                // A GPU that could not reach the memory before can now: only unmapping helps.
                self.rebuild(operation, &attempted, &piece.record).map(|_| ())
            } else {
                self.restore(operation, &attempted, piece, changes)
            };
            if let Err(undo) = undone {
                return self.not_undone(operation, piece.start, error, undo);
            }
        }
        error
    }

    /// Gives the agents that were named what they had before.
    fn restore(
        &self,
        operation: Operation,
        attempted: &Piece,
        before: &Piece,
        changes: &[Change],
    ) -> Result<(), VmmError> {
        if changes.iter().any(|&(index, _)| self.is_cpu(index)) {
            self.change_cpu_view(operation, attempted, &before.record.access)?;
        }
        let told: Vec<Change> = changes
            .iter()
            .filter(|&&(index, _)| before.record.granted.contains(index))
            .map(|&(index, _)| (index, before.record.access.get(index)))
            .collect();
        self.tell(operation, before, &before.record, &told)
    }

    fn take_away(
        &self,
        operation: Operation,
        range: Range,
        revoked: AgentSet,
    ) -> Result<(), VmmError> {
        let pieces = self.run(operation, range)?;
        for (count, piece) in pieces.iter().enumerate() {
            let mut record = piece.record;
            for index in revoked.iter() {
                record.access.set(index, Access::None);
            }
            match self.rebuild(operation, piece, &record) {
                Ok(granted) => record.granted = granted,
                Err(error) => return Err(self.give_again(operation, &pieces[..=count], error)),
            }
            self.write_access(piece.start, &record);
        }
        Ok(())
    }

    /// Undoes a revocation that failed in the last of `pieces`.
    fn give_again(&self, operation: Operation, pieces: &[Piece], error: VmmError) -> VmmError {
        let Some((failed, done)) = pieces.split_last() else { return error };
        // The last one is mapped and short of some access, or not mapped.
        let undone = self
            .let_use(operation, failed, &failed.record)
            .or_else(|_| self.set_up(operation, failed, &failed.record));
        let mut outcome = undone.map(|granted| {
            self.write_access(failed.start, &MappingRecord { granted, ..failed.record });
        });
        for piece in done.iter().rev() {
            outcome = outcome.and_then(|()| self.let_use(operation, piece, &piece.record)).map(
                |granted| {
                    self.write_access(piece.start, &MappingRecord { granted, ..piece.record });
                },
            );
        }
        match outcome {
            Ok(()) => error,
            Err(undo) => self.not_undone(operation, failed.start, error, undo),
        }
    }

    fn write_access(&self, start: usize, record: &MappingRecord) {
        if let Some(mapping) = self.ledger_mut().mapping_mut(start) {
            (mapping.access, mapping.granted) = (record.access, record.granted);
        }
    }

    fn is_cpu(&self, index: usize) -> bool {
        self.runtime.agents().get(index).is_some_and(|agent| agent.kind() == AgentKind::Cpu)
    }

    /// Whether an agent has been granted what it needs everywhere in a range that is mapped.
    pub(super) fn check_granted(
        &self,
        argument: Argument,
        range: Range,
        agent: (usize, AgentId),
        needed: Access,
    ) -> Result<(), Refusal> {
        let ledger = self.ledger();
        ledger.check_mapped(range).map_err(|refusal| Refusal { argument, ..refusal })?;
        let first = ledger.mapping_at(range.start).map_or(range.start, |(start, _)| start);
        let span = Range { start: first, size: range.end() - first };
        let lacking =
            ledger.mappings_in(span).find(|(_, record)| record.access.get(agent.0) < needed);
        match lacking {
            None => Ok(()),
            Some((start, _)) => {
                let at = Address::new(start.max(range.start));
                let verb = if needed == Access::ReadWrite { "write" } else { "read" };
                let problem = Problem::NotGranted { at, agent: agent.1, verb };
                Err(Refusal::new(argument, problem))
            }
        }
    }

    /// What this process's own loads and stores may do is as much as any CPU agent may.
    pub(super) fn cpu_access_of(&self, access: &AccessSet) -> Access {
        self.cpus().map(|(index, _)| access.get(index)).max().unwrap_or_default()
    }
}

/// A mapping's access after changes.
fn changed(record: &MappingRecord, changes: &[Change]) -> AccessSet {
    let mut access = record.access;
    for &(index, wanted) in changes {
        access.set(index, wanted);
    }
    access
}
