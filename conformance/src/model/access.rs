//! Setting, querying and revoking access.

use super::verdict::{ADDRESS, AGENT, DESCRIPTORS, RANGE, Refusal, Rules, Verdict, Wrong};
use super::{Mapped, Model};
use hsa_vmm::vmm::Location;
use hsa_vmm::{Access, AgentId};

impl Model {
    /// Sets access to a range of whole mappings.
    ///
    /// # Errors
    /// Returns everything that is wrong with the call.
    pub fn set_access(
        &mut self,
        address: usize,
        size: usize,
        descriptors: &[(AgentId, Access)],
    ) -> Verdict {
        let run = self.run(address, size);
        let starts = run.clone().unwrap_or_default();
        let is_unknown = |&(id, _): &(AgentId, _)| self.world.agent(id).is_none();
        let changes = self.last_of_each(descriptors);
        let mut rules = Rules::default()
            .refuse(RANGE, run.is_err())
            .refuse(DESCRIPTORS, descriptors.is_empty())
            .refuse(AGENT, descriptors.iter().any(is_unknown));
        for mapping in self.mappings.iter().filter(|it| starts.contains(&it.start)) {
            for &(agent, access) in &changes {
                let wrong =
                    if self.world.agents[agent].is_cpu { Wrong::NotSupported } else { AGENT };
                let out_of_reach = access != Access::None && !self.can_reach(agent, mapping);
                rules = rules.refuse(wrong, out_of_reach);
            }
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
    /// Returns everything that is wrong with the call.
    pub fn get_access(&self, id: AgentId, address: usize) -> Verdict<Access> {
        let mapping = self.mappings.iter().find(|it| it.range().contains(&address));
        let agent = self.world.agent(id);
        Rules::default()
            .refuse(ADDRESS, mapping.is_none())
            .refuse(AGENT, agent.is_none())
            .verdict()?;
        match (mapping, agent) {
            (Some(mapping), Some(agent)) => Ok(mapping.access[agent]),
            _ => Err(Refusal::of(AGENT)),
        }
    }

    /// Revokes agents' access to a range of whole mappings.
    ///
    /// # Errors
    /// Returns everything that is wrong with the call.
    pub fn revoke(&mut self, address: usize, size: usize, agents: &[AgentId]) -> Verdict {
        let run = self.run(address, size);
        let places: Vec<_> = agents.iter().map(|&id| self.world.agent(id)).collect();
        Rules::default()
            .refuse(RANGE, run.is_err())
            .refuse(DESCRIPTORS, agents.is_empty())
            .refuse(AGENT, places.contains(&None))
            .verdict()?;
        let starts = run?;
        for mapping in self.mappings.iter_mut().filter(|it| starts.contains(&it.start)) {
            for &agent in places.iter().flatten() {
                mapping.access[agent] = Access::None;
                mapping.granted[agent] = false;
            }
        }
        Ok(())
    }

    /// Returns the access of this process's loads and stores: the maximum of all CPUs, which share its
    /// address space.
    #[must_use]
    pub fn cpu_access(&self, mapping: &Mapped) -> Access {
        self.world.cpus().map(|cpu| mapping.access[cpu]).max().unwrap_or_default()
    }

    /// Returns the known agents of the descriptors with their access. The last descriptor of an agent
    /// applies.
    fn last_of_each(&self, descriptors: &[(AgentId, Access)]) -> Vec<(usize, Access)> {
        (0..self.world.agents.len())
            .filter_map(|agent| {
                let id = self.world.agents[agent].id;
                let (_, access) = descriptors.iter().rfind(|(named, _)| *named == id)?;
                Some((agent, *access))
            })
            .collect()
    }

    /// Returns whether an agent can be granted access to a mapping. If the owner of an import is unknown,
    /// a CPU must be able to access the memory of all GPUs.
    fn can_reach(&self, agent: usize, mapping: &Mapped) -> bool {
        let reaches = &self.world.agents[agent].reaches;
        let held = self.handles.iter().find(|held| held.handle == mapping.handle);
        match held.map(|held| held.properties.location) {
            Some(Location::Agent(owner)) => {
                self.world.agent(owner).is_none_or(|owner| reaches[owner])
            }
            _ if self.world.agents[agent].is_cpu => self.world.gpus().all(|gpu| reaches[gpu]),
            _ => true,
        }
    }
}
