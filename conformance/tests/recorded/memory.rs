//! Creating, retaining and releasing memory, and its properties.

use super::{Call, Fixture, flag, offset_by, verdict};
use hsa_vmm::HandleType;
use hsa_vmm::error::Operation;
use hsa_vmm::vmm::Location;
use hsa_vmm::{AgentId, AllocationProperties, Handle};

pub const CALLS: &[Call] = &[
    ("create_size_zero", |s| verdict(s.vmm.create(0, &s.properties()))),
    ("create_size_not_granular", |s| {
        verdict(s.vmm.create(s.granule + s.granule / 2, &s.properties()))
    }),
    ("create_flags_nonzero", |_| verdict(Operation::Create.check_flags(1))),
    ("create_bad_device", |s| create_verdict(s, &AllocationProperties::on(s.invented_gpu()))),
    ("create_negative_device", |s| {
        create_verdict(s, &AllocationProperties::on(AgentId::from_bits(!0)))
    }),
    ("create_location_type_invalid", |s| {
        create_verdict(s, &AllocationProperties::at(Location::Unknown))
    }),
    ("create_location_host", cpu_create_verdict),
    ("create_location_host_numa", cpu_create_verdict),
    ("create_handle_type_win32", |s| {
        create_verdict(s, &s.properties().shareable_as(HandleType::WIN32))
    }),
    ("create_too_big", |s| verdict(s.vmm.create(1 << 46, &s.properties()))),
    ("create", |s| create_verdict(s, &s.properties())),
    ("create_second", |s| {
        s.create(1);
        create_verdict(s, &s.properties())
    }),
    ("create_not_shareable", |s| create_verdict(s, &AllocationProperties::on(s.gpu(0)))),
    ("release_not_shareable", |s| {
        let properties = AllocationProperties::on(s.gpu(0));
        verdict(s.vmm.release(s.vmm.create(s.granule, &properties).unwrap()))
    }),
    ("props", |s| properties_verdict(s, s.create(1))),
    ("props_roundtrip", |s| {
        flag(s.vmm.allocation_properties(s.create(1)).unwrap() == s.properties())
    }),
    ("props_handle_zero", |s| properties_verdict(s, Handle::from_bits(0))),
    ("props_stale_handle", |s| properties_verdict(s, released_handle(s))),
    ("props_after_release_while_mapped", |s| properties_verdict(s, released_while_mapped(s))),
    ("risky_0", |s| properties_verdict(s, invented_handle(s))),
    ("release_while_mapped", |s| verdict(s.vmm.release(s.map_two().1))),
    ("release_again", |s| verdict(s.vmm.release(released_while_mapped(s)))),
    ("release_twice_while_mapped", |s| verdict(s.vmm.release(released_while_mapped(s)))),
    ("release_second", |s| verdict(s.vmm.release(s.two_mappings().1[1]))),
    ("release_zero", |s| verdict(s.vmm.release(Handle::from_bits(0)))),
    ("release_twice", |s| verdict(s.vmm.release(released_handle(s)))),
    ("risky_2", |s| verdict(s.vmm.release(invented_handle(s)))),
    ("retain_unmapped", |s| verdict(s.vmm.retain_allocation_handle(s.reserve(1)))),
    ("retain_start", |s| verdict(s.vmm.retain_allocation_handle(s.map_two().0))),
    ("retain_same_handle", |s| {
        let (at, handle) = s.map_two();
        flag(s.vmm.retain_allocation_handle(at).unwrap() == handle)
    }),
    ("retain_interior", |s| {
        verdict(s.vmm.retain_allocation_handle(offset_by(s.map_two().0, s.granule + 17)))
    }),
    ("retain_interior_same_handle", |s| {
        let (at, handle) = s.map_two();
        flag(s.vmm.retain_allocation_handle(offset_by(at, s.granule + 17)).unwrap() == handle)
    }),
    ("release_retained", |s| verdict(s.vmm.release(retained_handle(s)))),
    ("release_retained_2", |s| {
        let handle = retained_handle(s);
        s.vmm.release(handle).unwrap();
        verdict(s.vmm.release(handle))
    }),
    ("retain_after_release", |s| {
        let (at, handle) = s.map_two();
        s.vmm.release(handle).unwrap();
        verdict(s.vmm.retain_allocation_handle(at))
    }),
    ("retain_after_release_same_handle", |s| {
        let (at, handle) = s.map_two();
        s.vmm.release(handle).unwrap();
        flag(s.vmm.retain_allocation_handle(at) == Ok(handle))
    }),
];

fn create_verdict(fixture: &Fixture, properties: &AllocationProperties) -> String {
    verdict(fixture.vmm.create(fixture.granule, properties))
}

fn cpu_create_verdict(fixture: &Fixture) -> String {
    create_verdict(fixture, &AllocationProperties::on(fixture.vmm.runtime().host().id()))
}

fn properties_verdict(fixture: &Fixture, handle: Handle) -> String {
    verdict(fixture.vmm.allocation_properties(handle))
}

/// Returns a handle that never existed.
pub fn invented_handle(fixture: &Fixture) -> Handle {
    Handle::from_bits(fixture.create(1).to_bits() ^ 0xdead)
}

/// Returns a released handle.
pub fn released_handle(fixture: &Fixture) -> Handle {
    let handle = fixture.create(1);
    fixture.vmm.release(handle).unwrap();
    handle
}

/// Returns a handle without references whose memory is mapped.
pub fn released_while_mapped(fixture: &Fixture) -> Handle {
    let (_, handle) = fixture.map_two();
    fixture.vmm.release(handle).unwrap();
    handle
}

/// Returns a handle with three references.
fn retained_handle(fixture: &Fixture) -> Handle {
    let (at, handle) = fixture.map_two();
    for _ in 0..2 {
        assert_eq!(fixture.vmm.retain_allocation_handle(at), Ok(handle));
    }
    handle
}
