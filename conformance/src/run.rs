//! Putting cases to a runtime.

use crate::case::Body;
use crate::context::Context;
use crate::describe::describe_with;
use crate::filter::matches;
use crate::known::{KNOWN, known};
use crate::report::Run;
use crate::{Case, CaseReport, NotPassed, Report, Status, Summary, Verdict, cases, descriptors};
use chrono::{SubsecRound, Utc};
use hsa_vmm::vmm::Quirks;
use hsa_vmm::{HipError, HipProfile, Runtime};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// How a run is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Which cases: a part of the name, or a pattern with `*` for the whole; `None`: all.
    pub filter: Option<String>,
    /// Whose answers are expected where HIP's releases differ.
    pub profile: HipProfile,
    /// The runtime's habits to work around; `None`: those known of its version.
    pub quirks: Option<Quirks>,
    /// Whether open file descriptors are counted. That means something only while no other
    /// thread of this process opens or closes any.
    pub count_descriptors: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { filter: None, profile: HipProfile::default(), quirks: None, count_descriptors: true }
    }
}

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// How many cases have ended.
    pub done: usize,
    /// How many were chosen.
    pub total: usize,
    /// The one that has just ended.
    pub case: &'a CaseReport,
}

/// Puts every chosen case to a runtime, one after another, and says after each how it ended.
pub fn run(runtime: &Runtime, options: &Options, on_case: &mut dyn FnMut(Progress<'_>)) -> Report {
    let chosen: Vec<_> = cases()
        .into_iter()
        .filter(|case| options.filter.as_ref().is_none_or(|filter| matches(filter, case.name)))
        .collect();
    let began = Utc::now().trunc_subsecs(0);
    let total = chosen.len();
    let mut reports = Vec::with_capacity(total);
    for (index, case) in chosen.into_iter().enumerate() {
        let report = run_case(runtime, options, case);
        on_case(Progress { done: index + 1, total, case: &report });
        reports.push(report);
    }
    let quirks = options.quirks.unwrap_or_else(|| Quirks::of_extension(runtime.info().extension));
    let description = describe_with(runtime, quirks);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Report {
        run: Some(Run {
            tool: env!("CARGO_PKG_VERSION").to_owned(),
            began,
            kernel: kernel.trim().to_owned(),
            profile: options.profile.to_string(),
            filters: options.filter.iter().cloned().collect(),
        }),
        runtime: description.runtime,
        agents: description.agents,
        summary: Summary::of(&reports),
        cases: reports,
    }
}

fn run_case(runtime: &Runtime, options: &Options, case: &Case) -> CaseReport {
    let began = Instant::now();
    let verdict = catch_unwind(AssertUnwindSafe(|| judge(runtime, options, case.body)))
        .unwrap_or_else(|panic| Err(NotPassed::Failed(format!("panicked: {}", said(&*panic)))));
    let mut refused = Vec::new();
    let (status, detail) = match verdict {
        Ok(errors) => {
            refused = errors;
            (Status::Pass, String::new())
        }
        Err(NotPassed::Skipped(why)) => (Status::Skip, why),
        Err(NotPassed::Failed(why)) => match known(KNOWN, runtime.info(), case.name) {
            Some(entry) => (Status::Known, format!("{} ({}): {why}", entry.reason, entry.source)),
            None => (Status::Fail, why),
        },
    };
    let duration_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    CaseReport {
        name: case.name.to_owned(),
        status,
        source: case.source.to_owned(),
        detail,
        duration_us,
        address_space: None,
        refused,
    }
}

/// Runs a case, and returns what it was refused with.
fn judge(runtime: &Runtime, options: &Options, body: Body) -> Verdict<Vec<HipError>> {
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
        run(&context)?;
        let refused = context.refused();
        context.close()?;
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

    #[test]
    fn a_panic_is_a_failure() {
        let runtime = Runtime::simulated(Config::mi300x(1)).unwrap();
        let options = Options { count_descriptors: false, ..Options::default() };
        let case = Case::new("map.test.panics", "", "", |_| panic!("went {}", "wrong"));
        let report = run_case(&runtime, &options, &case);
        assert_eq!(report.status, Status::Fail);
        assert_eq!(report.detail, "panicked: went wrong");
    }

    #[test]
    fn what_a_case_has_changed_by_a_refusal_is_a_failure() {
        let runtime = Runtime::simulated(Config::mi300x(1)).unwrap();
        let options = Options { count_descriptors: false, ..Options::default() };
        let case = Case::new("map.test.changes", "", "", |context| {
            context
                .refuses(hsa_vmm::HipError::InvalidValue, || {
                    let size = context.granule();
                    let _ = context.vmm().address_reserve(size, 0, None, 0);
                    context.vmm().unmap(hsa_vmm::Address::NULL, size)
                })
                .map(|_| ())
        });
        let report = run_case(&runtime, &options, &case);
        assert_eq!(report.status, Status::Fail);
        assert!(report.detail.contains("changed something"), "{}", report.detail);
    }
}
