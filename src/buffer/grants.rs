//! Who may do what with all of a buffer.

use crate::agent::AgentId;
use crate::vmm::{Access, AccessDescriptor};

/// What agents have been granted: those that may do something, each once.
#[derive(Clone, Debug, Default)]
pub(super) struct Grants(Vec<AccessDescriptor>);

impl Grants {
    pub fn list(&self) -> &[AccessDescriptor] {
        &self.0
    }

    pub fn of(&self, agent: AgentId) -> Access {
        let granted = self.0.iter().find(|granted| granted.agent == agent);
        granted.map_or(Access::None, |granted| granted.access)
    }

    /// The same with a change for some agents.
    pub fn with(&self, agents: &[AgentId], access: Access) -> Self {
        let mut after = self.clone();
        after.0.retain(|granted| !agents.contains(&granted.agent));
        if access != Access::None {
            for &agent in agents {
                if after.of(agent) == Access::None {
                    after.0.push(AccessDescriptor { agent, access });
                }
            }
        }
        after
    }
}
