//! The data for the charts of durations. Lengths are percentages of the available width or height, so that text has the
//! same size on every screen.

use crate::{CaseReport, Status};

/// The number of cases in the chart of the slowest cases.
const SLOWEST: usize = 10;

/// A bar of a chart: a case, or all cases of an area (the first part of their names), and its duration.
pub(super) struct Bar<'a> {
    pub name: &'a str,
    /// The duration in milliseconds.
    pub time: String,
    /// The duration as a percentage of the longest duration.
    pub share: f64,
}

/// Returns the slowest cases, slowest first.
pub(super) fn slowest(cases: &[CaseReport]) -> Vec<Bar<'_>> {
    let mut slowest: Vec<_> = not_skipped(cases).collect();
    slowest.sort_by_key(|case| std::cmp::Reverse(case.duration_us));
    slowest.truncate(SLOWEST);
    to_bars(slowest.iter().map(|case| (case.name.as_str(), case.duration_us)))
}

/// Converts durations in microseconds to bars, in the same order.
pub(super) fn to_bars<'a>(times: impl Iterator<Item = (&'a str, u64)>) -> Vec<Bar<'a>> {
    let times: Vec<_> = times.collect();
    let longest = times.iter().map(|(_, time)| *time).max().unwrap_or_default().max(1);
    times
        .into_iter()
        .map(|(name, time)| Bar {
            name,
            time: format_milliseconds(time),
            share: time as f64 * 100.0 / longest as f64,
        })
        .collect()
}

fn not_skipped(cases: &[CaseReport]) -> impl Iterator<Item = &CaseReport> {
    cases.iter().filter(|case| case.status != Status::Skip)
}

/// Formats a duration in milliseconds: two decimals below 1 ms, one decimal below 100 ms, no decimals from 100 ms on.
pub(super) fn format_milliseconds(microseconds: u64) -> String {
    match microseconds {
        0..1_000 => format!("{:.2}", microseconds as f64 / 1e3),
        1_000..100_000 => format!("{:.1}", microseconds as f64 / 1e3),
        _ => format!("{:.0}", microseconds as f64 / 1e3),
    }
}

/// The number of cases per duration. The limit of each column is about three times the previous limit.
pub(super) struct Histogram {
    pub columns: Vec<Column>,
    /// The median duration, in milliseconds.
    pub median: String,
}

/// A column: the cases with a duration between two limits.
pub(super) struct Column {
    pub count: usize,
    /// The left edge, as a percentage.
    pub left: f64,
    /// The width, as a percentage.
    pub width: f64,
    /// The height, as a percentage of the highest column.
    pub height: f64,
    /// The lower limit, in milliseconds.
    pub from: String,
    /// The upper limit, in milliseconds.
    pub to: String,
}

impl Histogram {
    /// Counts the cases that were not skipped.
    pub fn of(cases: &[CaseReport]) -> Self {
        let mut times: Vec<_> = not_skipped(cases).map(|case| case.duration_us).collect();
        times.sort_unstable();
        let median = times.get(times.len() / 2).copied().unwrap_or_default();
        let steps: Vec<_> = times.iter().map(|time| step(*time)).collect();
        let (Some(&first), Some(&last)) = (steps.first(), steps.last()) else {
            return Self { columns: Vec::new(), median: format_milliseconds(0) };
        };
        let counts: Vec<_> = (first..=last)
            .map(|step| steps.iter().filter(|other| **other == step).count())
            .collect();
        let highest = counts.iter().copied().max().unwrap_or(1).max(1) as f64;
        let width = 100.0 / counts.len() as f64;
        let columns =
            counts.iter().zip(first..).enumerate().map(|(index, (&count, step))| Column {
                count,
                left: index as f64 * width,
                width,
                height: count as f64 * 100.0 / highest,
                from: limit_text(step),
                to: limit_text(step + 1),
            });
        Self { columns: columns.collect(), median: format_milliseconds(median) }
    }
}

/// Returns a duration's step in the histogram. Step 0 begins at 0, and the following steps begin at 30 µs, 100 µs, 300
/// µs, …
fn step(microseconds: u64) -> u32 {
    let mut step = 0;
    while limit(step + 1).is_some_and(|next| next <= microseconds) {
        step += 1;
    }
    step
}

/// Returns a step's limit in microseconds, or `None` on overflow.
fn limit(step: u32) -> Option<u64> {
    let digit = if step.is_multiple_of(2) { 10 } else { 30 };
    10_u64.checked_pow(step / 2)?.checked_mul(digit)
}

/// Formats a limit in milliseconds.
fn limit_text(step: u32) -> String {
    match step {
        0 => "0".to_owned(),
        _ => limit(step).map(|us| (us as f64 / 1e3).to_string()).unwrap_or_else(|| "∞".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(name: &str, status: Status, duration_us: u64) -> CaseReport {
        CaseReport { duration_us, ..CaseReport::new(name, "", status) }
    }

    #[test]
    fn histogram_counts_every_case_once() {
        let times = [0, 1, 9, 10, 29, 30, 99, 100, 1_000, 29_999, u64::MAX];
        let mut cases: Vec<_> = times.iter().map(|us| case("a.b.c", Status::Pass, *us)).collect();
        cases.push(case("a.b.d", Status::Skip, 5));
        let histogram = Histogram::of(&cases);
        let columns = &histogram.columns;
        assert_eq!(columns.iter().map(|column| column.count).sum::<usize>(), times.len());
        assert_eq!(columns[0].count, 5, "up to 30 µs");
        assert_eq!((columns[0].from.as_str(), columns[0].to.as_str()), ("0", "0.03"));
        assert_eq!((columns[1].from.as_str(), columns[1].to.as_str()), ("0.03", "0.1"));
        assert_eq!((columns[2].count, columns[3].count, columns[4].count), (1, 0, 1));
        let end = columns.last().unwrap();
        assert!((end.left + end.width - 100.0).abs() < 1e-6);
        assert!(columns.iter().all(|column| column.height <= 100.0));
        assert_eq!(histogram.median, "0.03");
        assert!(Histogram::of(&[]).columns.is_empty());
    }

    #[test]
    fn slowest_cases_come_first() {
        let cases: Vec<_> =
            (0..40).map(|it| case(&format!("a.b.{it}"), Status::Pass, it * 1_000)).collect();
        let slowest = slowest(&cases);
        assert_eq!(slowest.len(), SLOWEST);
        assert_eq!((slowest[0].name, slowest[0].time.as_str()), ("a.b.39", "39.0"));
        assert!((slowest[0].share - 100.0).abs() < 1e-9 && slowest[9].share < slowest[8].share);
        assert!(to_bars([("nothing", 0)].into_iter())[0].share == 0.0);
    }
}
