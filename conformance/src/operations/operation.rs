//! The operations.

use super::selectors::{AgentSelector, Amount, HandleSelector, Span, Spot};
use serde::{Deserialize, Serialize};

/// A call with all its arguments. Indexes that are too large wrap around.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "operation", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the arguments are named as those of the call")]
pub enum Operation {
    /// Reserves addresses.
    Reserve { size: Amount, alignment: Alignment, hint: Hint, flags: u8 },
    /// Frees addresses.
    Free { span: Span },
    /// Creates memory.
    Create { size: Amount, on: AgentSelector, uncached: bool, handle_types: u8, flags: u8 },
    /// Drops a reference to memory.
    Release { handle: HandleSelector },
    /// Maps memory.
    Map { handle: HandleSelector, span: Span, extent: Extent, offset: Amount, flags: u8 },
    /// Unmaps memory.
    Unmap { span: Span },
    /// Sets access of agents: 0 none, 1 read, 3 read and write.
    SetAccess { span: Span, grants: Vec<(AgentSelector, u8)> },
    /// Queries an agent's access.
    GetAccess { agent: AgentSelector, spot: Spot },
    /// Revokes agents' access.
    Revoke { span: Span, agents: Vec<AgentSelector> },
    /// Retains the handle of a mapping.
    Retain { spot: Spot },
    /// Exports memory as a descriptor.
    Export { handle: HandleSelector, handle_type: u8, flags: u8 },
    /// Imports a descriptor.
    Import { descriptor: Descriptor, handle_type: u8 },
    /// Closes an exported descriptor.
    Close { exported: u8 },
    /// Queries the properties of memory.
    Properties { handle: HandleSelector },
    /// Writes `size` bytes with the CPU: `byte`, `byte + 1`, …
    Write { spot: Spot, size: u8, byte: u8 },
    /// Reads `size` bytes with the CPU.
    Read { spot: Spot, size: u8 },
    /// Fills a span. The GPU that owns the memory writes the value.
    Fill { span: Span, value: u32 },
    /// Copies as many bytes as the smaller span has. The agent makes the copy.
    Copy { agent: AgentSelector, to: Span, from: Span },
    /// Drops the library with all of its objects, and opens it again.
    Shutdown,
}

/// The requested alignment of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Alignment {
    /// No alignment.
    None,
    /// Two to this power, in bytes.
    PowerOfTwo(u8),
    /// Not a power of two.
    Wrong,
}

/// The requested address of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hint {
    /// No address.
    None,
    /// At the end of another reservation, by index.
    Behind(u8),
    /// In the middle of another reservation, by index.
    Inside(u8),
    /// At a freed reservation, by index from the newest.
    Freed(u8),
    /// At an unaligned address behind the reservation with this index.
    #[serde(rename = "odd")]
    Unaligned(u8),
}

/// How much of a handle's memory is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Extent {
    /// All memory of the handle from the offset on.
    Whole,
    /// As many bytes as the span has.
    Span,
    /// One granule more than the handle has from the offset on.
    TooMuch,
}

/// The descriptor to import.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Descriptor {
    /// An exported descriptor, by index.
    Exported(u8),
    /// `/dev/null`.
    Null,
    /// A socket.
    Socket,
    /// A regular file. On runtimes that would accept a file as memory, `/dev/null` instead.
    File,
}
