//! A named case, and what can come of it.

use crate::Context;
use hsa_vmm::error::Rejected;
use hsa_vmm::{Error, Runtime};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One idea that is put to a runtime.
pub struct Case {
    /// `area.operation.what`, unique.
    pub name: &'static str,
    /// Where the expectation comes from: HIP's documentation, a test of hip-tests, a recording.
    pub source: &'static str,
    /// What is expected, in a sentence.
    pub about: &'static str,
    pub(crate) body: Body,
}

/// What a case needs.
#[derive(Clone, Copy)]
pub(crate) enum Body {
    /// A started runtime, with or without virtual memory.
    Runtime(fn(&Runtime) -> Verdict),
    /// Virtual-memory management of its own.
    Vmm(fn(&Context) -> Verdict),
}

impl Case {
    /// A case that needs virtual-memory management.
    pub(crate) const fn new(
        name: &'static str,
        source: &'static str,
        about: &'static str,
        run: fn(&Context) -> Verdict,
    ) -> Self {
        Self { name, source, about, body: Body::Vmm(run) }
    }

    /// A case that looks at what the runtime describes.
    pub(crate) const fn of_runtime(
        name: &'static str,
        source: &'static str,
        about: &'static str,
        run: fn(&Runtime) -> Verdict,
    ) -> Self {
        Self { name, source, about, body: Body::Runtime(run) }
    }

    /// Whether a pattern chooses this case: a part of its name, or with `*` all of it.
    #[must_use]
    pub fn matches(&self, pattern: &str) -> bool {
        crate::filter::matches(pattern, self.name)
    }

    /// The first word of the name.
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

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As expected.
    Pass,
    /// Not as expected.
    Fail,
    /// It could not be tried here; the detail says why.
    Skip,
    /// Not as expected, and known of this version of the runtime ([`KnownFailures`](crate::KnownFailures)).
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

/// What a case answers.
pub type Verdict<T = ()> = Result<T, NotPassed>;

/// Why a case did not pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotPassed {
    /// Something was not as expected.
    #[error("{0}")]
    Failed(String),
    /// There is not here what the case needs.
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
        Self::Failed(format!("the system refused what the case needs: {error}"))
    }
}

/// Leaves a case as failed unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::NotPassed::Failed(format!($($text)+)));
        }
    };
}

/// Leaves a case as failed unless two values are equal.
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($text:tt)+) => {
        match (&$left, &$right) {
            (left, right) => $crate::case::ensure!(
                left == right,
                "{}: {left:?} instead of {right:?}",
                format_args!($($text)+)
            ),
        }
    };
}

pub(crate) use {ensure, ensure_eq};
