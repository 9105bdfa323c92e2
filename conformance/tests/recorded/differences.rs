//! Results in which this library deliberately differs from the recorded driver.
//!
//! The recorded program made all calls in one sequence. The call `unmap_across_gap` succeeded and unmapped the
//! whole reservation. The call `free_while_mapped` then freed the reservation, so the calls up to `free_twice`
//! used addresses that were no longer reserved. In these tests, every call has its own fixture, in the state
//! that the call's name describes.

use hsa_sim::Generation;

/// A recorded call with a different result in this library.
pub struct Difference {
    pub name: &'static str,
    pub result: &'static str,
    /// The first generation in which the result differs.
    pub since: Generation,
    pub reason: &'static str,
}

const CRASH: &str = "the driver crashes, the library returns an error";
const STALE: &str =
    "invariant 5 (src/vmm/ledger/check.rs): a handle without references is rejected";
const HOLES: &str = "Rule::UnmapOverHoles: HIP unmaps only whole mappings without gaps";
const PARTS: &str = "Rule::PartOfAHandle: HIP maps parts of a handle";
const BAD_MAP: &str = "HIP documents hipErrorInvalidValue; the driver returns NOT_SUPPORTED unless a whole handle is \
                       mapped at an aligned address";
const ONE_RESERVATION: &str = "HIP, and invariant 1 (src/vmm/ledger/check.rs): mappings and ranges are inside one \
                               reservation; the driver merges adjacent reservations";
const HOST: &str = "HIP documents hipErrorNotSupported: AMD's runtime makes no handles of system \
                    memory before ROCm 10";
const RECORDED_WHEN_EMPTY: &str = "the recorded program had already unmapped the whole reservation";
const RECORDED_WHEN_FREED: &str = "the recorded program had already freed the reservation";
const DOCUMENTED: &str = "HIP documents this error";

const fn differs(name: &'static str, result: &'static str, reason: &'static str) -> Difference {
    Difference { name, result, since: Generation::A, reason }
}

const INVALID: &str = "INVALID_VALUE";

pub const DIFFERENCES: &[Difference] = &[
    differs("granularity_bad_device", INVALID, DOCUMENTED),
    differs("granularity_host", "NOT_SUPPORTED", HOST),
    differs("granularity_host_value", "NOT_SUPPORTED", HOST),
    differs("create_location_host", "NOT_SUPPORTED", HOST),
    differs("create_location_host_numa", "NOT_SUPPORTED", HOST),
    differs("create_handle_type_win32", "NOT_SUPPORTED", DOCUMENTED),
    differs("map_size_beyond_handle", INVALID, BAD_MAP),
    differs("map_size_not_granular", INVALID, BAD_MAP),
    differs("map_addr_not_granular", INVALID, BAD_MAP),
    differs("map_offset_beyond", INVALID, BAD_MAP),
    differs("map_offset_not_granular", INVALID, BAD_MAP),
    differs("map_offset_one_granule", INVALID, BAD_MAP),
    differs("map_across_reservation_end", INVALID, ONE_RESERVATION),
    differs("map_across_two_reservations", INVALID, ONE_RESERVATION),
    differs("setaccess_across_two_reservations", INVALID, ONE_RESERVATION),
    differs("unmap_across_two_reservations", INVALID, ONE_RESERVATION),
    differs("unmap_offset_map", INVALID, HOLES),
    differs("unmap_across_gap", INVALID, HOLES),
    differs("unmap_unmapped", INVALID, HOLES),
    differs("map_smaller_than_handle", "SUCCESS", PARTS),
    differs("getaccess_bad_device", INVALID, DOCUMENTED),
    differs("unmap_one_and_half", INVALID, RECORDED_WHEN_EMPTY),
    differs("free_while_mapped", INVALID, RECORDED_WHEN_EMPTY),
    differs("retain_after_release", "SUCCESS", RECORDED_WHEN_FREED),
    differs("retain_after_release_same_handle", "1", RECORDED_WHEN_FREED),
    differs("unmap_two_mappings_at_once", "SUCCESS", RECORDED_WHEN_FREED),
    differs("unmap_third", "SUCCESS", RECORDED_WHEN_FREED),
    differs("free", "SUCCESS", RECORDED_WHEN_FREED),
    differs("props_imported_handle_types", "1", "HIP: an import keeps its handle type"),
    Difference {
        name: "props_imported_location",
        result: "unknown",
        since: Generation::C,
        reason: "since ROCm 7.14 AMD's runtime does not report the owner of an import (row 61 in edges/mod.rs)",
    },
    differs("import_not_a_memory_fd", INVALID, DOCUMENTED),
    differs("props_stale_handle", INVALID, STALE),
    differs("map_after_release_while_mapped", INVALID, STALE),
    differs("props_after_release_while_mapped", INVALID, STALE),
    differs("risky_0", INVALID, CRASH),
    differs("risky_1", INVALID, CRASH),
    differs("risky_2", INVALID, CRASH),
    differs("risky_4", INVALID, CRASH),
    differs("risky_5", INVALID, CRASH),
];
