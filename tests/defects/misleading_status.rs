//! The runtime returns statuses that name the wrong reason, and reports the wrong pool for imported memory.

use crate::amd_runtime::on_each;
use crate::amd_runtime::raw::{PAGE, RawRuntime, SIZE};
use crate::machine::Library;
use crate::table::{
    IMPORT_HAS_ANOTHER_POOL, TOO_LARGE_IS_OUT_OF_RESOURCES, UNALIGNED_SIZE_IS_OUT_OF_RESOURCES,
};
use hsa_sys::HSA_STATUS_ERROR_OUT_OF_RESOURCES;
use hsa_vmm::error::Argument;
use hsa_vmm::vmm::Location;
use hsa_vmm::{ErrorKind, HandleType};
use std::os::fd::{FromRawFd, OwnedFd};

#[test]
fn too_large_is_out_of_resources_on_the_runtime() {
    let test = "misleading_status::too_large_is_out_of_resources_on_the_runtime";
    TOO_LARGE_IS_OUT_OF_RESOURCES.check_on_each_release(test, |fixture| {
        let raw = RawRuntime::start(fixture);
        let (base, memory) = (raw.reserve(2 * SIZE).unwrap(), raw.create(SIZE).unwrap());
        let result = raw.map(base, 2 * SIZE, 0, memory);
        result.unwrap_err() == HSA_STATUS_ERROR_OUT_OF_RESOURCES
    });
}

#[test]
fn unaligned_size_is_out_of_resources_on_the_runtime() {
    let test = "misleading_status::unaligned_size_is_out_of_resources_on_the_runtime";
    UNALIGNED_SIZE_IS_OUT_OF_RESOURCES.check_on_each_release(test, |fixture| {
        let raw = RawRuntime::start(fixture);
        raw.reserve(PAGE - 1).unwrap_err() == HSA_STATUS_ERROR_OUT_OF_RESOURCES
    });
}

#[test]
fn import_reports_another_pool_on_the_runtime() {
    let test = "misleading_status::import_reports_another_pool_on_the_runtime";
    IMPORT_HAS_ANOTHER_POOL.check_on_each_release(test, |fixture| {
        let raw = RawRuntime::start(fixture);
        let memory = raw.create(SIZE).unwrap();
        // SAFETY: the runtime has just created the descriptor, and nothing else closes it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(raw.export(memory).unwrap()) };
        let import = raw.import(std::os::fd::AsRawFd::as_raw_fd(&descriptor)).unwrap();
        raw.pool(import).unwrap() != raw.pool(memory).unwrap()
    });
}

#[test]
fn errors_name_the_argument_through_the_library() {
    on_each("misleading_status::errors_name_the_argument_through_the_library", |fixture| {
        let library = Library::load(fixture.runtime());
        let vmm = &library.vmm;
        let (base, memory) = (library.reserve(2 * SIZE), library.create(1, SIZE));
        let too_large = vmm.map(base, 2 * SIZE, 0, memory).unwrap_err();
        assert!(matches!(too_large.kind(), ErrorKind::InvalidArgument { .. }), "{too_large}");
        assert_eq!(too_large.argument(), Some(Argument::Size));
        let unaligned = vmm.address_reserve(PAGE - 1, 0, None).unwrap_err();
        assert!(matches!(unaligned.kind(), ErrorKind::InvalidArgument { .. }), "{unaligned}");
        assert_eq!(unaligned.argument(), Some(Argument::Size));

        let descriptor_type = HandleType::POSIX_FILE_DESCRIPTOR;
        let shared = vmm.export_to_shareable_handle(memory, descriptor_type).unwrap();
        let import = vmm.import_from_shareable_handle(&shared, descriptor_type).unwrap();
        let properties = vmm.allocation_properties(import).unwrap();
        assert_eq!(properties.location, Location::Agent(library.gpu(1)));
    });
}
