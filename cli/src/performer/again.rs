//! Performing given sequences again.

use super::{Answer, Task, last_words, start};
use crate::arguments::Common;
use hsa_vmm_conformance::fuzz::{Found, Kind, Moment, Sequence};
use hsa_vmm_conformance::worker::{Heard, Worker};
use std::time::Duration;

/// Performs sequences in a process of their own, watches it, and starts another when it is gone.
#[derive(Debug)]
pub struct Performer<'a> {
    common: &'a Common,
    /// How long an operation may take.
    pub patience: Duration,
    /// What runtime it has, as soon as it has one.
    pub runtime: Option<String>,
    worker: Option<Worker>,
}

impl<'a> Performer<'a> {
    /// Nothing is started yet.
    pub fn new(common: &'a Common, patience: Duration) -> Self {
        Self { common, patience, runtime: None, worker: None }
    }

    /// Performs sequences one after the other in one process, and says what they have brought to
    /// light, which ends them, and in which of them.
    pub fn perform(&mut self, sequences: &[Sequence]) -> anyhow::Result<Option<(usize, Found)>> {
        // A library keeps what went wrong in it; a simulation is a new one each time.
        if sequences.iter().any(|it| it.machine.is_none()) {
            self.worker = None;
        }
        let worker = match &mut self.worker {
            Some(worker) => worker,
            none => none.insert(start(self.common)?),
        };
        worker.tell(&Task::Perform(sequences.to_vec()));
        let (mut at, mut moment, mut found) = (0, Moment::Start, None);
        let (kind, words) = loop {
            match worker.hear(self.patience) {
                Heard::Answer(Answer::Ready(runtime)) => self.runtime = Some(runtime),
                Heard::Answer(Answer::At(operation)) => {
                    let length = sequences.get(at).map_or(0, |it| it.operations.len());
                    moment =
                        if operation < length { Moment::Operation(operation) } else { Moment::End };
                }
                Heard::Answer(Answer::Done(_)) => (at, moment) = (at + 1, Moment::Start),
                Heard::Answer(Answer::Found(it)) => found = Some((at, it)),
                Heard::Answer(Answer::Idle) => return Ok(found),
                Heard::Garbage(line) => anyhow::bail!("a process to work in said `{line}`"),
                Heard::Late => {
                    break (Kind::Hang, format!("it did not end within {:?}", self.patience));
                }
                Heard::Ended(end) => {
                    let words = last_words(worker, end);
                    break (Kind::Crash, format!("the process ended ({words})"));
                }
            }
        };
        self.worker = None;
        Ok(Some((at, Found { kind, moment, words })))
    }
}
