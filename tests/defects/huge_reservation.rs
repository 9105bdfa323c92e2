//! Reservations larger than the address space.

use crate::amd_runtime::on_each;
use crate::amd_runtime::raw::{PAGE, RawRuntime};
use crate::machine::Library;
use crate::table::RESERVES_MORE_THAN_EXISTS;
use hsa_vmm::ErrorKind;

const HUGE: usize = usize::MAX - (PAGE - 1);

#[test]
fn huge_reservation_succeeds_on_the_runtime() {
    RESERVES_MORE_THAN_EXISTS.check_on_each_release(
        "huge_reservation::huge_reservation_succeeds_on_the_runtime",
        |fixture| {
            let raw = RawRuntime::start(fixture);
            raw.reserve_near(HUGE, 0, PAGE).is_ok()
        },
    );
}

#[test]
fn huge_reservation_fails_through_the_library() {
    on_each("huge_reservation::huge_reservation_fails_through_the_library", |fixture| {
        let library = Library::load(fixture.runtime());
        for size in [HUGE, 1 << 63] {
            let error = library.vmm.address_reserve(size, 0, None).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::OutOfMemory { .. }), "{error}");
        }
        library.assert_everything_freed();
    });
}
