//! Map and unmap.

use super::memory::{invented, released, released_while_mapped};
use super::{Call, Fixture, on, verdict};
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
    ("map_addr_not_granular", |s| verdict(s.map(on(s.reserve(8), s.granule / 2), 2, s.create(2)))),
    ("map_not_reserved", |s| {
        let local = 0u64;
        let below = Address::from(&raw const local).get() / s.granule * s.granule;
        verdict(s.map(Address::new(below), 2, s.create(2)))
    }),
    ("map_across_reservation_end", |s| {
        verdict(s.map(on(s.reserve(8), 7 * s.granule), 2, s.create(2)))
    }),
    ("map_offset_beyond", |s| offset(s, 4 * s.granule)),
    ("map_offset_not_granular", |s| offset(s, s.granule / 2)),
    ("map_offset_one_granule", |s| offset(s, s.granule)),
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
        let (at, handle) = s.mapped();
        verdict(s.map(at, 2, handle))
    }),
    ("map_overlap_half", |s| {
        let (at, handle) = s.mapped();
        verdict(s.map(on(at, s.granule), 2, handle))
    }),
    ("map_same_handle_elsewhere", |s| {
        let (at, handle) = s.mapped();
        verdict(s.map(on(at, 4 * s.granule), 2, handle))
    }),
    ("map_second_adjacent", |s| {
        let (at, _) = s.mapped();
        verdict(s.map(on(at, 2 * s.granule), 2, s.create(2)))
    }),
    ("map_across_two_reservations", |s| {
        let (first, _) = s.adjacent();
        verdict(s.map(on(first, 3 * s.granule), 2, s.create(2)))
    }),
    ("setaccess_across_two_reservations", |s| {
        verdict(s.grant(on(both_sides(s), 3 * s.granule), 2, Access::ReadWrite))
    }),
    ("unmap_across_two_reservations", |s| verdict(s.unmap(on(both_sides(s), 3 * s.granule), 2))),
    ("risky_1", |s| verdict(s.map(s.reserve(8), 1, invented(s)))),
    ("risky_4", |s| verdict(s.map(s.reserve(8), 1, released(s)))),
    ("map_after_release_while_mapped", |s| {
        let handle = released_while_mapped(s);
        verdict(s.map(s.reserve(8), 2, handle))
    }),
    ("unmap_null", |s| verdict(s.unmap(Address::NULL, 1))),
    ("unmap_size_zero", |s| verdict(s.unmap(s.mapped().0, 0))),
    ("unmap_half", |s| verdict(s.unmap(s.mapped().0, 1))),
    ("unmap_second_half", |s| verdict(s.unmap(on(s.mapped().0, s.granule), 1))),
    ("unmap_across_gap", |s| {
        let (at, handle) = s.mapped();
        s.map(on(at, 4 * s.granule), 2, handle).unwrap();
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
        let third = on(at, 4 * s.granule);
        s.map(third, 2, first).unwrap();
        verdict(s.unmap(third, 2))
    }),
];

/// Maps memory from an offset in a handle.
fn offset(fixture: &Fixture, offset: usize) -> String {
    verdict(fixture.vmm.map(fixture.reserve(8), fixture.granule, offset, fixture.create(2)))
}

/// Maps memory on both sides of the boundary between two adjacent reservations.
fn both_sides(fixture: &Fixture) -> Address {
    let (first, second) = fixture.adjacent();
    let handle = fixture.create(1);
    fixture.map(on(first, 3 * fixture.granule), 1, handle).unwrap();
    fixture.map(second, 1, handle).unwrap();
    first
}
