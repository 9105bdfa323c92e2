//! Formats differences as sentences.

use super::agents::AGENT;
use super::{AgentChange, CaseChange, CaseChangeKind, Change, Diff, Timing, Timings};
use crate::describe::QuirkDescription;

/// The maximum number of names in a sentence. Further names are only counted.
const MAX_NAMES: usize = 6;

impl Diff {
    /// Returns sentences that list the differences of the runs, the runtimes, their agents and the cases.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        sentences.extend(changes_sentence("The runs", &self.run));
        sentences.extend(changes_sentence("The runtimes", &self.runtime));
        for (report, other, functions) in
            [("B", "A", &self.functions.b), ("A", "B", &self.functions.a)]
        {
            if !functions.is_empty() {
                sentences.push(format!(
                    "{report} exports {}, {other} does not.",
                    join_names(functions, ", ")
                ));
            }
        }
        sentences.extend(quirks_sentence("A", &self.quirks.a));
        sentences.extend(quirks_sentence("B", &self.quirks.b));
        sentences.extend(
            self.agents
                .chunk_by(|change, next| change.agents == next.agents)
                .filter_map(agents_sentence),
        );
        if sentences.is_empty() {
            sentences.push("Runtime and agents are the same.".to_owned());
        }
        if self.cases_compared {
            self.add_cases(&mut sentences);
        } else {
            let text =
                "Cases are not compared: a report has no cases (reports of `info` have none).";
            sentences.push(text.to_owned());
        }
        sentences
    }

    fn add_cases(&self, sentences: &mut Vec<String>) {
        for cases in self.cases.chunk_by(|case, next| case.kind == next.kind) {
            let Some(CaseChange { kind, .. }) = cases.first() else { continue };
            let (singular, plural) = match kind {
                CaseChangeKind::FailsNow => {
                    ("case fails in B and not in A", "cases fail in B and not in A")
                }
                CaseChangeKind::PassesNow => {
                    ("case passes in B and not in A", "cases pass in B and not in A")
                }
                CaseChangeKind::SkippedNow => {
                    ("case is skipped only in B", "cases are skipped only in B")
                }
                CaseChangeKind::KnownNow => {
                    ("case fails in B, a known failure", "cases fail in B, known failures")
                }
                CaseChangeKind::ReasonDiffers => (
                    "case has the same status for another reason",
                    "cases have the same status for other reasons",
                ),
                CaseChangeKind::OnlyA => ("case is only in A", "cases are only in A"),
                CaseChangeKind::OnlyB => ("case is only in B", "cases are only in B"),
            };
            let text = if cases.len() == 1 { singular } else { plural };
            let names: Vec<_> = cases.iter().map(case_text).collect();
            sentences.push(format!("{} {text}: {}.", cases.len(), join_names(&names, ", ")));
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

/// Returns the name of a case, with the reason if the case is skipped or a known failure. Marks a failing case that
/// only B has.
fn case_text(case: &CaseChange) -> String {
    let reason = case.b.as_ref().map(|result| result.detail.as_str()).unwrap_or_default();
    match case.kind {
        CaseChangeKind::SkippedNow | CaseChangeKind::KnownNow if !reason.is_empty() => {
            format!("{} ({reason})", case.name)
        }
        CaseChangeKind::OnlyB if case.is_new_failure() => format!("{} (fails)", case.name),
        _ => case.name.clone(),
    }
}

/// Returns the sentence about the changes of the runs or the runtimes, if there are any.
fn changes_sentence(subject: &str, changes: &[Change]) -> Option<String> {
    let texts: Vec<_> = changes.iter().map(change_text).collect();
    (!texts.is_empty()).then(|| format!("{subject} differ: {}.", texts.join("; ")))
}

/// Formats a change, such as `AMD extension 1.7 instead of 1.4`.
fn change_text(change: &Change) -> String {
    let Change { what, a, b } = change;
    match (a, b) {
        (Some(a), Some(b)) => format!("{what} {b} instead of {a}"),
        (Some(_), None) => format!("{what} only in A"),
        (None, _) => format!("{what} only in B"),
    }
}

/// Returns the sentence about the quirks that are worked around in one report only.
fn quirks_sentence(report: &str, quirks: &[QuirkDescription]) -> Option<String> {
    let names: Vec<_> =
        quirks.iter().map(|quirk| format!("{} ({})", quirk.name, quirk.issue)).collect();
    let text = if names.len() == 1 { "workaround is" } else { "workarounds are" };
    // List all quirks, because versions differ mainly in their quirks.
    let sentence =
        || format!("{} {text} needed only with {report}: {}.", names.len(), names.join(", "));
    (!names.is_empty()).then(sentence)
}

/// Returns the sentence about the differences of one group of agents.
fn agents_sentence(changes: &[AgentChange]) -> Option<String> {
    let AgentChange { agents, change } = changes.first()?;
    let subject = agents.join(", ");
    if change.what != AGENT {
        let texts: Vec<_> = changes.iter().map(|it| change_text(&it.change)).collect();
        return Some(format!("{subject}: {}.", join_names(&texts, "; ")));
    }
    let verb = if agents.len() == 1 { "is" } else { "are" };
    let report = if change.a.is_some() { "A" } else { "B" };
    Some(format!("{subject} {verb} only in {report}."))
}

impl Timings {
    /// Returns a sentence about the median ratio if the ratio is notable, then a sentence for each of the six greatest
    /// notable differences.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let ratio = self.notable_ratio().map(|ratio| match ratio {
            1.0.. => format!("The cases of B take {ratio:.1} times as long (median)."),
            _ => format!("The cases of A take {:.1} times as long (median).", 1.0 / ratio),
        });
        ratio.into_iter().chain(self.notable.iter().take(MAX_NAMES).map(timing_sentence)).collect()
    }
}

fn timing_sentence(timing: &Timing) -> String {
    let ms = |us: u64| us as f64 / 1000.0;
    format!("{} takes {:.1} ms instead of {:.1} ms.", timing.name, ms(timing.b_us), ms(timing.a_us))
}

/// Joins the first [`MAX_NAMES`] names with a separator, and adds the number of further names.
fn join_names(names: &[String], separator: &str) -> String {
    let shown =
        names.iter().take(MAX_NAMES).map(String::as_str).collect::<Vec<_>>().join(separator);
    match names.len().saturating_sub(MAX_NAMES) {
        0 => shown,
        1 => format!("{shown} and 1 more"),
        more => format!("{shown} and {more} more"),
    }
}
