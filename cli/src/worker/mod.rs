//! Processes of this command that perform sequences of operations for it.
//!
//! What a runtime does wrong may end the process or never end at all; what is performed elsewhere
//! can be watched, ended and done again. A worker is this command once more, with the hidden verb
//! `worker`: it reads a [`Task`] a line and writes an [`Answer`] a line.

mod child;
mod performer;
mod process;

pub use child::serve;
pub use performer::Performer;
pub use process::{Event, Worker};

use hsa_vmm_conformance::fuzz::{Drawing, Found, Sequence, Tally};
use serde::{Deserialize, Serialize};

/// What a worker is to do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Performs sequences that it draws itself, until one shows something.
    Draw {
        /// Which there are.
        drawing: Drawing,
        /// The number of the first.
        first: u64,
        /// How much further on the next one is.
        step: u64,
        /// The number that is none any more.
        end: Option<u64>,
    },
    /// Performs these, one after the other, until one shows something.
    Perform(Vec<Sequence>),
}

/// What a worker says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It has a runtime: that is what.
    Ready(String),
    /// It performs a sequence's operation of this place now, or what comes after the last.
    At(usize),
    /// A sequence is through, and nothing was found.
    Done(Tally),
    /// A sequence has shown something.
    Found(Found),
    /// The task is done.
    Idle,
}
