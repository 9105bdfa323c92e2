//! Comparison of verdicts and bytes.

use super::Difference;
use super::describe::Describe;
use crate::model::{Contents, Verdict};
use hsa_vmm::Error;
use std::fmt::Arguments;

/// Checks that library and model agree on a call. If the call succeeded, returns the results of model and library. If
/// library and model rejected the call for the same reason, returns `None`.
pub(super) fn expect_agreement<T, U: Describe>(
    call: Arguments<'_>,
    expected: Verdict<T>,
    returned: Result<U, Error>,
) -> Result<Option<(T, U)>, Difference> {
    let differs = |expected: String, returned: String| {
        Err(Difference::Verdict { call: call.to_string(), expected, returned })
    };
    match (expected, returned) {
        (Ok(expected), Ok(returned)) => Ok(Some((expected, returned))),
        (Err(rejection), Err(error)) if rejection.allows(&error) => Ok(None),
        (Ok(_), Err(error)) => differs("success".to_owned(), error.to_string()),
        (Err(rejection), Ok(returned)) => differs(rejection.to_string(), returned.describe()),
        (Err(rejection), Err(error)) => differs(rejection.to_string(), error.to_string()),
    }
}

/// Compares `found`, the bytes that the library has read, with the model's contents.
pub(super) fn expect_bytes(
    address: usize,
    expected: &Contents,
    found: &[u8],
) -> Result<(), Difference> {
    let Some((offset, expected, found)) = expected.difference(found) else { return Ok(()) };
    Err(Difference::State {
        what: format!("value read at {:#x}", address + offset),
        expected: format!("{expected:#x}"),
        found: format!("{found:#x} (XOR {:#x})", expected ^ found),
    })
}
