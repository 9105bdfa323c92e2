//! Who may do what.

use super::verdict::{ADDRESS, AGENT, DESCRIPTORS, RANGE, Refusal, Rules, Verdict, Wrong};
use super::{Mapped, Model};
use hsa_vmm::vmm::Location;
use hsa_vmm::{Access, AgentId};

impl Model {
    /// Says who may do what with a run of whole mappings.
    ///
    /// # Errors
    /// What is wrong with the call.
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

    /// What an agent may do at an address.
    ///
    /// # Errors
    /// What is wrong with the call.
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

    /// Really takes a run of whole mappings away from agents.
    ///
    /// # Errors
    /// What is wrong with the call.
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

    /// What this process's own loads and stores may do: as much as any CPU, since all of them
    /// share its addresses.
    #[must_use]
    pub fn cpu_access(&self, mapping: &Mapped) -> Access {
        self.world.cpus().map(|cpu| mapping.access[cpu]).max().unwrap_or_default()
    }

    /// The known agents among the descriptors with what they get: named twice, the last.
    fn last_of_each(&self, descriptors: &[(AgentId, Access)]) -> Vec<(usize, Access)> {
        (0..self.world.agents.len())
            .filter_map(|agent| {
                let id = self.world.agents[agent].id;
                let (_, access) = descriptors.iter().rfind(|(named, _)| *named == id)?;
                Some((agent, *access))
            })
            .collect()
    }

    /// Whether an agent reaches the memory of a mapping. Of an import whose owner is not known, a
    /// CPU must reach any GPU's.
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
