//! Failures of sequences.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The failure of a sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The kind of failure.
    pub kind: FailureKind,
    /// When the failure occurred.
    #[serde(rename = "moment")]
    pub point: FailurePoint,
    /// The description.
    pub description: String,
}

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The library did not behave as documented.
    Difference,
    /// The process ended before the sequence did.
    Crash,
    /// An operation did not end.
    Hang,
}

/// When a failure occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailurePoint {
    /// Before the first operation, when the library was opened and first used.
    Start,
    /// In the operation with this index, or in the comparison after the operation.
    Operation(usize),
    /// After the last operation, while everything was released.
    End,
    /// Unknown.
    Unknown,
}

impl Failure {
    /// Returns whether two failures have the same kind. Two differences must also have the same description up to the
    /// first number or list.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        self.kind == other.kind
            && (self.kind != FailureKind::Difference || self.prefix() == other.prefix())
    }

    /// Returns the description up to the first number or list.
    fn prefix(&self) -> &str {
        let end = self.description.find(|it: char| it.is_ascii_digit() || "([{".contains(it));
        &self.description[..end.unwrap_or(self.description.len())]
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.point {
            FailurePoint::Start => f.write_str("at the start: ")?,
            FailurePoint::Operation(at) => write!(f, "operation {}: ", at + 1)?,
            FailurePoint::End => f.write_str("at the end: ")?,
            FailurePoint::Unknown => f.write_str("at an unknown time: ")?,
        }
        f.write_str(&self.description)
    }
}
