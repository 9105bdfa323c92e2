//! From attempts to what is reported of each case.

use crate::attempt::Attempt;
use crate::describe::Description;
use crate::known::Known;
use crate::plan::Plan;
use crate::report::{Repetitions, Run};
use crate::{Case, CaseReport, Options, Report, Status, Summary};
use chrono::{DateTime, SubsecRound, Utc};

/// What has been seen so far.
pub(crate) struct Tally<'a> {
    options: &'a Options,
    began: DateTime<Utc>,
    tallied: Vec<Tallied>,
    /// What is told of the process and of no case.
    more: Vec<CaseReport>,
}

/// What has been seen of a case.
#[derive(Clone, Default)]
struct Tallied {
    ran: usize,
    failed: usize,
    skipped: usize,
    duration_us: u64,
    /// The first that failed, else the last.
    told: Option<Attempt>,
}

impl Tallied {
    fn add(&mut self, attempt: Attempt) {
        self.ran += 1;
        self.duration_us = self.duration_us.saturating_add(attempt.duration_us);
        let first_failure = attempt.status == Status::Fail && self.failed == 0;
        match attempt.status {
            Status::Fail => self.failed += 1,
            Status::Skip => self.skipped += 1,
            Status::Pass | Status::Known => {}
        }
        if first_failure || self.failed == 0 {
            self.told = Some(attempt);
        }
    }

    fn report(&self, case: &Case, known: Option<&Known>, untried: &str) -> CaseReport {
        let Some(told) = &self.told else {
            return CaseReport {
                detail: untried.to_owned(),
                ..CaseReport::new(case.name, case.source, Status::Skip)
            };
        };
        let several = self.ran > 1;
        let (status, detail) = match (self.failed, known) {
            (0, Some(known)) if self.skipped < self.ran => {
                (Status::Pass, format!("known, but passed: {} ({})", known.reason, known.source))
            }
            (0, _) if self.skipped < self.ran => (Status::Pass, String::new()),
            (0, _) => (Status::Skip, told.detail.clone()),
            (failed, known) => {
                let times = match several {
                    true => format!("failed {failed} of {}: ", self.ran),
                    false => String::new(),
                };
                match known {
                    Some(Known { reason, source, .. }) => {
                        (Status::Known, format!("{reason} ({source}): {times}{}", told.detail))
                    }
                    None => (Status::Fail, format!("{times}{}", told.detail)),
                }
            }
        };
        CaseReport {
            detail,
            duration_us: self.duration_us / self.ran as u64,
            address_space: told.address_space.clone(),
            lost: told.lost.clone(),
            repetitions: several.then_some(Repetitions { ran: self.ran, failed: self.failed }),
            known_passed: known.is_some() && status == Status::Pass,
            refused: told.refused.clone(),
            ..CaseReport::new(case.name, case.source, status)
        }
    }
}

impl<'a> Tally<'a> {
    pub fn new(plan: &Plan, options: &'a Options) -> Self {
        let tallied = vec![Tallied::default(); plan.chosen.len()];
        Self { options, began: Utc::now().trunc_subsecs(0), tallied, more: Vec::new() }
    }

    /// Counts an attempt at a case, and reports what is known of it so far.
    pub fn add(
        &mut self,
        place: usize,
        case: &Case,
        attempt: Attempt,
        runtime: &Description,
    ) -> CaseReport {
        let Some(tallied) = self.tallied.get_mut(place) else {
            return CaseReport::new(case.name, case.source, attempt.status);
        };
        tallied.add(attempt);
        tallied.report(case, self.options.known.of(runtime, case.name), "")
    }

    /// Adds something that was no case of the plan.
    pub fn add_more(&mut self, case: &Case, attempt: Attempt, runtime: &Description) {
        let mut tallied = Tallied::default();
        tallied.add(attempt);
        self.more.push(tallied.report(case, self.options.known.of(runtime, case.name), ""));
    }

    /// The report; `untried` says why there are cases that were not put.
    pub fn report(self, plan: &Plan, runtime: Description, untried: &str) -> Report {
        let cases = self.tallied.iter().zip(&plan.chosen).map(|(tallied, case)| {
            tallied.report(case, self.options.known.of(&runtime, case.name), untried)
        });
        let cases: Vec<_> = self.more.iter().cloned().chain(cases).collect();
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Report {
            run: Some(Run {
                tool: env!("CARGO_PKG_VERSION").to_owned(),
                began: self.began,
                kernel: kernel.trim().to_owned(),
                profile: self.options.profile.to_string(),
                filters: self.options.filters.clone(),
                repeat: Some(self.options.repeat.max(1)).filter(|&repeat| repeat > 1),
                seed: self.options.shuffle,
            }),
            runtime: runtime.runtime,
            agents: runtime.agents,
            summary: Summary::of(&cases),
            cases,
        }
    }
}
