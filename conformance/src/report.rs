//! What came of a run, as it is written.

use crate::Status;
use crate::describe::{AgentDescription, RuntimeDescription};
use hsa_vmm::HipError;
use serde::{Serialize, Serializer};
use std::fmt;

/// What came of one case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CaseReport {
    /// The case's name.
    pub name: &'static str,
    /// How it ended.
    pub status: Status,
    /// Where the expectation comes from.
    pub source: &'static str,
    /// What was not as expected, or why it was not tried; empty if it passed.
    pub detail: String,
    /// How long it took, in microseconds.
    pub duration_us: u64,
    /// The errors of HIP that it was to get and got, in order. Not written to files.
    #[serde(skip)]
    pub refused: Vec<HipError>,
}

/// How many cases ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
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
    pub(crate) fn count(&mut self, status: Status) {
        *match status {
            Status::Pass => &mut self.passed,
            Status::Fail => &mut self.failed,
            Status::Skip => &mut self.skipped,
            Status::Known => &mut self.known,
        } += 1;
    }
}

impl fmt::Display for Summary {
    /// `N passed, N failed, N skipped`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, skipped, .. } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The runtime.
    #[serde(serialize_with = "in_short")]
    pub runtime: RuntimeDescription,
    /// Its agents.
    pub agents: Vec<AgentDescription>,
    /// Every case that was chosen.
    pub cases: Vec<CaseReport>,
    /// How many ended how.
    pub summary: Summary,
}

impl Report {
    /// The report as JUnit's XML, a suite an area.
    #[must_use]
    pub fn junit(&self) -> String {
        crate::junit::junit(self)
    }
}

/// A report names the runtime; everything about it is `info`'s to tell.
fn in_short<S: Serializer>(runtime: &RuntimeDescription, to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct InShort<'a> {
        name: &'a str,
        path: &'a Option<std::path::PathBuf>,
        version: &'a str,
        extension: &'a str,
    }
    let RuntimeDescription { name, path, version, extension, .. } = runtime;
    InShort { name, path, version, extension }.serialize(to)
}
