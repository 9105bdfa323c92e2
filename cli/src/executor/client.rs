//! Runs given sequences in a worker process.

use super::{Message, Task, exit_description, hang_description, start_worker};
use crate::arguments::CommonOptions;
use crate::interrupt::Interrupt;
use hsa_vmm_conformance::fuzz::{Failure, FailureKind, FailurePoint, Sequence};
use hsa_vmm_conformance::worker::{Received, Worker};
use std::time::{Duration, Instant};

/// The interval at which the executor checks whether the run was interrupted.
const POLL: Duration = Duration::from_millis(100);

/// Runs sequences in a worker process, and replaces the worker when it crashes or hangs.
#[derive(Debug)]
pub struct Executor<'a> {
    common: &'a CommonOptions,
    /// The time limit of an operation.
    pub time_limit: Duration,
    /// The description of the runtime, once the worker has opened the runtime.
    pub runtime_description: Option<String>,
    worker: Option<Worker>,
    /// The signal that ends a run early.
    interrupt: Interrupt,
}

impl<'a> Executor<'a> {
    /// Creates an executor. The worker starts with the first sequence.
    pub fn new(common: &'a CommonOptions, time_limit: Duration, interrupt: Interrupt) -> Self {
        Self { common, time_limit, runtime_description: None, worker: None, interrupt }
    }

    /// Runs sequences one after another in one process until a sequence fails. Returns the index of the
    /// failed sequence and the failure. `None` if no sequence has failed, or if the run is interrupted.
    pub fn run(&mut self, sequences: &[Sequence]) -> anyhow::Result<Option<(usize, Failure)>> {
        // A loaded library can keep state from earlier sequences, so each run needs a new worker. Each sequence on a
        // simulation has a simulation of its own, so the worker can be used again.
        if sequences.iter().any(|sequence| sequence.machine.is_none()) {
            self.worker = None;
        }
        let worker = match &mut self.worker {
            Some(worker) => worker,
            none => none.insert(start_worker(self.common)?),
        };
        worker.send(&Task::Perform(sequences.to_vec()));
        let (mut index, mut point, mut failed) = (0, FailurePoint::Start, None);
        let mut last_message = Instant::now();
        let (kind, description) = loop {
            let remaining = self.time_limit.saturating_sub(last_message.elapsed());
            let received = worker.receive(remaining.min(POLL));
            if self.interrupt.arrived() {
                self.worker = None;
                return Ok(None);
            }
            match received {
                Received::Timeout if last_message.elapsed() < self.time_limit => continue,
                Received::Message(Message::Ready(text)) => self.runtime_description = Some(text),
                Received::Message(Message::At(operation)) => {
                    let length =
                        sequences.get(index).map_or(0, |sequence| sequence.operations.len());
                    point = if operation < length {
                        FailurePoint::Operation(operation)
                    } else {
                        FailurePoint::End
                    };
                }
                Received::Message(Message::Done(_)) => {
                    (index, point) = (index + 1, FailurePoint::Start)
                }
                Received::Message(Message::Failed(failure)) => failed = Some((index, failure)),
                Received::Message(Message::Idle) => return Ok(failed),
                Received::Invalid(line) => {
                    anyhow::bail!("a worker process sent an invalid message: `{line}`")
                }
                Received::Timeout => {
                    break (FailureKind::Hang, hang_description(worker, self.time_limit));
                }
                Received::Exited(end) => {
                    let exit = exit_description(worker, end);
                    break (FailureKind::Crash, format!("the process ended ({exit})"));
                }
            }
            last_message = Instant::now();
        };
        self.worker = None;
        Ok(Some((index, Failure { kind, point, description })))
    }
}
