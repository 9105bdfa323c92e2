//! Collects the results of all runs of each case and makes the report.

use crate::describe::Description;
use crate::expectation::Expectation;
use crate::known::{KnownFailure, kernel_release};
use crate::plan::Plan;
use crate::report::{Repetitions, Run};
use crate::run::INTERRUPTED;
use crate::run_case::CaseResult;
use crate::{Case, CaseReport, Options, Report, Status, Summary};
use chrono::{DateTime, SubsecRound, Utc};
use std::collections::BTreeMap;

/// The results of a run so far.
pub(crate) struct Results<'a> {
    options: &'a Options,
    began: DateTime<Utc>,
    case_results: Vec<CaseResults>,
    /// The reports of `runtime.library.starts` and `runtime.library.stops`, which are not in the plan.
    extra: Vec<CaseReport>,
    /// The number of cases that have failed so far.
    failed: usize,
}

#[derive(Clone, Default)]
struct CaseResults {
    ran: usize,
    failed: usize,
    skipped: usize,
    duration_us: u64,
    /// The result that the report shows: the first failure, or the last result if no run failed.
    shown: Option<CaseResult>,
}

impl CaseResults {
    fn add(&mut self, result: CaseResult) {
        self.ran += 1;
        self.duration_us = self.duration_us.saturating_add(result.duration_us);
        let is_first_failure = result.status == Status::Fail && self.failed == 0;
        match result.status {
            Status::Fail => self.failed += 1,
            Status::Skip => self.skipped += 1,
            Status::Pass | Status::Known => {}
        }
        if is_first_failure || self.failed == 0 {
            self.shown = Some(result);
        }
    }

    fn report(&self, case: &Case, expected: Expectation<'_>, untried: &str) -> CaseReport {
        let known = expected.failure();
        let Some(shown) = &self.shown else {
            return CaseReport {
                detail: untried.to_owned(),
                ..CaseReport::new(case.name, case.source, Status::Skip)
            };
        };
        let is_repeated = self.ran > 1;
        let (status, detail) = match (self.failed, known) {
            (0, Some(known)) if self.skipped < self.ran => {
                (Status::Pass, format!("known, but passed: {} ({})", known.reason, known.source))
            }
            (0, _) if self.skipped < self.ran => (Status::Pass, shown.detail.clone()),
            (0, _) => (Status::Skip, shown.detail.clone()),
            (failed, known) => {
                let prefix = match is_repeated {
                    true => format!("failed {failed} of {}: ", self.ran),
                    false => String::new(),
                };
                match known {
                    Some(KnownFailure { reason, source, .. }) => {
                        (Status::Known, format!("{reason} ({source}): {prefix}{}", shown.detail))
                    }
                    None => (Status::Fail, format!("{prefix}{}", shown.detail)),
                }
            }
        };
        CaseReport {
            detail,
            duration_us: self.duration_us / self.ran as u64,
            address_space: shown.address_space.clone(),
            output: (self.failed > 0 && !shown.output.is_empty()).then(|| shown.output.clone()),
            lost: shown.lost.clone(),
            repetitions: is_repeated.then_some(Repetitions { ran: self.ran, failed: self.failed }),
            known_passed: known.is_some() && status == Status::Pass,
            expected_errors: shown.expected_errors.clone(),
            ..CaseReport::new(case.name, case.source, status)
        }
    }
}

impl<'a> Results<'a> {
    pub fn new(plan: &Plan, options: &'a Options) -> Self {
        let case_results = vec![CaseResults::default(); plan.selected.len()];
        let failed = options.finished.iter().filter(|it| it.status == Status::Fail).count();
        let began = Utc::now().trunc_subsecs(0);
        Self { options, began, case_results, extra: Vec::new(), failed }
    }

    /// Adds a result and returns the report of the case so far.
    pub fn add(
        &mut self,
        index: usize,
        case: &Case,
        result: CaseResult,
        runtime: &Description,
    ) -> CaseReport {
        let Some(case_results) = self.case_results.get_mut(index) else {
            return CaseReport::new(case.name, case.source, result.status);
        };
        let had_failed = case_results.failed > 0;
        case_results.add(result);
        let report =
            case_results.report(case, self.options.known.expectation(runtime, case.name), "");
        self.failed += usize::from(report.status == Status::Fail && !had_failed);
        report
    }

    /// Returns the expected outcome of a case.
    pub fn expectation(&self, case: &Case, runtime: &Description) -> Expectation<'a> {
        self.options.known.expectation(runtime, case.name)
    }

    /// Returns whether the number of failed cases has reached the limit.
    pub fn has_too_many_failures(&self) -> bool {
        self.options.max_failures.is_some_and(|max| self.failed >= max.get())
    }

    /// Adds a result of a case that is not in the plan.
    pub fn add_unplanned(&mut self, case: &Case, result: CaseResult, runtime: &Description) {
        let mut case_results = CaseResults::default();
        case_results.add(result);
        self.extra.push(case_results.report(
            case,
            self.options.known.expectation(runtime, case.name),
            "",
        ));
    }

    /// Returns the report. `untried` is the detail of cases that were not run.
    pub fn report(self, plan: &Plan, runtime: Description, untried: &str) -> Report {
        let finished: BTreeMap<_, _> =
            self.options.finished.iter().map(|it| (it.name.as_str(), it)).collect();
        let cases = self.case_results.iter().zip(&plan.selected).map(|(results, case)| {
            match finished.get(case.name) {
                Some(&finished) => finished.clone(),
                None => results.report(case, self.expectation(case, &runtime), untried),
            }
        });
        let cases: Vec<_> = self.extra.iter().cloned().chain(cases).collect();
        Report {
            run: Some(Run {
                tool: env!("CARGO_PKG_VERSION").to_owned(),
                began: self.began,
                kernel: kernel_release(),
                profile: self.options.profile.to_string(),
                filters: self.options.filters.clone(),
                repeat: Some(self.options.repeat.max(1)).filter(|&repeat| repeat > 1),
                seed: self.options.shuffle,
                interrupted: untried == INTERRUPTED,
                provenance: None,
            }),
            runtime: runtime.runtime,
            agents: runtime.agents,
            summary: Summary::of(&cases),
            cases,
            bringup: None,
        }
    }
}
