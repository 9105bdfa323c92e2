//! Who may use mapped memory: granting, asking, and really taking away.

mod grant;
mod revoke;
mod tell;

pub(super) use grant::Progress;
pub(super) use tell::Unfinished;

use crate::access::{AccessSet, AgentSet, MOST_AGENTS};
use crate::agent::AgentId;
use crate::vmm::ledger::{Entered, Range};
use crate::vmm::mapping::{Expected, Serial};
use crate::vmm::{
    Access, AccessDescriptor, Address, AllocationProperties, Argument, Operation, Problem, Refusal,
    Shared, Vmm, VmmError,
};
use smallvec::SmallVec;

/// What an agent is to be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// Its index. Lists of these are handed on, and are not to be large.
    agent: u8,
    pub access: Access,
}

impl Change {
    pub fn new(agent: usize, access: Access) -> Self {
        const { assert!(MOST_AGENTS <= u8::MAX as usize) };
        Self { agent: agent as u8, access }
    }

    /// The agent's index.
    pub fn agent(self) -> usize {
        self.agent.into()
    }
}

/// A list that takes no memory of its own for as many as there are in most machines.
pub(super) type Changes = SmallVec<[Change; 16]>;

impl Vmm {
    /// Says who may do what with a run of whole mappings (`hipMemSetAccess`,
    /// `hsa_amd_vmem_set_access`).
    ///
    /// Agents that are not named keep what they have; one that is named twice gets the last.
    /// All of it is checked before the first takes effect, and undone if the runtime fails.
    /// The runtime is told of GPUs in one call for all neighbouring mappings to which the same is
    /// news, from ROCm 6.4 on ([`Quirks::set_access_of_several_fails`](crate::vmm::Quirks)).
    ///
    /// For CPUs a permission is enforced by the memory's protection (`mprotect`): taking it away and
    /// giving it again leaves no hole in the reservation. For GPUs only the first
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
        self.shared.set_access(address, size, descriptors, Expected::Any)
    }

    /// Checks access that is to be set when there is memory with these properties.
    ///
    /// # Errors
    /// As for [`set_access`](Vmm::set_access), as far as they do not concern the range.
    pub(crate) fn check_access(
        &self,
        properties: &AllocationProperties,
        descriptors: &[AccessDescriptor],
    ) -> Result<(), VmmError> {
        let operation = Operation::SetAccess;
        let shared = &*self.shared;
        shared.alive(operation)?;
        let mut changes = Changes::new();
        shared.changes(operation, descriptors, &mut changes)?;
        let (owner, _) = shared.pool(operation, properties)?;
        shared.check_reach(operation, Some(owner), &changes)
    }

    /// Checks an agent of which it is asked what it may do, where there may be no memory.
    ///
    /// # Errors
    /// As for [`get_access`](Vmm::get_access), as far as they do not concern the address.
    pub(crate) fn check_agent(&self, agent: AgentId) -> Result<(), VmmError> {
        let operation = Operation::GetAccess;
        self.shared.alive(operation)?;
        let found = self.shared.agent(agent, Argument::Agent);
        found.map(|_| ()).map_err(|refusal| refusal.during(operation))
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
        self.shared.get_access(agent, address, None)
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
        self.shared.revoke(address, size, agents, Expected::Any)
    }
}

impl Shared {
    /// Changes access to a run of whole mappings, if they are the expected ones.
    pub(super) fn set_access(
        &self,
        address: Address,
        size: usize,
        descriptors: &[AccessDescriptor],
        expected: Expected<'_>,
    ) -> Result<(), VmmError> {
        let operation = Operation::SetAccess;
        self.alive(operation)?;
        let range = Range::new(address, size).map_err(|refusal| refusal.during(operation))?;
        let mut changes = Changes::new();
        self.changes(operation, descriptors, &mut changes)?;
        self.at_gate(operation, range, |entered| {
            self.change_access(operation, entered, range, &changes, expected)
        })
    }

    /// Revokes access to a run of whole mappings, if they are the expected ones.
    pub(super) fn revoke(
        &self,
        address: Address,
        size: usize,
        agents: &[AgentId],
        expected: Expected<'_>,
    ) -> Result<(), VmmError> {
        let operation = Operation::Revoke;
        let refused = |refusal: Refusal| refusal.during(operation);
        self.alive(operation)?;
        let range = Range::new(address, size).map_err(refused)?;
        if agents.is_empty() {
            return Err(refused(Refusal::new(Argument::Descriptors, Problem::Zero)));
        }
        let mut revoked = AgentSet::default();
        for &agent in agents {
            revoked.insert(self.agent(agent, Argument::Agent).map_err(refused)?.0);
        }
        self.at_gate(operation, range, |entered| {
            self.take_away(operation, entered, range, revoked, expected)
        })
    }

    /// What an agent may do at an address; with a serial only if that mapping is there.
    pub(super) fn get_access(
        &self,
        agent: AgentId,
        address: Address,
        serial: Option<Serial>,
    ) -> Result<Access, VmmError> {
        let operation = Operation::GetAccess;
        let refused = |refusal: Refusal| refusal.during(operation);
        self.alive(operation)?;
        if address == Address::NULL {
            return Err(refused(Refusal::new(Argument::Address, Problem::Null)));
        }
        let (index, _) = self.agent(agent, Argument::Agent).map_err(refused)?;
        let found = match serial {
            None => self.ledger.access_at(address.get(), index),
            Some(serial) => {
                let mapping = self.ledger.mapping_at(address.get());
                let same = mapping.filter(|(_, record)| record.serial == serial.0);
                same.map(|(_, record)| record.access.get(index))
            }
        };
        let problem = Problem::NotMapped { at: address };
        found.ok_or(refused(Refusal::new(Argument::Address, problem)))
    }

    /// Lists what is asked for of each agent, the last if one is named twice. The list is filled where
    /// it is: to move what has just been written costs more than to write it.
    pub(super) fn changes(
        &self,
        operation: Operation,
        descriptors: &[AccessDescriptor],
        changes: &mut Changes,
    ) -> Result<(), VmmError> {
        let refused = |refusal: Refusal| refusal.during(operation);
        if descriptors.is_empty() {
            return Err(refused(Refusal::new(Argument::Descriptors, Problem::Zero)));
        }
        let mut named = AgentSet::NONE;
        for descriptor in descriptors {
            let (agent, _) = self.agent(descriptor.agent, Argument::Agent).map_err(refused)?;
            if named.contains(agent) {
                changes.retain(|change| change.agent() != agent);
            }
            named.insert(agent);
            changes.push(Change::new(agent, descriptor.access));
        }
        // The CPUs first, each kind as the caller has it. Mostly there is none.
        if named.without(self.cpus) != named {
            changes.sort_by_key(|change| !self.is_cpu(change.agent()));
        }
        Ok(())
    }

    fn is_cpu(&self, index: usize) -> bool {
        self.cpus.contains(index)
    }

    /// Whether an agent has been granted what it needs everywhere in a range that is mapped.
    pub(super) fn check_granted(
        &self,
        argument: Argument,
        entered: &Entered<'_>,
        range: Range,
        agent: (usize, AgentId),
        needed: Access,
    ) -> Result<(), Refusal> {
        let mappings = entered.around(range)?.mappings();
        mappings.check_mapped(range).map_err(|refusal| Refusal { argument, ..refusal })?;
        let first = mappings.at(range.start).map_or(range.start, |(start, _)| start);
        let span = Range { start: first, size: range.end() - first };
        let lacking = mappings.inside(span).find(|(_, record)| record.access.get(agent.0) < needed);
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

    /// The index of the CPU that the runtime is told of for all of them.
    fn host_index(&self) -> usize {
        self.runtime.host().id().index()
    }

    /// What the runtime is told that an agent may do. Memory that the runtime has mapped for the CPU it
    /// has mapped readable and writable; what the CPU may really do is `mprotect`'s business.
    fn access_in_runtime(&self, access: &AccessSet, index: usize) -> Access {
        if self.is_cpu(index) { Access::ReadWrite } else { access.get(index) }
    }

    /// What this process's own loads and stores may do is as much as any CPU agent may.
    pub(super) fn cpu_access_of(&self, access: &AccessSet) -> Access {
        self.cpus.iter().map(|index| access.get(index)).max().unwrap_or_default()
    }
}

/// Whether an operation has ended with its range out of use, so that nothing is to be undone.
pub(super) fn is_quarantined(error: &VmmError) -> bool {
    matches!(error, VmmError::Quarantined { .. })
}
