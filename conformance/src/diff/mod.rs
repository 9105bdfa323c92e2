//! Two reports held against each other: two runtimes, two versions, two machines.
//!
//! [`Diff`] is plain data: what the runs, the runtimes and their agents differ in, which cases end
//! otherwise, and which take another time. [`words`](Diff::words) says it in sentences.

mod agents;
mod cases;
mod timings;
mod words;

use crate::Report;
use crate::describe::{Fact, QuirkDescription};
use serde::Serialize;

pub use agents::AgentChange;
pub use cases::{CaseChange, CaseKind, Outcome};
pub use timings::{Timing, Timings};

/// What differs between a report A and a report B.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Diff {
    /// How they came about: this project's version, whose answers were expected, which cases.
    pub run: Vec<Change>,
    /// What the runtimes say of themselves.
    pub runtime: Vec<Change>,
    /// The optional functions that one library alone exports.
    pub functions: Only<String>,
    /// The quirks that are worked around with one runtime alone.
    pub quirks: Only<QuirkDescription>,
    /// The agents, and what they have.
    pub agents: Vec<AgentChange>,
    /// The cases that end otherwise, or are in one report alone.
    pub cases: Vec<CaseChange>,
    /// How many cases end alike.
    pub alike: usize,
    /// Whether cases were compared: one of the reports may be of `info`, which has none.
    pub cases_compared: bool,
    /// How long the cases took. That differs each time, and is no difference.
    pub timings: Timings,
}

/// Something that is told otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// What is told.
    pub what: String,
    /// What A says; null: it is not there.
    pub a: Option<String>,
    /// What B says; null: it is not there.
    pub b: Option<String>,
}

/// What is in one report alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Only<T> {
    /// In A.
    pub a: Vec<T>,
    /// In B.
    pub b: Vec<T>,
}

impl<T: Clone> Only<T> {
    /// What has a name of its own in each; nothing, if one of the reports does not tell.
    fn of(a: Option<&[T]>, b: Option<&[T]>, name: fn(&T) -> &str) -> Self {
        let (Some(a), Some(b)) = (a, b) else { return Self { a: Vec::new(), b: Vec::new() } };
        let without = |these: &[T], those: &[T]| {
            let among = |it: &T| those.iter().any(|other| name(other) == name(it));
            these.iter().filter(|it| !among(it)).cloned().collect()
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
        let cases_compared = !a.cases.is_empty() && !b.cases.is_empty();
        let (cases, alike) =
            if cases_compared { cases::compare(&a.cases, &b.cases) } else { (Vec::new(), 0) };
        // What A lacks, B alone has.
        let lacks = Only::of(
            old.missing_functions.as_deref(),
            new.missing_functions.as_deref(),
            String::as_str,
        );
        Self {
            run: changes(&facts_of_run(a), &facts_of_run(b)),
            runtime: changes(&old.facts(), &new.facts()),
            functions: Only { a: lacks.b, b: lacks.a },
            quirks: Only::of(old.quirks.as_deref(), new.quirks.as_deref(), |quirk| &quirk.name),
            agents: agents::compare(&a.agents, &b.agents),
            cases,
            alike,
            cases_compared,
            timings: timings::compare(&a.cases, &b.cases),
        }
    }

    /// Whether anything differs, besides the time that it took.
    #[must_use]
    pub fn differs(&self) -> bool {
        !(self.run.is_empty()
            && self.runtime.is_empty()
            && self.functions.is_empty()
            && self.quirks.is_empty()
            && self.agents.is_empty()
            && self.cases.is_empty())
    }

    /// The cases that fail in B and not in A.
    pub fn worse(&self) -> impl Iterator<Item = &CaseChange> {
        self.cases.iter().filter(|case| case.is_worse())
    }
}

/// What both tell, and otherwise.
fn changes(a: &[Fact], b: &[Fact]) -> Vec<Change> {
    let pairs = a.iter().filter_map(|a| {
        let b = b.iter().find(|b| b.what == a.what)?;
        Some((a.what, a.value.as_ref()?, b.value.as_ref()?))
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

/// Which cases were chosen is seen by which cases there are; how often they were put, too.
fn facts_of_run(report: &Report) -> Vec<Fact> {
    let Some(run) = &report.run else { return Vec::new() };
    let mut facts = vec![Fact::new("hsa-vmm", &run.tool), Fact::new("answers of", &run.profile)];
    if !run.kernel.is_empty() {
        facts.push(Fact::new("kernel", &run.kernel));
    }
    // What older reports do not say is no difference.
    if let Some(provenance) = &run.provenance {
        facts.extend(provenance.machine.map(|it| Fact::new("machine", it.to_string())));
        facts.extend(provenance.kfd_version.as_ref().map(|it| Fact::new("/dev/kfd version", it)));
        let planned = provenance.planned().unwrap_or_else(|| "no planned faults".to_owned());
        facts.push(Fact::new("faults", planned));
    }
    facts
}
