//! The processes that perform the sequences, and watching them.

use super::arguments::Fuzz;
use super::progress::Progress;
use crate::choice::say;
use crate::performer::{Answer, Task, last_words, start};
use hsa_vmm_conformance::fuzz::{Drawing, Found, Kind, Machine, Moment};
use hsa_vmm_conformance::worker::{Heard, Worker, listen};
use std::time::{Duration, Instant};

/// The processes; they end when this is dropped.
pub struct Crew<'a> {
    verb: &'a Fuzz,
    tells_runtime: bool,
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
        let mut members = Vec::with_capacity(size);
        for first in 0..size {
            let mut worker = start(&verb.common)?;
            let number = first as u64;
            let (drawing, step, end) = (drawing.clone(), size as u64, verb.sequences);
            worker.tell(&Task::Draw { drawing, first: number, step, end });
            let heard = Instant::now();
            members.push(Member { worker, number, heard, ready: false, idle: false });
        }
        let tells_runtime = drawing.machine != Machine::Any;
        Ok(Self { verb, tells_runtime, members })
    }

    /// Waits until the time is up or something is found.
    pub fn watch(&mut self, progress: &mut Progress) -> anyhow::Result<Ended> {
        while !progress.is_over() && self.members.iter().any(|member| !member.idle) {
            listen(self.members.iter().map(|member| &member.worker), LOOK);
            for member in 0..self.members.len() {
                if let Some(ended) = self.hear(member, progress)? {
                    return Ok(ended);
                }
            }
            progress.show(self.verb.sequences.is_some());
            if let Some(hung) = self.hung() {
                return Ok(hung);
            }
        }
        Ok(Ended::Well)
    }

    /// Hears what one of them has said since.
    fn hear(&mut self, member: usize, progress: &mut Progress) -> anyhow::Result<Option<Ended>> {
        let step = self.members.len() as u64;
        let member = &mut self.members[member];
        loop {
            match member.worker.hear(Duration::ZERO) {
                Heard::Late => return Ok(None),
                Heard::Answer(Answer::Ready(runtime)) => {
                    member.ready = true;
                    if std::mem::take(&mut self.tells_runtime) {
                        say(&format!("runtime: {runtime}"));
                    }
                }
                Heard::Answer(Answer::Done(tally)) => {
                    progress.sequences += 1;
                    progress.operations += tally.operations;
                    progress.refused += tally.refused;
                    member.number += step;
                }
                Heard::Answer(Answer::Found(found)) => {
                    return Ok(Some(Ended::Found(member.number, found)));
                }
                Heard::Answer(Answer::At(_)) => {}
                Heard::Answer(Answer::Idle) => member.idle = true,
                Heard::Garbage(line) => anyhow::bail!("a process to work in said `{line}`"),
                Heard::Ended(end) => {
                    let how = last_words(&member.worker, end);
                    if !member.ready {
                        anyhow::bail!(
                            "the runtime cannot be loaded in a process of its own: {how}"
                        );
                    }
                    let words = format!("the process ended ({how})");
                    let found = Found { kind: Kind::Crash, moment: Moment::Unknown, words };
                    return Ok(Some(Ended::Found(member.number, found)));
                }
            }
            member.heard = Instant::now();
        }
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
