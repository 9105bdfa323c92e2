//! Calls that are not made, by name: because AMD's runtime would crash, or because what it
//! answers follows from chance. Those that crash are shown to do so in `crashes`.

use crate::books::Books;
use crate::calls::*;
use crate::observe::{self, Piece};
use crate::side::{AREA, Side, Value};
use hsa_rocr::Release;
use hsa_sys::{HSA_ACCESS_PERMISSION_RW, HSA_STATUS_SUCCESS};

/// Why a call is left out, in the words of the table below.
pub type Reason = &'static str;

/// What a call would meet.
struct Scene<'a> {
    release: Release,
    side: &'a Side,
    books: &'a Books,
    /// What AMD's runtime has in its area.
    pieces: Vec<Piece>,
}

impl Scene<'_> {
    fn every_gpu_may(&self, place: Place) -> bool {
        self.side.gpus.iter().all(|gpu| {
            let outcome = self.side.get_access(self.side.address(place), *gpu);
            let full = Value::Number(HSA_ACCESS_PERMISSION_RW.into());
            outcome.status == HSA_STATUS_SUCCESS && outcome.values == [full]
        })
    }
}

/// A kind of call that is left out.
struct LeftOut {
    reason: Reason,
    applies: fn(&Scene<'_>, &Call) -> bool,
}

const TABLE: &[LeftOut] = &[
    LeftOut {
        // The address is rounded with a mask made of it; the sum of size and alignment may wrap.
        reason: "NO_REGISTER with an alignment that is no power of two, or a size that wraps with it",
        applies: |scene, call| {
            let Call::Reserve { size, alignment, flags, .. } = *call else { return false };
            let usual = alignment == 0 || (alignment >= 4096 && alignment.is_power_of_two());
            let usual = usual && size.checked_add(2 * alignment).is_some();
            scene.release >= Release::R7_2_4 && flags & 1 != 0 && !usual
        },
    },
    LeftOut {
        // Up to 6.4 the processor's access leaves holes behind. What is reserved in one belongs
        // to two reservations, and to whichever AMD's libraries find first.
        reason: "a reservation in the hole of another",
        applies: |scene, call| {
            let Call::Reserve { hint: Hint::Area(start), size, .. } = *call else { return false };
            let end = start.saturating_add(size);
            let overlaps = |from: u64, to: u64| from < end && start < to;
            let reserved = |&(from, size): &(u64, u64)| overlaps(from, from + size);
            scene.books.reservations.values().any(reserved)
                && !scene.pieces.iter().any(|piece| overlaps(piece.start, piece.end))
        },
    },
    LeftOut {
        // Copies to or from virtual memory are the GPU's, and no page means a fault.
        reason: "a GPU that touches what it has no page for ends the process",
        applies: |scene, call| {
            let mapped = |&(at, size): &(Place, u64)| scene.books.is_mapped(at, size);
            !call.copied().iter().all(mapped)
        },
    },
    LeftOut {
        reason: "a GPU that touches what it has no access to ends the process",
        applies: |scene, call| {
            let by_processor = scene.release <= Release::R6_4_3 && call.is_memory_copy();
            let open = |&(at, _): &(Place, u64)| scene.every_gpu_may(at);
            !by_processor && !call.copied().iter().all(open)
        },
    },
    LeftOut {
        // To these releases virtual memory is the processor's: they call memcpy.
        reason: "up to 6.4, hsa_memory_copy of virtual memory that the processor may not touch",
        applies: |scene, call| {
            let open = |(at, size): (Place, u64)| {
                let at = scene.books.in_area(at).unwrap_or(u64::MAX);
                let around = |piece: &Piece| piece.start <= at && at + size <= piece.end;
                scene.pieces.iter().any(|piece| piece.access == "rw-s" && around(piece))
            };
            scene.release <= Release::R6_4_3
                && call.is_memory_copy()
                && !call.copied().into_iter().all(open)
        },
    },
    LeftOut {
        // Assertion `ret_cpu_addr == va': Debian's 6.1.2 is built with assertions.
        reason: "6.1.2 aborts when the processor is given access to an address that is no page",
        applies: |scene, call| {
            let Call::SetAccess { at, ref wishes, .. } = *call else { return false };
            let page = scene.books.in_area(at).is_none_or(|at| at.is_multiple_of(4096));
            scene.release == Release::R6_1_2 && names_processor(wishes) && !page
        },
    },
    LeftOut {
        // The same assertion, as it maps as many bytes of each as all have; or another, `va == va',
        // as it drops who is not named from each as if it began where the first does.
        reason: "6.1.2 aborts when access to several mappings is set at once",
        applies: |scene, call| {
            let Call::SetAccess { at, size, .. } = *call else { return false };
            scene.release == Release::R6_1_2 && scene.books.mappings_in(at, size) > 1
        },
    },
    LeftOut {
        reason: "a fill of virtual memory crashes 6.1.2, or fills with the lowest byte",
        applies: |scene, call| {
            scene.release == Release::R6_1_2 && matches!(call, Call::Fill { .. })
        },
    },
];

fn names_processor(wishes: &[Wish]) -> bool {
    wishes.iter().any(|(agent, _)| *agent == Agent::Number(0))
}

/// Why a call must not be made, if so. Every name in it means something.
pub fn reason(release: Release, side: &Side, books: &Books, call: &Call) -> Option<Reason> {
    let pieces = observe::pieces(side.area, side.area + AREA);
    let scene = Scene { release, side, books, pieces };
    TABLE.iter().find(|entry| (entry.applies)(&scene, call)).map(|entry| entry.reason)
}
