//! Compares the durations of cases in two reports.

use crate::{CaseReport, Status};
use serde::Serialize;

/// The minimum factor of a notable difference.
const MIN_FACTOR: f64 = 3.0;
/// The minimum notable difference in microseconds. A busy machine can delay a case of 1 ms by 50 ms. Therefore, a
/// notable case must be at least 3 times as slow, and also at least 0.1 s slower.
const MIN_DIFFERENCE: u64 = 100_000;
/// The minimum duration in microseconds of a case that counts for the median. Shorter durations are too inaccurate.
const MIN_DURATION: u64 = 100;
/// The minimum number of cases for a median.
const MIN_CASES: usize = 20;

/// The durations of the cases that pass in both reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Timings {
    /// The median ratio of a case's duration in B to that in A; `None` for fewer than 20 cases.
    pub median_ratio: Option<f64>,
    /// The cases that take at least 3 times as long and 0.1 s longer than in the other report,
    /// greatest difference first.
    pub notable: Vec<Timing>,
}

/// The durations of a case, in microseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// The case's name.
    pub name: String,
    /// The duration in A.
    pub a_us: u64,
    /// The duration in B.
    pub b_us: u64,
}

pub(super) fn compare(a: &[CaseReport], b: &[CaseReport]) -> Timings {
    let passed = |case: &&CaseReport| case.status == Status::Pass;
    let pairs: Vec<_> = a
        .iter()
        .filter(passed)
        .filter_map(|old| Some((old, b.iter().filter(passed).find(|new| new.name == old.name)?)))
        .map(|(old, new)| (old.name.as_str(), old.duration_us, new.duration_us))
        .collect();
    let mut notable: Vec<_> =
        pairs.iter().filter(|(_, a, b)| is_notable(*a, *b)).map(timing).collect();
    notable.sort_by_key(|it: &Timing| std::cmp::Reverse(it.a_us.abs_diff(it.b_us)));
    let counted = pairs.iter().filter(|(_, a, b)| *a >= MIN_DURATION && *b >= MIN_DURATION);
    let mut ratios: Vec<f64> = counted.map(|(_, a, b)| *b as f64 / *a as f64).collect();
    ratios.sort_by(f64::total_cmp);
    let median = ratios.get(ratios.len() / 2).filter(|_| ratios.len() >= MIN_CASES);
    Timings { median_ratio: median.map(|ratio| (ratio * 100.0).round() / 100.0), notable }
}

fn timing(&(name, a_us, b_us): &(&str, u64, u64)) -> Timing {
    Timing { name: name.to_owned(), a_us, b_us }
}

fn is_notable(a: u64, b: u64) -> bool {
    let (shorter, longer) = (a.min(b), a.max(b));
    longer - shorter >= MIN_DIFFERENCE && longer as f64 >= MIN_FACTOR * shorter as f64
}

impl Timings {
    /// Returns the median if it is notable.
    pub(super) fn notable_ratio(&self) -> Option<f64> {
        self.median_ratio.filter(|ratio| *ratio >= MIN_FACTOR || *ratio <= 1.0 / MIN_FACTOR)
    }
}
