//! Setting, querying and revoking access.

use super::verdict::{ADDRESS, AGENT, DESCRIPTORS, RANGE, Reason, Rejection, Rules, Verdict};
use super::{Mapping, Model};
use hsa_vmm::vmm::Location;
use hsa_vmm::{Access, AgentId};

impl Model {
    /// Sets access to a range of whole mappings.
    ///
    /// # Errors
    /// Returns all reasons for rejecting the call.
    pub fn set_access(
        &mut self,
        address: usize,
        size: usize,
        descriptors: &[(AgentId, Access)],
    ) -> Verdict {
        let mappings = self.starts_of_whole_mappings(address, size);
        let starts = mappings.clone().unwrap_or_default();
        let is_unknown = |&(id, _): &(AgentId, _)| self.machine.agent(id).is_none();
        let changes = self.last_for_each_agent(descriptors);
        let mut rules = Rules::default()
            .reject_if(RANGE, mappings.is_err())
            .reject_if(DESCRIPTORS, descriptors.is_empty())
            .reject_if(AGENT, descriptors.iter().any(is_unknown));
        for mapping in self.mappings.iter().filter(|it| starts.contains(&it.start)) {
            for &(agent, access) in &changes {
                let reason =
                    if self.machine.agents[agent].is_cpu { Reason::NotSupported } else { AGENT };
                let is_inaccessible =
                    access != Access::None && !self.can_be_granted(agent, mapping);
                rules = rules.reject_if(reason, is_inaccessible);
            }
            let offset_is_unsupported = mapping.offset != 0 && !self.machine.maps_dmabufs;
            let mut after = mapping.clone();
            changes.iter().for_each(|&(agent, access)| after.access[agent] = access);
            let gives_cpu_access =
                self.cpu_access(mapping) == Access::None && self.cpu_access(&after) != Access::None;
            rules =
                rules.reject_if(Reason::NotSupported, offset_is_unsupported && gives_cpu_access);
        }
        rules.verdict()?;
        for mapping in self.mappings.iter_mut().filter(|it| starts.contains(&it.start)) {
            for &(agent, access) in &changes {
                mapping.access[agent] = access;
                mapping.granted[agent] |= access != Access::None;
            }
        }
        Ok(())
    }

    /// Returns an agent's access at an address.
    ///
    /// # Errors
    /// Returns all reasons for rejecting the call.
    pub fn get_access(&self, id: AgentId, address: usize) -> Verdict<Access> {
        let mapping = self.mappings.iter().find(|it| it.range().contains(&address));
        let agent = self.machine.agent(id);
        Rules::default()
            .reject_if(ADDRESS, mapping.is_none())
            .reject_if(AGENT, agent.is_none())
            .verdict()?;
        match (mapping, agent) {
            (Some(mapping), Some(agent)) => Ok(mapping.access[agent]),
            _ => Err(Rejection::of(AGENT)),
        }
    }

    /// Revokes agents' access to a range of whole mappings.
    ///
    /// # Errors
    /// Returns all reasons for rejecting the call.
    pub fn revoke(&mut self, address: usize, size: usize, agents: &[AgentId]) -> Verdict {
        let mappings = self.starts_of_whole_mappings(address, size);
        let indexes: Vec<_> = agents.iter().map(|&id| self.machine.agent(id)).collect();
        Rules::default()
            .reject_if(RANGE, mappings.is_err())
            .reject_if(DESCRIPTORS, agents.is_empty())
            .reject_if(AGENT, indexes.contains(&None))
            .verdict()?;
        let starts = mappings?;
        for mapping in self.mappings.iter_mut().filter(|it| starts.contains(&it.start)) {
            for &agent in indexes.iter().flatten() {
                mapping.access[agent] = Access::None;
                mapping.granted[agent] = false;
            }
        }
        Ok(())
    }

    /// Returns the access of this process's loads and stores: the maximum of all CPUs' access, because the
    /// CPUs share the process's address space.
    #[must_use]
    pub fn cpu_access(&self, mapping: &Mapping) -> Access {
        self.machine.cpus().map(|cpu| mapping.access[cpu]).max().unwrap_or_default()
    }

    /// Returns the index and access of each known agent in the descriptors. If an agent occurs several
    /// times, the last descriptor applies.
    fn last_for_each_agent(&self, descriptors: &[(AgentId, Access)]) -> Vec<(usize, Access)> {
        (0..self.machine.agents.len())
            .filter_map(|agent| {
                let id = self.machine.agents[agent].id;
                let (_, access) = descriptors.iter().rfind(|(agent, _)| *agent == id)?;
                Some((agent, *access))
            })
            .collect()
    }

    /// Returns whether an agent can be granted access to a mapping. If the owner of the memory is unknown, returns
    /// `true` for a CPU only if the CPU can access the memory of all GPUs.
    fn can_be_granted(&self, agent: usize, mapping: &Mapping) -> bool {
        let can_access = &self.machine.agents[agent].can_access;
        let state = self.handles.iter().find(|state| state.handle == mapping.handle);
        match state.map(|state| state.properties.location) {
            Some(Location::Agent(owner)) => {
                self.machine.agent(owner).is_none_or(|owner| can_access[owner])
            }
            _ if self.machine.agents[agent].is_cpu => {
                self.machine.gpus().all(|gpu| can_access[gpu])
            }
            _ => true,
        }
    }
}
