//! The report of a run: types, serialisation, and reading of report files.

use crate::Status;
use crate::describe::{AgentDescription, RuntimeDescription};
use crate::provenance::Provenance;
use crate::run::INTERRUPTED;
use crate::run_case::Lost;
use chrono::{DateTime, Utc};
use hsa_vmm::hip::HipError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The result of one case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaseReport {
    /// The case's name.
    pub name: String,
    /// The result.
    pub status: Status,
    /// The source of the expectation.
    pub source: String,
    /// The failure, or why the case was skipped. A note if a known failure passed, or if a case passed only after it
    /// was repeated. Otherwise empty.
    pub detail: String,
    /// The duration in microseconds; the average if the case ran several times.
    pub duration_us: u64,
    /// The number of runs and failures, if the case ran more than once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repetitions: Option<Repetitions>,
    /// How the process ended, if it crashed or hung in the case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<Lost>,
    /// Whether the case is a known failure but passed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub known_passed: bool,
    /// A drawing (SVG) of the reservations, mappings and access at the time of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_space: Option<String>,
    /// The log of runtime, driver and kernel during a failed case; only the end of a long log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The requests to the emulated driver that failed during the failed case and can be its cause: one line for each
    /// call and error. Empty if the driver is not emulated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_requests: Vec<String>,
    /// The HIP errors of rejected calls, in order. Each of these errors was expected. Not serialised.
    #[serde(skip)]
    pub expected_errors: Vec<HipError>,
}

/// The runs of a case that ran more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repetitions {
    /// The number of runs.
    pub ran: usize,
    /// The number of failed runs.
    pub failed: usize,
}

impl CaseReport {
    /// Creates a report without details and with duration 0.
    #[must_use]
    pub fn new(name: &str, source: &str, status: Status) -> Self {
        Self {
            name: name.to_owned(),
            status,
            source: source.to_owned(),
            detail: String::new(),
            duration_us: 0,
            repetitions: None,
            lost: None,
            known_passed: false,
            address_space: None,
            output: None,
            failed_requests: Vec::new(),
            expected_errors: Vec::new(),
        }
    }

    /// Returns the first component of the name.
    #[must_use]
    pub fn area(&self) -> &str {
        self.name.split('.').next().unwrap_or(&self.name)
    }
}

/// The number of cases by status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Passed cases.
    pub passed: usize,
    /// Failed cases.
    pub failed: usize,
    /// Skipped cases.
    pub skipped: usize,
    /// Cases that failed, and whose failure was known.
    pub known: usize,
}

impl Summary {
    pub(crate) fn of(cases: &[CaseReport]) -> Self {
        let mut summary = Self::default();
        for case in cases {
            *match case.status {
                Status::Pass => &mut summary.passed,
                Status::Fail => &mut summary.failed,
                Status::Skip => &mut summary.skipped,
                Status::Known => &mut summary.known,
            } += 1;
        }
        summary
    }
}

impl fmt::Display for Summary {
    /// Formats as `N passed, N failed, N skipped`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, skipped, .. } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// How a report was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The version of this project.
    pub tool: String,
    /// When the run began.
    pub began: DateTime<Utc>,
    /// The kernel's release; empty if unknown.
    #[serde(default)]
    pub kernel: String,
    /// The profile whose results were expected, such as `hip7`.
    pub profile: String,
    /// The filters that selected cases, as in [`Options`](crate::Options); empty for all cases.
    #[serde(default)]
    pub filters: Vec<String>,
    /// The number of rounds, if more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat: Option<usize>,
    /// The seed of the order, if it was random.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Whether the run was interrupted. Cases without a result then have the status [`Status::Skip`].
    #[serde(default)]
    pub interrupted: bool,
    /// The command, its environment, and the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
}

/// The report of a run.
///
/// The JSON format is that of `hsa-vmm conform`. Unknown keys in a file are ignored, and missing optional keys become
/// `None` or empty, so that files of other versions can be read. [`Report::from_json`] lists the required keys.
/// `hsa-vmm info` writes a report without cases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// How the report was made; `None` in files of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Run>,
    /// The runtime.
    pub runtime: RuntimeDescription,
    /// The runtime's agents.
    pub agents: Vec<AgentDescription>,
    /// The selected cases. If the runtime did not start again or did not stop, the failed case `runtime.library.starts`
    /// or `runtime.library.stops` comes first.
    #[serde(default)]
    pub cases: Vec<CaseReport>,
    /// The command that finds the first HSA call and kernel interface that fail. `None` if no level of
    /// `hsa-vmm bringup` makes a failed call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bringup: Option<String>,
    /// The number of cases by status.
    #[serde(default)]
    pub summary: Summary,
}

/// The error of reading a report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is larger than a report can be, for example a device file without an end.
    #[error("{} is larger than {} MiB: not a report", path.display(), limit >> 20)]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit in bytes.
        limit: u64,
    },
    /// The file is not a report.
    #[error(
        "{} is not a report written by `hsa-vmm conform --format json` or `info --format json`",
        path.display()
    )]
    Content {
        /// The file.
        path: PathBuf,
        /// The error and its position.
        source: serde_json::Error,
    },
}

/// The maximum size of a file in bytes. A report of all cases has about 0.2 MB.
const MAX_BYTES: u64 = 64 << 20;

impl Report {
    /// Parses the JSON of a report.
    ///
    /// # Errors
    /// Fails if `json` is not JSON or lacks a required key: runtime, agents, or a case's name, status,
    /// source, detail or duration.
    pub fn from_json(json: &[u8]) -> Result<Self, serde_json::Error> {
        let mut report: Self = serde_json::from_slice(json)?;
        // Recompute the summary: cases may have been removed from the file by hand.
        report.summary = Summary::of(&report.cases);
        Ok(report)
    }

    /// Reads a file that `hsa-vmm conform` or `hsa-vmm info` wrote as JSON.
    ///
    /// # Errors
    /// [`ReadError`], which names the file.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        let path = path.as_ref();
        let file_error = |source| ReadError::File { path: path.into(), source };
        let mut json = Vec::new();
        let file = std::fs::File::open(path).map_err(file_error)?;
        file.take(MAX_BYTES + 1).read_to_end(&mut json).map_err(file_error)?;
        if json.len() as u64 > MAX_BYTES {
            return Err(ReadError::TooLarge { path: path.into(), limit: MAX_BYTES });
        }
        Self::from_json(&json).map_err(|source| ReadError::Content { path: path.into(), source })
    }

    /// Returns the command that runs one case again, or the whole run if
    /// [numbered faults](Provenance::has_numbered_faults) are planned.
    #[must_use]
    pub fn reproduce(&self, case: &CaseReport) -> String {
        let command = self.provenance().map(|it| it.reproduce.as_str()).filter(|it| !it.is_empty());
        let command = command.unwrap_or("hsa-vmm conform");
        if self.provenance().is_some_and(Provenance::has_numbered_faults) {
            return command.to_owned();
        }
        let repeat = case.repetitions.map(|it| format!(" --repeat {}", it.ran));
        format!("{command}{} --filter {}", repeat.unwrap_or_default(), case.name)
    }

    /// Returns how the report was produced, if recorded.
    #[must_use]
    pub fn provenance(&self) -> Option<&Provenance> {
        self.run.as_ref()?.provenance.as_ref()
    }

    /// Returns a text such as `the run was interrupted: 12 of 384 cases have a result`; `None` if the run was not
    /// interrupted.
    #[must_use]
    pub fn interruption(&self) -> Option<String> {
        self.run.as_ref().filter(|run| run.interrupted)?;
        let all = self.cases.len();
        let untried = self.cases.iter().filter(|case| case.detail == INTERRUPTED).count();
        Some(format!("the run was interrupted: {} of {all} cases have a result", all - untried))
    }

    /// Formats the report as JUnit XML with one suite per area. An interrupted run has one more test, `process`, with
    /// an error.
    #[must_use]
    pub fn junit(&self) -> String {
        crate::junit::junit(self)
    }

    /// Formats the report for KCIDB, the database of the Linux kernel's test results. `build` is the
    /// identifier of the kernel's build, in the form `ORIGIN:ID`. An interrupted run has one more test, `process`, with
    /// the status `ERROR`.
    #[must_use]
    pub fn kcidb(&self, build: &str) -> serde_json::Value {
        crate::kcidb::kcidb(self, build)
    }

    /// Formats the report as one HTML page that needs no network and no other file.
    ///
    /// # Errors
    /// Cannot fail in practice, because the page is written to memory.
    pub fn html(&self) -> Result<String, fmt::Error> {
        crate::html::html(self)
    }
}
