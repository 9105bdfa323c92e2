//! Memory behind reserved addresses at which nothing is mapped.

use crate::amd_runtime::on_each;
use crate::amd_runtime::raw::{RW, Raw, SIZE, load, store};
use crate::machine::Library;
use crate::process::{assert_untouchable, permissions};
use crate::table::{MEMORY_KEPT_AFTER_UNMAP, RESERVATION_CAN_BE_WRITTEN};
use hsa_vmm::Access;

#[test]
fn writable_on_the_runtime() {
    let test = "reservation_contents::writable_on_the_runtime";
    RESERVATION_CAN_BE_WRITTEN.is_as_recorded(test, |fixture| {
        let raw = Raw::start(fixture);
        let base = raw.reserve(SIZE).unwrap();
        let access = permissions(base, SIZE).unwrap();
        if !access[0].2.starts_with("rw") {
            return false;
        }
        store(base, 7);
        load(base) == 7
    });
}

/// Returns whether GPU memory is mapped at some of these addresses, even without access: the kernel does
/// not free it before.
fn is_memory_there(base: usize) -> bool {
    let pieces = permissions(base, SIZE).unwrap_or_default();
    pieces.iter().any(|(_, _, permissions)| permissions.ends_with('s'))
}

#[test]
fn memory_stays_on_the_runtime() {
    let test = "reservation_contents::memory_stays_on_the_runtime";
    MEMORY_KEPT_AFTER_UNMAP.is_as_recorded(test, |fixture| {
        let raw = Raw::start(fixture);
        let (base, memory) = raw.mapped(SIZE, &[(raw.cpu, RW)]);
        raw.unmap(base, SIZE).unwrap();
        raw.release(memory).unwrap();
        is_memory_there(base)
    });
}

#[test]
fn through_the_library() {
    on_each("reservation_contents::through_the_library", |fixture| {
        let library = Library::load(fixture.runtime());
        let base = library.reserve(SIZE);
        for _ in 0..3 {
            assert_untouchable(base.get(), SIZE, "reserved");
            let memory = library.create(0, SIZE);
            library.map(base, SIZE, memory);
            assert_untouchable(base.get(), SIZE, "mapped");
            library.grant(base, SIZE, library.cpu(0), Access::ReadWrite);
            library.grant(base, SIZE, library.gpu(0), Access::ReadWrite);
            library.vmm.write(base, b"text").unwrap();
            assert!(is_memory_there(base.get()), "or this test would see nothing");
            library.vmm.unmap(base, SIZE).unwrap();
            library.vmm.release(memory).unwrap();
            assert!(!is_memory_there(base.get()));
        }
    });
}
