//! The levels, from basic to demanding.

use clap::ValueEnum;
use serde::Serialize;

/// A level of the test. Each level requires all earlier levels.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// The library loads and has the required functions
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
    /// GPU and CPU see the same data in several pages
    Data,
    /// GPU and CPU see the same data, copied by DMA engines
    Sdma,
    /// GPU and CPU see the same data, copied by the runtime's own kernels
    Blit,
    /// A GPU reads the part of the memory that its page table names
    Offset,
    /// A GPU cannot write without permission in its page table
    Permission,
    /// Unmapped memory can no longer be accessed
    Unmapped,
    /// A GPU uses memory immediately after it is granted access
    // The name in JSON.
    #[value(alias = "at_once")]
    AtOnce,
    /// Freed memory can be allocated again
    Reused,
    /// An allocation reduces the available memory, and its release restores it
    Counted,
    /// No call leaks a file descriptor
    Descriptors,
    /// Another GPU writes and reads the memory
    Peer,
    /// Another process writes and reads the memory
    Shared,
    /// Several threads map, write and read memory at once
    Load,
    /// Several processes fill the memory at once
    Pressure,
    /// The memory of a killed process is returned
    Killed,
}

impl Level {
    /// All levels, in order.
    pub const ALL: [Self; 24] = [
        Self::Library,
        Self::Runtime,
        Self::Agents,
        Self::Pools,
        Self::Reserved,
        Self::Handle,
        Self::Mapped,
        Self::Cpu,
        Self::Gpu,
        Self::Data,
        Self::Sdma,
        Self::Blit,
        Self::Offset,
        Self::Permission,
        Self::Unmapped,
        Self::AtOnce,
        Self::Reused,
        Self::Counted,
        Self::Descriptors,
        Self::Peer,
        Self::Shared,
        Self::Load,
        Self::Pressure,
        Self::Killed,
    ];

    /// Returns whether `--program` can write a C program that repeats the level. The levels without a program fill or
    /// hold memory in several processes.
    pub fn is_repeatable_in_c(self) -> bool {
        !matches!(self, Self::Pressure | Self::Killed)
    }

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
            Self::Data => "data, both views",
            Self::Sdma => "copies by SDMA",
            Self::Blit => "copies by kernels",
            Self::AtOnce => "used at once",
            Self::Unmapped => "unmapped",
            Self::Reused => "freed and reused",
            Self::Counted => "memory counted",
            Self::Descriptors => "descriptors",
            Self::Peer => "peer access",
            Self::Shared => "shared",
            Self::Offset => "part of memory",
            Self::Permission => "permission",
            Self::Load => "under load",
            Self::Pressure => "memory pressure",
            Self::Killed => "process killed",
        }
    }

    /// Returns the number of granules of the level's memory.
    pub fn granule_count(self) -> usize {
        match self {
            Self::Data | Self::Sdma | Self::Blit => 4,
            Self::Offset => 2,
            _ => 1,
        }
    }

    /// Returns the environment variable that the level's process needs, and the value of the variable.
    pub fn environment_variable(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Sdma => Some(("HSA_ENABLE_SDMA", "1")),
            Self::Blit => Some(("HSA_ENABLE_SDMA", "0")),
            _ => None,
        }
    }

    /// Returns the name in arguments: `cpu`.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_reports_are_accepted() {
        for level in Level::ALL {
            let in_json = serde_json::to_value(level).unwrap();
            for name in [level.name(), in_json.as_str().unwrap().to_owned()] {
                assert_eq!(Level::from_str(&name, false), Ok(level));
            }
        }
    }
}
