//! A conformance case and its possible results.

use crate::Context;
use hsa_vmm::error::Rejected;
use hsa_vmm::vmm::Quarantined;
use hsa_vmm::{Error, Runtime};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A conformance case: a named test of one documented behaviour.
pub struct Case {
    /// The unique name, such as `map.flags.refused`: area, subject and expected behaviour.
    pub name: &'static str,
    /// The source of the expectation: HIP's documentation, a test of hip-tests, or a recording. `cases/mod.rs` lists
    /// the forms of sources.
    pub source: &'static str,
    /// The expectation in a sentence.
    pub about: &'static str,
    pub(crate) body: Body,
}

/// The function of a case.
#[derive(Clone, Copy)]
pub(crate) enum Body {
    /// Needs a started runtime, with or without virtual memory.
    Runtime(fn(&Runtime) -> TestResult),
    /// Needs a `Vmm` of its own.
    Vmm(fn(&Context) -> TestResult),
}

impl Case {
    /// Creates a case that needs virtual memory management.
    pub(crate) const fn new(
        name: &'static str,
        source: &'static str,
        about: &'static str,
        run: fn(&Context) -> TestResult,
    ) -> Self {
        Self { name, source, about, body: Body::Vmm(run) }
    }

    /// Creates a case that needs only a started runtime.
    pub(crate) const fn of_runtime(
        name: &'static str,
        source: &'static str,
        about: &'static str,
        run: fn(&Runtime) -> TestResult,
    ) -> Self {
        Self { name, source, about, body: Body::Runtime(run) }
    }

    /// Returns whether a pattern selects this case. The name of a case selects only this case. Another pattern without
    /// `*` matches any part of the name; a pattern with `*` must match the whole name.
    #[must_use]
    pub fn matches(&self, pattern: &str) -> bool {
        crate::filter::selects(pattern, self.name)
    }

    /// Returns the first word of the name.
    #[must_use]
    pub fn area(&self) -> &'static str {
        self.name.split('.').next().unwrap_or(self.name)
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case")
            .field("name", &self.name)
            .field("source", &self.source)
            .field("about", &self.about)
            .finish_non_exhaustive()
    }
}

/// The status of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// All expectations were met.
    Pass,
    /// An expectation was not met, or the worker crashed or hung.
    Fail,
    /// Not run. The detail names the missing requirement.
    Skip,
    /// Failed as listed for this runtime in [`KnownFailures`](crate::KnownFailures).
    Known,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Skip => "skip",
            Self::Known => "known",
        })
    }
}

/// The result of a case, or of a part of a case.
pub type TestResult<T = ()> = Result<T, NotPassed>;

/// Why a case did not pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotPassed {
    /// An expectation was not met.
    #[error("{0}")]
    Failed(String),
    /// A requirement of the case is missing, such as a second GPU.
    #[error("{0}")]
    Skipped(String),
}

impl<T> From<Rejected<T>> for NotPassed {
    fn from(rejected: Rejected<T>) -> Self {
        rejected.error.into()
    }
}

impl From<Error> for NotPassed {
    fn from(error: Error) -> Self {
        Self::Failed(format!("should have succeeded: {error}"))
    }
}

impl From<std::io::Error> for NotPassed {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(format!("a system call of the case failed: {error}"))
    }
}

/// Fails the case if a condition does not hold.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::NotPassed::Failed(format!($($text)+)));
        }
    };
}

/// Fails the case if the found value differs from the expected value.
macro_rules! ensure_eq {
    ($found:expr, $expected:expr, $($text:tt)+) => {
        match (&$found, &$expected) {
            (found, expected) => $crate::case::ensure!(
                found == expected,
                "{}: {found:?} instead of {expected:?}",
                format_args!($($text)+)
            ),
        }
    };
}

/// Fails the case if the found bytes differ from the expected bytes.
macro_rules! ensure_bytes {
    ($found:expr, $expected:expr, $($text:tt)+) => {
        if let Some(difference) = $crate::hexdump::difference(&$expected[..], &$found[..]) {
            return Err($crate::NotPassed::Failed(format!(
                "{}: {difference}",
                format_args!($($text)+)
            )));
        }
    };
}

/// Describes quarantined ranges: for each range, the operation, the failed call and the call's status.
pub(crate) fn describe_quarantined(ranges: &[Quarantined]) -> String {
    let ranges: Vec<_> = ranges.iter().map(Quarantined::to_string).collect();
    format!("in quarantine: {}", ranges.join("; "))
}

pub(crate) use {ensure, ensure_bytes, ensure_eq};
