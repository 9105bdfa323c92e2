//! Calls that are not made, by name: because AMD's runtime would crash, or because what it
//! answers follows from chance. Those that crash are shown to do so in `crashes`.

use crate::calls::*;
use crate::observe::{self, MappedRange};
use crate::side::{AREA, Side, Value};
use crate::state::State;
use hsa_rocr::Release;
use hsa_sys::{HSA_ACCESS_PERMISSION_RW, HSA_STATUS_SUCCESS};

/// Why a call is left out, in the words of the table below.
pub type Reason = &'static str;

/// What a call would meet.
struct Scenario<'a> {
    release: Release,
    side: &'a Side,
    state: &'a State,
    /// What AMD's runtime has in its area.
    ranges: Vec<MappedRange>,
}

impl Scenario<'_> {
    fn every_gpu_may(&self, location: Location) -> bool {
        self.side.gpus.iter().all(|gpu| {
            let outcome = self.side.get_access(self.side.address(location), *gpu);
            let full = Value::Number(HSA_ACCESS_PERMISSION_RW.into());
            outcome.status == HSA_STATUS_SUCCESS && outcome.values == [full]
        })
    }
}

/// A kind of call that is left out.
struct LeftOut {
    reason: Reason,
    applies: fn(&Scenario<'_>, &Call) -> bool,
}

const TABLE: &[LeftOut] = &[
    LeftOut {
        // The address is rounded with a mask made of it; the sum of size and alignment may wrap.
        reason: "NO_REGISTER with an alignment that is no power of two, or a size that wraps with it",
        applies: |scenario, call| {
            let Call::Reserve { size, alignment, flags, .. } = *call else { return false };
            let usual = alignment == 0 || (alignment >= 4096 && alignment.is_power_of_two());
            let usual = usual && size.checked_add(2 * alignment).is_some();
            scenario.release >= Release::R7_2_4 && flags & 1 != 0 && !usual
        },
    },
    LeftOut {
        // Up to 6.4 the processor's access leaves holes behind. What is reserved in one belongs
        // to two reservations, and to whichever AMD's libraries find first.
        reason: "a reservation in the hole of another",
        applies: |scenario, call| {
            let Call::Reserve { hint: Hint::Area(start), size, .. } = *call else { return false };
            let end = start.saturating_add(size);
            let overlaps = |from: u64, to: u64| from < end && start < to;
            let reserved = |&(from, size): &(u64, u64)| overlaps(from, from + size);
            scenario.state.reservations.values().any(reserved)
                && !scenario.ranges.iter().any(|range| overlaps(range.start, range.end))
        },
    },
    LeftOut {
        // Copies to or from virtual memory are the GPU's, and no page means a fault.
        reason: "a GPU that touches what it has no page for ends the process",
        applies: |scenario, call| {
            let mapped = |&(at, size): &(Location, u64)| scenario.state.is_mapped(at, size);
            !call.copied().iter().all(mapped)
        },
    },
    LeftOut {
        reason: "a GPU that touches what it has no access to ends the process",
        applies: |scenario, call| {
            let by_processor = scenario.release <= Release::R6_4_3 && call.is_memory_copy();
            let open = |&(at, _): &(Location, u64)| scenario.every_gpu_may(at);
            !by_processor && !call.copied().iter().all(open)
        },
    },
    LeftOut {
        // To these releases virtual memory is the processor's: they call memcpy.
        reason: "up to 6.4, hsa_memory_copy of virtual memory that the processor may not touch",
        applies: |scenario, call| {
            let open = |(at, size): (Location, u64)| {
                let at = scenario.state.in_area(at).unwrap_or(u64::MAX);
                let around = |range: &MappedRange| range.start <= at && at + size <= range.end;
                scenario.ranges.iter().any(|range| range.access == "rw-s" && around(range))
            };
            scenario.release <= Release::R6_4_3
                && call.is_memory_copy()
                && !call.copied().into_iter().all(open)
        },
    },
    LeftOut {
        // Assertion `ret_cpu_addr == va': Debian's 6.1.2 is built with assertions.
        reason: "6.1.2 aborts when the processor is given access to an address that is no page",
        applies: |scenario, call| {
            let Call::SetAccess { at, ref requests, .. } = *call else { return false };
            let page = scenario.state.in_area(at).is_none_or(|at| at.is_multiple_of(4096));
            scenario.release == Release::R6_1_2 && names_processor(requests) && !page
        },
    },
    LeftOut {
        // The same assertion, as it maps as many bytes of each as all have; or another, `va == va',
        // as it drops who is not named from each as if it began where the first does.
        reason: "6.1.2 aborts when access to several mappings is set at once",
        applies: |scenario, call| {
            let Call::SetAccess { at, size, .. } = *call else { return false };
            scenario.release == Release::R6_1_2 && scenario.state.mappings_in(at, size) > 1
        },
    },
    LeftOut {
        reason: "a fill of virtual memory crashes 6.1.2, or fills with the lowest byte",
        applies: |scenario, call| {
            scenario.release == Release::R6_1_2 && matches!(call, Call::Fill { .. })
        },
    },
];

fn names_processor(requests: &[AccessRequest]) -> bool {
    requests.iter().any(|(agent, _)| *agent == Agent::Number(0))
}

/// Why a call must not be made, if so. Every name in it means something.
pub fn reason(release: Release, side: &Side, state: &State, call: &Call) -> Option<Reason> {
    let ranges = observe::ranges(side.area, side.area + AREA);
    let scenario = Scenario { release, side, state, ranges };
    TABLE.iter().find(|entry| (entry.applies)(&scenario, call)).map(|entry| entry.reason)
}
