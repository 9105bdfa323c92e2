//! Formats a report as one HTML page that loads nothing from the network or from other files.
//!
//! The layout is `templates/report.html`, which escapes all inserted text. This module computes the
//! values that the template uses besides the report itself.

mod charts;

use crate::describe::{Driver, Fact, format_size, labels};
use crate::{CaseReport, Cause, Report, Status, Summary};
use askama::Template;
use charts::{Bar, Histogram};
use std::borrow::Borrow;
use std::fmt;

/// Cases of one area.
struct Area<'a> {
    name: &'a str,
    cases: &'a [CaseReport],
}

impl Area<'_> {
    fn count(&self, status: &Status) -> usize {
        self.cases.iter().filter(|case| case.status == *status).count()
    }

    /// Returns whether the page initially shows the area unfolded: true if a case of the area failed.
    fn is_open(&self) -> bool {
        self.count(&Status::Fail) > 0
    }

    fn microseconds(&self) -> u64 {
        self.cases.iter().map(|case| case.duration_us).sum()
    }
}

struct BarChart<'a> {
    caption: &'static str,
    /// The heading of the column of names.
    name_heading: &'static str,
    bars: Vec<Bar<'a>>,
}

#[derive(Template)]
#[template(path = "report.html")]
struct Page<'a> {
    report: &'a Report,
    areas: Vec<Area<'a>>,
    labels: Vec<String>,
    histogram: Histogram,
    bar_charts: [BarChart<'a>; 2],
    facts: Vec<Fact>,
    causes: Vec<Cause<'a>>,
}

/// The drawings of failed cases are initially unfolded if there are at most this many failures.
const MAX_UNFOLDED_PICTURES: usize = 6;

/// The order of display, most important first.
const STATUSES: [Status; 4] = [Status::Fail, Status::Known, Status::Skip, Status::Pass];

/// Formats a report as an HTML page.
pub(crate) fn html(report: &Report) -> Result<String, fmt::Error> {
    let areas: Vec<_> = report
        .cases
        .chunk_by(|case, next| case.area() == next.area())
        .filter_map(|cases| Some(Area { name: cases.first()?.area(), cases }))
        .collect();
    let by_area = areas.iter().map(|area| (area.name, area.microseconds()));
    let page = Page {
        report,
        labels: labels(&report.agents),
        histogram: Histogram::of(&report.cases),
        bar_charts: [
            BarChart {
                caption: "The slowest",
                name_heading: "Case",
                bars: charts::slowest(&report.cases),
            },
            BarChart { caption: "By area", name_heading: "Area", bars: charts::to_bars(by_area) },
        ],
        facts: report.runtime.facts(),
        causes: report.causes(),
        areas,
    };
    page.render().map_err(|_| fmt::Error)
}

impl Page<'_> {
    fn summary_sentence(&self) -> String {
        let summary = &self.report.summary;
        let run = summary.passed + summary.failed + summary.known;
        let sentence = match (summary.failed, run) {
            (0, 0) => "No case was run".to_owned(),
            (0, _) if summary.known > 0 => "No failures except known ones".to_owned(),
            (0, _) => "Nothing failed".to_owned(),
            (1, _) => format!("1 of {run} cases failed"),
            (failed, _) => format!("{failed} of {run} cases failed"),
        };
        match self.report.interruption() {
            Some(_) => format!("Interrupted. {sentence}"),
            None => sentence,
        }
    }

    fn count(&self, status: &Status) -> usize {
        let Summary { passed, failed, skipped, known } = self.report.summary;
        match status {
            Status::Pass => passed,
            Status::Fail => failed,
            Status::Skip => skipped,
            Status::Known => known,
        }
    }

    fn milliseconds(&self, microseconds: impl Borrow<u64>) -> String {
        charts::format_milliseconds(*microseconds.borrow())
    }

    fn size(&self, bytes: &usize) -> String {
        format_size(*bytes)
    }

    /// Returns the start and width of each status in the bar that shows all cases, as percentages.
    fn shares(&self) -> Vec<(Status, f64, f64)> {
        let all = self.report.cases.len().max(1) as f64;
        let mut end = 0.0;
        let order = STATUSES.into_iter().rev();
        let share = |status| {
            let width = self.count(&status) as f64 * 100.0 / all;
            end += width;
            (status, end - width, width)
        };
        order.map(share).filter(|(_, _, width)| *width > 0.0).collect()
    }

    fn status_label(&self, status: &Status) -> &'static str {
        match status {
            Status::Pass => "passed",
            Status::Fail => "failed",
            Status::Skip => "skipped",
            Status::Known => "known",
        }
    }

    /// Returns the symbol of a status, for readers who cannot tell the colours apart.
    fn status_symbol(&self, status: &Status) -> &'static str {
        match status {
            Status::Pass => "✓",
            Status::Fail => "✗",
            Status::Skip => "–",
            Status::Known => "!",
        }
    }
}
