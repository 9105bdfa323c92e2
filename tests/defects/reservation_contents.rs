//! On some releases, reserved addresses have memory although the program has mapped none, or has unmapped it.

use crate::amd_runtime::on_each;
use crate::amd_runtime::raw::{RW, RawRuntime, SIZE, load, store};
use crate::machine::Library;
use crate::process::{assert_inaccessible, permissions};
use crate::table::{MEMORY_KEPT_AFTER_UNMAP, RESERVATION_CAN_BE_WRITTEN};
use hsa_vmm::Access;

#[test]
fn reservation_is_writable_on_the_runtime() {
    let test = "reservation_contents::reservation_is_writable_on_the_runtime";
    RESERVATION_CAN_BE_WRITTEN.check_on_each_release(test, |fixture| {
        let raw = RawRuntime::start(fixture);
        let base = raw.reserve(SIZE).unwrap();
        let parts = permissions(base, SIZE).unwrap();
        if !parts[0].2.starts_with("rw") {
            return false;
        }
        store(base, 7);
        load(base) == 7
    });
}

/// Returns whether GPU memory is mapped in the range, even without access. The kernel does not free mapped
/// memory.
fn has_gpu_memory(base: usize) -> bool {
    let parts = permissions(base, SIZE).unwrap_or_default();
    parts.iter().any(|(_, _, permissions)| permissions.ends_with('s'))
}

#[test]
fn memory_stays_on_the_runtime() {
    let test = "reservation_contents::memory_stays_on_the_runtime";
    MEMORY_KEPT_AFTER_UNMAP.check_on_each_release(test, |fixture| {
        let raw = RawRuntime::start(fixture);
        let (base, memory) = raw.map_new_memory(SIZE, &[(raw.cpu, RW)]);
        raw.unmap(base, SIZE).unwrap();
        raw.release(memory).unwrap();
        has_gpu_memory(base)
    });
}

#[test]
fn reservation_has_no_memory_through_the_library() {
    on_each("reservation_contents::reservation_has_no_memory_through_the_library", |fixture| {
        let library = Library::load(fixture.runtime());
        let base = library.reserve(SIZE);
        for _ in 0..3 {
            assert_inaccessible(base.get(), SIZE, "reserved");
            let memory = library.create(0, SIZE);
            library.map(base, SIZE, memory);
            assert_inaccessible(base.get(), SIZE, "mapped");
            library.grant(base, SIZE, library.cpu(0), Access::ReadWrite);
            library.grant(base, SIZE, library.gpu(0), Access::ReadWrite);
            library.vmm.write(base, b"text").unwrap();
            assert!(has_gpu_memory(base.get()), "mapped memory is detected");
            library.vmm.unmap(base, SIZE).unwrap();
            library.vmm.release(memory).unwrap();
            assert!(!has_gpu_memory(base.get()));
        }
    });
}
