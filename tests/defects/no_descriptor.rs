//! Calls of the runtime that need a free file descriptor, or leak a descriptor.

use crate::amd_runtime::raw::{RW, RawRuntime, SIZE};
use crate::amd_runtime::{fail_driver_calls, on_each};
use crate::machine::{Library, access};
use crate::process::descriptors;
use crate::process::limit::{limit_free_descriptors, lower_hard_limit, raise_limit};
use crate::table::{GRANT_WITHOUT_DESCRIPTOR_ABORTS, MAP_LEAKS_DESCRIPTOR};
use hsa_vmm::{Access, ErrorKind, PoolMemory, Runtime};

#[test]
fn grant_aborts_on_the_runtime() {
    let test = "no_descriptor::grant_aborts_on_the_runtime";
    GRANT_WITHOUT_DESCRIPTOR_ABORTS.check_on_each_release(test, |fixture| {
        let raw = RawRuntime::start(fixture);
        let (base, _) = raw.map_new_memory(SIZE, &[]);
        limit_free_descriptors(0);
        raw.set_access(base, SIZE, &[(raw.gpus[0], RW)]).is_ok()
    });
}

#[test]
fn map_leaks_descriptor_on_the_runtime() {
    MAP_LEAKS_DESCRIPTOR.check_on_each_release(
        "no_descriptor::map_leaks_descriptor_on_the_runtime",
        |fixture| {
            // `RawRuntime::start` makes the first three of these calls: it maps its scratch memory for two GPUs.
            fail_driver_calls("PRIME_FD_TO_HANDLE#4=ENOMEM");
            let raw = RawRuntime::start(fixture);
            let (base, memory) = (raw.reserve(SIZE).unwrap(), raw.create(SIZE).unwrap());
            let before = descriptors();
            raw.map(base, SIZE, 0, memory).unwrap_err();
            descriptors() > before
        },
    );
}

#[test]
fn grant_fails_cleanly_through_the_library() {
    on_each("no_descriptor::grant_fails_cleanly_through_the_library", |fixture| {
        let library = Library::load(fixture.runtime());
        let (base, _) = library.map_new_memory(0, SIZE);
        let gpus = library.gpus();
        let requested = [access(gpus[0], Access::ReadWrite), access(gpus[1], Access::ReadWrite)];
        limit_free_descriptors(0);
        let error = library.vmm.set_access(base, SIZE, &requested).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutOfDescriptors), "{error}");
        raise_limit();
        library.vmm.check().unwrap();
        assert_eq!(library.vmm.get_access(gpus[0], base).unwrap(), Access::None);
        library.vmm.set_access(base, SIZE, &requested).unwrap();
    });
}

#[test]
fn allocation_without_descriptors_says_so() {
    on_each("no_descriptor::allocation_without_descriptors_says_so", |fixture| {
        // SAFETY: the file is a fetched release of AMD's runtime.
        let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
        let gpu = runtime.gpus().next().unwrap().id();
        limit_free_descriptors(0);
        // The emulated driver opens descriptors above the soft limit.
        lower_hard_limit();
        let error = PoolMemory::allocate(&runtime, gpu, 4 * SIZE).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutOfDescriptors), "{error}");
    });
}
