//! The measured operations.

use core::fmt;
use serde::Serialize;

/// A call of virtual memory management, or a complete cycle of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Opens a runtime and its virtual memory management; measured by
    /// [`measure_opening`](crate::measure_opening).
    Open,
    /// Reserves 2 MiB of addresses.
    Reserve,
    /// Creates 2 MiB of memory on the first GPU.
    Create,
    /// Maps the memory at a free page between the live mappings.
    Map,
    /// Grants access to the mapping in one call, to all GPUs that can access the first GPU's memory.
    SetAccess,
    /// Queries the first GPU's access to a random mapping: a live mapping, or one that the round has made.
    GetAccess,
    /// Retains the handle of a random mapping, as for `GetAccess`. Dropping the reference is not measured.
    Retain,
    /// Queries the properties of a handle. At the raw level, queries its pool and memory type.
    Properties,
    /// Exports a descriptor. Closing the descriptor is not measured.
    Export,
    /// Imports the exported descriptor. Releasing the handle is not measured.
    Import,
    /// Unmaps a mapping with access.
    Unmap,
    /// Releases a handle.
    Release,
    /// Frees a reservation.
    Free,
    /// Reserves, creates, maps, sets access, gets access, unmaps, releases and frees.
    Cycle,
}

impl Operation {
    /// The operations of a round, in their order. These are all operations except `Open`.
    pub const ROUND: [Self; 13] = [
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

    /// Returns the name in results, such as `set_access`.
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
