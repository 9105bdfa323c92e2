//! The properties of a machine and its runtime that affect the results of calls.

use hsa_vmm::agent::AgentKind;
use hsa_vmm::agent::Enforcement;
use hsa_vmm::{Agent, AgentId, Vmm};

/// The properties of a machine and its runtime that affect the results of calls.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The agents, in the runtime's order.
    pub agents: Vec<AgentProperties>,
    /// The granule of sizes and addresses.
    pub granule: usize,
    /// Whether uncached memory can be created (since extension 1.18).
    pub uncached: bool,
    /// Whether an import checks that the descriptor is memory (before ROCm 7.14, extension 1.16).
    pub import_checks_descriptor: bool,
    /// Whether a mapping can start at an offset in the memory.
    pub maps_offsets: bool,
    /// Whether the CPU can map a dma-buf. Otherwise, the CPU cannot access mappings at an offset.
    pub maps_dmabufs: bool,
}

/// The properties of an agent that affect the results of calls.
#[derive(Clone, Debug)]
pub struct AgentProperties {
    /// The identifier.
    pub id: AgentId,
    /// Whether the agent is a CPU.
    pub is_cpu: bool,
    /// The size in bytes of the pool that handles are created from; `None` without such a pool.
    pub pool_size: Option<usize>,
    /// Whether the agent's page table enforces its access.
    pub enforced: bool,
    /// Whether the agent can access the memory of each agent, in the order of the agents.
    pub can_access: Vec<bool>,
}

impl Machine {
    /// Reads the properties of the machine that a `Vmm` runs on.
    #[must_use]
    pub fn of(vmm: &Vmm) -> Self {
        let runtime = vmm.runtime();
        let agents = runtime.agents();
        let pools = || agents.iter().filter_map(Agent::vmem_pool);
        let properties = |agent: &Agent| AgentProperties {
            id: agent.id(),
            is_cpu: agent.kind() == AgentKind::Cpu,
            pool_size: agent.vmem_pool().map(|pool| pool.size),
            enforced: vmm.enforcement(agent.id()) == Some(Enforcement::Enforced),
            can_access: agents.iter().map(|owner| agent.can_access(owner.id())).collect(),
        };
        Self {
            agents: agents.iter().map(properties).collect(),
            granule: pools().map(|pool| pool.granule).max().unwrap_or(1),
            uncached: runtime.info().extension >= (1, 18),
            import_checks_descriptor: runtime.info().extension < (1, 16),
            maps_offsets: vmm.can_map_offsets(),
            maps_dmabufs: runtime.simulation().is_none_or(|it| it.config().dmabuf_cpu_mapping),
        }
    }

    /// Returns the index of an agent; `None` if this runtime does not have the agent.
    #[must_use]
    pub fn agent(&self, id: AgentId) -> Option<usize> {
        self.agents.iter().position(|agent| agent.id == id)
    }

    /// Returns the indexes of the CPUs.
    pub fn cpus(&self) -> impl Iterator<Item = usize> {
        self.indexes(true)
    }

    /// Returns the indexes of the GPUs, and of other agents that are not CPUs.
    pub fn gpus(&self) -> impl Iterator<Item = usize> {
        self.indexes(false)
    }

    /// Returns the indexes of the CPUs (`cpus` is true) or of all other agents (`cpus` is false).
    fn indexes(&self, cpus: bool) -> impl Iterator<Item = usize> {
        let agents = self.agents.iter().enumerate();
        agents.filter(move |(_, agent)| agent.is_cpu == cpus).map(|(index, _)| index)
    }
}
