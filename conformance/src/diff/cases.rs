//! Compares the results of cases in two reports.

use crate::{CaseReport, Status};
use serde::Serialize;

/// A case whose result differs, or that only one report has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CaseChange {
    /// The case's name.
    pub name: String,
    /// The kind of difference.
    pub kind: CaseChangeKind,
    /// The result in A.
    pub a: Option<ReportedResult>,
    /// The result in B.
    pub b: Option<ReportedResult>,
}

/// How the result in B differs from the result in A.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CaseChangeKind {
    /// The case fails in B, and has another status in A.
    FailsNow,
    /// The case passes in B, and has another status in A.
    PassesNow,
    /// The case is skipped in B, and has another status in A.
    SkippedNow,
    /// The case is a known failure in B, and has another status in A.
    KnownNow,
    /// The status is the same, but the reason differs.
    #[serde(rename = "otherwise")]
    ReasonDiffers,
    /// The case is in A only.
    OnlyA,
    /// The case is in B only.
    OnlyB,
}

/// The result of a case in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReportedResult {
    /// The status.
    pub status: Status,
    /// The reason for the status.
    pub detail: String,
}

impl CaseChange {
    /// Returns whether the case fails in B and not in A.
    #[must_use]
    pub fn is_new_failure(&self) -> bool {
        let fails =
            |it: &Option<ReportedResult>| it.as_ref().is_some_and(|it| it.status == Status::Fail);
        fails(&self.b) && !fails(&self.a)
    }
}

/// Returns the differences, by kind and in the order of the reports, and the number of equal
/// results.
pub(super) fn compare(a: &[CaseReport], b: &[CaseReport]) -> (Vec<CaseChange>, usize) {
    let result =
        |case: &CaseReport| ReportedResult { status: case.status, detail: case.detail.clone() };
    let change = |kind, old: Option<&CaseReport>, new: Option<&CaseReport>| {
        let name = new.or(old).map(|case| case.name.clone()).unwrap_or_default();
        CaseChange { name, kind, a: old.map(result), b: new.map(result) }
    };
    let (mut differences, mut equal) = (Vec::new(), 0);
    for old in a {
        match b.iter().find(|new| new.name == old.name) {
            None => differences.push(change(CaseChangeKind::OnlyA, Some(old), None)),
            Some(new) => match compare_case(old, new) {
                Some(kind) => differences.push(change(kind, Some(old), Some(new))),
                None => equal += 1,
            },
        }
    }
    let new = b.iter().filter(|new| !a.iter().any(|old| old.name == new.name));
    differences.extend(new.map(|new| change(CaseChangeKind::OnlyB, None, Some(new))));
    differences.sort_by_key(|change| change.kind);
    (differences, equal)
}

fn compare_case(a: &CaseReport, b: &CaseReport) -> Option<CaseChangeKind> {
    match (a.status == b.status, b.status) {
        (false, Status::Fail) => Some(CaseChangeKind::FailsNow),
        (false, Status::Pass) => Some(CaseChangeKind::PassesNow),
        (false, Status::Skip) => Some(CaseChangeKind::SkippedNow),
        (false, Status::Known) => Some(CaseChangeKind::KnownNow),
        (true, Status::Pass) => None,
        (true, _) if without_numbers(&a.detail) == without_numbers(&b.detail) => None,
        (true, _) => Some(CaseChangeKind::ReasonDiffers),
    }
}

/// Returns the words of a detail without numbers: addresses, counts and times differ from run to
/// run.
fn without_numbers(detail: &str) -> Vec<&str> {
    // Ignore further lines: a hexdump, whose bytes differ from run to run.
    let detail = detail.lines().next().unwrap_or_default();
    let has_digit = |part: &str| part.contains(|c: char| c.is_ascii_digit());
    detail
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|part| !has_digit(part))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::without_numbers;

    #[test]
    fn details_are_compared_without_numbers() {
        let detail = "0x7f12ab000000 holds 17 instead of 42 (Some(3) before)";
        assert_eq!(
            without_numbers(detail),
            without_numbers("0x7f99cd000000 holds 4 instead of 7 (Some(9) before)")
        );
        assert_ne!(
            without_numbers(detail),
            without_numbers("0x7f12ab000000 holds 17 instead of 42")
        );
        assert_ne!(
            without_numbers("HSA_STATUS_ERROR"),
            without_numbers("HSA_STATUS_ERROR_INVALID_ARGUMENT")
        );
    }
}
