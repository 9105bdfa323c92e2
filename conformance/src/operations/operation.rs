//! What can be asked for.

use super::names::{AgentName, Amount, HandleName, Span, Spot};
use serde::{Deserialize, Serialize};

/// A call with all its arguments; numbers that are too large begin again at the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "operation", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the arguments have the names of the call's")]
pub enum Operation {
    /// Reserves addresses.
    Reserve { size: Amount, alignment: Alignment, hint: Hint, flags: u8 },
    /// Frees addresses.
    Free { span: Span },
    /// Makes memory.
    Create { size: Amount, on: AgentName, uncached: bool, handle_types: u8, flags: u8 },
    /// Drops a reference to memory.
    Release { handle: HandleName },
    /// Maps memory.
    Map { handle: HandleName, span: Span, extent: Extent, offset: Amount, flags: u8 },
    /// Unmaps memory.
    Unmap { span: Span },
    /// Says who may do what: 0 nothing, 1 read, 3 read and write.
    SetAccess { span: Span, grants: Vec<(AgentName, u8)> },
    /// Asks what an agent may do.
    GetAccess { agent: AgentName, spot: Spot },
    /// Takes memory away from agents.
    Revoke { span: Span, agents: Vec<AgentName> },
    /// Takes a reference to what is mapped somewhere.
    Retain { spot: Spot },
    /// Makes a descriptor of memory.
    Export { handle: HandleName, handle_type: u8, flags: u8 },
    /// Makes a handle of a descriptor.
    Import { descriptor: Descriptor, handle_type: u8 },
    /// Closes an exported descriptor.
    Close { exported: u8 },
    /// Asks what memory is.
    Properties { handle: HandleName },
    /// Has the CPU write so many bytes, each this one.
    Write { spot: Spot, size: u8, byte: u8 },
    /// Has the CPU read so many bytes.
    Read { spot: Spot, size: u8 },
    /// Has the memory's owner fill a span.
    Fill { span: Span, value: u32 },
    /// Has an agent copy as much as both spans hold.
    Copy { agent: AgentName, to: Span, from: Span },
    /// Drops the library with all that it holds, and opens it again.
    Shutdown,
}

/// How a reservation is to be aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Alignment {
    /// As the library likes.
    None,
    /// To two to this power bytes.
    PowerOfTwo(u8),
    /// To a number that is no power of two.
    Wrong,
}

/// Where a reservation is to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hint {
    /// Anywhere.
    None,
    /// At the end of another.
    Behind(u8),
    /// In the middle of another.
    Inside(u8),
    /// Where one was that is freed.
    Freed(u8),
    /// At an address that is no multiple of anything.
    Odd(u8),
}

/// How much of a handle is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Extent {
    /// All of it.
    Whole,
    /// As much as the span.
    Span,
    /// One granule more than it has.
    TooMuch,
}

/// What is imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Descriptor {
    /// What was exported, by its place.
    Exported(u8),
    /// `/dev/null`.
    Null,
    /// A socket.
    Socket,
    /// A file of the file system that is as large as memory could be.
    File,
}
