//! The parent's side: runs cases in a worker process.

use super::hangs::{Hangs, REDUCED_LIMIT};
use super::protocol::{Reply, Request};
use super::{RUNTIME_STARTS, RUNTIME_STOPS};
use crate::causes::name_gpu_fault;
use crate::describe::{Description, ProbeDescription};
use crate::plan::Plan;
use crate::results::Results;
use crate::run::{INTERRUPTED, Progress, STOPPED_AFTER_FAILURES};
use crate::run_case::{CaseResult, Ended, Lost};
use crate::worker::{End, Output, Received, Worker, signal_name};
use crate::{Case, Options, Report, Status};
use std::fmt;
use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The worker's command and time limit, the source of kernel logs, and the flag that ends the run.
pub struct Containment<'a> {
    /// Returns the command of a new worker. The worker must call [`serve`](super::serve). The parent process captures
    /// the worker's output ([`Event::Output`]).
    pub command: &'a mut dyn FnMut() -> io::Result<Command>,
    /// The time limit of each case, of the runtime's start, and of its stop. After three cases have hung in a
    /// native function, the limit of cases in that function is one second ([`Event::Hangs`]).
    pub time_limit: Duration,
    /// Returns the lines that the kernel or its driver has logged since the previous call.
    pub logs: &'a mut dyn FnMut() -> Vec<String>,
    /// Ends the run when set to true. A case that then does not end within two seconds is aborted
    /// ([`Event::Interrupted`]), and is reported as not tried. A case that has reached its time limit counts as hung.
    /// A start of the runtime that does not end within two seconds is aborted in the same way.
    pub stop: &'a AtomicBool,
}

impl fmt::Debug for Containment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Containment").field("time_limit", &self.time_limit).finish_non_exhaustive()
    }
}

/// An event of a run.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The runtime has started for the first time.
    Started {
        /// A description of the runtime for display.
        note: &'a str,
        /// A description of the runtime and its agents for reports.
        description: &'a Description,
    },
    /// A case is about to run.
    Begin {
        /// The case's name.
        case: &'a str,
    },
    /// A case has ended.
    Case(Progress<'a>),
    /// The worker has printed text, while a case ran or while the runtime started or stopped.
    Output {
        /// The name of the case that ran; `None` if the runtime started or stopped.
        case: Option<&'a str>,
        /// Whether the report contains the text, too, as the output of a failed case.
        reported: bool,
        /// The printed text.
        text: &'a str,
    },
    /// The worker has crashed or hung in a case. [`Case`](Self::Case) follows.
    Lost {
        /// The case's name.
        case: &'a str,
        /// How the worker ended.
        lost: &'a Lost,
    },
    /// The run stops, because [`Containment::stop`] was set while a case ran. The case has no result.
    Interrupted {
        /// The case's name; `runtime.library.starts` if the runtime was starting.
        case: &'a str,
        /// The last native call of the case, if known: `in hsa_amd_vmem_map`.
        last_call: Option<&'a str>,
    },
    /// The run stops, because too many consecutive cases have hung. The remaining cases are not run.
    StoppedByHangs {
        /// The number of consecutive cases that have hung.
        cases: usize,
    },
    /// Several cases have hung in the same native function.
    Hangs {
        /// The function's name.
        function: &'a str,
        /// The time limit of cases in that function from now on.
        limit: Duration,
    },
}

/// Why no case could be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotRun {
    /// The worker cannot be started.
    #[error("cannot start the worker process")]
    System(#[from] io::Error),
    /// No runtime was found, or the runtime does not start.
    #[error("{0}")]
    NoRuntime(String),
    /// The worker has rejected an argument.
    #[error("{0}")]
    InvalidArgument(String),
    /// The worker sent an unexpected reply.
    #[error("{0}")]
    UnexpectedReply(String),
    /// The runtime crashed or hung while it started.
    #[error("while the runtime started, it {0}")]
    LostAtStart(Lost),
    /// [`Containment::stop`] was set while the runtime started.
    #[error("interrupted while the runtime started")]
    Interrupted,
}

/// The run ends after this number of consecutive starts has failed.
const MAX_FAILED_STARTS: usize = 3;

/// The run ends after this number of consecutive hangs of cases. A skipped case between two hangs does not change the
/// count.
const MAX_CONSECUTIVE_HANGS: usize = 8;

/// After [`Containment::stop`] is set, the time that the running case has to end by itself.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// The interval in which a waiting run reads [`Containment::stop`].
const STOP_INTERVAL: Duration = Duration::from_millis(100);

/// The maximum number of lines of a case's output in a report. The last lines are kept.
const OUTPUT_LINES: usize = 200;

/// The reasons for skipping the remaining cases.
const STOPPED_AFTER_HANGS: &str = "not tried: the run stopped after consecutive cases hung";
const NO_LONGER_STARTS: &str = "not tried: the runtime no longer starts";

/// Runs the selected cases in a worker process. Calls `on_event` for each [`Event`].
///
/// If a worker crashes or hangs, the case counts as failed ([`CaseReport::lost`](crate::CaseReport::lost)), and a new
/// worker is started. If the runtime does not stop, the report contains the failed case `runtime.library.stops`. If the
/// runtime does not start again, the report contains the failed case `runtime.library.starts`. The run ends after eight
/// consecutive cases have failed because they hung ([`Event::StoppedByHangs`]). If [`Containment::stop`] is set before
/// the runtime has started, the name of the runtime in the report is `runtime not started`.
///
/// # Errors
/// [`NotRun`] if the runtime did not start at all. Never [`NotRun::Interrupted`].
pub fn run(
    containment: Containment<'_>,
    options: &Options,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<Report, NotRun> {
    let Containment { command, time_limit, logs, stop } = containment;
    let plan = Plan::new(options);
    let mut results = Results::new(&plan, options);
    let (worker, note, mut runtime) = match start_worker(command, time_limit, on_event, stop) {
        Err(NotRun::Interrupted) => {
            return Ok(results.report(&plan, Description::not_started(), INTERRUPTED));
        }
        started => started?,
    };
    // Discard messages from before the first case.
    logs();
    on_event(Event::Started { note: &note, description: &runtime });
    let (worker, hangs) = (Some(worker), Hangs::default());
    let mut supervisor = Supervisor { command, time_limit, logs, on_event, stop, worker, hangs };
    let mut untried_reason = STOPPED_AFTER_FAILURES;
    let total = plan.steps.len();
    let mut consecutive_hangs = 0;
    for (step, &index) in plan.steps.iter().enumerate() {
        let Some(case) = plan.selected.get(index) else { continue };
        if results.has_too_many_failures() {
            break;
        }
        if stop.load(Ordering::Relaxed) {
            untried_reason = INTERRUPTED;
            break;
        }
        (supervisor.on_event)(Event::Begin { case: case.name });
        let result = results.expectation(case, &runtime).attempt(|| supervisor.run_case(case));
        let result = match result {
            Ok(result) => result,
            Err(NoResult::Interrupted) => {
                untried_reason = INTERRUPTED;
                break;
            }
            Err(NoResult::NotStarted(attempts, error)) => {
                results.add_unplanned(
                    &RUNTIME_STARTS,
                    failed_start_result(attempts, &error),
                    &runtime,
                );
                untried_reason = NO_LONGER_STARTS;
                break;
            }
        };
        let status = result.status;
        let has_hung = result.lost.as_ref().is_some_and(Lost::is_hang);
        let report = results.add(index, case, result, &runtime);
        (supervisor.on_event)(Event::Case(Progress { done: step + 1, total, case: &report }));
        match (has_hung && report.status == Status::Fail, status) {
            (true, _) => consecutive_hangs += 1,
            (false, Status::Skip) => {}
            (false, _) => consecutive_hangs = 0,
        }
        if consecutive_hangs == MAX_CONSECUTIVE_HANGS && step + 1 < total {
            (supervisor.on_event)(Event::StoppedByHangs { cases: consecutive_hangs });
            untried_reason = STOPPED_AFTER_HANGS;
            break;
        }
    }
    let Supervisor { worker, on_event, .. } = supervisor;
    // After an interruption, do not wait until the runtime stops: dropping `worker` kills the process.
    let worker = worker.filter(|_| untried_reason != INTERRUPTED);
    if let Some(worker) = worker {
        let began = Instant::now();
        let Stopped { probes, result, printed } = stop_runtime(worker, time_limit);
        if !printed.is_empty() {
            let reported = result.is_err();
            on_event(Event::Output { case: None, reported, text: &printed });
        }
        runtime.runtime.add_probes(probes);
        if let Err(lost) = result {
            let output = last_lines(printed.lines());
            let mut result = CaseResult { output, ..lost_result(lost, began) };
            name_gpu_fault(&mut result);
            results.add_unplanned(&RUNTIME_STOPS, result, &runtime);
        }
    }
    Ok(results.report(&plan, runtime, untried_reason))
}

/// Why a case has no result.
enum NoResult {
    /// The run was stopped while the case ran.
    Interrupted,
    /// No worker starts: the number of attempts, and the last error.
    NotStarted(usize, NotRun),
}

/// Starts workers, and runs cases in them.
struct Supervisor<'a> {
    command: &'a mut dyn FnMut() -> io::Result<Command>,
    time_limit: Duration,
    logs: &'a mut dyn FnMut() -> Vec<String>,
    on_event: &'a mut dyn FnMut(Event<'_>),
    stop: &'a AtomicBool,
    worker: Option<Worker>,
    hangs: Hangs,
}

impl Supervisor<'_> {
    /// Runs a case once.
    fn run_case(&mut self, case: &Case) -> Result<CaseResult, NoResult> {
        let time_limit = self.time_limit;
        let worker = match &mut self.worker {
            Some(worker) => worker,
            empty => {
                let started = restart_worker(self.command, time_limit, self.on_event, self.stop);
                empty.insert(started?)
            }
        };
        let began = Instant::now();
        worker.send(&Request::Run(case.name.to_owned()));
        let received = receive_result(&self.hangs, worker, time_limit, self.stop);
        let result = received.map(|received| match received {
            Ok(Reply::Ended(result)) => result,
            Ok(reply) => unexpected_result(&reply),
            Err(lost) => lost_result(lost, began),
        });
        let printed = worker.new_output();
        if !printed.is_empty() {
            let reported = result.as_ref().is_some_and(|result| result.status == Status::Fail);
            (self.on_event)(Event::Output { case: Some(case.name), reported, text: &printed });
        }
        let Some(mut result) = result else {
            let last_call = worker.last_call();
            let last_call = last_call.as_deref();
            (self.on_event)(Event::Interrupted { case: case.name, last_call });
            return Err(NoResult::Interrupted);
        };
        let logged = (self.logs)();
        if result.status == Status::Fail {
            result.output = last_lines(printed.lines().chain(logged.iter().map(String::as_str)));
            name_gpu_fault(&mut result);
        }
        if let Some(lost) = &result.lost {
            self.worker = None;
            (self.on_event)(Event::Lost { case: case.name, lost });
            if let Some(function) = self.hangs.count(lost).filter(|_| REDUCED_LIMIT < time_limit) {
                (self.on_event)(Event::Hangs { function, limit: REDUCED_LIMIT });
            }
        }
        Ok(result)
    }
}

/// Starts a worker. Returns the worker, a note about the runtime for display, and the runtime's description for
/// reports. After `stop` is set, waits for [`STOP_LIMIT`] at most.
fn start_worker(
    command: &mut dyn FnMut() -> io::Result<Command>,
    limit: Duration,
    on_event: &mut dyn FnMut(Event<'_>),
    stop: &AtomicBool,
) -> Result<(Worker, String, Description), NotRun> {
    let mut worker = Worker::start(command()?, Output::Capture)?;
    let received = receive_unless_stopped(&mut worker, limit, stop);
    let printed = worker.new_output();
    if !printed.is_empty() {
        on_event(Event::Output { case: None, reported: false, text: &printed });
    }
    let Some(received) = received else {
        let last_call = worker.last_call();
        let (case, last_call) = (RUNTIME_STARTS.name, last_call.as_deref());
        on_event(Event::Interrupted { case, last_call });
        return Err(NotRun::Interrupted);
    };
    match reply_or_lost(&worker, received, limit) {
        Ok(Reply::Started { note, runtime }) => Ok((worker, note, *runtime)),
        Ok(Reply::NotStarted { error, no_runtime: true }) => Err(NotRun::NoRuntime(error)),
        Ok(Reply::NotStarted { error, no_runtime: false }) => Err(NotRun::InvalidArgument(error)),
        Ok(reply) => Err(NotRun::UnexpectedReply(unexpected_result(&reply).detail)),
        Err(lost) => Err(NotRun::LostAtStart(lost)),
    }
}

/// Starts a new worker after a crash or hang. Tries up to [`MAX_FAILED_STARTS`] times, and not again after `stop` is
/// set.
fn restart_worker(
    command: &mut dyn FnMut() -> io::Result<Command>,
    limit: Duration,
    on_event: &mut dyn FnMut(Event<'_>),
    stop: &AtomicBool,
) -> Result<Worker, NoResult> {
    let mut attempts = 1;
    loop {
        match start_worker(command, limit, on_event, stop) {
            Ok((worker, ..)) => return Ok(worker),
            Err(_) if stop.load(Ordering::Relaxed) => return Err(NoResult::Interrupted),
            Err(error) if attempts == MAX_FAILED_STARTS => {
                return Err(NoResult::NotStarted(attempts, error));
            }
            Err(_) => attempts += 1,
        }
    }
}

/// How the runtime of the last worker stopped.
struct Stopped {
    /// The quirks that the worker probed for. It sends them before it stops the runtime.
    probes: Vec<ProbeDescription>,
    result: Result<(), Lost>,
    /// What the worker printed since its last case.
    printed: String,
}

/// Stops the runtime.
fn stop_runtime(mut worker: Worker, limit: Duration) -> Stopped {
    let mut probes = Vec::new();
    let result = request_reply(&mut worker, &Request::Stop, limit).and_then(|reply| {
        if let Reply::Probed(received) = reply {
            probes = received;
            receive_reply(&mut worker, limit)?;
        }
        match worker.receive::<Reply>(limit) {
            Received::Exited(End::Exited(0)) => Ok(()),
            other => Err(match reply_or_lost(&worker, other, limit) {
                Ok(extra) => {
                    Lost { how: Ended::InvalidMessage(format!("{extra:?}")), last_call: None }
                }
                Err(lost) => lost,
            }),
        }
    });
    let printed = worker.new_output();
    Stopped { probes, result, printed }
}

/// Joins the last lines, at most [`OUTPUT_LINES`]. If lines are omitted, adds a first line with their number.
fn last_lines<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let lines: Vec<_> = lines.collect();
    let omitted = lines.len().saturating_sub(OUTPUT_LINES);
    let shown = lines[omitted..].join("\n");
    if omitted > 0 { format!("({omitted} earlier lines)\n{shown}") } else { shown }
}

/// Sends a request and waits for the reply.
fn request_reply(worker: &mut Worker, request: &Request, limit: Duration) -> Result<Reply, Lost> {
    worker.send(request);
    receive_reply(worker, limit)
}

/// Waits for the result of a case. When the reduced time limit expires, checks in which function the case is. In a
/// function that is known to hang, the case counts as hung. Otherwise, the whole time limit applies. Returns `None` if
/// `stop` ends the case.
fn receive_result(
    hangs: &Hangs,
    worker: &mut Worker,
    limit: Duration,
    stop: &AtomicBool,
) -> Option<Result<Reply, Lost>> {
    if !hangs.has_known_function() || limit <= REDUCED_LIMIT {
        let received = receive_unless_stopped(worker, limit, stop)?;
        return Some(reply_or_lost(worker, received, limit));
    }
    Some(match receive_unless_stopped(worker, REDUCED_LIMIT, stop)? {
        Received::Timeout if !hangs.is_known_to_hang(worker.last_call().as_deref()) => {
            let remaining = limit.saturating_sub(REDUCED_LIMIT);
            let received = receive_unless_stopped(worker, remaining, stop)?;
            reply_or_lost(worker, received, limit)
        }
        received => reply_or_lost(worker, received, REDUCED_LIMIT),
    })
}

/// Waits up to `limit` for a reply. After `stop` is set, waits for [`STOP_LIMIT`] at most. Returns `None` if there is
/// no reply by then, or if the worker has ended since: the signal that set `stop` can have ended the worker, too.
fn receive_unless_stopped(
    worker: &mut Worker,
    limit: Duration,
    stop: &AtomicBool,
) -> Option<Received<Reply>> {
    let deadline = Instant::now() + limit;
    let mut stop_deadline = None;
    loop {
        if stop_deadline.is_none() && stop.load(Ordering::Relaxed) {
            stop_deadline = Some(Instant::now() + STOP_LIMIT);
        }
        let end = stop_deadline.map_or(deadline, |stop_deadline| deadline.min(stop_deadline));
        let remaining = end.saturating_duration_since(Instant::now());
        match worker.receive(remaining.min(STOP_INTERVAL)) {
            Received::Timeout if !remaining.is_zero() => {}
            Received::Timeout if end < deadline => return None,
            Received::Exited(_) if stop.load(Ordering::Relaxed) => return None,
            received => return Some(received),
        }
    }
}

/// Waits for a reply. Fails with the cause if the worker crashes, hangs or sends an invalid reply.
fn receive_reply(worker: &mut Worker, limit: Duration) -> Result<Reply, Lost> {
    let received = worker.receive(limit);
    reply_or_lost(worker, received, limit)
}

fn reply_or_lost(
    worker: &Worker,
    received: Received<Reply>,
    limit: Duration,
) -> Result<Reply, Lost> {
    let how = match received {
        Received::Message(reply) => return Ok(reply),
        Received::Invalid(text) => Ended::InvalidMessage(text),
        Received::Exited(End::Signal(signal)) => Ended::Signal(signal_name(signal)),
        Received::Exited(End::Exited(status)) => Ended::Exit(status),
        Received::Timeout | Received::Exited(End::Killed) => {
            Ended::TimeLimit(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX))
        }
    };
    Err(Lost { how, last_call: worker.last_call() })
}

fn lost_result(lost: Lost, began: Instant) -> CaseResult {
    CaseResult::lost(lost, u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX))
}

/// Returns the result of `runtime.library.starts` after failed starts.
fn failed_start_result(attempts: usize, error: &NotRun) -> CaseResult {
    let mut result = match error {
        NotRun::LostAtStart(lost) => CaseResult::lost(lost.clone(), 0),
        other => unexpected_result(other),
    };
    result.detail = format!(
        "after a crash or hang, {attempts} starts in a row failed; the last error: {error}"
    );
    result
}

/// Returns the result for an unexpected reply or error.
fn unexpected_result(value: &impl fmt::Debug) -> CaseResult {
    let how = Ended::InvalidMessage(format!("{value:?}"));
    CaseResult::lost(Lost { how, last_call: None }, 0)
}
