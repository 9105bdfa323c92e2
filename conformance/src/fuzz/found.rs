//! What a sequence has brought to light.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What a sequence has brought to light.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// What kind of thing.
    pub kind: Kind,
    /// When.
    pub moment: Moment,
    /// What, in words.
    pub words: String,
}

/// What kind of thing was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The library did not do what the documents say.
    Difference,
    /// The process ended.
    Crash,
    /// An operation did not end.
    Hang,
}

/// When something was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// Before the first operation, when the library was opened and first used.
    Start,
    /// In an operation, counted from 0, or when it was looked at what that has left.
    Operation(usize),
    /// Behind the last operation, when all was given back.
    End,
    /// Nobody saw when.
    Unknown,
}

impl Found {
    /// Whether another finding is of the same sort: names of the same thing, with other numbers.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        self.kind == other.kind && (self.kind != Kind::Difference || self.sort() == other.sort())
    }

    /// The words as far as they tell no number.
    fn sort(&self) -> &str {
        let end = self.words.find(|it: char| it.is_ascii_digit() || "([{".contains(it));
        &self.words[..end.unwrap_or(self.words.len())]
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.moment {
            Moment::Start => f.write_str("at the start: ")?,
            Moment::Operation(at) => write!(f, "operation {}: ", at + 1)?,
            Moment::End => f.write_str("at the end: ")?,
            Moment::Unknown => f.write_str("somewhere: ")?,
        }
        f.write_str(&self.words)
    }
}
