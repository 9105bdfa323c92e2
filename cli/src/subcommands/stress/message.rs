//! The messages of a worker process to its parent.

use super::measure::Leak;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A message, one line of JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// The runtime has started.
    Started {
        /// Whether the runtime is a simulation.
        simulation: bool,
    },
    /// There is no runtime. Contains the reason.
    NoRuntime(String),
    /// The progress so far.
    Progress(Progress),
    /// The process has begun to release its resources.
    Releasing(Progress),
    /// The process has ended the scenario.
    Done(Box<ProcessResult>),
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Progress {
    /// The number of library calls made.
    pub operations: u64,
    /// The amount of the scenario's resource that the process holds: items, bytes, descriptors or mappings.
    pub held: u64,
    /// The limit of that resource. Zero if it is unknown.
    pub limit: u64,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct ProcessResult {
    pub operations: u64,
    /// How long the operations took, in microseconds.
    pub microseconds: u64,
    /// The maximum of [`Progress::held`].
    pub most: u64,
    /// The limit of the resource. Zero if it is unknown.
    pub limit: u64,
    /// Errors that the scenario provokes, with their counts.
    pub expected: BTreeMap<String, u64>,
    /// All other errors, with their counts.
    pub unexpected: BTreeMap<String, u64>,
    pub leaks: Vec<Leak>,
    /// The reason why the scenario does not apply.
    pub skipped: Option<String>,
}
