//! The messages between the parent process and its worker, one line of JSON each.

use crate::describe::{Description, ProbeDescription};
use crate::run_case::CaseResult;
use serde::{Deserialize, Serialize};

/// A message to the worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Run the case with this name once.
    Run(String),
    /// Stop the runtime and exit.
    Stop,
}

/// A message from the worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The runtime has started.
    Started {
        /// A description for display.
        note: String,
        runtime: Box<Description>,
    },
    /// The runtime has not started.
    NotStarted {
        error: String,
        /// True if no runtime was found or started, false if an argument is invalid.
        no_runtime: bool,
    },
    /// The case has ended, with this result.
    Ended(CaseResult),
    /// The quirks that the worker has probed for. The reply `Stopped` follows.
    Probed(Vec<ProbeDescription>),
    /// The runtime has stopped.
    Stopped,
}
