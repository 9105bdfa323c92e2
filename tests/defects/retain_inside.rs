//! `retain` finds a mapping only by its first address.

use crate::amd_runtime::on_each;
use crate::amd_runtime::raw::{RawRuntime, SIZE};
use crate::machine::{Library, at};
use crate::table::RETAIN_INSIDE_REJECTED;

#[test]
fn retain_inside_fails_on_the_runtime() {
    RETAIN_INSIDE_REJECTED.check_on_each_release(
        "retain_inside::retain_inside_fails_on_the_runtime",
        |fixture| {
            let raw = RawRuntime::start(fixture);
            let (base, memory) = raw.map_new_memory(SIZE, &[]);
            assert_eq!(raw.retain(base), Ok(memory));
            raw.retain(base + SIZE / 2).is_err()
        },
    );
}

#[test]
fn retain_inside_succeeds_through_the_library() {
    on_each("retain_inside::retain_inside_succeeds_through_the_library", |fixture| {
        let library = Library::load(fixture.runtime());
        let base = library.reserve(SIZE);
        let handle = library.create(0, SIZE);
        library.map(base, SIZE, handle);
        for offset in [0, 1, SIZE / 2, SIZE - 1] {
            let retained = library.vmm.retain_allocation_handle(at(base, offset)).unwrap();
            assert_eq!(retained, handle);
            library.vmm.release(retained).unwrap();
        }
    });
}
