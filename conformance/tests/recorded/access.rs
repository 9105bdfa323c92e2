//! Setting and querying access.

use super::{Call, Fixture, offset_by, verdict};
use hsa_vmm::{Access, AccessDescriptor, Address, AgentId};

pub const CALLS: &[Call] = &[
    ("getaccess_before_set", |s| get_access(s, s.map_two().0)),
    ("getaccess_before_set_value", |s| s.access(s.map_two().0)),
    ("setaccess_null", |s| verdict(s.grant(Address::NULL, 2, Access::ReadWrite))),
    ("setaccess_size_zero", |s| verdict(s.grant(s.map_two().0, 0, Access::ReadWrite))),
    ("setaccess_count_zero", |s| verdict(s.vmm.set_access(s.map_two().0, 2 * s.granule, &[]))),
    ("setaccess_bad_device", |s| {
        set_list(s, s.map_two().0, &[(s.invented_gpu(), Access::ReadWrite)])
    }),
    ("setaccess_not_granular", |s| {
        let list = [AccessDescriptor { agent: s.gpu(0), access: Access::ReadWrite }];
        verdict(s.vmm.set_access(s.map_two().0, s.granule + s.granule / 2, &list))
    }),
    ("setaccess_unmapped", |s| verdict(s.grant(s.reserve(8), 2, Access::ReadWrite))),
    ("setaccess_partly_unmapped", |s| verdict(s.grant(s.map_two().0, 4, Access::ReadWrite))),
    ("setaccess_beyond_reservation", |s| verdict(s.grant(s.map_two().0, 16, Access::ReadWrite))),
    ("setaccess_half_mapping", |s| verdict(s.grant(s.map_two().0, 1, Access::ReadWrite))),
    ("getaccess_half_first", |s| get_access(s, map_and_grant_half(s))),
    ("getaccess_half_first_value", |s| s.access(map_and_grant_half(s))),
    ("getaccess_half_second", |s| get_access(s, offset_by(map_and_grant_half(s), s.granule))),
    ("getaccess_half_second_value", |s| s.access(offset_by(map_and_grant_half(s), s.granule))),
    ("setaccess_second_half_only", |s| {
        verdict(s.grant(offset_by(s.map_two().0, s.granule), 1, Access::ReadWrite))
    }),
    ("setaccess_two_mappings", |s| verdict(s.grant(s.two_mappings().0, 4, Access::ReadWrite))),
    ("setaccess_read_only", |s| verdict(s.grant(s.map_two().0, 2, Access::Read))),
    ("getaccess_ro", |s| get_access(s, map_and_grant(s, &[Access::Read]))),
    ("getaccess_ro_value", |s| s.access(map_and_grant(s, &[Access::Read]))),
    ("setaccess_none", |s| {
        verdict(s.grant(map_and_grant(s, &[Access::ReadWrite]), 2, Access::None))
    }),
    ("getaccess_none", |s| get_access(s, map_and_grant(s, &[Access::ReadWrite, Access::None]))),
    ("getaccess_none_value", |s| s.access(map_and_grant(s, &[Access::ReadWrite, Access::None]))),
    ("setaccess_same_device_twice", |s| set_list(s, s.map_two().0, &repeated_agent(s))),
    ("getaccess_twice", |s| {
        let (at, _) = s.map_two();
        set_list(s, at, &repeated_agent(s));
        get_access(s, at)
    }),
    ("getaccess_twice_value", |s| {
        let (at, _) = s.map_two();
        set_list(s, at, &repeated_agent(s));
        s.access(at)
    }),
    ("setaccess_none_again", |s| {
        let before = [Access::ReadWrite, Access::None, Access::ReadWrite];
        verdict(s.grant(map_and_grant(s, &before), 2, Access::None))
    }),
    ("setaccess_good_then_bad", |s| set_list(s, s.map_two().0, &valid_and_invalid_agent(s))),
    ("getaccess_after_mixed", |s| {
        let (at, _) = s.map_two();
        set_list(s, at, &valid_and_invalid_agent(s));
        get_access(s, at)
    }),
    ("getaccess_after_mixed_value", |s| {
        let (at, _) = s.map_two();
        set_list(s, at, &valid_and_invalid_agent(s));
        s.access(at)
    }),
    ("getaccess_bad_device", |s| verdict(s.vmm.get_access(s.invented_gpu(), s.map_two().0))),
    ("getaccess_unmapped", |s| get_access(s, s.reserve(8))),
    ("getaccess_interior", |s| get_access(s, offset_by(s.map_two().0, s.granule + 17))),
    ("getaccess_not_reserved", |s| {
        let local = 0u64;
        get_access(s, Address::from(&raw const local))
    }),
    ("setaccess_after_release", |s| {
        let (at, handle) = s.map_two();
        s.vmm.release(handle).unwrap();
        verdict(s.grant(at, 2, Access::ReadWrite))
    }),
];

fn get_access(fixture: &Fixture, at: Address) -> String {
    verdict(fixture.vmm.get_access(fixture.gpu(0), at))
}

fn set_list(fixture: &Fixture, at: Address, changes: &[(AgentId, Access)]) -> String {
    let list: Vec<_> =
        changes.iter().map(|&(agent, access)| AccessDescriptor { agent, access }).collect();
    verdict(fixture.vmm.set_access(at, 2 * fixture.granule, &list))
}

/// Maps memory and tries to grant access to half of the mapping, which must fail.
fn map_and_grant_half(fixture: &Fixture) -> Address {
    let (at, _) = fixture.map_two();
    fixture.grant(at, 1, Access::ReadWrite).unwrap_err();
    at
}

/// Maps memory and sets each access in turn.
fn map_and_grant(fixture: &Fixture, steps: &[Access]) -> Address {
    let (at, _) = fixture.map_two();
    for &access in steps {
        fixture.grant(at, 2, access).unwrap();
    }
    at
}

fn repeated_agent(fixture: &Fixture) -> [(AgentId, Access); 2] {
    [(fixture.gpu(0), Access::Read), (fixture.gpu(0), Access::ReadWrite)]
}

fn valid_and_invalid_agent(fixture: &Fixture) -> [(AgentId, Access); 2] {
    [(fixture.gpu(0), Access::ReadWrite), (fixture.invented_gpu(), Access::ReadWrite)]
}
