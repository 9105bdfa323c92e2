//! Sequences of operations, performed in processes of their own.
//!
//! What a runtime does wrong may end the process or never end at all; what is performed elsewhere
//! can be watched, ended and done again. Its [workers](hsa_vmm_conformance::worker) are this command
//! once more, with the hidden verb `worker`: they are told [`Task`]s, and say [`Answer`]s.

mod again;
mod serve;

pub use again::Performer;
pub use serve::serve;

use crate::arguments::Common;
use anyhow::Context;
use hsa_vmm_conformance::fuzz::{Drawing, Found, Sequence, Tally};
use hsa_vmm_conformance::worker::{End, Prints, Worker};
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

/// Starts a worker on the same runtime.
pub fn start(common: &Common) -> anyhow::Result<Worker> {
    let started = hsa_rocr::again().and_then(|mut command| {
        command.arg("worker").args(common.words());
        Worker::start(command, Prints::Kept)
    });
    started.context("cannot start a process to work in")
}

/// How many lines of what a worker printed are shown.
const LINES: usize = 8;

/// How a worker ended, and what it printed last.
pub fn last_words(worker: &Worker, end: End) -> String {
    let printed = worker.printed();
    let lines: Vec<_> = printed.lines().collect();
    let last = lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default();
    let colon = if last.is_empty() { "" } else { ": " };
    format!("{end}{colon}{}", last.join(" | "))
}
