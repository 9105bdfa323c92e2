//! The differences that are declared, and nothing else.

use serde::Serialize;
use std::fmt;

/// Why a verdict may differ from the recorded one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Rule {
    /// CUDA unmaps over holes as long as no mapping is cut; HIP wants an exact run of whole
    /// mappings. The whole mappings inside are unmapped one by one.
    UnmapOverHoles,
    /// CUDA maps whole handles only, and answers `NOT_SUPPORTED` to anything else. HIP maps the
    /// beginning of a handle, so that such a map is not performed; an offset and a size beyond the
    /// handle HIP refuses too, as invalid, so that those are performed and must be refused.
    PartOfAHandle,
    /// This runtime's granule is finer than the recorded one: what was refused there only for not
    /// being a multiple of the granule would be done here, and is not performed.
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
