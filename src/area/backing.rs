//! What is behind the memory of an area.

use super::locked::LockedMemory;
use super::mapped::MappedMemory;
use crate::memory::PoolMemory;
use core::fmt;

/// What is behind the memory of an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backing {
    /// Physical memory of the device, mapped at reserved addresses (`hsa_amd_vmem_*`).
    Virtual,
    /// Memory of a pool of the device or the host, opened to agents
    /// (`hsa_amd_memory_pool_allocate`, `hsa_amd_agents_allow_access`): that of the host always,
    /// since AMD's runtimes have no virtual memory there before ROCm 10, and that of the device
    /// where runtime or driver have none at all.
    Pool,
    /// The caller's own memory, locked for agents (`hsa_amd_memory_lock`).
    Locked,
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Virtual => "virtual memory",
            Self::Pool => "pool memory",
            Self::Locked => "locked memory",
        })
    }
}

/// The memory itself.
#[derive(Debug)]
pub(super) enum Holding {
    Mapped(MappedMemory),
    Pool(PoolMemory),
    Locked(LockedMemory),
}
