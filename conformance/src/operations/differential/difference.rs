//! Differences between library and model.

use super::describe::Describe;

/// A difference between the library and the documents.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Difference {
    /// A call succeeded although it is invalid, or failed although it is valid, or failed for the wrong
    /// reason.
    #[error("{call}: expected {expected}, but the library returned: {returned}")]
    Verdict {
        /// The call.
        call: String,
        /// The result according to the documents.
        expected: String,
        /// The library's result.
        returned: String,
    },
    /// The library's state differs from the model.
    #[error("{what}: expected {expected}, found {found}")]
    State {
        /// The compared value.
        what: String,
        /// The result according to the documents.
        expected: String,
        /// The library's state.
        found: String,
    },
    /// A resource of the process has changed. A loaded library may allocate a resource when the library is first used,
    /// and keep the resource. Therefore, only a change in every run is a leak.
    #[error("{what}: expected {expected}, found {found}")]
    Retained {
        /// The compared value.
        what: String,
        /// The value before.
        expected: String,
        /// The value now.
        found: String,
    },
    /// The library broke a rule that is checked without the model.
    #[error("{0}")]
    RuleViolation(String),
}

/// Returns a difference if the values are not equal.
pub(super) fn expect_equal<T: PartialEq + Describe>(
    what: impl std::fmt::Display,
    expected: &T,
    found: &T,
) -> Result<(), Difference> {
    if expected == found {
        return Ok(());
    }
    Err(Difference::State {
        what: what.to_string(),
        expected: expected.describe(),
        found: found.describe(),
    })
}

/// The maximum number of retries after a retained resource.
const RETRIES: usize = 4;

/// Runs a test. While the test fails with [`Difference::Retained`], repeats it up to four times.
///
/// `difference` returns the [`Difference`] that an error of the test contains.
///
/// # Errors
/// Returns the error of the last run.
pub fn with_retries<T, E>(
    mut test: impl FnMut() -> Result<T, E>,
    difference: impl Fn(&E) -> &Difference,
) -> Result<T, E> {
    for _ in 0..RETRIES {
        match test() {
            Err(error) if matches!(difference(&error), Difference::Retained { .. }) => {}
            result => return result,
        }
    }
    test()
}
