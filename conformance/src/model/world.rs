//! What the documents make depend on the machine.

use hsa_vmm::agent::AgentKind;
use hsa_vmm::{Agent, AgentId, Runtime};

/// What the documents make depend on the machine.
#[derive(Clone, Debug)]
pub struct World {
    /// The agents, in the runtime's order.
    pub agents: Vec<AgentFacts>,
    /// What sizes and addresses are multiples of.
    pub granule: usize,
    /// Whether memory can be made that is not cached (since extension 1.18).
    pub uncached: bool,
    /// Whether a descriptor is looked at when it is imported (until ROCm 7.14, extension 1.16).
    pub imports_are_looked_at: bool,
}

/// What the documents make depend on an agent.
#[derive(Clone, Debug)]
pub struct AgentFacts {
    /// Its name in calls.
    pub id: AgentId,
    /// Whether it is a CPU.
    pub is_cpu: bool,
    /// How much memory handles can be made of, if any can.
    pub memory: Option<usize>,
    /// Whether it reaches the memory of each agent.
    pub reaches: Vec<bool>,
}

impl World {
    /// What a runtime says about itself.
    #[must_use]
    pub fn of(runtime: &Runtime) -> Self {
        let agents = runtime.agents();
        let pools = || agents.iter().filter_map(Agent::handle_pool);
        let facts = |agent: &Agent| AgentFacts {
            id: agent.id(),
            is_cpu: agent.kind() == AgentKind::Cpu,
            memory: agent.handle_pool().map(|pool| pool.size),
            reaches: agents.iter().map(|owner| agent.reaches(owner.id())).collect(),
        };
        Self {
            agents: agents.iter().map(facts).collect(),
            granule: pools().map(|pool| pool.granule).max().unwrap_or(1),
            uncached: runtime.info().extension >= (1, 18),
            imports_are_looked_at: runtime.info().extension < (1, 16),
        }
    }

    /// The place of an agent in the list; `None` for one that this runtime does not have.
    #[must_use]
    pub fn agent(&self, id: AgentId) -> Option<usize> {
        self.agents.iter().position(|agent| agent.id == id)
    }

    /// The places of the CPUs in the list.
    pub fn cpus(&self) -> impl Iterator<Item = usize> {
        self.places(true)
    }

    /// The places of the GPUs in the list.
    pub fn gpus(&self) -> impl Iterator<Item = usize> {
        self.places(false)
    }

    fn places(&self, cpus: bool) -> impl Iterator<Item = usize> {
        let agents = self.agents.iter().enumerate();
        agents.filter(move |(_, agent)| agent.is_cpu == cpus).map(|(place, _)| place)
    }
}
