//! Addresses that are still reserved when the runtime stops.

use crate::amd_runtime::on_each;
use crate::amd_runtime::raw::{RawRuntime, SIZE};
use crate::machine::Library;
use crate::process::regions;
use crate::table::ADDRESSES_OUTLIVE_STOP;
use hsa_vmm::Access;

/// The size of the reservation. After the stop, other mappings can fill only a small part of it.
const LARGE: usize = 1 << 30;

/// Returns how many bytes of the range are mapped.
fn mapped_bytes(start: usize) -> usize {
    let end = start + LARGE;
    let overlap = |region_start: usize, region_end: usize| {
        region_end.min(end).saturating_sub(region_start.max(start))
    };
    regions().iter().map(|region| overlap(region.start, region.end)).sum()
}

#[test]
fn reservations_outlive_the_stop_on_the_runtime() {
    ADDRESSES_OUTLIVE_STOP.check_on_each_release(
        "left_reserved::reservations_outlive_the_stop_on_the_runtime",
        |fixture| {
            let raw = RawRuntime::start(fixture);
            // A mapping with access would trigger another defect.
            raw.unmap_scratch().unwrap();
            let start = raw.reserve(LARGE).unwrap();
            let memory = raw.create(SIZE).unwrap();
            raw.map(start, SIZE, 0, memory).unwrap();
            assert_eq!(mapped_bytes(start), LARGE);
            raw.shut_down().unwrap();
            mapped_bytes(start) > LARGE / 2
        },
    );
}

#[test]
fn reservations_are_freed_through_the_library() {
    on_each("left_reserved::reservations_are_freed_through_the_library", |fixture| {
        let library = Library::load(fixture.runtime());
        let start = library.reserve(LARGE);
        let memory = library.create(0, SIZE);
        library.vmm.map(start, SIZE, 0, memory).unwrap();
        library.grant(start, SIZE, library.gpu(0), Access::ReadWrite);
        assert_eq!(mapped_bytes(start.get()), LARGE);
        drop(library);
        assert!(mapped_bytes(start.get()) < LARGE / 2, "most addresses are free again");
    });
}
