//! Runs given sequences in a worker process.

use super::{Answer, Task, exit_description, start_worker};
use crate::arguments::Common;
use hsa_vmm_conformance::fuzz::{Found, Kind, Moment, Sequence};
use hsa_vmm_conformance::worker::{Received, Worker};
use std::time::Duration;

/// Runs sequences in a worker process, and replaces the worker when it crashes or hangs.
#[derive(Debug)]
pub struct Executor<'a> {
    common: &'a Common,
    /// The time limit of an operation.
    pub time_limit: Duration,
    /// The runtime's description, once the worker has opened it.
    pub runtime: Option<String>,
    worker: Option<Worker>,
}

impl<'a> Executor<'a> {
    /// Creates an executor. The worker starts with the first sequence.
    pub fn new(common: &'a Common, time_limit: Duration) -> Self {
        Self { common, time_limit, runtime: None, worker: None }
    }

    /// Runs sequences one after another in one process until one fails. Returns its index and the
    /// finding.
    pub fn run(&mut self, sequences: &[Sequence]) -> anyhow::Result<Option<(usize, Found)>> {
        // A loaded library may keep state from earlier sequences; simulations are always new.
        if sequences.iter().any(|it| it.machine.is_none()) {
            self.worker = None;
        }
        let worker = match &mut self.worker {
            Some(worker) => worker,
            none => none.insert(start_worker(self.common)?),
        };
        worker.send(&Task::Perform(sequences.to_vec()));
        let (mut index, mut moment, mut found) = (0, Moment::Start, None);
        let (kind, words) = loop {
            match worker.receive(self.time_limit) {
                Received::Answer(Answer::Ready(runtime)) => self.runtime = Some(runtime),
                Received::Answer(Answer::At(operation)) => {
                    let length = sequences.get(index).map_or(0, |it| it.operations.len());
                    moment =
                        if operation < length { Moment::Operation(operation) } else { Moment::End };
                }
                Received::Answer(Answer::Done(_)) => (index, moment) = (index + 1, Moment::Start),
                Received::Answer(Answer::Found(it)) => found = Some((index, it)),
                Received::Answer(Answer::Idle) => return Ok(found),
                Received::Invalid(line) => {
                    anyhow::bail!("a worker process sent an invalid message: `{line}`")
                }
                Received::Timeout => {
                    break (Kind::Hang, format!("it did not end within {:?}", self.time_limit));
                }
                Received::Exited(end) => {
                    let words = exit_description(worker, end);
                    break (Kind::Crash, format!("the process ended ({words})"));
                }
            }
        };
        self.worker = None;
        Ok(Some((index, Found { kind, moment, words })))
    }
}
