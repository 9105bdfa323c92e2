//! Access of agents to memory, and sets of agents.

use crate::agent::AgentId;
use derive_more::Display;

/// The access of an agent to mapped memory (`hipMemAccessFlags`; HSA has the same numbers).
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
    /// No access (`hipMemAccessFlagsProtNone`, 0). Enforced for CPUs, and for GPUs whose page tables the
    /// [`Vmm`](crate::Vmm) controls; otherwise only recorded ([`Vmm::enforcement`](crate::Vmm::enforcement)).
    #[default]
    #[display("none")]
    None = 0,
    /// Read (`hipMemAccessFlagsProtRead`, 1). Enforced like [`None`](Self::None).
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

    /// Returns the access with this number; `None` for numbers other than 0, 1 and 3.
    pub fn from_bits(bits: u32) -> Option<Self> {
        match bits {
            0 => Some(Self::None),
            1 => Some(Self::Read),
            3 => Some(Self::ReadWrite),
            _ => None,
        }
    }
}

/// An agent and the access to set for it (`hipMemAccessDesc`).
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
    /// The access to set.
    pub access: Access,
}

impl AccessDescriptor {
    /// Returns a descriptor with this access for each agent.
    pub(crate) fn of_each(agents: &[AgentId], access: Access) -> Vec<Self> {
        agents.iter().map(|&agent| Self { agent, access }).collect()
    }
}

/// The maximum number of agents in an [`AgentSet`]. `Vmm::open` rejects a runtime with more agents.
pub(crate) const MAX_AGENTS: usize = 128;

/// The access of each agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccessSet {
    /// The agents with read access.
    pub read: AgentSet,
    /// The agents with write access, a subset of `read`.
    write: AgentSet,
}

impl AccessSet {
    /// No access for any agent.
    pub const NONE: Self = Self { read: AgentSet::NONE, write: AgentSet::NONE };

    pub fn get(&self, agent: usize) -> Access {
        self.highest_of(AgentSet::single(agent))
    }

    /// Returns the highest access that any of these agents has.
    pub fn highest_of(&self, agents: AgentSet) -> Access {
        let [read, write] = [self.read, self.write].map(|it| !it.intersection(agents).is_empty());
        match (read, write) {
            (_, true) => Access::ReadWrite,
            (true, false) => Access::Read,
            (false, false) => Access::None,
        }
    }

    pub fn set(&mut self, agent: usize, access: Access) {
        let (agents, none) = (AgentSet::single(agent), AgentSet::NONE);
        let read = if access >= Access::Read { agents } else { none };
        let write = if access == Access::ReadWrite { agents } else { none };
        self.copy_from(agents, Self { read, write });
    }

    /// Copies the access of these agents from another set.
    pub fn copy_from(&mut self, agents: AgentSet, source: Self) {
        let merge =
            |old: AgentSet, new: AgentSet| old.difference(agents).union(new.intersection(agents));
        *self =
            Self { read: merge(self.read, source.read), write: merge(self.write, source.write) };
    }

    /// Returns the agents whose access differs between the two sets.
    pub fn differing(&self, other: &Self) -> AgentSet {
        AgentSet(self.read.0 ^ other.read.0 | self.write.0 ^ other.write.0)
    }
}

/// A set of agents, by their index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AgentSet(u128);

impl AgentSet {
    /// The empty set.
    pub const NONE: Self = Self(0);

    fn single(agent: usize) -> Self {
        Self(1 << agent)
    }

    pub fn contains(&self, agent: usize) -> bool {
        !self.intersection(Self::single(agent)).is_empty()
    }

    pub fn insert(&mut self, agent: usize) {
        *self = self.union(Self::single(agent));
    }

    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }

    /// Returns the agents that are in at least one of the two sets.
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the agents that are in both sets.
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the agents of this set that are not in `other`.
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

/// The access to a mapping: what the caller has requested, and what the runtime has granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccessState {
    /// The access that the caller has set for each agent.
    pub requested: AccessSet,
    /// The agents to which the runtime has granted access. Each GPU among them can read and write the memory until it
    /// is unmapped, whatever `requested` contains. This does not apply to a GPU whose page table the library
    /// controls. If a CPU is among them, the runtime, not the library, has mapped the memory for the CPU, so unmapping
    /// can leave an address-space hole (`vmm::cpu_view`).
    pub runtime_granted: AgentSet,
}

impl AccessState {
    /// No access for any agent.
    pub const NONE: Self = Self { requested: AccessSet::NONE, runtime_granted: AgentSet::NONE };
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
    fn access_numbers_match_hip() {
        for (access, bits, name) in [
            (Access::None, 0, "none"),
            (Access::Read, 1, "read"),
            (Access::ReadWrite, 3, "read and write"),
        ] {
            assert_eq!((access.to_bits(), access.to_string().as_str()), (bits, name));
            assert_eq!(Access::from_bits(bits), Some(access));
        }
        for bits in [2, 4, 7, u32::MAX] {
            assert_eq!(Access::from_bits(bits), None, "{bits}");
        }
    }

    #[test]
    fn agents_have_independent_access() {
        let all = [Access::None, Access::Read, Access::ReadWrite];
        let mut set = AccessSet::default();
        for agent in 0..MAX_AGENTS {
            set.set(agent, all[agent % 3]);
        }
        for agent in (0..MAX_AGENTS).rev() {
            assert_eq!(set.get(agent), all[agent % 3], "agent {agent}");
            set.set(agent, Access::None);
        }
        assert_eq!(set, AccessSet::default());
    }

    #[test]
    fn agent_sets_hold_every_index() {
        let mut set = AgentSet::default();
        for agent in [0, 63, 64, 127] {
            set.insert(agent);
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63, 64, 127]);
        assert!(!set.contains(1) && !set.contains(65));
        assert_eq!([0, 63, 64, 127].into_iter().collect::<AgentSet>(), set);
        let [first, last]: [AgentSet; 2] =
            [[0, 64], [63, 127]].map(|indices| indices.into_iter().collect());
        assert_eq!((set.difference(first), first.union(last)), (last, set));
        assert_eq!(first.difference(set), AgentSet::NONE);
        assert_eq!(set.intersection(last), last);
    }
}
