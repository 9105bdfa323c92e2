//! Runs a level from the parent process: starts the level's process, receives its records and derives the outcome.

use super::arguments::Bringup;
use super::level::Level;
use super::record::{Begin, CallId, Record, Return, StuckCopy, status_name};
use super::requests::driver_lines;
use crate::driver_log::regular_log;
use crate::interrupt::Interrupt;
use crate::kernel_log::KernelLog;
use crate::planned_faults::is_driver_emulated;
use crate::{BadUsage, output};
use anyhow::Context;
use hsa_vmm_conformance::worker::{End, Output, Received, Worker};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// A call, and its results if it has returned.
#[derive(Clone, Debug)]
pub struct Call {
    pub begin: Begin,
    pub end: Option<Return>,
}

/// The outcome of a level.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Reached,
    /// The level does not apply. Contains the reason.
    Skipped(String),
    Failed(Cause),
}

/// The reason why a level failed.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// No library was found. Lists the rejected files.
    NoLibrary(String),
    /// The call at this index returned this status.
    Status(usize, u32),
    /// The result is wrong, even if all calls succeeded. Contains the index of the call that is the cause, or of the
    /// last call.
    Wrong(Option<usize>, String),
    /// The driver returned an error, but no call of the level failed. Contains the index of the call that received the
    /// error.
    DriverError(Option<usize>, String),
    /// A GPU faulted at this address. Contains the index of the call that had granted access to the address,
    /// and the calls in flight.
    GpuFault(usize, u64, Vec<usize>),
    /// The process crashed while these calls were in flight, the latest first.
    Crash(Vec<usize>, End),
    /// These calls were in flight when the time limit expired, the earliest first.
    Hang(Vec<usize>, Duration),
}

/// The outcome of a level that has run, with its calls and logs.
#[derive(Debug)]
pub struct LevelRun {
    pub level: Level,
    pub outcome: Outcome,
    pub calls: Vec<Call>,
    pub facts: Vec<String>,
    /// The file of the loaded library: `Some(None)` for the simulation, `None` if no library was loaded.
    pub runtime: Option<Option<String>>,
    pub took: Duration,
    /// The time from the last record of the level to the end of the level or to the time limit.
    pub idle: Duration,
    /// The lines of the emulated driver's log with their offsets. `None` if the driver is not emulated.
    pub driver: Option<Vec<(u64, String)>>,
    /// The output of the runtime.
    pub output: String,
    /// The lines that the kernel logged during the level, or the reason why its log cannot be read.
    pub kernel: Result<Vec<String>, String>,
    /// What the CPU found during waits for copies that did not end.
    pub stuck_copies: Vec<(CallId, StuckCopy)>,
    /// The level's process, if it did not end after SIGKILL.
    pub unkillable_process: Option<u32>,
}

/// The variable that makes libhsakmt log to standard error. It works with ROCm 6.1.2, 6.4.3 and 7.2.4.
/// `HSA_ENABLE_DEBUG` does not make the runtime itself log more.
pub const RUNTIME_LOG: (&str, &str) = ("HSAKMT_DEBUG_LEVEL", "7");

/// The interval at which [`supervise`] checks whether the run was interrupted.
const POLL: Duration = Duration::from_millis(100);

/// Runs one level in a worker process. Returns `None` if SIGINT or SIGTERM arrives before the level has
/// ended.
pub fn supervise(
    args: &Bringup,
    level: Level,
    interrupt: &Interrupt,
    kernel: &mut KernelLog,
) -> anyhow::Result<Option<LevelRun>> {
    let folder = tempfile::tempdir().map_err(|error| {
        let (folder, error) = (std::env::temp_dir(), output::without_path(error));
        let folder = folder.display();
        BadUsage(format!(
            "cannot create a temporary folder in {folder}: {error}; set TMPDIR to another folder"
        ))
    })?;
    // Only a regular file can be read while the driver writes it.
    let driver_log = regular_log().unwrap_or_else(|| folder.path().join("driver"));
    let length = |path: &Path| fs::metadata(path).map_or(0, |file| file.len());
    let log_start = length(&driver_log);

    let arguments = std::env::args_os().skip(1).chain(["--run-level".into(), level.name().into()]);
    let mut command =
        crate::program::worker_command().context("cannot start this program again")?;
    command.args(arguments).env("HSA_KFD_LOG", &driver_log);
    command.envs(level.environment_variable());
    if std::env::var_os(RUNTIME_LOG.0).is_none() {
        command.env(RUNTIME_LOG.0, RUNTIME_LOG.1);
    }
    // Skip the lines of earlier levels. The report contains the reason if the log cannot be read.
    drop(kernel.new_lines());
    let began = Instant::now();
    let (mut last_record, mut idle) = (began, None);
    let worker = Worker::start(command, Output::Capture);
    let mut worker = worker.context("cannot start this program again")?;
    let mut records = Records::default();
    let end = loop {
        let remaining = args.time_limit.saturating_sub(began.elapsed());
        let received = worker.receive(remaining.min(POLL));
        if interrupt.arrived() {
            return Ok(None);
        }
        match received {
            Received::Message(record) => {
                // During a wait for a copy, the level makes no progress.
                if !matches!(record, Record::StuckCopy(..)) {
                    last_record = Instant::now();
                }
                records.add(record);
            }
            Received::Invalid(line) => tracing::warn!(line, "invalid record"),
            // Records that were sent before the kill are still received.
            Received::Timeout if began.elapsed() >= args.time_limit => {
                idle.get_or_insert(last_record.elapsed());
                worker.kill();
            }
            Received::Timeout => {}
            Received::Exited(end) => break end,
        }
    };
    let took = began.elapsed();
    let idle = idle.unwrap_or_else(|| last_record.elapsed());
    let output = worker.captured_output();
    let outcome = records.outcome(end, args.time_limit);
    // AMD's own driver also returns errors that are no failures, so its log (`vm --log`) is not read.
    let Records { calls, facts, runtime, stuck_copies, .. } = records;
    let log = is_driver_emulated().then(|| driver_lines(&driver_log, log_start, &calls));
    let (driver, log_error) = match log.transpose() {
        Ok(lines) => (lines.flatten(), None),
        Err(error) => (None, Some(format!("cannot read {}: {error}", driver_log.display()))),
    };
    let kernel = kernel.new_lines();
    let mut run = LevelRun {
        level,
        outcome,
        calls,
        facts,
        runtime,
        took,
        idle,
        driver,
        output,
        kernel,
        stuck_copies,
        unkillable_process: worker.unkillable_process(),
    };
    run.remove_delays();
    run.attribute_gpu_fault();
    run.attribute_failed_map();
    run.order_by_driver_errors();
    run.fail_on_gpu_fault();
    run.fail_on_driver_errors();
    run.fail_on_incomplete_log(log_error);
    Ok(Some(run))
}

/// The records of a level's process so far.
#[derive(Debug, Default)]
struct Records {
    calls: Vec<Call>,
    facts: Vec<String>,
    runtime: Option<Option<String>>,
    no_library: Option<String>,
    /// The first call that failed.
    failed: Option<CallId>,
    /// The first wrong result, and the last call before it.
    wrong: Option<(Option<CallId>, String)>,
    /// The first [`Record::Attributed`]: the index of the call that is the cause, and the description of the failure.
    attributed: Option<(Option<usize>, String)>,
    /// The tasks that have repeated a check that failed: the number of calls before the first repetition.
    repeated: BTreeMap<String, usize>,
    skipped: Option<String>,
    reached: bool,
    stuck_copies: Vec<(CallId, StuckCopy)>,
}

impl Records {
    fn add(&mut self, record: Record) {
        match record {
            Record::Begin(begin) => self.calls.push(Call { begin, end: None }),
            Record::Returned(end) => {
                let matches = |call: &&mut Call| call.begin.id == end.id;
                if let Some(call) = self.calls.iter_mut().rev().find(matches) {
                    call.end = Some(end);
                }
            }
            // Keep the first failure, which can be the cause of the others.
            Record::Failed(id) => drop(self.failed.get_or_insert(id)),
            Record::Wrong(id, what) => drop(self.wrong.get_or_insert((id, what))),
            Record::Attributed { task, call, first, what } if self.attributed.is_none() => {
                self.attributed = Some((self.last_call_of(&task, &call, first.as_deref()), what));
            }
            Record::Attributed { .. } => {}
            Record::Repeats { task } => drop(self.repeated.entry(task).or_insert(self.calls.len())),
            Record::StuckCopy(id, copy) => self.stuck_copies.push((id, copy)),
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
        let failed = self.failed.and_then(|id| {
            let index = self.index(id)?;
            Some((index, self.calls[index].end.as_ref()?.status?))
        });
        if let Some((attributed, what)) = &self.attributed {
            // If another call failed, also name that call: its status is an effect of the attributed call.
            let what = match failed.filter(|(index, _)| Some(*index) != *attributed) {
                Some((index, status)) => {
                    let call = &self.calls[index].begin.call;
                    format!("{what}: {call} returned {}", status_name(status))
                }
                None => what.clone(),
            };
            return Outcome::Failed(Cause::Wrong(*attributed, what));
        }
        if let Some((index, status)) = failed {
            return Outcome::Failed(Cause::Status(index, status));
        }
        // A crash or a hang after a failure can be an effect of the failure.
        if let Some((id, what)) = &self.wrong {
            let index = id.and_then(|id| self.index(id));
            let process = id.map_or(0, |id| id.process);
            // If another process ended during a call, this call is the cause.
            let is_of_other = |index: &usize| {
                let begin = &self.calls[*index].begin;
                begin.id.process != process && begin.call != "wait"
            };
            let of_other = self.in_flight().into_iter().find(is_of_other);
            return Outcome::Failed(Cause::Wrong(of_other.or(index), what.clone()));
        }
        let last = self.calls.len().checked_sub(1);
        match end {
            End::Killed => {
                // The call that hangs can hold a lock for which the later calls wait.
                let mut in_flight = self.in_flight();
                in_flight.sort_by_key(|index| (self.is_wait(*index), *index));
                return Outcome::Failed(Cause::Hang(in_flight, limit));
            }
            End::Exited(0) => {}
            _ => return Outcome::Failed(Cause::Crash(self.in_flight(), end)),
        }
        match (&self.skipped, self.reached) {
            (Some(why), _) => Outcome::Skipped(why.clone()),
            (None, true) => Outcome::Reached,
            (None, false) => {
                let what = "the process ended without a result".to_owned();
                Outcome::Failed(Cause::Wrong(last, what))
            }
        }
    }

    /// Returns the index of the last call of a function by this task before it repeated a check. If the task has not
    /// called the function, returns the last call by any task. If `first` is given, considers only calls with this
    /// first argument.
    fn last_call_of(&self, task: &str, function: &str, first: Option<&str>) -> Option<usize> {
        let is_call = |call: &Call| {
            let argument = call.begin.arguments.first().map(|argument| argument.name.as_str());
            call.begin.call == function && (first.is_none() || argument == first)
        };
        let calls = &self.calls[..*self.repeated.get(task).unwrap_or(&self.calls.len())];
        let by_task = calls.iter().rposition(|call| is_call(call) && call.begin.task == task);
        by_task.or_else(|| calls.iter().rposition(is_call))
    }

    fn index(&self, id: CallId) -> Option<usize> {
        self.calls.iter().position(|call| call.begin.id == id)
    }

    /// Returns the indexes of the calls that have not returned, the latest first.
    fn in_flight(&self) -> Vec<usize> {
        let has_no_end = |index: &usize| self.calls[*index].end.is_none();
        let mut in_flight: Vec<_> = (0..self.calls.len()).rev().filter(has_no_end).collect();
        // Calls that wait for another process come last, because the other process is the one that hangs.
        in_flight.sort_by_key(|index| self.is_wait(*index));
        in_flight
    }

    /// Returns whether a call waits for another process.
    fn is_wait(&self, index: usize) -> bool {
        self.calls[index].begin.call == "wait"
    }
}

impl Cause {
    /// Returns the index of the call at which the level failed, if known.
    pub fn call(&self) -> Option<usize> {
        match self {
            Self::NoLibrary(_) => None,
            Self::Status(index, _) | Self::GpuFault(index, ..) => Some(*index),
            Self::Wrong(index, _) | Self::DriverError(index, _) => *index,
            Self::Crash(calls, _) | Self::Hang(calls, _) => calls.first().copied(),
        }
    }
}

#[cfg(test)]
impl Call {
    /// Creates a call of the main thread without arguments, which has not returned.
    pub fn with_name(name: &str) -> Self {
        let begin = Begin {
            id: CallId { process: 0, number: 0 },
            thread: 0,
            task: String::new(),
            call: name.to_owned(),
            arguments: Vec::new(),
            c_statement: None,
            logs: super::record::Logs::default(),
        };
        Self { begin, end: None }
    }
}

#[cfg(test)]
impl LevelRun {
    /// Creates a run without logs, in which the level passed.
    pub fn passed(level: Level, calls: Vec<Call>) -> Self {
        Self {
            level,
            outcome: Outcome::Reached,
            calls,
            facts: Vec::new(),
            runtime: None,
            took: Duration::ZERO,
            idle: Duration::ZERO,
            driver: None,
            output: String::new(),
            kernel: Ok(Vec::new()),
            stuck_copies: Vec::new(),
            unkillable_process: None,
        }
    }
}

impl LevelRun {
    /// Returns the number of calls up to the call that shows the failure. A wrong result or a GPU fault stops the
    /// level, so the last call shows the failure. The cause can be an earlier call.
    pub fn calls_until_failure(&self) -> usize {
        let count = self.calls.len();
        match &self.outcome {
            Outcome::Failed(Cause::Wrong(..) | Cause::GpuFault(..)) => count,
            _ => self.failed_call().map_or(count, |index| index + 1),
        }
    }

    /// Describes the failure in one sentence. If a GPU faulted, the sentence begins with the fault.
    pub fn describe(&self, cause: &Cause) -> String {
        let mut what = cause.describe(&self.calls);
        what += self.stuck_copy().map_or("", StuckCopy::describe);
        if let (Cause::Crash(..), Some(error)) = (cause, self.engine_error()) {
            return format!("{}: {what}", error.describe());
        }
        match self.gpu_fault() {
            Some(fault) if !matches!(cause, Cause::GpuFault(..)) => {
                format!("{}: {what}", fault.describe())
            }
            _ => what,
        }
    }

    /// Returns whether a call of the level returned an error.
    pub fn has_error_status(&self) -> bool {
        let mut ends = self.calls.iter().filter_map(|call| call.end.as_ref());
        ends.any(|end| end.status.is_some_and(|status| status != 0))
    }

    /// Returns whether the runtime has started: whether a call of `hsa_init` succeeded.
    pub fn has_started(&self) -> bool {
        let is_start = |call: &&Call| call.begin.call == "hsa_init";
        let mut ends = self.calls.iter().filter(is_start).filter_map(|call| call.end.as_ref());
        ends.any(|end| end.status == Some(0))
    }

    /// Returns the runtime's output during a call.
    pub fn output_during(&self, call: &Call) -> &str {
        self.output_between(call.begin.logs.runtime, call.end.as_ref().map(|end| end.logs.runtime))
    }

    /// Returns the runtime's output from the start of a call to the end of the level.
    pub fn output_from(&self, call: &Call) -> &str {
        self.output_between(call.begin.logs.runtime, None)
    }

    fn output_between(&self, start: u64, end: Option<u64>) -> &str {
        let index =
            |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX).min(self.output.len());
        let end = end.map_or(self.output.len(), index);
        // `get` fails only if the runtime had printed half of a character when an offset was recorded.
        self.output.get(index(start)..end).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The calls of the other task, and a repetition by it, do not count.
    #[test]
    fn failure_is_attributed_to_a_call_before_the_repeated_check() {
        let mut records = Records::default();
        let repeats = |task: &str| Record::Repeats { task: task.to_owned() };
        for (task, record) in [("1:1", None), ("2:2", Some(repeats("2:2"))), ("1:1", None)] {
            let mut call = Call::with_name("copy");
            call.begin.task = task.to_owned();
            records.add(Record::Begin(call.begin));
            record.into_iter().for_each(|record| records.add(record));
        }
        assert_eq!(records.last_call_of("1:1", "copy", None), Some(2));
        records.add(repeats("1:1"));
        records.add(Record::Begin(Begin { task: "1:1".into(), ..Call::with_name("copy").begin }));
        records.add(repeats("1:1"));
        assert_eq!(records.last_call_of("1:1", "copy", None), Some(2));
        assert_eq!(records.last_call_of("3:3", "copy", None), Some(3));
    }

    /// The later calls can wait for a lock that the first call holds.
    #[test]
    fn hang_is_attributed_to_the_first_call_in_flight() {
        let calls = ["wait", "hsa_amd_vmem_map", "hsa_amd_vmem_unmap"].map(Call::with_name);
        let records = Records { calls: calls.to_vec(), ..Records::default() };
        let outcome = |end| records.outcome(end, Duration::ZERO);
        let hang = Cause::Hang(vec![1, 2, 0], Duration::ZERO);
        assert_eq!(outcome(End::Killed), Outcome::Failed(hang));
        let end = End::Signal(11);
        assert_eq!(outcome(end), Outcome::Failed(Cause::Crash(vec![2, 1, 0], end)));
    }

    #[test]
    fn end_of_another_process_is_attributed_to_its_call() {
        let call = |process, number, name| {
            let mut call = Call::with_name(name);
            call.begin.id = CallId { process, number };
            call
        };
        let mut last = call(0, 7, "hsa_amd_memory_pool_free");
        let (id, logs) = (last.begin.id, last.begin.logs);
        last.end = Some(Return { id, status: Some(0), outputs: vec![], microseconds: 1, logs });
        let wait = call(0, 8, "wait");
        let of_other = call(1, 3, "hsa_signal_wait_scacquire");
        for (calls, failed, expected) in [
            (vec![last.clone(), of_other.clone()], id, 1),
            (vec![last.clone()], id, 0),
            // The other process reports a failure of its own.
            (vec![wait, of_other.clone()], of_other.begin.id, 1),
        ] {
            let wrong = Some((Some(failed), "one of the other processes: SIGABRT".to_owned()));
            let records = Records { calls, wrong, ..Records::default() };
            let outcome = |end| records.outcome(end, Duration::ZERO);
            let Outcome::Failed(Cause::Wrong(index, _)) = outcome(End::Exited(0)) else { panic!() };
            assert_eq!(index, Some(expected));
            // The process can crash at its exit.
            assert_eq!(outcome(End::Signal(6)), outcome(End::Exited(0)));
        }
    }
}
