//! Runs a case once.

use crate::case::Body;
use crate::{Case, Context, NotPassed, Options, Status, TestResult, descriptors, late_fill};
use hsa_vmm::Runtime;
use hsa_vmm::hip::HipError;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// The result of running a case once, regardless of known failures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CaseResult {
    /// [`Status::Pass`], [`Status::Fail`] or [`Status::Skip`].
    pub status: Status,
    /// The failure, or why the case was skipped; empty if it passed.
    pub detail: String,
    /// The duration in microseconds.
    pub duration_us: u64,
    /// A drawing (SVG) of the address space when the case failed.
    #[serde(default)]
    pub address_space: Option<String>,
    /// The log of runtime, driver and kernel during the case; set by the parent process.
    #[serde(skip)]
    pub output: String,
    /// How the process ended, if it crashed or hung in the case.
    #[serde(default)]
    pub lost: Option<Lost>,
    /// The HIP errors of rejected calls. Each of these errors was expected.
    #[serde(skip)]
    pub expected_errors: Vec<HipError>,
}

/// The end of a process that crashed or hung in a case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// How the process ended.
    pub how: Ended,
    /// The last native call, if known, such as `in hsa_amd_vmem_map` or `after hsa_signal_create
    /// (HSA_STATUS_SUCCESS)`.
    pub last_call: Option<String>,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// Killed by this signal, such as `SIGSEGV`.
    Signal(String),
    /// Exited with this status.
    Exit(i32),
    /// Killed after this time limit, in milliseconds.
    TimeLimit(u64),
    /// Killed because it sent this invalid message.
    #[serde(rename = "garbage")]
    InvalidMessage(String),
}

impl Lost {
    /// Returns whether the process was killed because its time limit expired.
    pub(crate) fn is_hang(&self) -> bool {
        matches!(self.how, Ended::TimeLimit(_))
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.how {
            Ended::Signal(name) => write!(f, "crashed: {name}")?,
            Ended::Exit(status) => write!(f, "ended the process with status {status}")?,
            Ended::TimeLimit(limit) => {
                write!(f, "hung: did not end within {} s", *limit as f64 / 1000.0)?;
            }
            Ended::InvalidMessage(text) => write!(f, "sent an invalid answer: {text:?}")?,
        }
        match &self.last_call {
            Some(call) => write!(f, ", {call}"),
            None => Ok(()),
        }
    }
}

impl CaseResult {
    /// Returns the result of a case that is not run.
    pub fn skipped(detail: String) -> Self {
        let (status, address_space, lost) = (Status::Skip, None, None);
        let (output, expected_errors) = (String::new(), Vec::new());
        Self { status, detail, duration_us: 0, address_space, output, lost, expected_errors }
    }

    /// Returns the result of a case that crashed or hung its process.
    pub fn lost(lost: Lost, duration_us: u64) -> Self {
        let detail = lost.to_string();
        let status = Status::Fail;
        let (address_space, expected_errors) = (None, Vec::new());
        let output = String::new();
        Self {
            status,
            detail,
            duration_us,
            address_space,
            output,
            lost: Some(lost),
            expected_errors,
        }
    }
}

pub(crate) fn run_case(runtime: &Runtime, options: &Options, case: &Case) -> CaseResult {
    let began = Instant::now();
    let picture = RefCell::new(None);
    let result = catch_panic(|| run_body(runtime, options, case.body, &picture));
    let mut expected_errors = Vec::new();
    let (status, detail) = match result {
        Ok(errors) => {
            expected_errors = errors;
            (Status::Pass, String::new())
        }
        Err(NotPassed::Skipped(why)) => (Status::Skip, why),
        Err(NotPassed::Failed(why)) => (Status::Fail, late_fill::explain(runtime, why)),
    };
    let address_space = picture.take().filter(|_| status == Status::Fail);
    let duration_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    let (output, lost) = (String::new(), None);
    CaseResult { status, detail, duration_us, address_space, output, lost, expected_errors }
}

/// Turns a panic into a failure.
fn catch_panic<T>(run: impl FnOnce() -> TestResult<T>) -> TestResult<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        Err(NotPassed::Failed(format!("panicked: {}", panic_message(&*panic))))
    })
}

/// Runs the body of a case. Returns the HIP errors of rejected calls.
fn run_body(
    runtime: &Runtime,
    options: &Options,
    body: Body,
    picture: &RefCell<Option<String>>,
) -> TestResult<Vec<HipError>> {
    let run = match body {
        Body::Runtime(run) => return run(runtime).map(|()| Vec::new()),
        Body::Vmm(run) => run,
    };
    if runtime.info().virtual_memory_failure.is_some() {
        let why = "the runtime has no virtual memory management".to_owned();
        return Err(NotPassed::Skipped(why));
    }
    let count_descriptors = || options.count_descriptors.then(descriptors::count).flatten();
    let run_once = || -> TestResult<_> {
        let before = count_descriptors();
        let context = Context::open(runtime, options)?;
        // Catch a panic here, before the context is dropped, so that the state can be drawn.
        let vmm = context.vmm();
        catch_panic(|| run(&context)).inspect_err(|_| *picture.borrow_mut() = draw(vmm))?;
        let expected_errors = context.expected_errors();
        context.close(&mut |vmm| *picture.borrow_mut() = draw(vmm))?;
        Ok((expected_errors, before, count_descriptors()))
    };
    let (expected_errors, before, after) = run_once()?;
    if before == after {
        return Ok(expected_errors);
    }
    // Run the case again: a descriptor that the runtime opens once and keeps is not a leak. AMD's IPC
    // server keeps such a descriptor.
    let (expected_errors, before, after) = run_once()?;
    if before == after {
        return Ok(expected_errors);
    }
    let (before, after) = (descriptors::format_count(before), descriptors::format_count(after));
    let why = format!("open file descriptors: {before} before, {after} after");
    Err(NotPassed::Failed(why))
}

/// Draws the state of a `Vmm`. Returns `None` if the state is empty or drawing panics.
fn draw(vmm: &hsa_vmm::Vmm) -> Option<String> {
    catch_unwind(AssertUnwindSafe(|| {
        let report = vmm.report();
        (!report.is_empty()).then(|| crate::picture::draw(&report))
    }))
    .ok()
    .flatten()
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hsa_vmm::simulation::Config;

    fn run_failing(run: fn(&Context) -> TestResult) -> CaseResult {
        let runtime = Runtime::simulated(Config::mi300x(1)).unwrap();
        let options = Options { count_descriptors: false, ..Options::default() };
        let result = run_case(&runtime, &options, &Case::new("map.test.fails", "", "", run));
        assert_eq!(result.status, Status::Fail);
        result
    }

    #[test]
    fn panic_is_a_failure() {
        let result = run_failing(|_| panic!("went {}", "wrong"));
        assert_eq!(result.detail, "panicked: went wrong");
        assert_eq!(result.address_space, None, "an empty state has no drawing");
    }

    #[test]
    fn change_by_rejected_call_is_a_failure() {
        let result = run_failing(|context| {
            context
                .expect_error(HipError::InvalidValue, || {
                    let size = context.granule();
                    let _ = context.vmm().address_reserve(size, 0, None);
                    context.vmm().unmap(hsa_vmm::Address::NULL, size)
                })
                .map(|_| ())
        });
        assert!(result.detail.contains("changed something"), "{}", result.detail);
    }

    #[test]
    fn failed_case_has_drawing_of_address_space() {
        for run in [
            (|context| {
                context.map_filled(2, 7)?;
                Err(NotPassed::Failed("for the drawing".to_owned()))
            }) as fn(&Context) -> TestResult,
            |context| {
                context.map_filled(2, 7)?;
                panic!("for the drawing")
            },
        ] {
            let picture = run_failing(run).address_space.unwrap();
            assert!(picture.starts_with("<svg") && picture.contains("8 KiB"), "{picture}");
        }
    }
}
