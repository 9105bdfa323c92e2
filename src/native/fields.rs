//! The values of the log's fields: addresses, handles, and agents by name.

use super::{Native, NativeAccess, NativeAgent};
use std::sync::OnceLock;

/// The handle of each agent with its name.
pub(super) type AgentNames = OnceLock<Vec<(NativeAgent, String)>>;

/// Formats a number in hexadecimal.
pub(super) fn hex(number: impl TryInto<u64>) -> String {
    format!("{:#x}", number.try_into().unwrap_or(u64::MAX))
}

impl Native {
    /// Sets the names of all agents. Has no effect if they are set already.
    pub fn name_agents(&self, names: Vec<(NativeAgent, String)>) {
        let _ = self.agent_names.set(names);
    }

    /// Returns the name of an agent: `GPU 0`; its handle if it has no name yet.
    pub(super) fn show_agent(&self, agent: NativeAgent) -> String {
        let names = self.agent_names.get().map(Vec::as_slice).unwrap_or_default();
        let name = names.iter().find(|(named, _)| *named == agent).map(|(_, name)| name.clone());
        name.unwrap_or_else(|| hex(agent.raw().handle))
    }

    /// Returns the names of agents: `[CPU 0, GPU 0]`.
    pub(super) fn show_agents(&self, agents: &[NativeAgent]) -> String {
        let names: Vec<_> = agents.iter().map(|agent| self.show_agent(*agent)).collect();
        format!("[{}]", names.join(", "))
    }

    /// Returns the access of agents: `[GPU 0: 3, GPU 1: 1]`.
    pub(super) fn show_access(&self, access: &[NativeAccess]) -> String {
        let show = |access: &NativeAccess| {
            format!("{}: {}", self.show_agent(access.agent()), access.permissions())
        };
        format!("[{}]", access.iter().map(show).collect::<Vec<_>>().join(", "))
    }
}
