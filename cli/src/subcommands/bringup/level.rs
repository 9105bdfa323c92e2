//! The levels, in the order in which a runtime and a driver start to work.

use clap::ValueEnum;
use serde::Serialize;

/// A level. Each requires those before it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// The library loads and has the functions
    Library,
    /// hsa_init succeeds
    Runtime,
    /// There is a GPU
    Agents,
    /// A GPU has a memory pool with a valid granule
    Pools,
    /// A page of addresses can be reserved
    Reserved,
    /// A handle can be created
    Handle,
    /// The memory can be mapped
    Mapped,
    /// The CPU writes and reads the memory
    Cpu,
    /// A GPU writes and reads the memory
    Gpu,
    /// Another GPU writes and reads the memory
    Peer,
    /// Another process writes and reads the memory
    Shared,
    /// Several threads do all of this at once
    Load,
}

impl Level {
    /// All levels, in order.
    pub const ALL: [Self; 12] = [
        Self::Library,
        Self::Runtime,
        Self::Agents,
        Self::Pools,
        Self::Reserved,
        Self::Handle,
        Self::Mapped,
        Self::Cpu,
        Self::Gpu,
        Self::Peer,
        Self::Shared,
        Self::Load,
    ];

    /// Returns the title shown in reports.
    pub fn title(self) -> &'static str {
        match self {
            Self::Library => "library loads",
            Self::Runtime => "runtime starts",
            Self::Agents => "agents",
            Self::Pools => "pools, granules",
            Self::Reserved => "one page reserved",
            Self::Handle => "one handle",
            Self::Mapped => "mapped",
            Self::Cpu => "CPU access",
            Self::Gpu => "GPU access",
            Self::Peer => "peer access",
            Self::Shared => "shared",
            Self::Load => "under load",
        }
    }

    /// Returns the name as an argument: `cpu`.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}
