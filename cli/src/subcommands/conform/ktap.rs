//! Writes the results of `hsa-vmm conform` as KTAP while the cases run.
//!
//! Each area of cases, such as `map`, is a subtest. The last result at the top level is about the worker
//! process.

use super::background_output::BackgroundOutput;
use super::show::print_causes;
use crate::bail_out::bail_out;
use crate::planned_faults::{describe_not_happened, describe_undetected};
use crate::screen::Screen;
use hsa_vmm_conformance::{Case, CaseReport, Ktap, KtapTest, NotStarted, Report, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// The name of the last result. This result is a failure if the runtime did not start again after a crash, if the
/// runtime did not stop at the end, or if the run was interrupted.
const PROCESS: &str = "process";

/// Writes results in the order of the cases.
pub struct KtapStream {
    ktap: Ktap<Screen<'static>>,
    cases: Vec<&'static Case>,
    /// The number of cases of each area.
    areas: BTreeMap<&'static str, usize>,
    /// The number of results that are written.
    written: usize,
    /// Results that wait until the results of all earlier cases are written.
    pending: BTreeMap<String, CaseReport>,
}

impl KtapStream {
    pub fn begin(out: Screen<'static>, cases: Vec<&'static Case>) -> io::Result<Self> {
        let mut areas = BTreeMap::new();
        for case in &cases {
            *areas.entry(area(case.name)).or_default() += 1;
        }
        let ktap = Ktap::begin(out, areas.len() + 1)?;
        Ok(Self { ktap, cases, areas, written: 0, pending: BTreeMap::new() })
    }

    /// Writes diagnostic lines.
    pub fn write_notes(&mut self, lines: &[String]) -> io::Result<()> {
        lines.iter().try_for_each(|line| self.ktap.write_note(line))
    }

    /// Adds a result. Writes the results of all cases before the first case without a result.
    pub fn add(&mut self, case: &CaseReport) -> io::Result<()> {
        self.pending.insert(case.name.clone(), case.clone());
        while let Some(next) = self.cases.get(self.written)
            && let Some(case) = self.pending.remove(next.name)
        {
            let area = area(next.name);
            if self.ktap.subtest() != Some(area) {
                self.ktap.end_subtest()?;
                let tests = self.areas.get(area).copied().unwrap_or_default();
                self.ktap.begin_subtest(area, tests)?;
            }
            self.written += 1;
            let (status, detail) = (case.status, case.detail.as_str());
            if case.known_passed {
                self.ktap.write_note(detail)?;
            }
            self.ktap.write_result(&KtapTest { name: &case.name, status, detail })?;
        }
        Ok(())
    }

    /// Writes the reason why the results cannot be continued, and ends the document.
    pub fn reject(self, reason: &str) -> io::Result<()> {
        bail_out(self.ktap, reason)
    }

    /// Writes the requests that failed, the `bringup` command and the reason why the runtime did not start, and ends
    /// the document.
    pub fn bail_out(mut self, report: &NotStarted) -> io::Result<()> {
        if !report.output.is_empty() {
            self.ktap.write_note("requests that failed during the start:")?;
        }
        report.output.iter().try_for_each(|line| self.ktap.write_note(&format!("  {line}")))?;
        if let Some(bringup) = &report.bringup {
            let note = "To find the HSA call and kernel interface that fail: ";
            self.ktap.write_note(&format!("{note}{bringup}"))?;
        }
        bail_out(self.ktap, &report.reason)
    }

    /// Writes the results that are not written yet, and ends the document. Its last lines are the causes of failures, as
    /// in the table.
    pub fn end(mut self, report: &Report, background: &BackgroundOutput) -> io::Result<()> {
        let selected: BTreeSet<_> = self.cases.iter().map(|case| case.name).collect();
        let (cases, process): (Vec<_>, Vec<_>) =
            report.cases.iter().partition(|case| selected.contains(case.name.as_str()));
        for case in cases.into_iter().skip(self.written) {
            self.add(case)?;
        }
        self.ktap.end_subtest()?;
        let failed = process.iter().find(|case| case.status != Status::Pass);
        let (status, detail) = match (report.interruption(), failed) {
            (Some(interruption), _) => (Status::Fail, interruption),
            (None, Some(case)) => (case.status, format!("{}: {}", case.name, case.detail)),
            (None, None) => (Status::Pass, String::new()),
        };
        self.ktap.write_result(&KtapTest { name: PROCESS, status, detail: &detail })?;
        let mut causes = Vec::new();
        print_causes(&mut Screen::plain(&mut causes), report, background)?;
        let causes = String::from_utf8_lossy(&causes);
        for line in causes.lines().filter(|line| !line.is_empty()) {
            self.ktap.write_note(line)?;
        }
        let faults = report.provenance().map(|it| it.planned_faults.as_slice());
        let faults = faults.unwrap_or_default();
        let is_passed = report.summary.failed == 0 && report.interruption().is_none();
        let undetected = describe_undetected(faults, "case", report.summary.known > 0);
        let undetected = undetected.filter(|_| is_passed);
        describe_not_happened(faults)
            .chain(undetected)
            .try_for_each(|line| self.ktap.write_note(&line))
    }
}

/// Returns the area of a case: `map` for `map.overlap.rejected`.
fn area(name: &'static str) -> &'static str {
    name.split('.').next().unwrap_or(name)
}
