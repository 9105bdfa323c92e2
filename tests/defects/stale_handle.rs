//! The value of a released handle refers to memory that is created later.

use crate::amd_runtime::on_each;
use crate::amd_runtime::raw::{RW, RawRuntime, SIZE, load, store};
use crate::machine::Library;
use crate::table::STALE_HANDLE_NAMES_NEW_MEMORY;
use hsa_vmm::error::Problem;
use hsa_vmm::{Error, HandleType};

#[test]
fn stale_handle_finds_new_memory_on_the_runtime() {
    STALE_HANDLE_NAMES_NEW_MEMORY.check_on_each_release(
        "stale_handle::stale_handle_finds_new_memory_on_the_runtime",
        |fixture| {
            let raw = RawRuntime::start(fixture);
            let stale = raw.create(SIZE).unwrap();
            raw.release(stale).unwrap();
            let (new_base, _) = raw.map_new_memory(SIZE, &[(raw.cpu, RW)]);
            store(new_base, 7);
            let stale_base = raw.reserve(SIZE).unwrap();
            if raw.map(stale_base, SIZE, 0, stale).is_err() {
                return false;
            }
            raw.set_access(stale_base, SIZE, &[(raw.cpu, RW)]).unwrap();
            load(stale_base) == 7
        },
    );
}

#[test]
fn stale_handle_is_rejected_through_the_library() {
    on_each("stale_handle::stale_handle_is_rejected_through_the_library", |fixture| {
        let library = Library::load(fixture.runtime());
        let vmm = &library.vmm;
        let (base, descriptor_type) = (library.reserve(SIZE), HandleType::POSIX_FILE_DESCRIPTOR);
        for _ in 0..100 {
            let stale = library.create(0, SIZE);
            vmm.release(stale).unwrap();
            let new_handle = library.create(0, SIZE);
            assert_ne!(new_handle, stale);
            let results: [Result<(), Error>; 4] = [
                vmm.map(base, SIZE, 0, stale),
                vmm.release(stale),
                vmm.export_to_shareable_handle(stale, descriptor_type).map(drop),
                vmm.allocation_properties(stale).map(drop),
            ];
            for result in results {
                assert_eq!(result.unwrap_err().problem(), Some(Problem::Released));
            }
            // The new memory has not lost a reference.
            library.map(base, SIZE, new_handle);
            vmm.unmap(base, SIZE).unwrap();
            vmm.release(new_handle).unwrap();
        }
        vmm.address_free(base, SIZE).unwrap();
        library.assert_everything_freed();
    });
}
