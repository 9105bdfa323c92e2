//! The messages between the two processes, one line of JSON each.

use crate::describe::Description;
use crate::run_case::CaseResult;
use serde::{Deserialize, Serialize};

/// To the worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Run this case once.
    Run(String),
    /// Stop the runtime and exit.
    Stop,
}

/// From the worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The runtime has started.
    Started {
        /// A description for people.
        note: String,
        /// The description of the runtime.
        runtime: Box<Description>,
    },
    /// The runtime has not started.
    NotStarted {
        /// Why.
        error: String,
        /// Whether the runtime failed, as opposed to an invalid argument.
        no_runtime: bool,
    },
    /// The result of a case.
    Ended(CaseResult),
    /// The runtime has stopped.
    Stopped,
}
