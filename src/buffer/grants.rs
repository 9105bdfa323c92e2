//! Who may do what with all of a buffer.

use crate::agent::AgentId;
use crate::vmm::{Access, AccessDescriptor, Address, Only, VmmError};

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

    /// Gives agents what they had at a run of mappings, where they may have no more than `most`.
    pub fn restore(
        &self,
        mappings: Only<'_>,
        (address, size): (Address, usize),
        agents: &[AgentId],
        most: Access,
    ) -> Result<(), VmmError> {
        let (known, new): (Vec<AgentId>, Vec<AgentId>) =
            agents.iter().partition(|&&agent| self.of(agent) != Access::None);
        if !known.is_empty() {
            let had = |agent| AccessDescriptor { agent, access: self.of(agent).min(most) };
            let before: Vec<_> = known.into_iter().map(had).collect();
            mappings.set_access(address, size, &before)?;
        }
        // To forbid it would leave it to a GPU that has been let in.
        if new.is_empty() { Ok(()) } else { mappings.revoke(address, size, &new) }
    }
}
