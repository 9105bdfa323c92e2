//! Selectors of the objects of operations: mostly indexes of existing objects.

use serde::{Deserialize, Serialize};

/// A size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    /// A number of granules.
    Granules(u8),
    /// A number of granules plus one byte.
    #[serde(rename = "odd")]
    Unaligned(u8),
    /// More than any machine has.
    Huge,
}

/// Selects a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandleSelector {
    /// A valid handle, by index.
    Live(u8),
    /// Any handle ever returned, by index from the newest.
    Past(u8),
    /// A number that was never returned.
    Invented(u64),
}

/// Selects an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentSelector {
    /// An agent of this runtime, by index.
    Agent(u8),
    /// A GPU of this runtime, by index.
    Gpu(u8),
    /// An agent that this runtime does not have.
    Invented(u8),
    /// An agent of another runtime.
    Foreign(u8),
}

/// A region whose ends may be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The region.
    #[serde(rename = "place")]
    pub region: Region,
    /// How the start is moved.
    pub start: Shift,
    /// How the end is moved.
    pub end: Shift,
}

impl Span {
    /// Returns whether an end is moved.
    #[must_use]
    pub fn is_shifted(&self) -> bool {
        self.start != Shift::None || self.end != Shift::None
    }
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Region {
    /// Adjacent mappings: the index of the first, and their number.
    #[serde(rename = "run")]
    Adjacent(u8, u8),
    /// Adjacent mappings that an agent can write: the index of the first, and their number.
    Writable(u8, u8),
    /// Mappings and the holes between them: the index of the first mapping, and the number of mappings.
    Mappings(u8, u8),
    /// Granules of a reservation: the reservation's index, the first granule, and the number of granules.
    Granules(u8, u8, u8),
    /// The first hole of at least this size: the index of the reservation where the search begins, and the
    /// number of granules.
    Gap(u8, u8),
    /// A whole reservation.
    Reservation(u8),
    /// A freed reservation, by index from the newest.
    Freed(u8),
    /// Any address and any size.
    Anything(u64, u64),
}

/// How an end of a range is moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shift {
    /// Not at all.
    #[default]
    None,
    /// One granule up.
    GranuleOn,
    /// One granule down.
    GranuleBack,
    /// One byte up.
    ByteOn,
    /// One byte down.
    ByteBack,
    /// To the other end, so that the range is empty.
    Away,
}

/// An address in or after a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spot {
    /// The range.
    pub span: Span,
    /// The position.
    pub edge: Edge,
}

/// A position in or after a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Edge {
    /// The first byte.
    First,
    /// The middle.
    Middle,
    /// A number of bytes before the end.
    BeforeEnd(u8),
    /// The exclusive end.
    End,
}
