//! Performing given sequences in a process of their own.

use super::{Answer, Event, Task, Worker};
use crate::arguments::Common;
use hsa_vmm_conformance::fuzz::{Found, Kind, Moment, Sequence};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Performs sequences in a process of their own, watches it, and starts another when it is gone.
#[derive(Debug)]
pub struct Performer<'a> {
    common: &'a Common,
    /// How long an operation may take.
    pub patience: Duration,
    /// What runtime it has, as soon as it has one.
    pub runtime: Option<String>,
    ear: Sender<(usize, Event)>,
    heard: Receiver<(usize, Event)>,
    worker: Option<Worker>,
    /// Counts the workers, so that what an earlier one said is not taken for a later one's.
    number: usize,
}

impl<'a> Performer<'a> {
    /// Nothing is started yet.
    pub fn new(common: &'a Common, patience: Duration) -> Self {
        let (ear, heard) = channel();
        Self { common, patience, runtime: None, ear, heard, worker: None, number: 0 }
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
            None => {
                self.number += 1;
                self.worker.insert(Worker::start(self.common, self.number, self.ear.clone())?)
            }
        };
        worker.ask(&Task::Perform(sequences.to_vec()))?;
        let (mut at, mut moment, mut found) = (0, Moment::Start, None);
        let mut until = Instant::now() + self.patience;
        loop {
            let event =
                match self.heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok((number, _)) if number != self.number => continue,
                    Ok((_, event)) => event,
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                        self.worker = None;
                        let words = format!("it did not end within {:?}", self.patience);
                        return Ok(Some((at, Found { kind: Kind::Hang, moment, words })));
                    }
                };
            until = Instant::now() + self.patience;
            match event {
                Event::Answer(Answer::Ready(runtime)) => self.runtime = Some(runtime),
                Event::Answer(Answer::At(operation)) => {
                    let length = sequences.get(at).map_or(0, |it| it.operations.len());
                    moment =
                        if operation < length { Moment::Operation(operation) } else { Moment::End };
                }
                Event::Answer(Answer::Done(_)) => (at, moment) = (at + 1, Moment::Start),
                Event::Answer(Answer::Found(it)) => found = Some((at, it)),
                Event::Answer(Answer::Idle) => return Ok(found),
                Event::Ended => {
                    let Some(mut worker) = self.worker.take() else { return Ok(found) };
                    let (_, words) = worker.end();
                    let words = format!("the process ended ({words})");
                    return Ok(Some((at, Found { kind: Kind::Crash, moment, words })));
                }
            }
        }
    }
}
