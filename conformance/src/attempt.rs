//! A case put to a runtime once.

use crate::case::Body;
use crate::{Case, Context, NotPassed, Options, Status, Verdict, descriptors};
use hsa_vmm::Runtime;
use hsa_vmm::hip::HipError;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// What came of putting a case to a runtime once. What is known of the runtime is not considered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attempt {
    /// [`Status::Pass`], [`Status::Fail`] or [`Status::Skip`].
    pub status: Status,
    /// What was not as expected, or why it was not tried; empty if it passed.
    pub detail: String,
    /// How long it took, in microseconds.
    pub duration_us: u64,
    /// What was reserved, mapped and granted when it failed.
    #[serde(default)]
    pub address_space: Option<String>,
    /// How the process ended that did not survive it.
    #[serde(default)]
    pub lost: Option<Lost>,
    /// The errors of HIP that it was to get and got.
    #[serde(skip)]
    pub refused: Vec<HipError>,
}

/// A process that did not survive a case, or had to be ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// How it ended.
    pub how: Ended,
    /// The last native call, if the log could tell: `in hsa_amd_vmem_map`, `after hsa_signal_create
    /// (HSA_STATUS_SUCCESS)`.
    pub last_call: Option<String>,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// By a signal, which is named: `SIGSEGV`.
    Signal(String),
    /// It left, with this status.
    Exit(i32),
    /// It was killed when it had taken so many milliseconds.
    TimeLimit(u64),
    /// It was killed because it answered something else than an outcome.
    Garbage(String),
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.how {
            Ended::Signal(name) => write!(f, "crashed: {name}")?,
            Ended::Exit(status) => write!(f, "ended the process with status {status}")?,
            Ended::TimeLimit(limit) => {
                write!(f, "hung: did not end within {} s", *limit as f64 / 1000.0)?;
            }
            Ended::Garbage(text) => write!(f, "answered garbage: {text:?}")?,
        }
        match &self.last_call {
            Some(call) => write!(f, ", {call}"),
            None => Ok(()),
        }
    }
}

impl Attempt {
    /// A case that the process did not survive.
    pub fn lost(lost: Lost, duration_us: u64) -> Self {
        let detail = lost.to_string();
        let status = Status::Fail;
        let (address_space, refused) = (None, Vec::new());
        Self { status, detail, duration_us, address_space, lost: Some(lost), refused }
    }
}

/// Puts a case to a runtime.
pub(crate) fn attempt(runtime: &Runtime, options: &Options, case: &Case) -> Attempt {
    let began = Instant::now();
    let picture = RefCell::new(None);
    let verdict = quietly(|| judge(runtime, options, case.body, &picture));
    let mut refused = Vec::new();
    let (status, detail) = match verdict {
        Ok(errors) => {
            refused = errors;
            (Status::Pass, String::new())
        }
        Err(NotPassed::Skipped(why)) => (Status::Skip, why),
        Err(NotPassed::Failed(why)) => (Status::Fail, why),
    };
    let address_space = picture.take().filter(|_| status == Status::Fail);
    let duration_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    Attempt { status, detail, duration_us, address_space, lost: None, refused }
}

/// Turns a panic into a failure.
fn quietly<T>(run: impl FnOnce() -> Verdict<T>) -> Verdict<T> {
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|panic| Err(NotPassed::Failed(format!("panicked: {}", said(&*panic)))))
}

/// Runs a case, and returns what it was refused with.
fn judge(
    runtime: &Runtime,
    options: &Options,
    body: Body,
    picture: &RefCell<Option<String>>,
) -> Verdict<Vec<HipError>> {
    let run = match body {
        Body::Runtime(run) => return run(runtime).map(|()| Vec::new()),
        Body::Vmm(run) => run,
    };
    if !runtime.info().virtual_memory {
        let why = "the runtime has no virtual-memory management".to_owned();
        return Err(NotPassed::Skipped(why));
    }
    let count = || options.count_descriptors.then(descriptors::count).flatten();
    let once = || -> Verdict<_> {
        let before = count();
        let context = Context::open(runtime, options)?;
        // A panic is caught while there is still something to be drawn.
        quietly(|| run(&context)).inspect_err(|_| *picture.borrow_mut() = draw(&context))?;
        let refused = context.refused();
        context.close(&mut |vmm| *picture.borrow_mut() = drawn(vmm))?;
        Ok((refused, before, count()))
    };
    let (refused, before, after) = once()?;
    if before == after {
        return Ok(refused);
    }
    // What a runtime opens once and keeps, such as AMD's server for IPC, is not left by the case.
    let (refused, before, after) = once()?;
    if before == after {
        return Ok(refused);
    }
    let why = format!("open file descriptors: {before:?} before, {after:?} after");
    Err(NotPassed::Failed(why))
}

fn draw(context: &Context) -> Option<String> {
    drawn(context.vmm())
}

/// What there is in a `Vmm`, as a picture; `None` if that is nothing, or cannot be asked for.
fn drawn(vmm: &hsa_vmm::Vmm) -> Option<String> {
    catch_unwind(AssertUnwindSafe(|| {
        let report = vmm.report();
        (!report.is_empty()).then(|| crate::picture::draw(&report))
    }))
    .ok()
    .flatten()
}

/// The words of a panic.
fn said(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a word")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hsa_vmm::simulation::Config;

    fn failing(run: fn(&Context) -> Verdict) -> Attempt {
        let runtime = Runtime::simulated(Config::mi300x(1)).unwrap();
        let options = Options { count_descriptors: false, ..Options::default() };
        let attempt = attempt(&runtime, &options, &Case::new("map.test.fails", "", "", run));
        assert_eq!(attempt.status, Status::Fail);
        attempt
    }

    #[test]
    fn panic_is_a_failure() {
        let attempt = failing(|_| panic!("went {}", "wrong"));
        assert_eq!(attempt.detail, "panicked: went wrong");
        assert_eq!(attempt.address_space, None, "there was nothing to be seen");
    }

    #[test]
    fn change_by_rejected_call_is_a_failure() {
        let attempt = failing(|context| {
            context
                .refuses(HipError::InvalidValue, || {
                    let size = context.granule();
                    let _ = context.vmm().address_reserve(size, 0, None);
                    context.vmm().unmap(hsa_vmm::Address::NULL, size)
                })
                .map(|_| ())
        });
        assert!(attempt.detail.contains("changed something"), "{}", attempt.detail);
    }

    #[test]
    fn failed_case_has_drawing_of_address_space() {
        for run in [
            (|context| {
                context.mapped(2, 7)?;
                Err(NotPassed::Failed("for the picture".to_owned()))
            }) as fn(&Context) -> Verdict,
            |context| {
                context.mapped(2, 7)?;
                panic!("for the picture")
            },
        ] {
            let picture = failing(run).address_space.unwrap();
            assert!(picture.starts_with("<svg") && picture.contains("8 KiB"), "{picture}");
        }
    }
}
