//! Comparison of verdicts and bytes.

use super::Difference;
use crate::model::{Contents, Verdict};
use hsa_vmm::Error;
use std::fmt::{Arguments, Debug};

/// Returns both results if the call succeeded on both, and `None` if the library rejected it for a reason
/// that the model gives, too.
pub(super) fn agree<T, U: Debug>(
    call: Arguments<'_>,
    expected: Verdict<T>,
    returned: Result<U, Error>,
) -> Result<Option<(T, U)>, Difference> {
    let differs = |expected: String, returned: String| {
        Err(Difference::Verdict { call: call.to_string(), expected, returned })
    };
    match (expected, returned) {
        (Ok(expected), Ok(returned)) => Ok(Some((expected, returned))),
        (Err(refusal), Err(error)) if refusal.explains(&error) => Ok(None),
        (Ok(_), Err(error)) => differs("success".to_owned(), error.to_string()),
        (Err(refusal), Ok(returned)) => differs(refusal.to_string(), format!("{returned:?}")),
        (Err(refusal), Err(error)) => differs(refusal.to_string(), error.to_string()),
    }
}

/// Compares what was read with the model's contents.
pub(super) fn same_bytes(
    address: usize,
    expected: &Contents,
    found: &[u8],
) -> Result<(), Difference> {
    let Some((place, expected, found)) = expected.difference(found) else { return Ok(()) };
    Err(Difference::State {
        what: format!("value read at {:#x}", address + place),
        expected: format!("{expected:#x}"),
        found: format!("{found:#x} (XOR {:#x})", expected ^ found),
    })
}
