//! What came of a run, as it is written and read again.

use crate::Status;
use crate::describe::{AgentDescription, RuntimeDescription};
use crate::provenance::Provenance;
use crate::run_case::Lost;
use chrono::{DateTime, Utc};
use hsa_vmm::hip::HipError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

/// What came of one case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaseReport {
    /// The case's name.
    pub name: String,
    /// How it ended.
    pub status: Status,
    /// Where the expectation comes from.
    pub source: String,
    /// What was not as expected, or why it was not tried; empty if it passed, unless it was known
    /// to fail.
    pub detail: String,
    /// How long it took, in microseconds; if it was put several times, on average.
    pub duration_us: u64,
    /// How often it was put and failed, if it was put more than once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repetitions: Option<Repetitions>,
    /// How the process ended that did not survive it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<Lost>,
    /// Whether it was known to fail, and passed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub known_passed: bool,
    /// What was reserved, mapped and granted when it failed: a picture, as SVG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_space: Option<String>,
    /// What runtime, driver and kernel logged while it ran, if it failed; of a long output the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The errors of HIP that it was to get and got, in order. Not written to files.
    #[serde(skip)]
    pub refused: Vec<HipError>,
}

/// A case that was put more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repetitions {
    /// How often.
    pub ran: usize,
    /// How many of these failed.
    pub failed: usize,
}

impl CaseReport {
    pub(crate) fn new(name: &str, source: &str, status: Status) -> Self {
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
            refused: Vec::new(),
        }
    }

    /// The first word of the name.
    #[must_use]
    pub fn area(&self) -> &str {
        self.name.split('.').next().unwrap_or(&self.name)
    }
}

/// How many cases ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// As expected.
    pub passed: usize,
    /// Not as expected.
    pub failed: usize,
    /// Not tried.
    pub skipped: usize,
    /// Not as expected, and known of this version.
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
    /// `N passed, N failed, N skipped`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, skipped, .. } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// How a report came about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The version of this project.
    pub tool: String,
    /// When it began.
    pub began: DateTime<Utc>,
    /// The kernel's release; empty if it is not known.
    #[serde(default)]
    pub kernel: String,
    /// Whose answers were expected, as `hip7`.
    pub profile: String,
    /// Which cases were chosen, as [`Options`](crate::Options) say it; none: all.
    #[serde(default)]
    pub filters: Vec<String>,
    /// How often all of them were put, if more than once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat: Option<usize>,
    /// The seed of their order, if it was drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The command, its environment, and the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
}

/// What came of a run.
///
/// As JSON it is the format of `hsa-vmm conform`. What a file says that is not known here is passed
/// over, and what it does not say is `None` or empty, so that files of other versions can be read.
/// What `hsa-vmm info` writes is a report without cases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// How it came about; of no file that is older than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Run>,
    /// The runtime.
    pub runtime: RuntimeDescription,
    /// Its agents.
    pub agents: Vec<AgentDescription>,
    /// Every case that was chosen.
    #[serde(default)]
    pub cases: Vec<CaseReport>,
    /// How many ended how.
    #[serde(default)]
    pub summary: Summary,
}

/// A report that cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file is too large for a report: another file, or a device without an end.
    #[error("{} is larger than {} MiB, and no report", path.display(), limit >> 20)]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The largest file that is read, in bytes.
        limit: u64,
    },
    /// The file holds something else.
    #[error(
        "{} is no report, which `hsa-vmm conform --format json` and `info --format json` write",
        path.display()
    )]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: serde_json::Error,
    },
}

/// The largest file that is read, in bytes: a report of all cases has 0.2 million.
const LARGEST: u64 = 64 << 20;

impl Report {
    /// Reads the JSON of a report.
    ///
    /// # Errors
    /// What is not JSON, or lacks what every report has: runtime, agents, and of each case name,
    /// status, source, detail and duration.
    pub fn from_json(json: &[u8]) -> Result<Self, serde_json::Error> {
        let mut report: Self = serde_json::from_slice(json)?;
        // A file that was cut by hand tells of the cases it has.
        report.summary = Summary::of(&report.cases);
        Ok(report)
    }

    /// Reads a file that `hsa-vmm conform` or `hsa-vmm info` wrote as JSON.
    ///
    /// # Errors
    /// [`ReadError`], with the file's name.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        let path = path.as_ref();
        let file = |source| ReadError::File { path: path.into(), source };
        let mut json = Vec::new();
        let opened = std::fs::File::open(path).map_err(file)?;
        opened.take(LARGEST + 1).read_to_end(&mut json).map_err(file)?;
        if json.len() as u64 > LARGEST {
            return Err(ReadError::TooLarge { path: path.into(), limit: LARGEST });
        }
        Self::from_json(&json).map_err(|source| ReadError::Content { path: path.into(), source })
    }

    /// Returns the command that runs one case again.
    #[must_use]
    pub fn reproduce(&self, case: &CaseReport) -> String {
        let begin = self.provenance().map(|it| it.reproduce.as_str()).filter(|it| !it.is_empty());
        let begin = begin.unwrap_or("hsa-vmm conform");
        let repeat = case.repetitions.map(|it| format!(" --repeat {}", it.ran));
        format!("{begin}{} --filter {}", repeat.unwrap_or_default(), case.name)
    }

    /// Returns how the report was produced, if it says so.
    #[must_use]
    pub fn provenance(&self) -> Option<&Provenance> {
        self.run.as_ref()?.provenance.as_ref()
    }

    /// The report as JUnit's XML, a suite an area.
    #[must_use]
    pub fn junit(&self) -> String {
        crate::junit::junit(self)
    }

    /// The report as one page for a browser, which needs no network and no other file.
    ///
    /// # Errors
    /// None is known: it is written to memory.
    pub fn html(&self) -> Result<String, fmt::Error> {
        crate::html::html(self)
    }
}
