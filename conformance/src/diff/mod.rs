//! Compares two reports, of different runtimes, versions or machines.
//!
//! [`Diff`] is plain data: differences of the runs, the runtimes, the agents, and the results and
//! durations of cases. [`sentences`](Diff::sentences) formats the differences as text.

mod agents;
mod cases;
mod sentences;
mod timings;

use crate::Report;
use crate::describe::{Fact, QuirkDescription};
use serde::Serialize;

pub use agents::AgentChange;
pub use cases::{CaseChange, CaseChangeKind, ReportedResult};
pub use timings::{Timing, Timings};

/// The differences between a report A and a report B.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Diff {
    /// The differences of the runs: this project's version, the profile, the kernel, the machine, the version of
    /// `/dev/kfd`, planned faults.
    pub run: Vec<Change>,
    /// The differences of the runtimes' properties.
    pub runtime: Vec<Change>,
    /// The optional functions that only one library exports.
    pub functions: OneSided<String>,
    /// The quirks that are worked around for only one runtime.
    pub quirks: OneSided<QuirkDescription>,
    /// The differences of the agents.
    pub agents: Vec<AgentChange>,
    /// The cases whose results differ, or that are in one report only.
    pub cases: Vec<CaseChange>,
    /// The number of cases with equal results.
    #[serde(rename = "alike")]
    pub same: usize,
    /// Whether cases were compared. Reports of `hsa-vmm info` have no cases.
    pub cases_compared: bool,
    /// The durations of the cases. Durations vary, and do not count as differences.
    pub timings: Timings,
}

/// A property with different values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The property's name.
    pub what: String,
    /// The value in A; `None` if absent.
    pub a: Option<String>,
    /// The value in B; `None` if absent.
    pub b: Option<String>,
}

/// The items that are in one report only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OneSided<T> {
    /// The items that only A has.
    pub a: Vec<T>,
    /// The items that only B has.
    pub b: Vec<T>,
}

impl<T: Clone> OneSided<T> {
    /// Compares two lists by the names of their items. Returns empty lists if a report lacks its list.
    fn of(a: Option<&[T]>, b: Option<&[T]>, name: fn(&T) -> &str) -> Self {
        let (Some(a), Some(b)) = (a, b) else { return Self { a: Vec::new(), b: Vec::new() } };
        let without = |list: &[T], removed: &[T]| {
            let is_removed = |it: &T| removed.iter().any(|other| name(other) == name(it));
            list.iter().filter(|it| !is_removed(it)).cloned().collect()
        };
        Self { a: without(a, b), b: without(b, a) }
    }

    fn is_empty(&self) -> bool {
        self.a.is_empty() && self.b.is_empty()
    }
}

impl Diff {
    /// Compares two reports.
    #[must_use]
    pub fn of(a: &Report, b: &Report) -> Self {
        let (old, new) = (&a.runtime, &b.runtime);
        // Only reports of `hsa-vmm info` have no cases.
        let same_kind = a.cases.is_empty() == b.cases.is_empty();
        let cases_compared = !a.cases.is_empty() && !b.cases.is_empty();
        let (cases, same) =
            if cases_compared { cases::compare(&a.cases, &b.cases) } else { (Vec::new(), 0) };
        // A function that is missing only in A is exported only in B.
        let missing = OneSided::of(
            old.missing_functions.as_deref(),
            new.missing_functions.as_deref(),
            String::as_str,
        );
        Self {
            run: changes(&facts_of_run(a), &facts_of_run(b)),
            runtime: changes(&old.facts(), &new.facts()),
            functions: OneSided { a: missing.b, b: missing.a },
            quirks: OneSided::of(old.quirks.as_deref(), new.quirks.as_deref(), |quirk| &quirk.name),
            agents: agents::compare(&a.agents, &b.agents, same_kind),
            cases,
            same,
            cases_compared,
            timings: timings::compare(&a.cases, &b.cases),
        }
    }

    /// Returns whether anything but durations differs.
    #[must_use]
    pub fn differs(&self) -> bool {
        !(self.run.is_empty()
            && self.runtime.is_empty()
            && self.functions.is_empty()
            && self.quirks.is_empty()
            && self.agents.is_empty()
            && self.cases.is_empty())
    }

    /// Returns the cases that fail in B and not in A.
    pub fn new_failures(&self) -> impl Iterator<Item = &CaseChange> {
        self.cases.iter().filter(|case| case.is_new_failure())
    }
}

/// Returns the properties that both reports have and whose values differ.
fn changes(a: &[Fact], b: &[Fact]) -> Vec<Change> {
    let pairs = a.iter().filter_map(|a| {
        let b = b.iter().find(|b| b.name == a.name)?;
        Some((a.name, a.value.as_ref()?, b.value.as_ref()?))
    });
    pairs
        .filter(|(_, a, b)| a != b)
        .map(|(what, a, b)| Change {
            what: what.to_owned(),
            a: Some(a.clone()),
            b: Some(b.clone()),
        })
        .collect()
}

/// Returns the properties of a run. Omits filters and repetitions: the lists of cases show their effect.
fn facts_of_run(report: &Report) -> Vec<Fact> {
    let Some(run) = &report.run else { return Vec::new() };
    let mut facts = vec![Fact::new("hsa-vmm", &run.tool), Fact::new("profile", &run.profile)];
    if !run.kernel.is_empty() {
        facts.push(Fact::new("kernel", &run.kernel));
    }
    // Older reports have no provenance. Missing provenance does not count as a difference.
    if let Some(provenance) = &run.provenance {
        facts.extend(provenance.machine.map(|it| Fact::new("machine", it.to_string())));
        facts.extend(provenance.kfd_version_text().map(|it| Fact::new("/dev/kfd version", it)));
        let planned = provenance.planned_faults_text().unwrap_or_else(|| "none".to_owned());
        let planned = planned.trim_start_matches("planned faults: ");
        facts.push(Fact::new("planned faults", planned));
    }
    facts
}
