//! Reports of a run in which no case was run, because the runtime did not start.

use crate::Provenance;
use askama::Template;
use std::fmt;

/// The report of a run in which no case was run, because the runtime did not start.
///
/// ```
/// use hsa_vmm_conformance::{NotStarted, Provenance};
///
/// let reason = "cannot start the HSA runtime".to_owned();
/// let output = Vec::new();
/// let bringup = Some("hsa-vmm bringup".to_owned());
/// let report =
///     NotStarted { reason, output, bringup, selected: 384, provenance: Provenance::default() };
/// assert!(report.junit().contains("errors=\"1\""));
/// assert!(report.junit().contains("name=\"bringup\" value=\"hsa-vmm bringup\""));
/// assert!(report.html()?.contains("cannot start the HSA runtime"));
/// # Ok::<(), std::fmt::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct NotStarted {
    /// Why the runtime did not start; may have several lines.
    pub reason: String,
    /// The requests to the driver that failed during the start; empty if none failed or if this is unknown.
    pub output: Vec<String>,
    /// The command that finds the HSA call and the kernel interface that fail, if there is one.
    pub bringup: Option<String>,
    /// The number of selected cases, which were not run.
    pub selected: usize,
    /// How the report was made.
    pub provenance: Provenance,
}

#[derive(Template)]
#[template(path = "not_started.html")]
struct Page<'a> {
    report: &'a NotStarted,
    provenance: &'a Provenance,
}

impl NotStarted {
    /// Returns the first line of the reason.
    #[must_use]
    pub fn summary(&self) -> &str {
        self.reason.lines().next().unwrap_or_default()
    }

    /// Formats the report as JUnit XML with one test, which has an error.
    #[must_use]
    pub fn junit(&self) -> String {
        crate::junit::not_started(self)
    }

    /// Formats the report as one HTML page that needs no network and no other file. The page begins with the reason.
    ///
    /// # Errors
    /// None in practice, because the page is written to memory.
    pub fn html(&self) -> Result<String, fmt::Error> {
        Page { report: self, provenance: &self.provenance }.render().map_err(|_| fmt::Error)
    }
}
