//! The worker processes that run the sequences.

use super::arguments::Fuzz;
use super::progress::Progress;
use crate::choice::note_dimmed;
use crate::executor::{Message, Task, exit_description, hang_description, start_worker};
use crate::interrupt::Interrupt;
use hsa_vmm_conformance::fuzz::{Failure, FailureKind, FailurePoint, Generator, SequenceRuntime};
use hsa_vmm_conformance::worker::{Received, Worker, wait_for_any};
use std::time::{Duration, Instant};

/// The worker processes. They are killed on drop.
pub struct Workers<'a> {
    args: &'a Fuzz,
    /// Whether to print the description of the runtime as soon as a worker has opened the runtime.
    prints_runtime: bool,
    workers: Vec<FuzzWorker>,
}

struct FuzzWorker {
    worker: Worker,
    /// The number of the sequence that the worker runs.
    number: u64,
    /// The time when the last message arrived.
    last_message: Instant,
    /// When the last sequence ended, or the worker was started.
    last_end: Instant,
    /// Whether the worker has opened its runtime.
    ready: bool,
    /// Whether the worker has run all its sequences.
    idle: bool,
}

/// The result of [`Workers::watch`].
pub enum Outcome {
    /// The time is up, all sequences have run, or the run was interrupted.
    NoFailure,
    /// The sequence with this number failed.
    Failed(u64, Failure),
}

/// The interval at which [`Workers::watch`] checks the time and looks for hung workers.
const POLL: Duration = Duration::from_millis(100);

impl<'a> Workers<'a> {
    /// Starts `count` workers. Worker `i` runs sequences `i`, `i + count`, `i + 2 * count`, …
    pub fn start(args: &'a Fuzz, generator: &Generator, count: usize) -> anyhow::Result<Self> {
        let mut workers = Vec::with_capacity(count);
        for first in 0..count {
            let mut worker = start_worker(&args.common)?;
            let number = first as u64;
            let (generator, step, end) = (generator.clone(), count as u64, args.sequences);
            worker.send(&Task::Generate { generator, first: number, step, end });
            let last_message = Instant::now();
            let last_end = last_message;
            workers.push(FuzzWorker {
                worker,
                number,
                last_message,
                last_end,
                ready: false,
                idle: false,
            });
        }
        let prints_runtime = generator.runtime != SequenceRuntime::Any;
        Ok(Self { args, prints_runtime, workers })
    }

    /// Waits until the time is up, all sequences have run, a sequence fails or the run is interrupted. When the time is
    /// up, waits for the end of each worker's sequence, so that a hang or crash of a running sequence is found.
    pub fn watch(
        &mut self,
        progress: &mut Progress,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Outcome> {
        let mut time_up = None;
        loop {
            if progress.is_time_up() {
                time_up.get_or_insert_with(Instant::now);
            }
            let is_awaited = |worker: &FuzzWorker| {
                !worker.idle && time_up.is_none_or(|time_up| worker.last_end < time_up)
            };
            if interrupt.arrived() || !self.workers.iter().any(is_awaited) {
                return Ok(Outcome::NoFailure);
            }
            wait_for_any(self.workers.iter().map(|worker| &worker.worker), POLL);
            for index in 0..self.workers.len() {
                if let Some(outcome) = self.handle_messages(index, progress)? {
                    return Ok(outcome);
                }
            }
            progress.show(self.args.sequences.is_some());
            if let Some(hung) = self.find_hung() {
                return Ok(hung);
            }
        }
    }

    /// Handles all messages that a worker has sent.
    fn handle_messages(
        &mut self,
        index: usize,
        progress: &mut Progress,
    ) -> anyhow::Result<Option<Outcome>> {
        let step = self.workers.len() as u64;
        let worker = &mut self.workers[index];
        loop {
            match worker.worker.receive(Duration::ZERO) {
                Received::Timeout => return Ok(None),
                Received::Message(Message::Ready(runtime)) => {
                    worker.ready = true;
                    if std::mem::take(&mut self.prints_runtime) {
                        note_dimmed(&format!("runtime: {runtime}"));
                    }
                }
                Received::Message(Message::Done(counts)) => {
                    progress.sequences += 1;
                    progress.operations += counts.operations;
                    progress.rejected += counts.rejected;
                    worker.number += step;
                    worker.last_end = Instant::now();
                }
                Received::Message(Message::Failed(failure)) => {
                    return Ok(Some(Outcome::Failed(worker.number, failure)));
                }
                Received::Message(Message::At(_)) => {}
                Received::Message(Message::Idle) => worker.idle = true,
                Received::Invalid(line) => {
                    anyhow::bail!("a worker process sent an invalid message: `{line}`")
                }
                Received::Exited(end) => {
                    let exit = exit_description(&worker.worker, end);
                    if !worker.ready {
                        anyhow::bail!("cannot load the runtime in a worker process: {exit}");
                    }
                    let description = format!("the process ended ({exit})");
                    let failure = Failure {
                        kind: FailureKind::Crash,
                        point: FailurePoint::Unknown,
                        description,
                    };
                    return Ok(Some(Outcome::Failed(worker.number, failure)));
                }
            }
            worker.last_message = Instant::now();
        }
    }

    /// Returns a hang if a worker has sent nothing for longer than the time limit.
    fn find_hung(&self) -> Option<Outcome> {
        let limit = self.args.time_limit;
        let is_hung = |worker: &&FuzzWorker| !worker.idle && worker.last_message.elapsed() > limit;
        let worker = self.workers.iter().find(is_hung)?;
        let description = hang_description(&worker.worker, limit);
        let failure =
            Failure { kind: FailureKind::Hang, point: FailurePoint::Unknown, description };
        Some(Outcome::Failed(worker.number, failure))
    }
}
