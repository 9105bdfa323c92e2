//! Addresses that are still reserved when the runtime stops.

use crate::amd_runtime::on_each;
use crate::amd_runtime::raw::{Raw, SIZE};
use crate::machine::Library;
use crate::process::regions;
use crate::table::ADDRESSES_OUTLIVE_STOP;
use hsa_vmm::Access;

/// Large enough that other mappings hardly fill it. 6.1 needs memory for all of it.
const MANY: usize = 1 << 30;

/// Returns the number of these addresses that are mapped.
fn taken(start: usize) -> usize {
    let end = start + MANY;
    let inside = |from: usize, to: usize| to.min(end).saturating_sub(from.max(start));
    regions().iter().map(|region| inside(region.start, region.end)).sum()
}

#[test]
fn on_the_runtime() {
    ADDRESSES_OUTLIVE_STOP.is_as_recorded("left_reserved::on_the_runtime", |fixture| {
        let raw = Raw::start(fixture);
        // A mapping with access would show another defect.
        raw.unmap_scratch().unwrap();
        let start = raw.reserve(MANY).unwrap();
        let memory = raw.create(SIZE).unwrap();
        raw.map(start, SIZE, 0, memory).unwrap();
        assert_eq!(taken(start), MANY);
        raw.shut_down().unwrap();
        taken(start) > MANY / 2
    });
}

#[test]
fn through_the_library() {
    on_each("left_reserved::through_the_library", |fixture| {
        let library = Library::load(fixture.runtime());
        let start = library.reserve(MANY);
        let memory = library.create(0, SIZE);
        library.vmm.map(start, SIZE, 0, memory).unwrap();
        library.grant(start, SIZE, library.gpu(0), Access::ReadWrite);
        assert_eq!(taken(start.get()), MANY);
        drop(library);
        assert!(taken(start.get()) < MANY / 2, "still taken");
    });
}
