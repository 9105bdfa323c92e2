//! Map and unmap.

use super::memory::{invented_handle, released_handle, released_while_mapped};
use super::{Call, Fixture, offset_by, verdict};
use hsa_vmm::error::Operation;
use hsa_vmm::{Access, Address, Handle};

pub const CALLS: &[Call] = &[
    ("map_null", |s| verdict(s.map(Address::NULL, 1, s.create(1)))),
    ("map_size_zero", |s| verdict(s.map(s.reserve(8), 0, s.create(1)))),
    ("map_flags_nonzero", |_| verdict(Operation::Map.check_flags(1))),
    ("map_handle_zero", |s| verdict(s.map(s.reserve(8), 1, Handle::from_bits(0)))),
    ("map_size_beyond_handle", |s| verdict(s.map(s.reserve(8), 3, s.create(2)))),
    ("map_size_not_granular", |s| {
        verdict(s.vmm.map(s.reserve(8), s.granule + s.granule / 2, 0, s.create(2)))
    }),
    ("map_addr_not_granular", |s| {
        verdict(s.map(offset_by(s.reserve(8), s.granule / 2), 2, s.create(2)))
    }),
    ("map_not_reserved", |s| {
        let local = 0u64;
        let granule_start = Address::from(&raw const local).get() / s.granule * s.granule;
        verdict(s.map(Address::new(granule_start), 2, s.create(2)))
    }),
    ("map_across_reservation_end", |s| {
        verdict(s.map(offset_by(s.reserve(8), 7 * s.granule), 2, s.create(2)))
    }),
    ("map_offset_beyond", |s| map_from_offset(s, 4 * s.granule)),
    ("map_offset_not_granular", |s| map_from_offset(s, s.granule / 2)),
    ("map_offset_one_granule", |s| map_from_offset(s, s.granule)),
    ("unmap_offset_map", |s| {
        let at = s.reserve(8);
        s.vmm.map(at, s.granule, s.granule, s.create(2)).unwrap_err();
        verdict(s.unmap(at, 1))
    }),
    ("map_smaller_than_handle", |s| verdict(s.map(s.reserve(8), 1, s.create(2)))),
    ("unmap_smaller", |s| {
        let at = s.reserve(8);
        s.map(at, 1, s.create(2)).unwrap();
        verdict(s.unmap(at, 1))
    }),
    ("map", |s| verdict(s.map(s.reserve(8), 2, s.create(2)))),
    ("map_again_same_place", |s| {
        let (at, handle) = s.map_two();
        verdict(s.map(at, 2, handle))
    }),
    ("map_overlap_half", |s| {
        let (at, handle) = s.map_two();
        verdict(s.map(offset_by(at, s.granule), 2, handle))
    }),
    ("map_same_handle_elsewhere", |s| {
        let (at, handle) = s.map_two();
        verdict(s.map(offset_by(at, 4 * s.granule), 2, handle))
    }),
    ("map_second_adjacent", |s| {
        let (at, _) = s.map_two();
        verdict(s.map(offset_by(at, 2 * s.granule), 2, s.create(2)))
    }),
    ("map_across_two_reservations", |s| {
        let (first, _) = s.reserve_adjacent();
        verdict(s.map(offset_by(first, 3 * s.granule), 2, s.create(2)))
    }),
    ("setaccess_across_two_reservations", |s| {
        verdict(s.grant(offset_by(map_at_boundary(s), 3 * s.granule), 2, Access::ReadWrite))
    }),
    ("unmap_across_two_reservations", |s| {
        verdict(s.unmap(offset_by(map_at_boundary(s), 3 * s.granule), 2))
    }),
    ("risky_1", |s| verdict(s.map(s.reserve(8), 1, invented_handle(s)))),
    ("risky_4", |s| verdict(s.map(s.reserve(8), 1, released_handle(s)))),
    ("map_after_release_while_mapped", |s| {
        let handle = released_while_mapped(s);
        verdict(s.map(s.reserve(8), 2, handle))
    }),
    ("unmap_null", |s| verdict(s.unmap(Address::NULL, 1))),
    ("unmap_size_zero", |s| verdict(s.unmap(s.map_two().0, 0))),
    ("unmap_half", |s| verdict(s.unmap(s.map_two().0, 1))),
    ("unmap_second_half", |s| verdict(s.unmap(offset_by(s.map_two().0, s.granule), 1))),
    ("unmap_across_gap", |s| {
        let (at, handle) = s.map_two();
        s.map(offset_by(at, 4 * s.granule), 2, handle).unwrap();
        verdict(s.unmap(at, 6))
    }),
    ("unmap_one_and_half", |s| verdict(s.unmap(s.two_mappings().0, 3))),
    ("unmap_unmapped", |s| verdict(s.unmap(s.reserve(8), 2))),
    ("unmap_not_reserved", |s| {
        let local = 0u64;
        verdict(s.unmap(Address::from(&raw const local), 2))
    }),
    ("unmap_two_mappings_at_once", |s| verdict(s.unmap(s.two_mappings().0, 4))),
    ("unmap_third", |s| {
        let (at, [first, _]) = s.two_mappings();
        let third = offset_by(at, 4 * s.granule);
        s.map(third, 2, first).unwrap();
        verdict(s.unmap(third, 2))
    }),
];

/// Maps memory from an offset in a handle.
fn map_from_offset(fixture: &Fixture, offset: usize) -> String {
    verdict(fixture.vmm.map(fixture.reserve(8), fixture.granule, offset, fixture.create(2)))
}

/// Maps memory on both sides of the boundary between two adjacent reservations.
fn map_at_boundary(fixture: &Fixture) -> Address {
    let (first, second) = fixture.reserve_adjacent();
    let handle = fixture.create(1);
    fixture.map(offset_by(first, 3 * fixture.granule), 1, handle).unwrap();
    fixture.map(second, 1, handle).unwrap();
    first
}
