//! A level seen from outside: its process, what it recorded, and what came of it.

use super::arguments::Bringup;
use super::failure::answered_error;
use super::level::Level;
use super::record::{Begin, End as Return, Number, Record};
use crate::contained::{self, Contained, End, Next};
use anyhow::Context;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// One call, and its return if it has returned.
#[derive(Clone, Debug)]
pub struct Call {
    pub begin: Begin,
    pub end: Option<Return>,
}

/// What came of a level.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Reached,
    /// It does not apply here.
    Skipped(String),
    Failed(Cause),
}

/// Why a level was not reached.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// There is no library; what was tried.
    NoLibrary(String),
    /// This call answered this.
    Status(usize, u32),
    /// All calls were answered well, and this is wrong; after this call.
    Wrong(Option<usize>, String),
    /// The process crashed, in these calls (the last begun first).
    Crash(Vec<usize>, End),
    /// It was still in these calls when its time was over.
    Hang(Vec<usize>, Duration),
}

/// A level, climbed.
#[derive(Debug)]
pub struct Ascent {
    pub level: Level,
    pub outcome: Outcome,
    pub calls: Vec<Call>,
    pub facts: Vec<String>,
    /// The library, if one was loaded; `Some(None)` is the simulation.
    pub runtime: Option<Option<String>>,
    pub took: Duration,
    /// The lines of the emulated driver's log, with where each begins; none if it is not emulated.
    pub driver: Option<Vec<(u64, String)>>,
    /// All that the runtime printed.
    pub said: String,
}

/// The runtime's own log: libhsakmt's, on standard error. Seen to work with 6.1.2, 6.4.3 and 7.2.4,
/// whose runtime proper logs nothing more, whatever `HSA_ENABLE_DEBUG` says.
pub const RUNTIME_LOG: (&str, &str) = ("HSAKMT_DEBUG_LEVEL", "7");

/// Climbs one level in a process of its own.
pub fn ascend(verb: &Bringup, level: Level) -> anyhow::Result<Ascent> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    // What the user wants to keep goes on being written to.
    let wanted = std::env::var_os("HSA_KFD_LOG").filter(|file| !file.is_empty());
    let driver_log = wanted.map_or_else(|| folder.path().join("driver"), Into::into);
    let length = |path: &Path| fs::metadata(path).map_or(0, |file| file.len());
    let driver_from = length(&driver_log);

    let arguments = std::env::args_os().skip(1).chain(["--climb".into(), level.name().into()]);
    let mut command = contained::again(arguments).context("cannot start this program again")?;
    command.env("HSA_KFD_LOG", &driver_log).stdin(std::process::Stdio::null());
    if std::env::var_os(RUNTIME_LOG.0).is_none() {
        command.env(RUNTIME_LOG.0, RUNTIME_LOG.1);
    }
    let began = Instant::now();
    let mut process = Contained::start(command).context("cannot start this program again")?;
    let mut told = Told::default();
    let (mut end, mut late) = (None, false);
    while end.is_none() && !late {
        match process.next(verb.time_limit.saturating_sub(began.elapsed())) {
            Next::Line(line) => told.hear(&line),
            Next::Nothing => end = Some(process.finish()?),
            Next::Late => late = true,
        }
    }
    process.stop()?;
    // What was said before it was stopped.
    while let Next::Line(line) = process.next(Duration::from_millis(50)) {
        told.hear(&line);
    }
    let took = began.elapsed();
    let said = process.said(0, None);
    let end = if late { End::Stopped } else { end.unwrap_or(End::Stopped) };
    let outcome = told.outcome(end, verb.time_limit);
    let driver = emulated(&driver_log, driver_from, &told);
    let Told { calls, facts, runtime, .. } = told;
    let mut ascent = Ascent { level, outcome, calls, facts, runtime, took, driver, said };
    ascent.blame();
    Ok(ascent)
}

/// The lines that the level's processes left in the emulated driver's log.
fn emulated(path: &Path, from: u64, told: &Told) -> Option<Vec<(u64, String)>> {
    let bytes = fs::read(path).ok()?;
    let bytes = bytes.get(usize::try_from(from).ok()?..)?;
    let process = |call: &Call| call.begin.task.split_inclusive(':').next().map(str::to_owned);
    let pids: BTreeSet<_> = told.calls.iter().filter_map(process).collect();
    let mut at = from;
    let mut lines = Vec::new();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let text = String::from_utf8_lossy(line);
        if pids.iter().any(|pid| text.starts_with(pid.as_str())) {
            lines.push((at, text.trim_end().to_owned()));
        }
        at += line.len() as u64;
    }
    Some(lines)
}

/// What a level's process has told so far.
#[derive(Debug, Default)]
struct Told {
    calls: Vec<Call>,
    facts: Vec<String>,
    runtime: Option<Option<String>>,
    no_library: Option<String>,
    failed: Option<Number>,
    wrong: Option<(Option<Number>, String)>,
    skipped: Option<String>,
    reached: bool,
}

impl Told {
    fn hear(&mut self, line: &str) {
        let record = match serde_json::from_str(line) {
            Ok(record) => record,
            Err(error) => {
                tracing::warn!(line, %error, "not understood");
                return;
            }
        };
        match record {
            Record::Begin(begin) => self.calls.push(Call { begin, end: None }),
            Record::End(end) => {
                let of = |call: &&mut Call| call.begin.number == end.number;
                if let Some(call) = self.calls.iter_mut().rev().find(of) {
                    call.end = Some(end);
                }
            }
            // The first is what the others followed from.
            Record::Failed(number) => drop(self.failed.get_or_insert(number)),
            Record::Wrong(number, what) => drop(self.wrong.get_or_insert((number, what))),
            Record::Skip(why) => self.skipped = Some(why),
            Record::Fact(fact) => self.facts.push(fact),
            Record::Runtime(path) => self.runtime = Some(path),
            Record::NoLibrary(tried) => self.no_library = Some(tried),
            Record::Reached => self.reached = true,
        }
    }

    fn outcome(&self, end: End, limit: Duration) -> Outcome {
        if let Some(tried) = &self.no_library {
            return Outcome::Failed(Cause::NoLibrary(tried.clone()));
        }
        if let Some(number) = self.failed {
            let index = self.place(number);
            let status =
                index.and_then(|index| self.calls[index].end.as_ref()).and_then(|end| end.status);
            if let (Some(index), Some(status)) = (index, status) {
                return Outcome::Failed(Cause::Status(index, status));
            }
        }
        let last = self.calls.len().checked_sub(1);
        match end {
            End::Stopped => return Outcome::Failed(Cause::Hang(self.in_flight(), limit)),
            End::Exited(0) => {}
            _ => return Outcome::Failed(Cause::Crash(self.in_flight(), end)),
        }
        if let Some((number, what)) = &self.wrong {
            let index = number.and_then(|number| self.place(number));
            let waits = index.is_some_and(|index| self.calls[index].begin.call == "wait");
            // What another process was in when it was lost says more than that it was waited for.
            let other = self.in_flight().first().copied().filter(|_| waits);
            return Outcome::Failed(Cause::Wrong(other.or(index), what.clone()));
        }
        match (&self.skipped, self.reached) {
            (Some(why), _) => Outcome::Skipped(why.clone()),
            (None, true) => Outcome::Reached,
            (None, false) => {
                let what = "its process ended without a word".to_owned();
                Outcome::Failed(Cause::Wrong(last, what))
            }
        }
    }

    fn place(&self, number: Number) -> Option<usize> {
        self.calls.iter().position(|call| call.begin.number == number)
    }

    /// The calls that have not returned, the last begun first; without those, the last of all, as
    /// what crashed after it may be what it left behind.
    fn in_flight(&self) -> Vec<usize> {
        let open = |index: &usize| self.calls[*index].end.is_none();
        let mut flying: Vec<_> = (0..self.calls.len()).rev().filter(open).collect();
        // Who only waits for another process is not what hangs.
        flying.sort_by_key(|index| self.calls[*index].begin.call == "wait");
        flying
    }
}

impl Cause {
    /// The call that is to blame, as far as known.
    pub fn call(&self) -> Option<usize> {
        match self {
            Self::NoLibrary(_) => None,
            Self::Status(index, _) => Some(*index),
            Self::Wrong(index, _) => *index,
            Self::Crash(calls, _) | Self::Hang(calls, _) => calls.first().copied(),
        }
    }
}

impl Ascent {
    /// Of several threads' calls, the one to which the driver answered an error comes first.
    fn blame(&mut self) {
        let Outcome::Failed(mut cause) = self.outcome.clone() else { return };
        if let Cause::Crash(calls, _) | Cause::Hang(calls, _) = &mut cause {
            let refused = |index: &usize| {
                let lines = self.driver_during(&self.calls[*index]);
                lines.into_iter().any(answered_error)
            };
            calls.sort_by_cached_key(|index| !refused(index));
        }
        self.outcome = Outcome::Failed(cause);
    }

    /// The lines of the emulated driver's log that belong to a call: its thread's, while it ran.
    pub fn driver_during(&self, call: &Call) -> Vec<&str> {
        let from = call.begin.logs.driver;
        let to = call.end.as_ref().map_or(u64::MAX, |end| end.logs.driver);
        let own = format!("{} ", call.begin.task);
        let lines = self.driver.iter().flatten();
        lines
            .filter(|(at, line)| (from..to).contains(at) && line.starts_with(&own))
            .map(|(_, line)| line.as_str())
            .collect()
    }

    /// What the runtime printed during a call.
    pub fn said_during(&self, call: &Call) -> &str {
        let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(self.said.len());
        let from = place(call.begin.logs.runtime);
        let to = call.end.as_ref().map_or(self.said.len(), |end| place(end.logs.runtime));
        // Another call's beginning could lie within a letter only if a runtime printed half of one.
        self.said.get(from..to).unwrap_or_default()
    }
}
