//! The result of a replay.

use super::Rule;
use crate::trace::{Operation, TraceError};
use hsa_vmm::Error;
use serde::Serialize;
use std::collections::BTreeMap;

/// The result of a replay. `operations` = `agreed` + all of `excused` + `divergent`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReplayReport {
    /// The number of operations that the replay performed or excused.
    pub operations: u64,
    /// The number of operations with the recorded result.
    pub agreed: u64,
    /// The number of operations whose difference a rule permits, by rule.
    pub excused: BTreeMap<Rule, u64>,
    /// The number of operations whose result differs although no rule permits the difference.
    pub divergent: u64,
    /// The number of operations that were not compared, because a divergent operation precedes them in their trace.
    pub not_compared: u64,
    /// The first divergence.
    pub first: Option<Divergence>,
}

/// A result that differs from the recorded result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Divergence {
    /// The index of the trace in its file.
    pub trace: usize,
    /// The trace's seed.
    pub seed: u64,
    /// The index of the operation in its trace.
    pub index: usize,
    /// The operation.
    pub operation: Operation,
    /// The recorded result.
    pub expected: String,
    /// The result on this runtime.
    pub got: String,
    /// The difference, or the library's message.
    pub why: String,
}

impl std::fmt::Display for Divergence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { trace, seed, index, operation, expected, got, why } = self;
        // Use the format of the trace file.
        let operation = serde_json::to_string(operation).map_err(|_| std::fmt::Error)?;
        write!(f, "trace {trace} (seed {seed}), operation {index}: {operation}")?;
        write!(f, "\n  recorded {expected}, here {got}: {why}")
    }
}

/// The error of a replay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// A trace could not be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The library cannot be opened on the runtime, for example because the runtime has no virtual memory management.
    #[error("cannot replay on this runtime: {0}")]
    Vmm(#[from] Error),
    /// The trace was recorded with more GPUs than the runtime has.
    #[error("trace {trace} was recorded with {needed} GPUs and this runtime has {present}")]
    TooFewGpus {
        /// The index of the trace in the file.
        trace: usize,
        /// The number of GPUs that the trace needs.
        needed: usize,
        /// The number of GPUs of the runtime.
        present: usize,
    },
    /// The runtime's granule is larger than the recorded granule, so that the library would reject most calls.
    #[error(
        "trace {trace} was recorded with a granule of {recorded:#x} bytes; this runtime's is \
         {granule:#x}"
    )]
    CoarserGranule {
        /// The index of the trace in the file.
        trace: usize,
        /// The recorded granule.
        recorded: usize,
        /// The granule of this runtime.
        granule: usize,
    },
}
