//! Setting and querying access.

use super::{Call, Fixture, offset_by, verdict};
use hsa_vmm::{Access, AccessDescriptor, Address, AgentId};

pub const CALLS: &[Call] = &[
    ("getaccess_before_set", |fixture| get_access_verdict(fixture, fixture.map_two_granules().0)),
    ("getaccess_before_set_value", |fixture| fixture.access_value(fixture.map_two_granules().0)),
    ("setaccess_null", |fixture| verdict(fixture.set_access(Address::NULL, 2, Access::ReadWrite))),
    ("setaccess_size_zero", |fixture| {
        verdict(fixture.set_access(fixture.map_two_granules().0, 0, Access::ReadWrite))
    }),
    ("setaccess_count_zero", |fixture| {
        verdict(fixture.vmm.set_access(fixture.map_two_granules().0, 2 * fixture.granule, &[]))
    }),
    ("setaccess_bad_device", |fixture| {
        set_access_verdict(
            fixture,
            fixture.map_two_granules().0,
            &[(fixture.invented_gpu(), Access::ReadWrite)],
        )
    }),
    ("setaccess_not_granular", |fixture| {
        let list = [AccessDescriptor { agent: fixture.gpu(0), access: Access::ReadWrite }];
        verdict(fixture.vmm.set_access(
            fixture.map_two_granules().0,
            fixture.granule + fixture.granule / 2,
            &list,
        ))
    }),
    ("setaccess_unmapped", |fixture| {
        verdict(fixture.set_access(fixture.reserve(8), 2, Access::ReadWrite))
    }),
    ("setaccess_partly_unmapped", |fixture| {
        verdict(fixture.set_access(fixture.map_two_granules().0, 4, Access::ReadWrite))
    }),
    ("setaccess_beyond_reservation", |fixture| {
        verdict(fixture.set_access(fixture.map_two_granules().0, 16, Access::ReadWrite))
    }),
    ("setaccess_half_mapping", |fixture| {
        verdict(fixture.set_access(fixture.map_two_granules().0, 1, Access::ReadWrite))
    }),
    ("getaccess_half_first", |fixture| {
        get_access_verdict(fixture, map_with_half_rejected(fixture))
    }),
    ("getaccess_half_first_value", |fixture| fixture.access_value(map_with_half_rejected(fixture))),
    ("getaccess_half_second", |fixture| {
        get_access_verdict(fixture, offset_by(map_with_half_rejected(fixture), fixture.granule))
    }),
    ("getaccess_half_second_value", |fixture| {
        fixture.access_value(offset_by(map_with_half_rejected(fixture), fixture.granule))
    }),
    ("setaccess_second_half_only", |fixture| {
        verdict(fixture.set_access(
            offset_by(fixture.map_two_granules().0, fixture.granule),
            1,
            Access::ReadWrite,
        ))
    }),
    ("setaccess_two_mappings", |fixture| {
        verdict(fixture.set_access(fixture.map_two_handles().0, 4, Access::ReadWrite))
    }),
    ("setaccess_read_only", |fixture| {
        verdict(fixture.set_access(fixture.map_two_granules().0, 2, Access::Read))
    }),
    ("getaccess_ro", |fixture| {
        get_access_verdict(fixture, map_and_set_access(fixture, &[Access::Read]))
    }),
    ("getaccess_ro_value", |fixture| {
        fixture.access_value(map_and_set_access(fixture, &[Access::Read]))
    }),
    ("setaccess_none", |fixture| {
        verdict(fixture.set_access(
            map_and_set_access(fixture, &[Access::ReadWrite]),
            2,
            Access::None,
        ))
    }),
    ("getaccess_none", |fixture| {
        get_access_verdict(fixture, map_and_set_access(fixture, &[Access::ReadWrite, Access::None]))
    }),
    ("getaccess_none_value", |fixture| {
        fixture.access_value(map_and_set_access(fixture, &[Access::ReadWrite, Access::None]))
    }),
    ("setaccess_same_device_twice", |fixture| {
        set_access_verdict(fixture, fixture.map_two_granules().0, &repeated_agent(fixture))
    }),
    ("getaccess_twice", |fixture| {
        let (at, _) = fixture.map_two_granules();
        set_access_verdict(fixture, at, &repeated_agent(fixture));
        get_access_verdict(fixture, at)
    }),
    ("getaccess_twice_value", |fixture| {
        let (at, _) = fixture.map_two_granules();
        set_access_verdict(fixture, at, &repeated_agent(fixture));
        fixture.access_value(at)
    }),
    ("setaccess_none_again", |fixture| {
        let before = [Access::ReadWrite, Access::None, Access::ReadWrite];
        verdict(fixture.set_access(map_and_set_access(fixture, &before), 2, Access::None))
    }),
    ("setaccess_good_then_bad", |fixture| {
        set_access_verdict(fixture, fixture.map_two_granules().0, &valid_and_invalid_agent(fixture))
    }),
    ("getaccess_after_mixed", |fixture| {
        let (at, _) = fixture.map_two_granules();
        set_access_verdict(fixture, at, &valid_and_invalid_agent(fixture));
        get_access_verdict(fixture, at)
    }),
    ("getaccess_after_mixed_value", |fixture| {
        let (at, _) = fixture.map_two_granules();
        set_access_verdict(fixture, at, &valid_and_invalid_agent(fixture));
        fixture.access_value(at)
    }),
    ("getaccess_bad_device", |fixture| {
        verdict(fixture.vmm.get_access(fixture.invented_gpu(), fixture.map_two_granules().0))
    }),
    ("getaccess_unmapped", |fixture| get_access_verdict(fixture, fixture.reserve(8))),
    ("getaccess_interior", |fixture| {
        get_access_verdict(fixture, offset_by(fixture.map_two_granules().0, fixture.granule + 17))
    }),
    ("getaccess_not_reserved", |fixture| {
        let local = 0u64;
        get_access_verdict(fixture, Address::from(&raw const local))
    }),
    ("setaccess_after_release", |fixture| {
        let (at, handle) = fixture.map_two_granules();
        fixture.vmm.release(handle).unwrap();
        verdict(fixture.set_access(at, 2, Access::ReadWrite))
    }),
];

fn get_access_verdict(fixture: &Fixture, at: Address) -> String {
    verdict(fixture.vmm.get_access(fixture.gpu(0), at))
}

fn set_access_verdict(fixture: &Fixture, at: Address, changes: &[(AgentId, Access)]) -> String {
    let list: Vec<_> =
        changes.iter().map(|&(agent, access)| AccessDescriptor { agent, access }).collect();
    verdict(fixture.vmm.set_access(at, 2 * fixture.granule, &list))
}

/// Maps memory and tries to grant access to half of the mapping, which must fail.
fn map_with_half_rejected(fixture: &Fixture) -> Address {
    let (at, _) = fixture.map_two_granules();
    fixture.set_access(at, 1, Access::ReadWrite).unwrap_err();
    at
}

/// Maps memory and sets each access in turn.
fn map_and_set_access(fixture: &Fixture, steps: &[Access]) -> Address {
    let (at, _) = fixture.map_two_granules();
    for &access in steps {
        fixture.set_access(at, 2, access).unwrap();
    }
    at
}

fn repeated_agent(fixture: &Fixture) -> [(AgentId, Access); 2] {
    [(fixture.gpu(0), Access::Read), (fixture.gpu(0), Access::ReadWrite)]
}

fn valid_and_invalid_agent(fixture: &Fixture) -> [(AgentId, Access); 2] {
    [(fixture.gpu(0), Access::ReadWrite), (fixture.invented_gpu(), Access::ReadWrite)]
}
