//! The measured operations.

use core::fmt;
use serde::Serialize;

/// A call of virtual-memory management, or the whole life of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// A runtime, and virtual-memory management on it; by [`opening`](crate::opening()).
    Open,
    /// 2 MiB of addresses.
    Reserve,
    /// 2 MiB of memory on the first GPU.
    Create,
    /// All of it, in a hole between the live mappings.
    Map,
    /// For all GPUs, in one call.
    SetAccess,
    /// Of the first GPU, at one of the live mappings.
    GetAccess,
    /// The handle of one of the live mappings. The reference is dropped unmeasured.
    Retain,
    /// What memory was made with; raw: the pool it came from.
    Properties,
    /// A descriptor. It is closed unmeasured.
    Export,
    /// A handle of that descriptor. It is released unmeasured.
    Import,
    /// What was mapped, with the access that was set.
    Unmap,
    /// What was created.
    Release,
    /// What was reserved.
    Free,
    /// Reserve, create, map, set access, get access, unmap, release, free.
    Cycle,
}

impl Operation {
    /// All that a round performs, in its order.
    pub const ALL: [Self; 13] = [
        Self::Reserve,
        Self::Create,
        Self::Map,
        Self::SetAccess,
        Self::GetAccess,
        Self::Retain,
        Self::Properties,
        Self::Export,
        Self::Import,
        Self::Unmap,
        Self::Release,
        Self::Free,
        Self::Cycle,
    ];

    /// As it is written in results: `set_access`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Reserve => "reserve",
            Self::Create => "create",
            Self::Map => "map",
            Self::SetAccess => "set_access",
            Self::GetAccess => "get_access",
            Self::Retain => "retain",
            Self::Properties => "properties",
            Self::Export => "export",
            Self::Import => "import",
            Self::Unmap => "unmap",
            Self::Release => "release",
            Self::Free => "free",
            Self::Cycle => "cycle",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
