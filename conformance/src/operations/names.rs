//! What operations work on, by its place among what there is.

use serde::{Deserialize, Serialize};

/// A size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    /// So many granules.
    Granules(u8),
    /// So many granules and a byte.
    Odd(u8),
    /// More than there is.
    Huge,
}

/// A handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandleName {
    /// One that names something, by its place.
    Live(u8),
    /// One that was given out once, by its place from the newest.
    Past(u8),
    /// One that nobody gave out.
    Invented(u64),
}

/// An agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentName {
    /// One of this runtime, by its place in the list.
    Agent(u8),
    /// A GPU, by its place among them.
    Gpu(u8),
    /// One that this runtime does not have.
    Invented(u8),
    /// One of another runtime.
    Foreign(u8),
}

/// A range of addresses, and what is done to its edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The range.
    pub place: Region,
    /// How its start is moved.
    pub start: Shift,
    /// How its end is moved.
    pub end: Shift,
}

impl Span {
    /// Whether it is just the place.
    #[must_use]
    pub fn is_not_shifted(&self) -> bool {
        self.start == Shift::None && self.end == Shift::None
    }
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Region {
    /// From one mapping on, so many, as long as each begins where the one before it ends.
    Run(u8, u8),
    /// The same among the mappings that some agent may write.
    Writable(u8, u8),
    /// From one mapping on, so many, and what is between them.
    Mappings(u8, u8),
    /// From one granule of a reservation on, so many.
    Granules(u8, u8, u8),
    /// The first place, from one reservation on, with so many granules that are not mapped.
    Gap(u8, u8),
    /// A whole reservation.
    Reservation(u8),
    /// A reservation that was freed, by its place from the newest.
    Freed(u8),
    /// Any address and so many bytes.
    Anything(u64, u64),
}

/// How an edge of a range is moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shift {
    /// Not at all.
    #[default]
    None,
    /// A granule further on.
    GranuleOn,
    /// A granule back.
    GranuleBack,
    /// A byte further on.
    ByteOn,
    /// A byte back.
    ByteBack,
    /// To the other edge, so that nothing is left.
    Away,
}

/// An address at a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spot {
    /// The range.
    pub span: Span,
    /// Where at it.
    pub edge: Edge,
}

/// Where at a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Edge {
    /// Its first byte.
    First,
    /// In its middle.
    Middle,
    /// So many bytes before its end.
    BeforeEnd(u8),
    /// The byte behind it.
    End,
}
