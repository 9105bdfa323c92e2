//! The permitted differences from recorded verdicts.

use serde::Serialize;
use std::fmt;

/// Why a verdict may differ from the recorded one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Rule {
    /// CUDA unmaps ranges with holes unless they split a mapping; HIP requires adjacent whole mappings.
    /// The mappings in the range are unmapped one by one.
    UnmapOverHoles,
    /// CUDA maps only whole handles and otherwise returns `NOT_SUPPORTED`. HIP also maps the beginning of
    /// a handle; such a map is not performed. HIP rejects an offset, and a size beyond the handle, as
    /// invalid; such maps are performed and must be rejected.
    PartOfAHandle,
    /// This runtime's granule is smaller than the recorded one. A call that was rejected only because it
    /// was not a multiple of the granule would succeed here and is not performed.
    Granule,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnmapOverHoles => "unmap_over_holes",
            Self::PartOfAHandle => "part_of_a_handle",
            Self::Granule => "granule",
        })
    }
}
