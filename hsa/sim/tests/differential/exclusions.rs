//! Calls that sequences exclude, because the calls crash AMD's runtime or their results are random.
//! The module `crashes` tests the crashes.

use crate::calls::*;
use crate::objects::Objects;
use crate::observe::{self, MappedRange};
use crate::tested_runtime::{AREA_SIZE, TestedRuntime, Value};
use hsa_rocr::Release;
use hsa_rocr::test::uses_machine_driver;
use hsa_sys::{HSA_ACCESS_PERMISSION_RW, HSA_AMD_VMEM_ADDRESS_NO_REGISTER, HSA_STATUS_SUCCESS};

/// Why a call is excluded: the `reason` of an [`Exclusion`].
pub type Reason = &'static str;

/// The situation in which a call would be made.
struct Scenario<'a> {
    release: Release,
    runtime: &'a TestedRuntime,
    objects: &'a Objects,
    /// The mappings in the area of AMD's runtime.
    ranges: Vec<MappedRange>,
}

impl Scenario<'_> {
    fn every_gpu_has_access(&self, location: Location) -> bool {
        self.runtime.gpus.iter().all(|gpu| {
            let outcome = self.runtime.get_access(self.runtime.address(location), *gpu);
            let full = Value::Number(HSA_ACCESS_PERMISSION_RW.into());
            outcome.status == HSA_STATUS_SUCCESS && outcome.values == [full]
        })
    }
}

/// A group of excluded calls.
struct Exclusion {
    reason: Reason,
    applies: fn(&Scenario<'_>, &Call) -> bool,
}

const TABLE: &[Exclusion] = &[
    Exclusion {
        // The runtime rounds the address with a mask computed from the alignment. The sum of size
        // and alignment can wrap around.
        reason: "NO_REGISTER with an invalid alignment, or with a size and an alignment whose sum wraps around",
        applies: |scenario, call| {
            let Call::Reserve { size, alignment, flags, .. } = *call else { return false };
            let valid = alignment == 0 || (alignment >= 4096 && alignment.is_power_of_two());
            let valid = valid && size.checked_add(2 * alignment).is_some();
            let no_register = flags & u64::from(HSA_AMD_VMEM_ADDRESS_NO_REGISTER) != 0;
            scenario.release >= Release::R7_2_4 && no_register && !valid
        },
    },
    Exclusion {
        // Up to 6.4, revoking the CPU's access leaves a hole. An address in a hole can belong to
        // two reservations. AMD's runtime then finds an arbitrary one of the two reservations.
        reason: "a reservation in a hole of another reservation",
        applies: |scenario, call| {
            let Call::Reserve { hint: Hint::Area(start), size, .. } = *call else { return false };
            let end = start.saturating_add(size);
            let overlaps = |from: u64, to: u64| from < end && start < to;
            let reserved = |&(from, size): &(u64, u64)| overlaps(from, from + size);
            scenario.objects.reservations.values().any(reserved)
                && !scenario.ranges.iter().any(|range| overlaps(range.start, range.end))
        },
    },
    Exclusion {
        // The GPU performs copies to or from virtual memory, and faults at an address without a page.
        reason: "a GPU that accesses an address without a page aborts the process",
        applies: |scenario, call| {
            let mapped = |&(at, size): &(Location, u64)| scenario.objects.is_mapped(at, size);
            !call.copied_ranges().iter().all(mapped)
        },
    },
    Exclusion {
        reason: "a GPU without access aborts the process",
        applies: |scenario, call| {
            let by_cpu = scenario.release <= Release::R6_4_3 && call.is_memory_copy();
            let accessible = |&(at, _): &(Location, u64)| scenario.every_gpu_has_access(at);
            !by_cpu && !call.copied_ranges().iter().all(accessible)
        },
    },
    Exclusion {
        // The result depends on the copy engine. The emulated driver's engine copies as the
        // simulation does.
        reason: "a GPU that copies between ranges that overlap, on AMD's kernel driver",
        applies: |scenario, call| {
            let (Call::Copy { to, from, size } | Call::CopyAsync { to, from, size, .. }) = *call
            else {
                return false;
            };
            uses_machine_driver() && scenario.objects.ranges_share_memory(to, from, size)
        },
    },
    Exclusion {
        // These releases treat virtual memory as the CPU's, and copy with memcpy.
        reason: "up to 6.4, hsa_memory_copy of virtual memory that the CPU cannot access",
        applies: |scenario, call| {
            let accessible = |(at, size): (Location, u64)| {
                let at = scenario.objects.area_offset(at).unwrap_or(u64::MAX);
                let contains = |range: &MappedRange| range.start <= at && at + size <= range.end;
                scenario.ranges.iter().any(|range| range.access == "rw-s" && contains(range))
            };
            scenario.release <= Release::R6_4_3
                && call.is_memory_copy()
                && !call.copied_ranges().into_iter().all(accessible)
        },
    },
    Exclusion {
        // Assertion `ret_cpu_addr == va`: Debian's 6.1.2 is built with assertions.
        reason: "6.1.2 aborts when the CPU is granted access to an address that is not page-aligned",
        applies: |scenario, call| {
            let Call::SetAccess { at, ref requests, .. } = *call else { return false };
            let aligned = scenario.objects.area_offset(at).is_none_or(|at| at.is_multiple_of(4096));
            scenario.release == Release::R6_1_2 && names_cpu(requests) && !aligned
        },
    },
    Exclusion {
        // The assertion `ret_cpu_addr == va` fails, because each mapping is mapped with the total
        // size. Or the assertion `agentPermsIt->second.va == va` fails, because the access of
        // unnamed agents is revoked at the address of the first mapping.
        reason: "6.1.2 aborts when access to several mappings is set at once",
        applies: |scenario, call| {
            let Call::SetAccess { at, size, .. } = *call else { return false };
            scenario.release == Release::R6_1_2 && scenario.objects.mappings_in(at, size) > 1
        },
    },
    Exclusion {
        reason: "a fill of virtual memory crashes 6.1.2, or fills with the lowest byte",
        applies: |scenario, call| {
            scenario.release == Release::R6_1_2 && matches!(call, Call::Fill { .. })
        },
    },
];

fn names_cpu(requests: &[AccessRequest]) -> bool {
    requests.iter().any(|(agent, _)| *agent == Agent::Number(0))
}

/// Returns why a call must not be made, or `None` if the call is allowed. All names in the call
/// must have values.
pub fn reason(
    release: Release,
    runtime: &TestedRuntime,
    objects: &Objects,
    call: &Call,
) -> Option<Reason> {
    let ranges = observe::ranges(runtime.area, runtime.area + AREA_SIZE);
    let scenario = Scenario { release, runtime, objects, ranges };
    TABLE.iter().find(|entry| (entry.applies)(&scenario, call)).map(|entry| entry.reason)
}
