//! The permitted differences from recorded results.

use serde::Serialize;
use std::fmt;

/// Why a result may differ from the recorded result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Rule {
    /// CUDA unmaps a range with holes unless the range splits a mapping. HIP requires adjacent whole
    /// mappings, so the replay unmaps the mappings of the range one by one.
    UnmapOverHoles,
    /// CUDA maps only whole handles, and returns `NOT_SUPPORTED` for a part of a handle. The replay skips calls that
    /// map the beginning of a handle, because HIP supports them. If the library controls page tables, it also maps a
    /// part at an offset, and the replay skips these calls, too. The replay makes the other calls and expects the
    /// library to reject them as invalid.
    PartOfAHandle,
    /// This runtime's granule is smaller than the recorded granule. The recorded driver rejected sizes and
    /// offsets that are multiples of only the smaller granule. The replay skips such calls.
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
