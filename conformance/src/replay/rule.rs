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
    /// CUDA maps only whole handles, and returns `NOT_SUPPORTED` for a part of a handle. HIP also maps the beginning
    /// of a handle; the replay skips such calls. HIP rejects an offset, or a size beyond the handle, as invalid; the
    /// replay makes such calls and expects the rejection. If the library controls page tables, it maps a part at an
    /// offset; the replay then skips such calls, too.
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
