//! Runs cases in this process.

use crate::describe::{describe_for, probes};
use crate::plan::Plan;
use crate::results::Results;
use crate::run_case::run_case;
use crate::{CaseReport, KnownFailures, Report, Shard, peer};
use hsa_vmm::Runtime;
use hsa_vmm::hip::HipProfile;
use hsa_vmm::vmm::Quirks;
use std::convert::Infallible;
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::time::Duration;

/// The options of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Selects cases. A filter is a part of a case's name; the whole name of a case selects only this case. A filter with
    /// `*` must match the whole name; `*` stands for any text. If the list is empty, all cases are selected.
    pub filters: Vec<String>,
    /// The number of rounds: each round runs all selected cases once. 0 counts as 1.
    pub repeat: usize,
    /// The seed of a random order, which differs in each round; `None` for the order of `cases()`.
    pub shuffle: Option<u64>,
    /// The number of failed cases after which the run stops; `None` for no limit.
    pub max_failures: Option<NonZeroUsize>,
    /// The part of the selected cases to run; `None` for all of them.
    pub shard: Option<Shard>,
    /// The reports of cases that an earlier, interrupted run has finished. These cases are not run again.
    pub finished: Vec<CaseReport>,
    /// The known failures.
    pub known: KnownFailures,
    /// The HIP version whose results are expected.
    pub profile: HipProfile,
    /// Whether the library controls GPUs' page tables.
    pub page_tables: bool,
    /// The quirks to work around in addition to the known quirks of the runtime's version.
    pub quirks: Quirks,
    /// Whether to check for leaked file descriptors. Requires that no other thread of this process
    /// opens or closes descriptors.
    pub count_descriptors: bool,
    /// The command line of a program that calls [`peer::serve`](crate::peer::serve) on the same runtime.
    /// If empty, cases that need two processes are skipped.
    pub peer: Vec<OsString>,
    /// The time limit of the start of the program in `peer`, and of each of its replies.
    pub peer_time_limit: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            filters: Vec::new(),
            repeat: 1,
            shuffle: None,
            max_failures: None,
            shard: None,
            finished: Vec::new(),
            known: KnownFailures::built_in().clone(),
            profile: HipProfile::default(),
            page_tables: false,
            quirks: Quirks::default(),
            count_descriptors: true,
            peer: Vec::new(),
            peer_time_limit: peer::TIME_LIMIT,
        }
    }
}

/// The progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The number of case runs that have ended. A case with several rounds counts several times.
    pub done: usize,
    /// The total number of case runs.
    pub total: usize,
    /// The report of the case that has just ended, including its earlier runs.
    pub case: &'a CaseReport,
}

/// The detail of cases that were not run because too many other cases failed.
pub(crate) const STOPPED_AFTER_FAILURES: &str =
    "not tried: the run stopped after other cases failed";

/// The detail of cases that were not run because the run was interrupted.
pub(crate) const INTERRUPTED: &str = "not tried: the run was interrupted";

/// Runs the selected cases one after another in this process. Calls `on_case` after each case.
///
/// If a case crashes or hangs, this process does, too. [`contain`](crate::contain) runs cases in worker
/// processes.
pub fn run(runtime: &Runtime, options: &Options, on_case: &mut dyn FnMut(Progress<'_>)) -> Report {
    let mut description = describe_for(runtime, options);
    let plan = Plan::new(options);
    let mut results = Results::new(&plan, options);
    let total = plan.steps.len();
    for (step, &index) in plan.steps.iter().enumerate() {
        let Some(case) = plan.selected.get(index) else { continue };
        let run = || Ok::<_, Infallible>(run_case(runtime, options, case));
        let Ok(result) = results.expectation(case, &description).attempt(run);
        let report = results.add(index, case, result, &description);
        on_case(Progress { done: step + 1, total, case: &report });
        if results.has_too_many_failures() {
            break;
        }
    }
    description.runtime.add_probes(probes(runtime));
    results.report(&plan, description, STOPPED_AFTER_FAILURES)
}
