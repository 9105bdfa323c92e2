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
    ("export", |s| verdict(export(s, s.create(1)))),
    ("export_again", |s| {
        let handle = s.create(1);
        let _first = export(s, handle).unwrap();
        verdict(export(s, handle))
    }),
    ("export_distinct_fds", |s| {
        let handle = s.create(1);
        let [first, second] = [(); 2].map(|()| export(s, handle).unwrap());
        flag(first.as_raw_fd() != second.as_raw_fd())
    }),
    ("export_wrong_type", |s| {
        verdict(s.vmm.export_to_shareable_handle(s.create(1), HandleType::WIN32))
    }),
    ("export_flags_nonzero", |_| verdict(Operation::ExportToShareableHandle.check_flags(1))),
    ("export_not_requested", |s| {
        let properties = AllocationProperties::on(s.gpu(0));
        verdict(export(s, s.vmm.create(s.granule, &properties).unwrap()))
    }),
    ("risky_5", |s| verdict(export(s, released_handle(s)))),
    ("import", |s| verdict(s.vmm.import_from_shareable_handle(export_new(s).1, FD))),
    ("import_same_handle", |s| {
        let (handle, descriptor) = export_new(s);
        flag(import(s, &descriptor) == handle)
    }),
    ("import_twice", |s| {
        let (_, descriptor) = export_new(s);
        import(s, &descriptor);
        verdict(s.vmm.import_from_shareable_handle(&descriptor, FD))
    }),
    ("import_twice_same_handle", |s| {
        let (_, descriptor) = export_new(s);
        flag(import(s, &descriptor) == import(s, &descriptor))
    }),
    ("props_imported", |s| verdict(s.vmm.allocation_properties(import_new(s)))),
    ("props_imported_handle_types", |s| imported_properties(s).handle_types.bits().to_string()),
    ("props_imported_type", |s| flag(imported_properties(s).kind == AllocationKind::Pinned)),
    ("props_imported_location", |s| match imported_properties(s).location {
        // The recording has location type 1, for devices, and the device's number.
        Location::Agent(agent) => {
            let mut gpus = s.vmm.runtime().gpus();
            format!("1/{}", gpus.position(|gpu| gpu.id() == agent).unwrap())
        }
        _ => "unknown".to_owned(),
    }),
    ("import_not_a_memory_fd", |s| {
        let file = File::open("/dev/null").unwrap();
        verdict(s.vmm.import_from_shareable_handle(file, FD))
    }),
    ("import_wrong_type", |s| {
        verdict(s.vmm.import_from_shareable_handle(export_new(s).1, HandleType::WIN32))
    }),
    ("map_imported", |s| verdict(s.map(s.reserve(8), 2, import_new(s)))),
    ("unmap_imported", |s| {
        let at = s.reserve(8);
        s.map(at, 2, import_new(s)).unwrap();
        verdict(s.unmap(at, 2))
    }),
    ("release_imported", |s| verdict(s.vmm.release(import_new(s)))),
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
