//! Who may do what.

use crate::agent::AgentId;
use derive_more::Display;

/// What an agent may do with mapped memory (`hipMemAccessFlags`; the same numbers in HSA).
///
/// ```
/// use hsa_vmm::Access;
///
/// assert_eq!(Access::from_bits(3), Some(Access::ReadWrite));
/// assert!(Access::Read < Access::ReadWrite);
/// ```
#[derive(Clone, Copy, Debug, Default, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
pub enum Access {
    /// Nothing (`hipMemAccessFlagsProtNone`, 0). For GPUs this is only remembered; see
    /// [`Enforcement`](crate::agent::Enforcement).
    #[default]
    #[display("none")]
    None = 0,
    /// Read (`hipMemAccessFlagsProtRead`, 1). For GPUs this is only remembered.
    #[display("read")]
    Read = 1,
    /// Read and write (`hipMemAccessFlagsProtReadWrite`, 3).
    #[display("read and write")]
    ReadWrite = 3,
}

impl Access {
    /// Returns HIP's and HSA's number.
    pub fn to_bits(self) -> u32 {
        self as u32
    }

    /// Returns the access with that number; `None` for any but 0, 1 and 3.
    #[must_use]
    pub fn from_bits(bits: u32) -> Option<Self> {
        match bits {
            0 => Some(Self::None),
            1 => Some(Self::Read),
            3 => Some(Self::ReadWrite),
            _ => None,
        }
    }
}

/// The access that one agent is to get (`hipMemAccessDesc`).
///
/// ```
/// use hsa_vmm::{Access, AccessDescriptor, AgentId};
///
/// fn read_only(gpus: &[AgentId]) -> Vec<AccessDescriptor> {
///     gpus.iter().map(|&agent| AccessDescriptor { agent, access: Access::Read }).collect()
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AccessDescriptor {
    /// The agent.
    pub agent: AgentId,
    /// Its access.
    pub access: Access,
}

impl AccessDescriptor {
    /// The same for each of some agents.
    pub(crate) fn of_each(agents: &[AgentId], access: Access) -> Vec<Self> {
        agents.iter().map(|&agent| Self { agent, access }).collect()
    }
}

/// The most agents that a runtime with virtual memory may have.
pub(crate) const MOST_AGENTS: usize = 128;

/// What each agent may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AccessSet {
    /// The agents that may read.
    pub read: AgentSet,
    /// Those of them that may also write.
    write: AgentSet,
}

impl AccessSet {
    pub fn get(&self, agent: usize) -> Access {
        match (self.read.contains(agent), self.write.contains(agent)) {
            (_, true) => Access::ReadWrite,
            (true, false) => Access::Read,
            (false, false) => Access::None,
        }
    }

    pub fn set(&mut self, agent: usize, access: Access) {
        self.read.set(agent, access >= Access::Read);
        self.write.set(agent, access == Access::ReadWrite);
    }
}

/// A set of agents, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AgentSet(u128);

impl AgentSet {
    /// No agent.
    pub const NONE: Self = Self(0);

    pub fn contains(&self, agent: usize) -> bool {
        self.0 >> agent & 1 == 1
    }

    pub fn insert(&mut self, agent: usize) {
        self.set(agent, true);
    }

    fn set(&mut self, agent: usize, inside: bool) {
        self.0 = self.0 & !(1 << agent) | u128::from(inside) << agent;
    }

    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }

    /// The agents of both.
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The agents that are in both.
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The agents of this one that are not in the other.
    pub fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub fn iter(mut self) -> impl Iterator<Item = usize> {
        core::iter::from_fn(move || {
            let agent = self.0.trailing_zeros();
            self.0 &= self.0.checked_sub(1)?;
            Some(agent as usize)
        })
    }
}

/// What agents may do with a mapping, and what the runtime has granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AccessState {
    /// What each agent may do.
    pub requested: AccessSet,
    /// The agents that the runtime was asked to grant access. A GPU among them can access the memory,
    /// whatever `requested` says, until the mapping is unmapped.
    pub runtime_granted: AgentSet,
}

impl FromIterator<usize> for AgentSet {
    fn from_iter<I: IntoIterator<Item = usize>>(agents: I) -> Self {
        let mut set = Self::default();
        agents.into_iter().for_each(|agent| set.insert(agent));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_has_the_numbers_of_hip() {
        for (access, bits, words) in [
            (Access::None, 0, "none"),
            (Access::Read, 1, "read"),
            (Access::ReadWrite, 3, "read and write"),
        ] {
            assert_eq!((access.to_bits(), access.to_string().as_str()), (bits, words));
            assert_eq!(Access::from_bits(bits), Some(access));
        }
        for bits in [2, 4, 7, u32::MAX] {
            assert_eq!(Access::from_bits(bits), None, "{bits}");
        }
    }

    #[test]
    fn every_agent_has_its_own_two_bits() {
        let all = [Access::None, Access::Read, Access::ReadWrite];
        let mut set = AccessSet::default();
        for agent in 0..MOST_AGENTS {
            set.set(agent, all[agent % 3]);
        }
        for agent in (0..MOST_AGENTS).rev() {
            assert_eq!(set.get(agent), all[agent % 3], "agent {agent}");
            set.set(agent, Access::None);
        }
        assert_eq!(set, AccessSet::default());
    }

    #[test]
    fn agents_enter_a_set() {
        let mut set = AgentSet::default();
        for agent in [0, 63, 64, 127] {
            set.insert(agent);
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63, 64, 127]);
        assert!(!set.contains(1) && !set.contains(65));
        assert_eq!([0, 63, 64, 127].into_iter().collect::<AgentSet>(), set);
        let [first, last]: [AgentSet; 2] =
            [[0, 64], [63, 127]].map(|some| some.into_iter().collect());
        assert_eq!((set.difference(first), first.union(last)), (last, set));
        assert_eq!(first.difference(set), AgentSet::NONE);
        assert_eq!(set.intersection(last), last);
    }
}
