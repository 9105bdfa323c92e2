//! Setting and querying access.

use super::{Call, Fixture, on, verdict};
use hsa_vmm::{Access, AccessDescriptor, Address, AgentId};

pub const CALLS: &[Call] = &[
    ("getaccess_before_set", |s| get(s, s.mapped().0)),
    ("getaccess_before_set_value", |s| s.access(s.mapped().0)),
    ("setaccess_null", |s| verdict(s.grant(Address::NULL, 2, Access::ReadWrite))),
    ("setaccess_size_zero", |s| verdict(s.grant(s.mapped().0, 0, Access::ReadWrite))),
    ("setaccess_count_zero", |s| verdict(s.vmm.set_access(s.mapped().0, 2 * s.granule, &[]))),
    ("setaccess_bad_device", |s| list(s, s.mapped().0, &[(s.no_gpu(), Access::ReadWrite)])),
    ("setaccess_not_granular", |s| {
        let list = [AccessDescriptor { agent: s.gpu(0), access: Access::ReadWrite }];
        verdict(s.vmm.set_access(s.mapped().0, s.granule + s.granule / 2, &list))
    }),
    ("setaccess_unmapped", |s| verdict(s.grant(s.reserve(8), 2, Access::ReadWrite))),
    ("setaccess_partly_unmapped", |s| verdict(s.grant(s.mapped().0, 4, Access::ReadWrite))),
    ("setaccess_beyond_reservation", |s| verdict(s.grant(s.mapped().0, 16, Access::ReadWrite))),
    ("setaccess_half_mapping", |s| verdict(s.grant(s.mapped().0, 1, Access::ReadWrite))),
    ("getaccess_half_first", |s| get(s, half(s))),
    ("getaccess_half_first_value", |s| s.access(half(s))),
    ("getaccess_half_second", |s| get(s, on(half(s), s.granule))),
    ("getaccess_half_second_value", |s| s.access(on(half(s), s.granule))),
    ("setaccess_second_half_only", |s| {
        verdict(s.grant(on(s.mapped().0, s.granule), 1, Access::ReadWrite))
    }),
    ("setaccess_two_mappings", |s| verdict(s.grant(s.two_mappings().0, 4, Access::ReadWrite))),
    ("setaccess_read_only", |s| verdict(s.grant(s.mapped().0, 2, Access::Read))),
    ("getaccess_ro", |s| get(s, granted(s, &[Access::Read]))),
    ("getaccess_ro_value", |s| s.access(granted(s, &[Access::Read]))),
    ("setaccess_none", |s| verdict(s.grant(granted(s, &[Access::ReadWrite]), 2, Access::None))),
    ("getaccess_none", |s| get(s, granted(s, &[Access::ReadWrite, Access::None]))),
    ("getaccess_none_value", |s| s.access(granted(s, &[Access::ReadWrite, Access::None]))),
    ("setaccess_same_device_twice", |s| list(s, s.mapped().0, &twice(s))),
    ("getaccess_twice", |s| {
        let (at, _) = s.mapped();
        list(s, at, &twice(s));
        get(s, at)
    }),
    ("getaccess_twice_value", |s| {
        let (at, _) = s.mapped();
        list(s, at, &twice(s));
        s.access(at)
    }),
    ("setaccess_none_again", |s| {
        let before = [Access::ReadWrite, Access::None, Access::ReadWrite];
        verdict(s.grant(granted(s, &before), 2, Access::None))
    }),
    ("setaccess_good_then_bad", |s| list(s, s.mapped().0, &mixed(s))),
    ("getaccess_after_mixed", |s| {
        let (at, _) = s.mapped();
        list(s, at, &mixed(s));
        get(s, at)
    }),
    ("getaccess_after_mixed_value", |s| {
        let (at, _) = s.mapped();
        list(s, at, &mixed(s));
        s.access(at)
    }),
    ("getaccess_bad_device", |s| verdict(s.vmm.get_access(s.no_gpu(), s.mapped().0))),
    ("getaccess_unmapped", |s| get(s, s.reserve(8))),
    ("getaccess_interior", |s| get(s, on(s.mapped().0, s.granule + 17))),
    ("getaccess_not_reserved", |s| {
        let local = 0u64;
        get(s, Address::from(&raw const local))
    }),
    ("setaccess_after_release", |s| {
        let (at, handle) = s.mapped();
        s.vmm.release(handle).unwrap();
        verdict(s.grant(at, 2, Access::ReadWrite))
    }),
];

fn get(fixture: &Fixture, at: Address) -> String {
    verdict(fixture.vmm.get_access(fixture.gpu(0), at))
}

fn list(fixture: &Fixture, at: Address, changes: &[(AgentId, Access)]) -> String {
    let list: Vec<_> =
        changes.iter().map(|&(agent, access)| AccessDescriptor { agent, access }).collect();
    verdict(fixture.vmm.set_access(at, 2 * fixture.granule, &list))
}

/// Maps memory and tries to grant access to half of it.
fn half(fixture: &Fixture) -> Address {
    let (at, _) = fixture.mapped();
    fixture.grant(at, 1, Access::ReadWrite).unwrap_err();
    at
}

/// Maps memory and sets these accesses one after another.
fn granted(fixture: &Fixture, all: &[Access]) -> Address {
    let (at, _) = fixture.mapped();
    for &access in all {
        fixture.grant(at, 2, access).unwrap();
    }
    at
}

fn twice(fixture: &Fixture) -> [(AgentId, Access); 2] {
    [(fixture.gpu(0), Access::Read), (fixture.gpu(0), Access::ReadWrite)]
}

fn mixed(fixture: &Fixture) -> [(AgentId, Access); 2] {
    [(fixture.gpu(0), Access::ReadWrite), (fixture.no_gpu(), Access::ReadWrite)]
}
