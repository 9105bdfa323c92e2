//! The cases, a file an area.

mod runtime;

use crate::Case;

/// All cases, in the order of the areas.
#[must_use]
pub fn cases() -> Vec<&'static Case> {
    [runtime::CASES].into_iter().flatten().collect()
}
