//! Formats differences as sentences.

use super::agents::AGENT;
use super::{AgentChange, CaseChange, CaseKind, Change, Diff, Timing, Timings};
use crate::describe::QuirkDescription;

/// The maximum number of names in a sentence; others are counted.
const NAMES: usize = 6;

impl Diff {
    /// Returns a sentence for each difference of the runs, the runtimes, their agents and the
    /// cases.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        sentences.extend(sentence("The runs", &self.run));
        sentences.extend(sentence("The runtimes", &self.runtime));
        for (one, other, functions) in
            [("B", "A", &self.functions.b), ("A", "B", &self.functions.a)]
        {
            if !functions.is_empty() {
                sentences
                    .push(format!("{one} exports {}, {other} does not.", list(functions, ", ")));
            }
        }
        sentences.extend(quirks("A", &self.quirks.a));
        sentences.extend(quirks("B", &self.quirks.b));
        sentences
            .extend(self.agents.chunk_by(|one, next| one.agents == next.agents).filter_map(agents));
        if sentences.is_empty() {
            sentences.push("Runtime and agents are the same.".to_owned());
        }
        if self.cases_compared {
            self.add_cases(&mut sentences);
        } else {
            let text = "Cases are not compared: one of the reports has none, as those of `info`.";
            sentences.push(text.to_owned());
        }
        sentences
    }

    fn add_cases(&self, sentences: &mut Vec<String>) {
        for cases in self.cases.chunk_by(|one, next| one.kind == next.kind) {
            let Some(CaseChange { kind, .. }) = cases.first() else { continue };
            let (one, many) = match kind {
                CaseKind::FailsNow => {
                    ("case fails in B and not in A", "cases fail in B and not in A")
                }
                CaseKind::PassesNow => {
                    ("case passes in B and not in A", "cases pass in B and not in A")
                }
                CaseKind::SkippedNow => {
                    ("case is skipped only in B", "cases are skipped only in B")
                }
                CaseKind::KnownNow => {
                    ("case fails in B, a known failure", "cases fail in B, known failures")
                }
                CaseKind::Otherwise => (
                    "case has the same status for another reason",
                    "cases have the same status for other reasons",
                ),
                CaseKind::OnlyA => ("case is only in A", "cases are only in A"),
                CaseKind::OnlyB => ("case is only in B", "cases are only in B"),
            };
            let what = if cases.len() == 1 { one } else { many };
            let names: Vec<_> = cases.iter().map(named).collect();
            sentences.push(format!("{} {what}: {}.", cases.len(), list(&names, ", ")));
        }
        sentences.push(match (self.cases.is_empty(), self.same) {
            (true, 1) => "The case has the same result.".to_owned(),
            (true, all) => format!("All {all} cases have the same result."),
            (false, 0) => "No case has the same result.".to_owned(),
            (false, 1) => "The other case has the same result.".to_owned(),
            (false, others) => format!("The other {others} cases have the same result."),
        });
    }
}

/// Formats a case, with the reason if it is skipped or known.
fn named(case: &CaseChange) -> String {
    let why = case.b.as_ref().map(|outcome| outcome.detail.as_str()).unwrap_or_default();
    match case.kind {
        CaseKind::SkippedNow | CaseKind::KnownNow if !why.is_empty() => {
            format!("{} ({why})", case.name)
        }
        CaseKind::OnlyB if case.is_worse() => format!("{} (fails)", case.name),
        _ => case.name.clone(),
    }
}

fn sentence(who: &str, changes: &[Change]) -> Option<String> {
    let said: Vec<_> = changes.iter().map(instead).collect();
    (!said.is_empty()).then(|| format!("{who} differ: {}.", said.join("; ")))
}

/// Formats a change, such as `AMD extension 1.7 instead of 1.4`.
fn instead(change: &Change) -> String {
    let Change { what, a, b } = change;
    match (a, b) {
        (Some(a), Some(b)) => format!("{what} {b} instead of {a}"),
        (Some(_), None) => format!("{what} only in A"),
        (None, _) => format!("{what} only in B"),
    }
}

fn quirks(place: &str, quirks: &[QuirkDescription]) -> Option<String> {
    let named: Vec<_> =
        quirks.iter().map(|quirk| format!("{} ({})", quirk.name, quirk.issue)).collect();
    let what = if named.len() == 1 { "workaround is" } else { "workarounds are" };
    // List all of them: versions differ mainly in these.
    let named_quirks =
        || format!("{} {what} needed only with {place}: {}.", named.len(), named.join(", "));
    (!named.is_empty()).then(named_quirks)
}

/// Formats the differences of agents, grouped by agent.
fn agents(changes: &[AgentChange]) -> Option<String> {
    let AgentChange { agents, change } = changes.first()?;
    let who = agents.join(", ");
    if change.what != AGENT {
        let said: Vec<_> = changes.iter().map(|it| instead(&it.change)).collect();
        return Some(format!("{who}: {}.", list(&said, "; ")));
    }
    let is = if agents.len() == 1 { "is" } else { "are" };
    let place = if change.a.is_some() { "A" } else { "B" };
    Some(format!("{who} {is} only in {place}."))
}

impl Timings {
    /// Returns a sentence for each notable difference in durations.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let ratio = self.notable_ratio().map(|ratio| match ratio {
            1.0.. => format!("The cases of B take {ratio:.1} times as long (median)."),
            _ => format!("The cases of A take {:.1} times as long (median).", 1.0 / ratio),
        });
        ratio.into_iter().chain(self.notable.iter().take(NAMES).map(time)).collect()
    }
}

fn time(timing: &Timing) -> String {
    let ms = |us: u64| us as f64 / 1000.0;
    format!("{} takes {:.1} ms instead of {:.1} ms.", timing.name, ms(timing.b_us), ms(timing.a_us))
}

/// Joins names with a separator. Of many, the first ones and the number of others.
fn list(names: &[String], between: &str) -> String {
    let shown = names.iter().take(NAMES).map(String::as_str).collect::<Vec<_>>().join(between);
    match names.len().saturating_sub(NAMES) {
        0 => shown,
        1 => format!("{shown} and 1 more"),
        more => format!("{shown} and {more} more"),
    }
}
