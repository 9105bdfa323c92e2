//! `handle_create` succeeds although no memory is free, and a failed `map` leaks memory.

use crate::amd_runtime::raw::RawRuntime;
use crate::amd_runtime::{fail_driver_calls, on_each, set_variable};
use crate::machine::{Library, MIB};
use crate::table::{CREATED_WITHOUT_MEMORY, MAP_LEAKS_MEMORY};
use hsa_vmm::ErrorKind;

const DRIVER_SETTING: &str = "gpus=2,vram=64MiB";

#[test]
fn create_succeeds_without_memory_on_the_runtime() {
    CREATED_WITHOUT_MEMORY.check_on_each_release(
        "no_memory::create_succeeds_without_memory_on_the_runtime",
        |fixture| {
            set_variable("HSA_KFD", DRIVER_SETTING);
            let raw = RawRuntime::start(fixture);
            raw.create(48 * MIB).unwrap();
            raw.create(48 * MIB).is_ok()
        },
    );
}

#[test]
fn failed_map_loses_memory_on_the_runtime() {
    MAP_LEAKS_MEMORY.check_on_each_release(
        "no_memory::failed_map_loses_memory_on_the_runtime",
        |fixture| {
            set_variable("HSA_KFD", DRIVER_SETTING);
            // `RawRuntime::start` makes the first `GEM_MMAP` call, for its scratch memory.
            fail_driver_calls("GEM_MMAP#2=ENOMEM");
            let raw = RawRuntime::start(fixture);
            let (base, memory) = (raw.reserve(48 * MIB).unwrap(), raw.create(48 * MIB).unwrap());
            raw.map(base, 48 * MIB, 0, memory).unwrap_err();
            raw.release(memory).unwrap();
            // 6.1.2 returns success with the handle 0 if no memory is left.
            !matches!(raw.create(48 * MIB), Ok(1..))
        },
    );
}

#[test]
fn create_fails_without_memory_through_the_library() {
    on_each("no_memory::create_fails_without_memory_through_the_library", |fixture| {
        set_variable("HSA_KFD", DRIVER_SETTING);
        let library = Library::load(fixture.runtime());
        let memory = library.create(0, 48 * MIB);
        for _ in 0..2 {
            let error = library.vmm.create(48 * MIB, &library.shareable_on(0)).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::OutOfMemory { .. }), "{error}");
        }
        library.vmm.release(memory).unwrap();
        let memory = library.create(0, 48 * MIB);
        library.vmm.release(memory).unwrap();
        library.assert_everything_freed();
    });
}
