//! Where library and model differ.

/// A difference between the library and what the documents say.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Difference {
    /// A call was done that is to be refused, or refused that is to be done, or for a wrong reason.
    #[error("{call}: to be {expected}, and the library answered: {answered}")]
    Verdict {
        /// What was asked for.
        call: String,
        /// What the documents say.
        expected: String,
        /// What the library said.
        answered: String,
    },
    /// What is there is not what should be.
    #[error("{what}: to be {expected}, and is {found}")]
    State {
        /// What.
        what: String,
        /// What the documents say.
        expected: String,
        /// What was found.
        found: String,
    },
    /// The process has something that it had not before, or the other way round, where a loaded
    /// library may make something once and keep it: a leak only if it comes about each time.
    #[error("{what}: to be {expected}, and is {found}")]
    Retained {
        /// What.
        what: String,
        /// What there was.
        expected: String,
        /// What there is.
        found: String,
    },
    /// The library broke a promise that needs no model.
    #[error("{0}")]
    Broken(String),
}

/// Holds what was found against what should be.
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

/// How often a test is made again that has left something in the process.
const AGAIN: usize = 4;

/// Makes a test, and again if it has left something in the process: a loaded library may make
/// something when it is first needed, and keep it. What is left each time is a leak.
///
/// `difference` tells what an error of the test's came of.
///
/// # Errors
/// The last test's.
pub fn with_retries<T, E>(
    mut test: impl FnMut() -> Result<T, E>,
    difference: impl Fn(&E) -> &Difference,
) -> Result<T, E> {
    for _ in 0..AGAIN {
        match test() {
            Err(error) if matches!(difference(&error), Difference::Retained { .. }) => {}
            result => return result,
        }
    }
    test()
}
