//! Calls that are not made, by name: because AMD's runtime would crash, or because what it
//! answers follows from chance. Those that crash are shown to do so in `crashes`.

use crate::books::Books;
use crate::calls::*;
use hsa_rocr::Release;

/// Why a call is left out, in the words of the table below.
pub type Reason = &'static str;

/// A kind of call that is left out.
struct LeftOut {
    reason: Reason,
    applies: fn(Release, &Call, &Books) -> bool,
}

const TABLE: &[LeftOut] = &[
    LeftOut {
        // The address is rounded with a mask made of it.
        reason: "NO_REGISTER with an alignment that is no power of two is rounded to nonsense",
        applies: |release, call, _| {
            let Call::Reserve { alignment, flags, .. } = *call else { return false };
            let usual = alignment == 0 || (alignment >= 4096 && alignment.is_power_of_two());
            release >= Release::R7_2_4 && flags & 1 != 0 && !usual
        },
    },
    LeftOut {
        // Copies to or from virtual memory are the GPU's, and no page means a fault.
        reason: "a GPU that touches what it has no page for ends the process",
        applies: |_, call, books| {
            let ranges = match *call {
                Call::Poke { at, .. } | Call::Peek { at } => vec![(at, 8)],
                Call::Copy { to, from, size } | Call::CopyAsync { to, from, size, .. } => {
                    vec![(to, size), (from, size)]
                }
                Call::Fill { at, words, .. } => vec![(at, words * 4)],
                _ => return false,
            };
            !ranges.into_iter().all(|(at, size)| books.is_mapped(at, size))
        },
    },
    LeftOut {
        reason: "a fill of virtual memory crashes 6.1.2, or fills with the lowest byte",
        applies: |release, call, _| {
            release == Release::R6_1_2 && matches!(call, Call::Fill { .. })
        },
    },
];

/// Why a call must not be made on a release, if so.
pub fn reason(release: Release, call: &Call, books: &Books) -> Option<Reason> {
    TABLE.iter().find(|entry| (entry.applies)(release, call, books)).map(|entry| entry.reason)
}
