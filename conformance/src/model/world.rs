//! The properties of the machine on which results depend.

use hsa_vmm::agent::AgentKind;
use hsa_vmm::{Agent, AgentId, Runtime};

/// The properties of the machine on which results depend.
#[derive(Clone, Debug)]
pub struct World {
    /// The agents, in the runtime's order.
    pub agents: Vec<AgentFacts>,
    /// The granule of sizes and addresses.
    pub granule: usize,
    /// Whether uncached memory can be created (since extension 1.18).
    pub uncached: bool,
    /// Whether an import checks the descriptor (until ROCm 7.14, extension 1.16).
    pub imports_are_looked_at: bool,
}

/// The properties of an agent on which results depend.
#[derive(Clone, Debug)]
pub struct AgentFacts {
    /// The identifier.
    pub id: AgentId,
    /// Whether it is a CPU.
    pub is_cpu: bool,
    /// The size of the pool for handles, if it has one.
    pub memory: Option<usize>,
    /// Whether it can access the memory of each agent.
    pub reaches: Vec<bool>,
}

impl World {
    /// Reads the properties of a runtime.
    #[must_use]
    pub fn of(runtime: &Runtime) -> Self {
        let agents = runtime.agents();
        let pools = || agents.iter().filter_map(Agent::vmem_pool);
        let facts = |agent: &Agent| AgentFacts {
            id: agent.id(),
            is_cpu: agent.kind() == AgentKind::Cpu,
            memory: agent.vmem_pool().map(|pool| pool.size),
            reaches: agents.iter().map(|owner| agent.reaches(owner.id())).collect(),
        };
        Self {
            agents: agents.iter().map(facts).collect(),
            granule: pools().map(|pool| pool.granule).max().unwrap_or(1),
            uncached: runtime.info().extension >= (1, 18),
            imports_are_looked_at: runtime.info().extension < (1, 16),
        }
    }

    /// Returns the index of an agent; `None` if this runtime does not have it.
    #[must_use]
    pub fn agent(&self, id: AgentId) -> Option<usize> {
        self.agents.iter().position(|agent| agent.id == id)
    }

    /// Returns the indexes of the CPUs.
    pub fn cpus(&self) -> impl Iterator<Item = usize> {
        self.places(true)
    }

    /// Returns the indexes of the GPUs.
    pub fn gpus(&self) -> impl Iterator<Item = usize> {
        self.places(false)
    }

    fn places(&self, cpus: bool) -> impl Iterator<Item = usize> {
        let agents = self.agents.iter().enumerate();
        agents.filter(move |(_, agent)| agent.is_cpu == cpus).map(|(place, _)| place)
    }
}
