//! The levels, in the order in which a runtime and a driver come to life.

use clap::ValueEnum;
use serde::Serialize;

/// A level; each rests on those before it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// The library loads and has the functions
    Library,
    /// hsa_init succeeds
    Runtime,
    /// There is a GPU
    Agents,
    /// A GPU has a pool of memory with a granule
    Pools,
    /// One page of addresses is reserved
    Reserved,
    /// One handle of memory is made
    Handle,
    /// The memory is at the addresses
    Mapped,
    /// The processor writes and reads it
    Cpu,
    /// A GPU writes and reads it
    Gpu,
    /// Another GPU writes and reads it
    Peer,
    /// Another process writes and reads it
    Shared,
    /// Threads do all this at once
    Load,
}

impl Level {
    /// All, from the lowest.
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

    /// As it stands on the ladder.
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

    /// Its name as an argument: `cpu`.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}
