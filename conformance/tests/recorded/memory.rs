//! Creating, retaining and releasing memory, and the properties of memory.

use super::{Call, Fixture, flag, offset_by, verdict};
use hsa_vmm::HandleType;
use hsa_vmm::error::Operation;
use hsa_vmm::vmm::Location;
use hsa_vmm::{AgentId, AllocationProperties, Handle};

pub const CALLS: &[Call] = &[
    ("create_size_zero", |fixture| verdict(fixture.vmm.create(0, &fixture.properties()))),
    ("create_size_not_granular", |fixture| {
        verdict(fixture.vmm.create(fixture.granule + fixture.granule / 2, &fixture.properties()))
    }),
    ("create_flags_nonzero", |_| verdict(Operation::Create.check_flags(1))),
    ("create_bad_device", |fixture| {
        create_verdict(fixture, &AllocationProperties::on(fixture.invented_gpu()))
    }),
    ("create_negative_device", |fixture| {
        create_verdict(fixture, &AllocationProperties::on(AgentId::from_bits(!0)))
    }),
    ("create_location_type_invalid", |fixture| {
        create_verdict(fixture, &AllocationProperties::at(Location::Unknown))
    }),
    ("create_location_host", cpu_create_verdict),
    ("create_location_host_numa", cpu_create_verdict),
    ("create_handle_type_win32", |fixture| {
        create_verdict(fixture, &fixture.properties().shareable_as(HandleType::WIN32))
    }),
    ("create_too_big", |fixture| verdict(fixture.vmm.create(1 << 46, &fixture.properties()))),
    ("create", |fixture| create_verdict(fixture, &fixture.properties())),
    ("create_second", |fixture| {
        fixture.create(1);
        create_verdict(fixture, &fixture.properties())
    }),
    ("create_not_shareable", |fixture| {
        create_verdict(fixture, &AllocationProperties::on(fixture.gpu(0)))
    }),
    ("release_not_shareable", |fixture| {
        let properties = AllocationProperties::on(fixture.gpu(0));
        verdict(fixture.vmm.release(fixture.vmm.create(fixture.granule, &properties).unwrap()))
    }),
    ("props", |fixture| properties_verdict(fixture, fixture.create(1))),
    ("props_roundtrip", |fixture| {
        flag(fixture.vmm.allocation_properties(fixture.create(1)).unwrap() == fixture.properties())
    }),
    ("props_handle_zero", |fixture| properties_verdict(fixture, Handle::from_bits(0))),
    ("props_stale_handle", |fixture| properties_verdict(fixture, released_handle(fixture))),
    ("props_after_release_while_mapped", |fixture| {
        properties_verdict(fixture, released_while_mapped(fixture))
    }),
    ("risky_0", |fixture| properties_verdict(fixture, invented_handle(fixture))),
    ("release_while_mapped", |fixture| verdict(fixture.vmm.release(fixture.map_two_granules().1))),
    ("release_again", |fixture| verdict(fixture.vmm.release(released_while_mapped(fixture)))),
    ("release_twice_while_mapped", |fixture| {
        verdict(fixture.vmm.release(released_while_mapped(fixture)))
    }),
    ("release_second", |fixture| verdict(fixture.vmm.release(fixture.map_two_handles().1[1]))),
    ("release_zero", |fixture| verdict(fixture.vmm.release(Handle::from_bits(0)))),
    ("release_twice", |fixture| verdict(fixture.vmm.release(released_handle(fixture)))),
    ("risky_2", |fixture| verdict(fixture.vmm.release(invented_handle(fixture)))),
    ("retain_unmapped", |fixture| {
        verdict(fixture.vmm.retain_allocation_handle(fixture.reserve(1)))
    }),
    ("retain_start", |fixture| {
        verdict(fixture.vmm.retain_allocation_handle(fixture.map_two_granules().0))
    }),
    ("retain_same_handle", |fixture| {
        let (at, handle) = fixture.map_two_granules();
        flag(fixture.vmm.retain_allocation_handle(at).unwrap() == handle)
    }),
    ("retain_interior", |fixture| {
        verdict(fixture.vmm.retain_allocation_handle(offset_by(
            fixture.map_two_granules().0,
            fixture.granule + 17,
        )))
    }),
    ("retain_interior_same_handle", |fixture| {
        let (at, handle) = fixture.map_two_granules();
        flag(
            fixture.vmm.retain_allocation_handle(offset_by(at, fixture.granule + 17)).unwrap()
                == handle,
        )
    }),
    ("release_retained", |fixture| verdict(fixture.vmm.release(retained_handle(fixture)))),
    ("release_retained_2", |fixture| {
        let handle = retained_handle(fixture);
        fixture.vmm.release(handle).unwrap();
        verdict(fixture.vmm.release(handle))
    }),
    ("retain_after_release", |fixture| {
        let (at, handle) = fixture.map_two_granules();
        fixture.vmm.release(handle).unwrap();
        verdict(fixture.vmm.retain_allocation_handle(at))
    }),
    ("retain_after_release_same_handle", |fixture| {
        let (at, handle) = fixture.map_two_granules();
        fixture.vmm.release(handle).unwrap();
        flag(fixture.vmm.retain_allocation_handle(at) == Ok(handle))
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

pub fn released_handle(fixture: &Fixture) -> Handle {
    let handle = fixture.create(1);
    fixture.vmm.release(handle).unwrap();
    handle
}

/// Returns a handle without references whose memory is mapped.
pub fn released_while_mapped(fixture: &Fixture) -> Handle {
    let (_, handle) = fixture.map_two_granules();
    fixture.vmm.release(handle).unwrap();
    handle
}

/// Returns a handle with three references.
fn retained_handle(fixture: &Fixture) -> Handle {
    let (at, handle) = fixture.map_two_granules();
    for _ in 0..2 {
        assert_eq!(fixture.vmm.retain_allocation_handle(at), Ok(handle));
    }
    handle
}
