//! Runs sequences of operations in worker processes, because a defect of the runtime can crash or hang
//! the process.
//!
//! Each [worker](hsa_vmm_conformance::worker) is this command, started with the hidden subcommand `worker`. A worker
//! receives [`Task`]s and sends [`Message`]s.

mod client;
mod serve;

pub use client::Executor;
pub use serve::serve;

use crate::arguments::CommonOptions;
use anyhow::Context;
use hsa_vmm_conformance::contain::NotRun;
use hsa_vmm_conformance::fuzz::{Counts, Failure, Generator, Sequence};
use hsa_vmm_conformance::worker::{End, Output, Received, Worker};
use hsa_vmm_conformance::{Ended, Lost};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A task for a worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Generate and run sequences until one fails.
    Generate {
        /// Generates the sequences.
        generator: Generator,
        /// The number of the first sequence.
        first: u64,
        /// The difference between the numbers of consecutive sequences.
        step: u64,
        /// The exclusive end of the sequences' numbers. `None`: no end.
        end: Option<u64>,
    },
    /// Run these sequences one after another until one fails.
    Perform(Vec<Sequence>),
}

/// A message from a worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// The runtime was opened. Contains its description.
    Ready(String),
    /// The operation with this index begins. If the index is the number of operations, the final checks begin.
    At(usize),
    /// A sequence has ended without a failure.
    Done(Counts),
    /// A sequence has failed.
    Failed(Failure),
    /// The task is done. The worker waits for the next task.
    Idle,
}

/// Starts a worker that opens the runtime of these options.
pub fn start_worker(common: &CommonOptions) -> anyhow::Result<Worker> {
    let started = crate::program::worker_command().and_then(|mut command| {
        command.arg("worker").args(common.to_arguments());
        Worker::start(command, Output::Capture)
    });
    started.context("cannot start a worker process")
}

/// Starts the runtime in a worker and stops the worker. Fails if the runtime hangs or crashes when it starts. Other
/// failures are found again, and reported, when this process starts the runtime.
pub fn check_start(common: &CommonOptions, limit: Duration) -> anyhow::Result<()> {
    let mut worker = start_worker(common)?;
    let how = match worker.receive::<Message>(limit) {
        Received::Timeout => Ended::TimeLimit(limit.as_millis().try_into().unwrap_or(u64::MAX)),
        Received::Exited(end @ End::Signal(_)) => Ended::Signal(end.to_string()),
        _ => return Ok(()),
    };
    Err(NotRun::LostAtStart(Lost { how, last_call: worker.last_call() }).into())
}

/// The number of last lines of a worker's output that are shown.
const LAST_LINES: usize = 8;

/// Describes a hang of a worker that has sent nothing for `limit`: with its last native call, if one is known.
pub fn hang_description(worker: &Worker, limit: Duration) -> String {
    format!("it did not end within {limit:?}{}", last_call_suffix(worker))
}

/// Returns the worker's last native call after a comma: `, in hsa_init`. Returns an empty text if no call is known.
fn last_call_suffix(worker: &Worker) -> String {
    worker.last_call().map_or_else(String::new, |call| format!(", {call}"))
}

/// Describes how a worker ended, with its last native call and its last output.
pub fn exit_description(worker: &Worker, end: End) -> String {
    let printed = worker.captured_output();
    let lines: Vec<_> = printed.lines().collect();
    let last = lines.get(lines.len().saturating_sub(LAST_LINES)..).unwrap_or_default();
    let colon = if last.is_empty() { "" } else { ": " };
    format!("{end}{}{colon}{}", last_call_suffix(worker), last.join(" | "))
}
