//! The report of a failed level, for people and as JSON.

use super::advice::{Setup, advise};
use super::gpu_fault;
use super::interface::{Interface, is_logged, used_by};
use super::kernel_trace;
use super::level::Level;
use super::machine::{self, MachineCheck};
use super::parameters::labelled;
use super::record::{Argument, StuckCopy, status_name};
use super::requests::failed_lines;
use super::supervisor::{Call, Cause, LevelRun, Outcome};
use crate::driver_log::redacted_requests;
use crate::planned_faults::is_driver_emulated;
use crate::provenance::Privacy;
use serde::Serialize;
use std::time::Duration;

/// The number of last lines of a log that are shown.
const LOG_LINES: usize = 12;
/// The number of last lines of the runtime's output that are shown. The runtime's message about a GPU fault is long.
const RUNTIME_LINES: usize = 60;

/// The description of a failure.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// `status`, `wrong`, `gpu_fault`, `crash`, `hang` or `library`.
    pub kind: &'static str,
    /// The failure in one sentence.
    pub what: String,
    /// The call that caused the failure.
    pub call: Option<FailedCall>,
    /// The calls of other threads or processes that had not returned at the crash, hang or GPU fault.
    #[serde(rename = "also_in")]
    pub other_calls: Vec<String>,
    /// The level's requests to the emulated driver that failed or have not returned: one line for each call and error.
    pub failed_requests: Vec<String>,
    /// Whether all of [`failed_requests`](Self::failed_requests) failed after the call had returned. The failed
    /// requests are then results of the failure, not its cause.
    pub failed_requests_are_later: bool,
    /// The kernel interfaces that the call uses, with the emulated driver's results, if known.
    #[serde(rename = "rests_on")]
    pub interfaces: Vec<UsedInterface>,
    /// The driver's log during the call, if the driver is emulated.
    pub driver: Option<Vec<String>>,
    /// The lines that the runtime logged during the call.
    pub runtime: Vec<String>,
    /// The lines that the kernel logged during the level, without the registers of traces, or the reason why its log
    /// cannot be read.
    pub kernel: Result<Vec<String>, String>,
    /// The results of the checks of this machine.
    pub machine: Vec<Check>,
    /// Advice on what to try, in order.
    pub try_next: Vec<String>,
    /// The calls of the level, up to the call that shows the failure.
    pub calls: Vec<String>,
}

/// The call that caused a failure.
#[derive(Clone, Debug, Serialize)]
pub struct FailedCall {
    pub name: String,
    pub arguments: Vec<Argument>,
    /// The status, if the call returned one.
    pub status: Option<String>,
    pub returned: bool,
    /// Whether another process of the level made the call.
    pub other_process: bool,
}

/// A kernel interface, and the result of the requests to this interface.
#[derive(Clone, Debug, Serialize)]
pub struct UsedInterface {
    #[serde(flatten)]
    pub interface: Interface,
    /// The result. `None` if the driver is not emulated, or does not log the requests.
    #[serde(rename = "answer")]
    pub result: Option<DriverResult>,
}

/// The result of the requests to an interface of the emulated driver during the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DriverResult {
    /// There was no request.
    #[serde(rename = "not_asked")]
    NoRequest,
    /// All requests succeeded.
    #[serde(rename = "well")]
    Succeeded,
    /// At least one request failed, and was not repeated with success.
    Error,
}

impl DriverResult {
    fn of(interface: &Interface, log: &[String]) -> Option<Self> {
        if interface.logged.is_empty() {
            return None;
        }
        let is_of_interface = |line: &String| is_logged(interface, line);
        Some(match log.iter().any(is_of_interface) {
            false => Self::NoRequest,
            true if failed_lines(log).into_iter().any(is_of_interface) => Self::Error,
            true => Self::Succeeded,
        })
    }
}

/// The result of a check of this machine.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    #[serde(rename = "well")]
    pub passed: bool,
    /// Whether the state is known. If not, `passed` is `false`.
    pub known: bool,
    /// The state that the check found, or which state is not known and why.
    pub what: String,
}

/// The advice if lines of the emulated driver's log are missing.
const ADVICE_ON_INCOMPLETE_LOG: &str = "make room on the file system of the log, or choose another file \
     (emulate --log FILE) or another folder (TMPDIR), and repeat the run";

impl Failure {
    /// Collects the report of a failed run, and checks the machine for the report. Returns `None` if the run has not
    /// failed.
    pub fn of(run: &LevelRun, setup: Setup<'_>) -> Option<Self> {
        let Outcome::Failed(cause) = &run.outcome else { return None };
        let call = cause.call().map(|index| &run.calls[index]);
        let driver = run.driver.as_ref().map(|all| match call {
            Some(call) => to_strings(run.requests_during(call)),
            None => all.iter().map(|(_, line)| line.clone()).collect(),
        });
        let name = call.map_or("library", |call| call.begin.call.as_str());
        let interfaces = used_by(name).iter().map(|interface| {
            let result = driver.as_ref().and_then(|log| DriverResult::of(interface, log));
            UsedInterface { interface: *interface, result }
        });
        let interfaces = interfaces.collect();
        let output = match (cause, call) {
            (_, None) => run.output.as_str(),
            // The runtime reports the fault after the call that had granted access has returned.
            (Cause::GpuFault(..), Some(call)) => run.output_from(call),
            (_, Some(call)) => run.output_during(call),
        };
        // The runtime can print its message about a crash or a hang before or after the call.
        let ended_abnormally =
            matches!(cause, Cause::Crash(..) | Cause::Hang(..) | Cause::GpuFault(..));
        let output =
            if output.trim().is_empty() && ended_abnormally { run.output.as_str() } else { output };
        let machine_checks =
            if checks_machine(run) { machine::check(is_driver_emulated()) } else { Vec::new() };
        let try_next = match run.incomplete_log() {
            Some(_) => vec![ADVICE_ON_INCOMPLETE_LOG.to_owned()],
            None => advise(run, cause, call, &driver, &machine_checks, setup),
        };
        let checks = machine_checks.into_iter().map(|MachineCheck { passed, what, .. }| Check {
            passed: passed == Some(true),
            known: passed.is_some(),
            what,
        });
        Some(Self {
            kind: cause.kind(),
            what: run.describe(cause),
            call: call.map(FailedCall::of),
            other_calls: cause.other_calls(&run.calls),
            failed_requests: run.failed_requests(LOG_LINES),
            failed_requests_are_later: call.is_some_and(|call| run.requests_fail_after(call)),
            interfaces,
            driver: driver.map(|lines| last_lines(lines, LOG_LINES)),
            runtime: last_lines(output.lines().map(str::to_owned).collect(), RUNTIME_LINES),
            kernel: run.kernel.clone().map(|lines| kernel_trace::shorten(lines, LOG_LINES)),
            machine: checks.collect(),
            try_next,
            calls: run.listed_calls(),
        })
    }
}

impl Failure {
    /// With `--redact`, removes the lines of all logs, except for the call and the error of each failed request.
    pub fn remove_logs(&mut self, privacy: &Privacy) {
        if privacy.is_redacting() {
            let failed = self.failed_requests.iter().map(String::as_str);
            self.failed_requests = redacted_requests(failed);
        }
        let logs = [&mut self.runtime].into_iter();
        let logs = logs.chain(&mut self.driver).chain(self.kernel.as_mut().ok());
        logs.for_each(|lines| privacy.clean_lines(lines));
    }
}

fn to_strings(lines: Vec<&str>) -> Vec<String> {
    lines.into_iter().map(str::to_owned).collect()
}

/// Returns the last `limit` lines, after a line with the number of omitted lines.
fn last_lines(mut lines: Vec<String>, limit: usize) -> Vec<String> {
    if lines.len() > limit {
        let omitted = lines.len() - limit;
        lines.drain(..omitted);
        lines.insert(0, format!("… ({omitted} earlier lines)"));
    }
    lines
}

/// Returns whether to check this machine's files and permissions. Only the first levels can fail because of wrong files
/// or permissions. The level `library` does not use the driver.
fn checks_machine(run: &LevelRun) -> bool {
    (Level::Runtime..=Level::Pools).contains(&run.level) && matches!(run.runtime, Some(Some(_)))
}

impl FailedCall {
    fn of(call: &Call) -> Self {
        let end = call.end.as_ref();
        let output = |name: &str| {
            let mut outputs = end.iter().flat_map(|end| &end.outputs);
            outputs.find(|output| name.ends_with(&format!("&{}", output.name)))
        };
        let with_output = |argument: &Argument| match output(&argument.name) {
            Some(output) => output.clone(),
            None => argument.clone(),
        };
        Self {
            name: call.begin.call.clone(),
            arguments: labelled(&call.begin.call, &call.begin.arguments)
                .iter()
                .map(with_output)
                .collect(),
            status: end.and_then(|end| end.status).map(status_name),
            returned: end.is_some(),
            other_process: call.begin.id.process != 0,
        }
    }
}

impl Cause {
    fn kind(&self) -> &'static str {
        match self {
            Self::NoLibrary(_) => "library",
            Self::Status(..) => "status",
            Self::Wrong(..) | Self::DriverError(..) => "wrong",
            Self::GpuFault(..) => "gpu_fault",
            Self::Crash(..) => "crash",
            Self::Hang(..) => "hang",
        }
    }

    /// Describes the cause in one sentence.
    pub fn describe(&self, calls: &[Call]) -> String {
        let place = |in_flight: &[usize]| match (in_flight.first(), calls.last()) {
            (Some(&index), _) => format!("in {}", calls[index].begin.call),
            (None, Some(call)) => format!("after {} had returned", call.begin.call),
            (None, None) => "before the first call".to_owned(),
        };
        match self {
            Self::NoLibrary(tried) => tried.clone(),
            Self::Status(index, value) => {
                format!("{} returned {}", calls[*index].begin.call, status_name(*value))
            }
            Self::Wrong(_, what) | Self::DriverError(_, what) => what.clone(),
            Self::GpuFault(index, address, _) => {
                let call = &calls[*index];
                let position = match gpu_fault::granted_range(call) {
                    // Only the start of host memory is known, not its size.
                    Some((start, size)) if size > 1 => {
                        format!(", at offset {:#x} of {size:#x} bytes", address - start)
                    }
                    _ => String::new(),
                };
                let call = &call.begin.call;
                format!(
                    "a GPU faulted at {address:#x}{position}, although {call} had granted it access"
                )
            }
            Self::Crash(in_flight, end) => format!("{end} {}", place(in_flight)),
            Self::Hang(in_flight, limit) => format!("hangs {} (after {limit:?})", place(in_flight)),
        }
    }

    /// Returns the calls in flight besides the call that failed.
    fn other_calls(&self, calls: &[Call]) -> Vec<String> {
        match self {
            Self::Crash(in_flight, _) | Self::Hang(in_flight, _) => {
                in_flight.iter().skip(1).map(|index| calls[*index].line()).collect()
            }
            Self::GpuFault(_, _, in_flight) => {
                in_flight.iter().map(|index| calls[*index].line()).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl StuckCopy {
    /// Describes the state of the copy, for the end of a sentence.
    pub fn describe(self) -> &'static str {
        match (self.arrived, self.has_ended) {
            (Some(true), true) => ", although the data has arrived and the signal reports the end",
            (Some(true), false) => ": the data has arrived, but the signal does not report the end",
            (Some(false), false) => ": the data has not arrived",
            (Some(false), true) => ": the signal reports the end, but the data has not arrived",
            (None, true) => ", although the signal reports the end",
            (None, false) => "",
        }
    }
}

impl Call {
    /// Formats the call: `hsa_amd_vmem_map(va=0x7f…, size=0x1000, …) -> SUCCESS`.
    pub fn line(&self) -> String {
        let arguments = labelled(&self.begin.call, &self.begin.arguments);
        let list: Vec<_> = arguments.iter().map(Argument::to_text).collect();
        let mut line = format!("{}({})", self.begin.call, list.join(", "));
        match &self.end {
            None => line.push_str(" -> does not return"),
            Some(end) => {
                let outputs = end.outputs.iter().map(Argument::to_text);
                let short = |value| {
                    let name = status_name(value);
                    let name = name.strip_prefix("HSA_STATUS_").unwrap_or(&name);
                    name.split(' ').next().unwrap_or_default().to_owned()
                };
                let results: Vec<_> = end.status.map(short).into_iter().chain(outputs).collect();
                if !results.is_empty() {
                    line.push_str(" -> ");
                    line.push_str(&results.join(", "));
                }
            }
        }
        line
    }
}

impl Argument {
    /// Formats the argument: `size=0x1000`. Outputs and callbacks have no value: `&va`.
    pub fn to_text(&self) -> String {
        match self.value.as_str() {
            "out" | "callback" => self.name.clone(),
            value => format!("{}={value}", self.name),
        }
    }
}

impl LevelRun {
    /// Returns whether the level made a call in the last quarter of the time limit. The level can then be slow.
    pub fn may_be_slow(&self, limit: Duration) -> bool {
        self.idle < limit / 4
    }

    /// Returns what the CPU found, if the level hangs in a wait for a copy. Returns `None` if the level may be slow:
    /// each wait in flight has then lasted longer than half of the little time that remained.
    pub fn stuck_copy(&self) -> Option<StuckCopy> {
        let Outcome::Failed(cause @ Cause::Hang(_, limit)) = &self.outcome else { return None };
        if self.may_be_slow(*limit) {
            return None;
        }
        let hanging = self.calls[cause.call()?].begin.id;
        self.stuck_copies.iter().find(|(id, _)| *id == hanging).map(|(_, copy)| *copy)
    }

    /// Returns the index of the call at which the level failed.
    pub fn failed_call(&self) -> Option<usize> {
        match &self.outcome {
            Outcome::Failed(cause) => cause.call(),
            _ => None,
        }
    }

    /// Returns the calls up to the call that shows the failure, without queries of agents and pools. If a thread other
    /// than the main thread failed, returns the first calls of the main thread, then the last round of the failed
    /// thread. If no call failed, returns all calls of the main thread, with queries.
    fn listed_calls(&self) -> Vec<String> {
        let until = self.calls_until_failure();
        let failed_thread = self.failed_call().map_or(0, |index| self.calls[index].begin.thread);
        let is_listed = |call: &&Call| call.begin.thread == 0 || call.begin.thread == failed_thread;
        // A query is an HSA call without a statement in C. Other steps without a statement, such as `mmap`, are no
        // queries. A query that failed is listed.
        let failed = self.failed_call().map(|index| self.calls[index].begin.id);
        let is_query = |call: &Call| {
            call.begin.c_statement.is_none()
                && Some(call.begin.id) != failed
                && call.end.is_some()
                && call.begin.call.starts_with("hsa_")
        };
        let calls: Vec<_> = self.calls[..until]
            .iter()
            .filter(is_listed)
            .filter(|call| !is_query(call) || self.failed_call().is_none())
            .collect();
        let starts_round = |call: &&Call| call.begin.call == "hsa_amd_vmem_address_reserve";
        let last_round = calls.iter().rposition(starts_round).filter(|_| failed_thread > 0);
        let in_main_thread = |call: &&Call| call.begin.thread == 0;
        let first = calls.iter().take_while(|call| in_main_thread(call)).count();
        let (start, rest) = calls.split_at(first);
        let rest = &rest[last_round.map_or(0, |index| index.saturating_sub(first))..];
        let line = |call: &&Call| {
            let prefix = if call.begin.id.process == 0 { "" } else { "other process: " };
            format!("{prefix}{}", call.line())
        };
        count_repeated(start.iter().chain(rest).map(line))
    }
}

/// Replaces successive equal lines by one line, with the number of lines.
fn count_repeated(lines: impl Iterator<Item = String>) -> Vec<String> {
    let lines: Vec<_> = lines.collect();
    let line = |equal: &[String]| match equal {
        [line] => line.clone(),
        [line, ..] => format!("{line} ({} times)", equal.len()),
        [] => String::new(),
    };
    lines.chunk_by(|one, next| one == next).map(line).collect()
}
