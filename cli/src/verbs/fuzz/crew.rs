//! The processes that perform the sequences, and watching them.

use super::arguments::Fuzz;
use super::progress::Progress;
use crate::choice::say;
use crate::worker::{Answer, Event, Task, Worker};
use hsa_vmm_conformance::fuzz::{Drawing, Found, Kind, Machine, Moment};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The processes; they end when this is dropped.
pub struct Crew<'a> {
    verb: &'a Fuzz,
    tells_runtime: bool,
    heard: Receiver<(usize, Event)>,
    members: Vec<Member>,
}

struct Member {
    worker: Worker,
    /// The number of the sequence that it performs.
    number: u64,
    /// When something was heard of it.
    heard: Instant,
    /// It has a runtime.
    ready: bool,
    idle: bool,
}

/// How it ended.
pub enum Ended {
    /// The time is up, or all sequences are through.
    Well,
    /// The sequence of this number has shown something.
    Found(u64, Found),
}

/// How often it is looked whether all is well.
const LOOK: Duration = Duration::from_millis(100);

impl<'a> Crew<'a> {
    /// Of so many, each takes every so manieth sequence.
    pub fn start(verb: &'a Fuzz, drawing: &Drawing, size: usize) -> anyhow::Result<Self> {
        let (ear, heard) = channel();
        let mut members = Vec::with_capacity(size);
        for first in 0..size {
            let mut worker = Worker::start(&verb.common, first, ear.clone())?;
            worker.ask(&Task::Draw {
                drawing: drawing.clone(),
                first: first as u64,
                step: size as u64,
                end: verb.sequences,
            })?;
            let number = first as u64;
            let heard = Instant::now();
            members.push(Member { worker, number, heard, ready: false, idle: false });
        }
        let tells_runtime = drawing.machine != Machine::Any;
        Ok(Self { verb, tells_runtime, heard, members })
    }

    /// Waits until the time is up or something is found.
    pub fn watch(&mut self, progress: &mut Progress) -> anyhow::Result<Ended> {
        while !progress.is_over() && self.members.iter().any(|member| !member.idle) {
            match self.heard.recv_timeout(LOOK) {
                Ok((member, event)) => {
                    if let Some(ended) = self.hear(member, event, progress)? {
                        return Ok(ended);
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            progress.show(self.verb.sequences.is_some());
            if let Some(hung) = self.hung() {
                return Ok(hung);
            }
        }
        Ok(Ended::Well)
    }

    fn hear(
        &mut self,
        member: usize,
        event: Event,
        progress: &mut Progress,
    ) -> anyhow::Result<Option<Ended>> {
        let step = self.members.len() as u64;
        let member = &mut self.members[member];
        member.heard = Instant::now();
        match event {
            Event::Answer(Answer::Ready(runtime)) => {
                member.ready = true;
                if std::mem::take(&mut self.tells_runtime) {
                    say(&format!("runtime: {}", runtime));
                }
            }
            Event::Answer(Answer::Done(tally)) => {
                progress.sequences += 1;
                progress.operations += tally.operations;
                progress.refused += tally.refused;
                member.number += step;
            }
            Event::Answer(Answer::Found(found)) => {
                return Ok(Some(Ended::Found(member.number, found)));
            }
            Event::Answer(Answer::At(_)) => {}
            Event::Answer(Answer::Idle) => member.idle = true,
            Event::Ended => {
                let (_, how) = member.worker.end();
                if !member.ready {
                    anyhow::bail!("the runtime cannot be loaded in a process of its own: {how}");
                }
                let words = format!("the process ended ({how})");
                let found = Found { kind: Kind::Crash, moment: Moment::Unknown, words };
                return Ok(Some(Ended::Found(member.number, found)));
            }
        }
        Ok(None)
    }

    /// Whether nothing is heard of one of them.
    fn hung(&self) -> Option<Ended> {
        let silent = |it: &&Member| !it.idle && it.heard.elapsed() > self.verb.time_limit;
        let member = self.members.iter().find(silent)?;
        let words = format!("it did not end within {:?}", self.verb.time_limit);
        let found = Found { kind: Kind::Hang, moment: Moment::Unknown, words };
        Some(Ended::Found(member.number, found))
    }
}
