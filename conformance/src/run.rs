//! Putting cases to a runtime in this process.

use crate::attempt::attempt;
use crate::describe::describe_with;
use crate::plan::Plan;
use crate::tally::Tally;
use crate::{CaseReport, KnownFailures, Report, Status};
use hsa_vmm::Runtime;
use hsa_vmm::hip::HipProfile;
use hsa_vmm::vmm::Quirks;
use std::ffi::OsString;

/// How a run is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Which cases: each a part of the name, or a pattern with `*` for the whole; none: all.
    pub filters: Vec<String>,
    /// How often, all of them in turn; 0 is 1.
    pub repeat: usize,
    /// The seed of an order drawn at random, another each time; `None`: that of the areas.
    pub shuffle: Option<u64>,
    /// Whether the first failure is the end.
    pub fail_fast: bool,
    /// What is known to fail.
    pub known: KnownFailures,
    /// Whose answers are expected where HIP's releases differ.
    pub profile: HipProfile,
    /// The quirks to work around besides those known of the runtime's version.
    pub quirks: Quirks,
    /// Whether open file descriptors are counted. That means something only while no other
    /// thread of this process opens or closes any.
    pub count_descriptors: bool,
    /// A program whose process calls [`peer::serve`](crate::peer::serve) on the same runtime,
    /// and its arguments: for cases that take two processes. Empty: those are skipped.
    pub peer: Vec<OsString>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            filters: Vec::new(),
            repeat: 1,
            shuffle: None,
            fail_fast: false,
            known: KnownFailures::built_in().clone(),
            profile: HipProfile::default(),
            quirks: Quirks::default(),
            count_descriptors: true,
            peer: Vec::new(),
        }
    }
}

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// How many cases have ended, each counted as often as it was put.
    pub done: usize,
    /// How many will be.
    pub total: usize,
    /// The one that has just ended; if it was put before, all of that together.
    pub case: &'a CaseReport,
}

/// Why cases of a run that ended early have no outcome.
pub(crate) const FAILED_BEFORE: &str = "not tried: another case failed before, which was the end";

/// Puts every chosen case to a runtime, one after another, and says after each how it ended.
///
/// A case that crashes takes this process along, and one that hangs is waited for. [`contain`](crate::contain)
/// does the same in processes of their own.
pub fn run(runtime: &Runtime, options: &Options, on_case: &mut dyn FnMut(Progress<'_>)) -> Report {
    let quirks = Quirks::of_extension(runtime.info().extension).union(options.quirks);
    let description = describe_with(runtime, quirks);
    let plan = Plan::new(options);
    let mut tally = Tally::new(&plan, options);
    let total = plan.steps.len();
    for (index, &place) in plan.steps.iter().enumerate() {
        let Some(case) = plan.chosen.get(place) else { continue };
        let attempt = attempt(runtime, options, case);
        let report = tally.add(place, case, attempt, &description);
        on_case(Progress { done: index + 1, total, case: &report });
        if options.fail_fast && report.status == Status::Fail {
            break;
        }
    }
    tally.report(&plan, description, FAILED_BEFORE)
}
