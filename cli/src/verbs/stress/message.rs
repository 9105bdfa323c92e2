//! What a process of a scene tells the one that started it.

use super::measure::Leak;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A line.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// It begins: the runtime has started.
    Started,
    /// There is no runtime.
    NoRuntime(String),
    /// So far.
    Progress(Progress),
    /// It gives back what it holds.
    GivesBack(Progress),
    /// It is done.
    Done(Box<Done>),
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Progress {
    /// How many calls of the library it has made.
    pub operations: u64,
    /// What it holds of what the scene is about: items, bytes, descriptors, mappings.
    pub held: u64,
    /// The most of it that there can be; 0 if that is not known.
    pub limit: u64,
}

/// What came of it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Done {
    pub operations: u64,
    /// How long the operations took, in microseconds.
    pub microseconds: u64,
    /// The most that was held at once.
    pub most: u64,
    pub limit: u64,
    /// Errors that the scene is about, and how often.
    pub expected: BTreeMap<String, u64>,
    /// Errors that it is not about, and how often.
    pub unexpected: BTreeMap<String, u64>,
    pub leaks: Vec<Leak>,
    /// Why the scene does not apply.
    pub skipped: Option<String>,
}
