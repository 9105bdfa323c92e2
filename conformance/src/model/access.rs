//! Setting, querying and revoking access.

use super::verdict::{ADDRESS, AGENT, DESCRIPTORS, RANGE, Reason, Rejection, Rules, Verdict};
use super::{AgentProperties, Mapping, Model};
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
                let reason = self.reason_against_grant(agent, mapping);
                let reason = reason.filter(|_| access != Access::None);
                rules = reason.into_iter().fold(rules, |rules, it| rules.reject_if(it, true));
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

    /// Returns the reason for which an agent cannot be granted access to a mapping. For imported memory, if the owner is
    /// unknown or not all GPUs can access its memory, the runtime decides about GPUs, and a CPU must be able to access
    /// the memory of all GPUs.
    fn reason_against_grant(&self, agent: usize, mapping: &Mapping) -> Option<Reason> {
        let AgentProperties { can_access, is_cpu, .. } = &self.machine.agents[agent];
        let state = self.handles.iter().find(|state| state.handle == mapping.handle)?;
        let owner = self.machine.agent(state.memory.owner)?;
        let gpus = || self.machine.gpus();
        let is_decided_by_runtime = state.is_imported
            && (state.properties.location == Location::Unknown
                || !gpus().all(|gpu| self.machine.agents[gpu].can_access[owner]));
        let (reason, is_accessible) = match (is_cpu, is_decided_by_runtime) {
            (true, true) => (Reason::NotSupported, gpus().all(|gpu| can_access[gpu])),
            (true, false) => (Reason::NotSupported, can_access[owner]),
            (false, true) => (Reason::Runtime, can_access[owner]),
            (false, false) => (AGENT, can_access[owner]),
        };
        (!is_accessible).then_some(reason)
    }
}
