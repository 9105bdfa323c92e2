//! The permitted differences from recorded results.

use serde::Serialize;
use std::fmt;

/// Why a result may differ from the recorded result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Rule {
    /// CUDA unmaps a range with holes, if the range splits no mapping. HIP requires adjacent whole mappings, so the
    /// replay unmaps the mappings of the range one by one.
    UnmapOverHoles,
    /// CUDA maps only whole handles, and returns `NOT_SUPPORTED` for a part of a handle. HIP supports mapping the
    /// beginning of a handle, so the replay skips these calls. If the library controls page tables, it also maps parts
    /// at an offset, and the replay skips calls with an offset, too. The replay makes all other calls that map a part,
    /// and expects the library to reject them as invalid.
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
