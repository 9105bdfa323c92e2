//! Putting cases to a runtime in a process of its own.

use super::hangs::{Hangs, SHORT};
use super::protocol::{Answer, Request};
use super::{STARTS, STOPS};
use crate::attempt::{Attempt, Ended, Lost};
use crate::describe::Description;
use crate::plan::Plan;
use crate::run::{FAILED_BEFORE, Progress};
use crate::tally::Tally;
use crate::worker::{End, Output, Received, Worker, signal_name};
use crate::{Options, Report, Status};
use std::fmt;
use std::io;
use std::process::Command;
use std::time::{Duration, Instant};

/// How cases are contained.
pub struct Containment<'a> {
    /// A command whose process calls [`serve`](super::serve). Its standard input, output and errors
    /// are taken; what it prints goes to this process's standard error.
    pub command: &'a mut dyn FnMut() -> io::Result<Command>,
    /// How long a case may take; and the start of the runtime, and its stop. When three cases have
    /// hung in one native function, those that are found in it after a second are not waited for any
    /// longer ([`Event::Hangs`]).
    pub time_limit: Duration,
}

impl fmt::Debug for Containment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Containment").field("time_limit", &self.time_limit).finish_non_exhaustive()
    }
}

/// What happens in a run.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The runtime has started for the first time; what a person should know of it.
    Started(&'a str),
    /// A case has ended.
    Case(Progress<'a>),
    /// The process did not survive a case. [`Case`](Self::Case) follows.
    Lost {
        /// The case's name.
        case: &'a str,
        /// How the process ended.
        lost: &'a Lost,
    },
    /// Several cases have hung in the same native function.
    Hangs {
        /// Its name.
        function: &'a str,
        /// How long a case may take from now on, if it is in that function then.
        limit: Duration,
    },
}

/// Why nothing could be tried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotRun {
    /// The worker cannot be started, or something else of the system's failed.
    #[error("the process for the cases cannot be started")]
    System(#[from] io::Error),
    /// There is no runtime, or it does not start, as it says itself.
    #[error("{0}")]
    NoRuntime(String),
    /// What was asked for is not to be had.
    #[error("{0}")]
    Refused(String),
    /// The runtime took its process along while it started.
    #[error("while the runtime started, it {0}")]
    LostAtStart(Lost),
}

/// How often in a row a runtime may fail to start before that is the end of it.
const STARTS_TRIED: usize = 3;

const STARTS_NO_MORE: &str = "not tried: the runtime does not start any more";

/// Puts every chosen case to a runtime that a worker opens, and says what happens.
///
/// A worker that did not survive a case is replaced, and the case is reported as failed
/// ([`CaseReport::lost`](crate::CaseReport::lost)). If the runtime does not stop or does not start
/// again, the report has a failed case more, `runtime.library.stops` or `runtime.library.starts`.
///
/// # Errors
/// [`NotRun`] if the runtime did not start at all.
pub fn run(
    containment: Containment<'_>,
    options: &Options,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<Report, NotRun> {
    let Containment { command, time_limit } = containment;
    let plan = Plan::new(options);
    let mut tally = Tally::new(&plan, options);
    let (worker, note, runtime) = begin(command, time_limit)?;
    on_event(Event::Started(&note));
    let mut worker = Some(worker);
    let mut hangs = Hangs::default();
    let mut untried = FAILED_BEFORE;
    let total = plan.steps.len();
    for (index, &place) in plan.steps.iter().enumerate() {
        let Some(case) = plan.chosen.get(place) else { continue };
        let working = match &mut worker {
            Some(working) => working,
            none => match begin_again(command, time_limit) {
                Ok(working) => none.insert(working),
                Err((attempt, error)) => {
                    tally.add_more(&STARTS, failed(attempt, &error), &runtime);
                    untried = STARTS_NO_MORE;
                    break;
                }
            },
        };
        let began = Instant::now();
        working.send(&Request::Run(case.name.to_owned()));
        let attempt = match answer_unless(&hangs, working, time_limit) {
            Ok(Answer::Ended(attempt)) => attempt,
            Ok(other) => unexpected(&other),
            Err(lost) => lost_at(lost, began),
        };
        if let Some(lost) = &attempt.lost {
            worker = None;
            on_event(Event::Lost { case: case.name, lost });
            if let Some(function) = hangs.count(lost).filter(|_| SHORT < time_limit) {
                on_event(Event::Hangs { function, limit: SHORT });
            }
        }
        let report = tally.add(place, case, attempt, &runtime);
        on_event(Event::Case(Progress { done: index + 1, total, case: &report }));
        if options.fail_fast && report.status == Status::Fail {
            break;
        }
    }
    if let Some(worker) = worker {
        let began = Instant::now();
        if let Err(lost) = stop(worker, time_limit) {
            tally.add_more(&STOPS, lost_at(lost, began), &runtime);
        }
    }
    Ok(tally.report(&plan, runtime, untried))
}

fn begin(
    command: &mut dyn FnMut() -> io::Result<Command>,
    limit: Duration,
) -> Result<(Worker, String, Description), NotRun> {
    let mut worker = Worker::start(command()?, Output::Inherit)?;
    match answer(&mut worker, limit) {
        Ok(Answer::Started { note, runtime }) => Ok((worker, note, *runtime)),
        Ok(Answer::NotStarted { error, no_runtime: true }) => Err(NotRun::NoRuntime(error)),
        Ok(Answer::NotStarted { error, no_runtime: false }) => Err(NotRun::Refused(error)),
        Ok(other) => Err(NotRun::Refused(unexpected(&other).detail)),
        Err(lost) => Err(NotRun::LostAtStart(lost)),
    }
}

/// A worker in place of one that was lost.
fn begin_again(
    command: &mut dyn FnMut() -> io::Result<Command>,
    limit: Duration,
) -> Result<Worker, (usize, NotRun)> {
    let mut tried = 1;
    loop {
        match begin(command, limit) {
            Ok((worker, ..)) => return Ok(worker),
            Err(error) if tried == STARTS_TRIED => return Err((tried, error)),
            Err(_) => tried += 1,
        }
    }
}

fn stop(mut worker: Worker, limit: Duration) -> Result<(), Lost> {
    ask(&mut worker, &Request::Stop, limit)?;
    match worker.receive::<Answer>(limit) {
        Received::Exited(End::Exited(0)) => Ok(()),
        other => Err(match answered(&worker, other, limit) {
            Ok(more) => Lost { how: Ended::Garbage(format!("{more:?}")), last_call: None },
            Err(lost) => lost,
        }),
    }
}

/// Tells the worker something, and waits for the answer.
fn ask(worker: &mut Worker, request: &Request, limit: Duration) -> Result<Answer, Lost> {
    worker.send(request);
    answer(worker, limit)
}

/// Waits for what comes of a case: not to the end if it is in a function that is known to hang.
fn answer_unless(hangs: &Hangs, worker: &mut Worker, limit: Duration) -> Result<Answer, Lost> {
    if !hangs.any() || limit <= SHORT {
        return answer(worker, limit);
    }
    match worker.receive(SHORT) {
        Received::Timeout if !hangs.is_known(worker.last_call().as_deref()) => {
            let heard = worker.receive(limit.saturating_sub(SHORT));
            answered(worker, heard, limit)
        }
        heard => answered(worker, heard, SHORT),
    }
}

/// Waits for an answer. Without one, the worker is of no use any more, and it is said why.
fn answer(worker: &mut Worker, limit: Duration) -> Result<Answer, Lost> {
    let heard = worker.receive(limit);
    answered(worker, heard, limit)
}

fn answered(worker: &Worker, heard: Received<Answer>, limit: Duration) -> Result<Answer, Lost> {
    let how = match heard {
        Received::Answer(answer) => return Ok(answer),
        Received::Invalid(text) => Ended::Garbage(text),
        Received::Exited(End::Signal(signal)) => Ended::Signal(signal_name(signal)),
        Received::Exited(End::Exited(status)) => Ended::Exit(status),
        Received::Timeout | Received::Exited(End::Killed) => {
            Ended::TimeLimit(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX))
        }
    };
    Err(Lost { how, last_call: worker.last_call() })
}

fn lost_at(lost: Lost, began: Instant) -> Attempt {
    Attempt::lost(lost, u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX))
}

fn failed(tried: usize, error: &NotRun) -> Attempt {
    let mut attempt = match error {
        NotRun::LostAtStart(lost) => Attempt::lost(lost.clone(), 0),
        other => unexpected(other),
    };
    attempt.detail = format!("after a process was lost, {tried} times in a row: {error}");
    attempt
}

/// Something of the worker's that has no place here.
fn unexpected(what: &impl fmt::Debug) -> Attempt {
    let how = Ended::Garbage(format!("{what:?}"));
    Attempt::lost(Lost { how, last_call: None }, 0)
}
