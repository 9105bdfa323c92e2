//! Formats reports as JUnit XML for continuous integration systems.

use crate::{CaseReport, NotStarted, Provenance, Report, Status, printable};
use quick_junit::{NonSuccessKind, TestCase, TestCaseStatus, TestSuite};
use std::time::Duration;

pub(crate) fn junit(report: &Report) -> String {
    let mut document = quick_junit::Report::new("hsa-vmm conform");
    let mut total = Duration::ZERO;
    for cases in report.cases.chunk_by(|case, next| case.area() == next.area()) {
        let Some(first) = cases.first() else { continue };
        let mut suite = TestSuite::new(printable(first.area()));
        let mut time = Duration::ZERO;
        for case in cases {
            suite.add_test_case(test_case(case));
            time += duration(case);
        }
        suite.set_time(time);
        let skipped = |case: &&CaseReport| matches!(case.status, Status::Skip | Status::Known);
        let skipped = cases.iter().filter(skipped).count();
        suite.extra.insert("skipped".into(), skipped.to_string().into());
        suite.add_property(("runtime", &*printable(&report.runtime.name)));
        suite.add_property(("extension", &*printable(&report.runtime.extension)));
        add_provenance(&mut suite, report.provenance());
        if let Some(bringup) = &report.bringup {
            suite.add_property(("bringup", &*printable(bringup)));
        }
        total += time;
        document.add_test_suite(suite);
    }
    if let Some(text) = report.interruption() {
        let mut suite = suite_with_error(PROCESS, PROCESS, &text, &text);
        add_provenance(&mut suite, report.provenance());
        document.add_test_suite(suite);
    }
    document.set_time(total);
    to_text(&document)
}

/// The name of the suite and of the test that report an interruption.
const PROCESS: &str = "process";

/// Formats a report with one test, whose error is the reason why the runtime did not start.
pub(crate) fn not_started(report: &NotStarted) -> String {
    let name = crate::contain::RUNTIME_STARTS.name;
    let mut suite = suite_with_error("runtime", name, report.summary(), &report.reason);
    for test in &mut suite.test_cases {
        test.set_system_out(format!("none of {} cases was run", report.selected));
        if !report.output.is_empty() {
            test.set_system_err(printable(&report.output.join("\n")));
        }
    }
    add_provenance(&mut suite, Some(&report.provenance));
    if let Some(bringup) = &report.bringup {
        suite.add_property(("bringup", &*printable(bringup)));
    }
    let mut document = quick_junit::Report::new("hsa-vmm conform");
    document.set_time(Duration::ZERO);
    document.add_test_suite(suite);
    to_text(&document)
}

/// Returns a suite with one test, which has an error.
fn suite_with_error(suite: &str, test: &str, message: &str, description: &str) -> TestSuite {
    let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
    status.set_message(printable(message)).set_type("error");
    status.set_description(printable(description));
    let mut test = TestCase::new(test, status);
    test.set_classname(suite).set_time(Duration::ZERO);
    let mut suite = TestSuite::new(suite);
    suite.add_test_case(test);
    suite.set_time(Duration::ZERO);
    suite.extra.insert("skipped".into(), "0".into());
    suite
}

fn to_text(document: &quick_junit::Report) -> String {
    // Writing to memory does not fail. If writing failed, this function would return the error instead of the report.
    let text = document.to_string().unwrap_or_else(|error| {
        format!("<testsuites name=\"hsa-vmm conform\" errors=\"1\"><!-- {error:?} --></testsuites>")
    });
    text.split_inclusive('\n').map(without_disabled).collect()
}

/// Removes the attribute `disabled` from a line that begins a suite. Jenkins's schema (`junit-10.xsd`) has
/// only `skipped`.
fn without_disabled(line: &str) -> String {
    let (Some(start), true) = (line.find(" disabled=\""), line.starts_with("    <testsuite "))
    else {
        return line.to_owned();
    };
    let value = start + " disabled=\"".len();
    let end = line[value..].find('"').map_or(line.len(), |length| value + length + 1);
    [&line[..start], &line[end..]].concat()
}

/// Adds properties that say how the report was produced.
fn add_provenance(suite: &mut TestSuite, provenance: Option<&Provenance>) {
    for (name, value) in provenance.into_iter().flat_map(Provenance::properties) {
        suite.add_property((name, &*printable(&value)));
    }
}

fn duration(case: &CaseReport) -> Duration {
    Duration::from_micros(case.duration_us)
}

fn test_case(case: &CaseReport) -> TestCase {
    let status = match case.status {
        Status::Pass => TestCaseStatus::success(),
        Status::Fail => {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            status.set_message(printable(&case.detail)).set_type("failure");
            if !case.failed_requests.is_empty() {
                let requests = case.failed_requests.join("\n");
                let text = format!("requests that failed during the case:\n{requests}");
                status.set_description(printable(&text));
            }
            status
        }
        // JUnit has no status for known failures, and a known failure must not fail the run.
        Status::Skip | Status::Known => {
            let mut status = TestCaseStatus::skipped();
            status.set_message(printable(&case.detail)).set_type(case.status.to_string());
            status
        }
    };
    let mut test = TestCase::new(printable(&case.name), status);
    test.set_classname(printable(case.area())).set_time(duration(case));
    // The schema allows no properties in a test case.
    let known_passed = case.known_passed.then(|| format!("\n{}", printable(&case.detail)));
    let known_passed = known_passed.unwrap_or_default();
    test.set_system_out(format!("source: {}{known_passed}", printable(&case.source)));
    if let Some(output) = &case.output {
        test.set_system_err(printable(output));
    }
    test
}
