//! Export and import.

use super::memory::released_handle;
use super::{Call, Fixture, flag, verdict};
use hsa_vmm::error::Operation;
use hsa_vmm::vmm::{AllocationKind, Location};
use hsa_vmm::{AllocationProperties, Error, Handle, HandleType};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

const FD: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;

pub const CALLS: &[Call] = &[
    ("export", |fixture| verdict(export(fixture, fixture.create(1)))),
    ("export_again", |fixture| {
        let handle = fixture.create(1);
        let _first = export(fixture, handle).unwrap();
        verdict(export(fixture, handle))
    }),
    ("export_distinct_fds", |fixture| {
        let handle = fixture.create(1);
        let [first, second] = [(); 2].map(|()| export(fixture, handle).unwrap());
        flag(first.as_raw_fd() != second.as_raw_fd())
    }),
    ("export_wrong_type", |fixture| {
        verdict(fixture.vmm.export_to_shareable_handle(fixture.create(1), HandleType::WIN32))
    }),
    ("export_flags_nonzero", |_| verdict(Operation::ExportToShareableHandle.check_flags(1))),
    ("export_not_requested", |fixture| {
        let properties = AllocationProperties::on(fixture.gpu(0));
        verdict(export(fixture, fixture.vmm.create(fixture.granule, &properties).unwrap()))
    }),
    ("risky_5", |fixture| verdict(export(fixture, released_handle(fixture)))),
    ("import", |fixture| {
        verdict(fixture.vmm.import_from_shareable_handle(export_new(fixture).1, FD))
    }),
    ("import_same_handle", |fixture| {
        let (handle, descriptor) = export_new(fixture);
        flag(import(fixture, &descriptor) == handle)
    }),
    ("import_twice", |fixture| {
        let (_, descriptor) = export_new(fixture);
        import(fixture, &descriptor);
        verdict(fixture.vmm.import_from_shareable_handle(&descriptor, FD))
    }),
    ("import_twice_same_handle", |fixture| {
        let (_, descriptor) = export_new(fixture);
        flag(import(fixture, &descriptor) == import(fixture, &descriptor))
    }),
    ("props_imported", |fixture| verdict(fixture.vmm.allocation_properties(import_new(fixture)))),
    ("props_imported_handle_types", |fixture| {
        imported_properties(fixture).handle_types.bits().to_string()
    }),
    ("props_imported_type", |fixture| {
        flag(imported_properties(fixture).kind == AllocationKind::Pinned)
    }),
    ("props_imported_location", |fixture| match imported_properties(fixture).location {
        // The recording has location type 1, for devices, and the device's number.
        Location::Agent(agent) => {
            let mut gpus = fixture.vmm.runtime().gpus();
            format!("1/{}", gpus.position(|gpu| gpu.id() == agent).unwrap())
        }
        _ => "unknown".to_owned(),
    }),
    ("import_not_a_memory_fd", |fixture| {
        let file = File::open("/dev/null").unwrap();
        verdict(fixture.vmm.import_from_shareable_handle(file, FD))
    }),
    ("import_wrong_type", |fixture| {
        verdict(fixture.vmm.import_from_shareable_handle(export_new(fixture).1, HandleType::WIN32))
    }),
    ("map_imported", |fixture| verdict(fixture.map(fixture.reserve(8), 2, import_new(fixture)))),
    ("unmap_imported", |fixture| {
        let at = fixture.reserve(8);
        fixture.map(at, 2, import_new(fixture)).unwrap();
        verdict(fixture.unmap(at, 2))
    }),
    ("release_imported", |fixture| verdict(fixture.vmm.release(import_new(fixture)))),
];

fn export(fixture: &Fixture, handle: Handle) -> Result<OwnedFd, Error> {
    fixture.vmm.export_to_shareable_handle(handle, FD)
}

fn import(fixture: &Fixture, descriptor: &OwnedFd) -> Handle {
    fixture.vmm.import_from_shareable_handle(descriptor, FD).unwrap()
}

/// Creates a handle of two granules, and exports it.
fn export_new(fixture: &Fixture) -> (Handle, OwnedFd) {
    let handle = fixture.create(2);
    (handle, export(fixture, handle).unwrap())
}

fn import_new(fixture: &Fixture) -> Handle {
    import(fixture, &export_new(fixture).1)
}

fn imported_properties(fixture: &Fixture) -> AllocationProperties {
    fixture.vmm.allocation_properties(import_new(fixture)).unwrap()
}
