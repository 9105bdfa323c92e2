//! Differences between library and model.

/// A difference between the library and what the documents say.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Difference {
    /// A call succeeded that must be rejected, or was rejected that must succeed, or was rejected for a
    /// wrong reason.
    #[error("{call}: expected {expected}, but the library returned: {returned}")]
    Verdict {
        /// The call.
        call: String,
        /// What the documents say.
        expected: String,
        /// The library's answer.
        returned: String,
    },
    /// A state differs from the model.
    #[error("{what}: expected {expected}, found {found}")]
    State {
        /// The compared value.
        what: String,
        /// What the documents say.
        expected: String,
        /// What was found.
        found: String,
    },
    /// A resource of the process has changed. A loaded library may allocate something once and keep it;
    /// it is a leak only if it occurs each time.
    #[error("{what}: expected {expected}, found {found}")]
    Retained {
        /// The compared value.
        what: String,
        /// The value before.
        expected: String,
        /// The value now.
        found: String,
    },
    /// The library broke a promise that needs no model.
    #[error("{0}")]
    Broken(String),
}

/// Returns a difference unless both values are equal.
pub(super) fn same<T: PartialEq + std::fmt::Debug>(
    what: impl std::fmt::Display,
    expected: &T,
    found: &T,
) -> Result<(), Difference> {
    if expected == found {
        return Ok(());
    }
    Err(Difference::State {
        what: what.to_string(),
        expected: format!("{expected:x?}"),
        found: format!("{found:x?}"),
    })
}

/// The number of retries after a retained resource.
const RETRIES: usize = 4;

/// Runs a test, and repeats it if a resource was retained: a loaded library may allocate something when it
/// is first needed and keep it. A resource that is retained each time is a leak.
///
/// `difference` returns the difference of an error.
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
