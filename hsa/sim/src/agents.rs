//! The agents, CPUs before GPUs.

use crate::abi::AgentCallback;
use crate::identity::Kind;
use crate::instance::Instance;
use crate::physical::Owner;
use crate::status::HsaResult;
use core::ffi::c_void;
use hsa_sys::*;

/// An agent. Each agent can own memory.
pub(crate) type Agent = Owner;

impl Instance {
    /// Returns all agents, in the order of iteration.
    pub(crate) fn agents(&self) -> impl Iterator<Item = Agent> + use<> {
        let (cpus, gpus) = (self.config.cpus.len(), self.config.gpus.len());
        (0..cpus).map(Agent::Cpu).chain((0..gpus).map(Agent::Gpu))
    }

    /// Returns whether the agent exists. A descriptor from another simulation can name an agent
    /// that this simulation lacks.
    pub(crate) fn has_agent(&self, agent: Agent) -> bool {
        match agent {
            Agent::Cpu(number) => number < self.config.cpus.len(),
            Agent::Gpu(number) => number < self.config.gpus.len(),
        }
    }

    /// Returns the agent's number among all agents, which is also its NUMA node.
    pub(crate) fn node(&self, agent: Agent) -> usize {
        match agent {
            Agent::Cpu(number) => number,
            Agent::Gpu(number) => self.config.cpus.len() + number,
        }
    }

    pub(crate) fn agent_at(&self, node: usize) -> Option<Agent> {
        self.agents().nth(node)
    }

    pub(crate) fn agent_handle(&self, agent: Agent) -> hsa_agent_t {
        hsa_agent_t { handle: self.identity.value(Kind::Agent, self.node(agent)) }
    }

    /// Finds the agent of a handle.
    pub(crate) fn agent(&self, agent: hsa_agent_t) -> HsaResult<Agent> {
        let node = self.identity.index(Kind::Agent, agent.handle);
        node.and_then(|node| self.agent_at(node)).ok_or(HSA_STATUS_ERROR_INVALID_AGENT)
    }

    /// Finds the agents of an array of handles.
    ///
    /// # Safety
    /// `agents` must be null or point at `count` agents.
    pub(crate) unsafe fn agents_of(
        &self,
        agents: *const hsa_agent_t,
        count: usize,
    ) -> HsaResult<Vec<Agent>> {
        if agents.is_null() || count == 0 {
            return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: the caller promises `count` agents; `read_unaligned` needs no alignment.
        (0..count).map(|index| self.agent(unsafe { agents.add(index).read_unaligned() })).collect()
    }
}

/// `hsa_iterate_agents`
///
/// # Safety
/// `callback` must be callable with `data`.
pub(crate) unsafe fn iterate(
    instance: &Instance,
    callback: AgentCallback,
    data: *mut c_void,
) -> HsaResult {
    let callback = callback.ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
    for agent in instance.agents() {
        // SAFETY: `callback` accepts `data`, as the caller promises.
        match unsafe { callback(instance.agent_handle(agent), data) } {
            HSA_STATUS_SUCCESS => {}
            status => return Err(status),
        }
    }
    Ok(())
}
