//! Finds failed requests and lines of output that also occur during cases that pass. These requests and lines are
//! seldom the cause of a failure.

use crate::driver_log::{driver_line_failed, failed_request};
use hsa_vmm_conformance::{Report, Status};
use std::collections::{BTreeMap, BTreeSet};

/// The request that fails in every process with AMD's runtime. The library probes how the runtime imports a file that is
/// not memory of a GPU, and the runtime queries the properties of this file.
const PROBED_IMPORT: &str = "kfd GET_DMABUF_INFO EINVAL";
/// The failed request and the line that are logged in every run of AMD's runtime, even if all cases pass. The runtime
/// prints the number of signals when it stops. The list is needed for runs of a single case: if that case fails, no case
/// has passed.
const IN_EVERY_RUN: [&str; 2] = [PROBED_IMPORT, "Signals leaked."];

/// The failed requests and lines that were logged during cases that passed.
#[derive(Debug, Default)]
pub struct BackgroundOutput {
    /// Whether [`PROBED_IMPORT`] can also fail because of a planned fault.
    has_fault_in_query: bool,
    /// For each failed request, and each line without its numbers, the number of passed cases in which it was logged.
    passed: BTreeMap<String, usize>,
}

impl BackgroundOutput {
    /// Creates a background without lines. `plan` is the fault plan of the emulated driver.
    pub fn new(plan: &str) -> Self {
        let has_fault_in_query = plan.contains("GET_DMABUF_INFO");
        Self { has_fault_in_query, ..Self::default() }
    }

    /// Adds the lines of the logs and of the runtime's output during a case that passed.
    pub fn add<'a>(&mut self, lines: impl Iterator<Item = &'a str>) {
        for key in keys(lines) {
            *self.passed.entry(key).or_default() += 1;
        }
    }

    /// Removes requests and lines that were logged in at least as many failed cases as passed cases. These requests and
    /// lines are not background: a fault can make a request fail in some cases that pass nevertheless.
    pub fn remove_frequent_in_failures(&mut self, report: &Report) {
        let is_failure = |status| status == Status::Fail;
        let failed = report.cases.iter().filter(|case| is_failure(case.status));
        for output in failed.filter_map(|case| case.output.as_deref()) {
            for key in keys(output.lines()) {
                if let Some(count) = self.passed.get_mut(&key) {
                    *count = count.saturating_sub(1);
                }
            }
        }
        self.passed.retain(|_, count| *count > 0);
    }

    /// Returns the short form of a line, such as `kfd GET_DMABUF_INFO EINVAL`, if a similar line was logged during a
    /// case that passed.
    pub fn background_short_form(&self, line: &str) -> Option<String> {
        let is_background = key(line).is_some_and(|key| self.passed.contains_key(&key));
        is_background.then(|| short_form(line))
    }

    /// Splits the output of a case that failed. Returns the lines that are possible causes, and the short forms of the
    /// other lines.
    ///
    /// A line is unusual if it is neither background nor in `IN_EVERY_RUN`. Unusual lines are always possible causes.
    /// * If an unusual request failed, only unusual lines are possible causes.
    /// * Otherwise, failed background requests are also possible causes, except those in `IN_EVERY_RUN`.
    /// * Without such requests, lines of `IN_EVERY_RUN` that are not background are also possible causes, but
    ///   `PROBED_IMPORT` only if a planned fault can be its cause.
    pub fn split<'a>(&self, output: &'a str) -> (Vec<&'a str>, BTreeSet<String>) {
        let in_every_run = |line: &str| {
            let key = key(line);
            key.is_some_and(|key| IN_EVERY_RUN.contains(&key.as_str()))
        };
        let is_probe = |line: &str| {
            !self.has_fault_in_query && request(line).as_deref() == Some(PROBED_IMPORT)
        };
        let is_failed = |line: &str| driver_line_failed(line) == Some(true);
        let is_background = |line: &str| self.background_short_form(line).is_some();
        let is_unusual = |line: &str| !is_background(line) && !in_every_run(line);
        let has_unusual_failure = output.lines().any(|line| is_unusual(line) && is_failed(line));
        let is_failed_background =
            |line: &str| is_background(line) && is_failed(line) && !in_every_run(line);
        let has_failed_background = output.lines().any(is_failed_background);
        let (causes, background): (Vec<_>, Vec<_>) =
            output.lines().partition(|line| match (has_unusual_failure, has_failed_background) {
                (true, _) => is_unusual(line),
                (false, true) => is_unusual(line) || is_failed_background(line),
                (false, false) => !is_background(line) && !is_probe(line),
            });
        (causes, background.into_iter().map(short_form).collect())
    }
}

/// Returns the call and the error of a failed request, or the line.
fn short_form(line: &str) -> String {
    request(line).unwrap_or_else(|| line.trim().to_owned())
}

/// Returns the call and the error of a failed request.
fn request(line: &str) -> Option<String> {
    failed_request(line).map(|(call, error)| format!("{call} {error}"))
}

fn keys<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    lines.filter_map(key).collect()
}

/// Returns the call and the error of a failed request. For lines that are not the driver's, returns the words without
/// digits, because addresses and counts differ from case to case. Returns `None` for requests that succeeded, and for
/// empty lines.
fn key(line: &str) -> Option<String> {
    if driver_line_failed(line).is_some() {
        return request(line);
    }
    let has_digit = |word: &&str| word.contains(|letter: char| letter.is_ascii_digit());
    let words: Vec<_> = line.split_whitespace().filter(|word| !has_digit(word)).collect();
    (!words.is_empty()).then(|| words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hsa_vmm_conformance::CaseReport;

    fn log_line(end: &str) -> String {
        format!("driver: 1:1 0.5 kfd GET_DMABUF_INFO fd=7 size=0x0 {end} (1.0 us)")
    }

    #[test]
    fn lines_of_passing_cases_are_background() {
        let mut background = BackgroundOutput::default();
        background.add(
            [log_line("= EINVAL").as_str(), &log_line("-> ok"), "4 Signals leaked."].into_iter(),
        );
        let short = background.background_short_form(&log_line("= EINVAL"));
        assert_eq!(short.as_deref(), Some("kfd GET_DMABUF_INFO EINVAL"));
        assert_eq!(
            background.background_short_form("12 Signals leaked.").as_deref(),
            Some("12 Signals leaked.")
        );
        for line in [&log_line("= EIO"), &log_line("-> ok"), "HSA exception: BadAlloc", ""] {
            assert_eq!(background.background_short_form(line), None, "{line}");
        }
    }

    #[test]
    fn probed_import_is_cause_only_if_planned() {
        let (background, einval) = (BackgroundOutput::default(), log_line("= EINVAL"));
        let output = format!("{einval}\n4 Signals leaked.\n");
        let (causes, in_short) = background.split(&output);
        let in_short: Vec<_> = in_short.into_iter().collect();
        assert_eq!((causes, in_short), (vec!["4 Signals leaked."], vec![PROBED_IMPORT.to_owned()]));
        let planned = BackgroundOutput::new("COPY=lost;GET_DMABUF_INFO#2=EINVAL");
        let (causes, in_short) = planned.split(&output);
        assert_eq!((causes, in_short.len()), (vec![einval.as_str(), "4 Signals leaked."], 0));
        let hang = "driver: 1:2 0.5 engine COPY length=0x1000 = ? (has not returned)";
        let output = format!("{output}{hang}\n");
        let (causes, in_short) = background.split(&output);
        let in_short: Vec<_> = in_short.into_iter().collect();
        assert_eq!(causes, [hang]);
        assert_eq!(in_short, ["4 Signals leaked.", "kfd GET_DMABUF_INFO EINVAL"]);
    }

    #[test]
    fn background_is_cause_unless_another_request_fails() {
        let mut background = BackgroundOutput::default();
        let (error, einval) = (log_line("= EIO"), log_line("= EINVAL"));
        background.add([error.as_str(), &einval].into_iter());
        let output = format!("{error}\n{einval}\n4 Signals leaked.");
        let (causes, in_short) = background.split(&output);
        assert_eq!((causes, in_short.len()), (vec![error.as_str()], 2));
        let other = "driver: 1:1 0.6 kfd EXPORT_DMABUF handle=0x1 = EIO (1.0 us)";
        let output = format!("{output}\n{other}");
        let (causes, in_short) = background.split(&output);
        assert_eq!((causes, in_short.len()), (vec![other], 3));
    }

    #[test]
    fn request_frequent_in_failures_is_not_background() {
        let runtime = hsa_vmm::Runtime::simulated(hsa_vmm::simulation::Config::default()).unwrap();
        let options = hsa_vmm_conformance::Options {
            filters: vec!["map.handle.zero".to_owned()],
            ..hsa_vmm_conformance::Options::default()
        };
        let mut report = hsa_vmm_conformance::run(&runtime, &options, &mut |_| ());
        let failed = |error: &str| CaseReport {
            output: Some(log_line(error)),
            ..CaseReport::new("a", "", Status::Fail)
        };
        report.cases = vec![failed("= EINVAL"), failed("= EINVAL"), failed("= EIO")];
        let mut background = BackgroundOutput::default();
        for error in ["= EINVAL", "= EIO", "= EIO"] {
            background.add([log_line(error).as_str()].into_iter());
        }
        background.remove_frequent_in_failures(&report);
        assert_eq!(background.background_short_form(&log_line("= EINVAL")), None);
        assert!(background.background_short_form(&log_line("= EIO")).is_some());
    }
}
