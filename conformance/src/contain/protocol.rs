//! What the two processes say to each other: JSON, an object a line.

use crate::attempt::Attempt;
use crate::describe::Description;
use serde::{Deserialize, Serialize};

/// To the worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Put this case to the runtime once.
    Run(String),
    /// Stop the runtime and end.
    Stop,
}

/// From the worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The runtime has started.
    Started {
        /// What a person should know of it.
        note: String,
        /// What it is.
        runtime: Box<Description>,
    },
    /// It has not.
    NotStarted {
        /// Why.
        error: String,
        /// Whether the runtime is to blame, and not what was asked for.
        no_runtime: bool,
    },
    /// What came of a case.
    Ended(Attempt),
    /// The runtime has stopped.
    Stopped,
}
