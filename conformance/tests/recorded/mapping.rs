//! Map and unmap.

use super::memory::{invented_handle, released_handle, released_while_mapped};
use super::{Call, Fixture, offset_by, verdict};
use hsa_vmm::error::Operation;
use hsa_vmm::{Access, Address, Handle};

pub const CALLS: &[Call] = &[
    ("map_null", |fixture| verdict(fixture.map(Address::NULL, 1, fixture.create(1)))),
    ("map_size_zero", |fixture| verdict(fixture.map(fixture.reserve(8), 0, fixture.create(1)))),
    ("map_flags_nonzero", |_| verdict(Operation::Map.check_flags(1))),
    ("map_handle_zero", |fixture| {
        verdict(fixture.map(fixture.reserve(8), 1, Handle::from_bits(0)))
    }),
    ("map_size_beyond_handle", |fixture| {
        verdict(fixture.map(fixture.reserve(8), 3, fixture.create(2)))
    }),
    ("map_size_not_granular", |fixture| {
        verdict(fixture.vmm.map(
            fixture.reserve(8),
            fixture.granule + fixture.granule / 2,
            0,
            fixture.create(2),
        ))
    }),
    ("map_addr_not_granular", |fixture| {
        verdict(fixture.map(
            offset_by(fixture.reserve(8), fixture.granule / 2),
            2,
            fixture.create(2),
        ))
    }),
    ("map_not_reserved", |fixture| {
        let local = 0u64;
        let granule_start =
            Address::from(&raw const local).get() / fixture.granule * fixture.granule;
        verdict(fixture.map(Address::new(granule_start), 2, fixture.create(2)))
    }),
    ("map_across_reservation_end", |fixture| {
        verdict(fixture.map(
            offset_by(fixture.reserve(8), 7 * fixture.granule),
            2,
            fixture.create(2),
        ))
    }),
    ("map_offset_beyond", |fixture| map_from_offset_verdict(fixture, 4 * fixture.granule)),
    ("map_offset_not_granular", |fixture| map_from_offset_verdict(fixture, fixture.granule / 2)),
    ("map_offset_one_granule", |fixture| map_from_offset_verdict(fixture, fixture.granule)),
    ("unmap_offset_map", |fixture| {
        let at = fixture.reserve(8);
        fixture.vmm.map(at, fixture.granule, fixture.granule, fixture.create(2)).unwrap_err();
        verdict(fixture.unmap(at, 1))
    }),
    ("map_smaller_than_handle", |fixture| {
        verdict(fixture.map(fixture.reserve(8), 1, fixture.create(2)))
    }),
    ("unmap_smaller", |fixture| {
        let at = fixture.reserve(8);
        fixture.map(at, 1, fixture.create(2)).unwrap();
        verdict(fixture.unmap(at, 1))
    }),
    ("map", |fixture| verdict(fixture.map(fixture.reserve(8), 2, fixture.create(2)))),
    ("map_again_same_place", |fixture| {
        let (at, handle) = fixture.map_two_granules();
        verdict(fixture.map(at, 2, handle))
    }),
    ("map_overlap_half", |fixture| {
        let (at, handle) = fixture.map_two_granules();
        verdict(fixture.map(offset_by(at, fixture.granule), 2, handle))
    }),
    ("map_same_handle_elsewhere", |fixture| {
        let (at, handle) = fixture.map_two_granules();
        verdict(fixture.map(offset_by(at, 4 * fixture.granule), 2, handle))
    }),
    ("map_second_adjacent", |fixture| {
        let (at, _) = fixture.map_two_granules();
        verdict(fixture.map(offset_by(at, 2 * fixture.granule), 2, fixture.create(2)))
    }),
    ("map_across_two_reservations", |fixture| {
        let (first, _) = fixture.reserve_adjacent();
        verdict(fixture.map(offset_by(first, 3 * fixture.granule), 2, fixture.create(2)))
    }),
    ("setaccess_across_two_reservations", |fixture| {
        verdict(fixture.set_access(
            offset_by(map_at_boundary(fixture), 3 * fixture.granule),
            2,
            Access::ReadWrite,
        ))
    }),
    ("unmap_across_two_reservations", |fixture| {
        verdict(fixture.unmap(offset_by(map_at_boundary(fixture), 3 * fixture.granule), 2))
    }),
    ("risky_1", |fixture| verdict(fixture.map(fixture.reserve(8), 1, invented_handle(fixture)))),
    ("risky_4", |fixture| verdict(fixture.map(fixture.reserve(8), 1, released_handle(fixture)))),
    ("map_after_release_while_mapped", |fixture| {
        let handle = released_while_mapped(fixture);
        verdict(fixture.map(fixture.reserve(8), 2, handle))
    }),
    ("unmap_null", |fixture| verdict(fixture.unmap(Address::NULL, 1))),
    ("unmap_size_zero", |fixture| verdict(fixture.unmap(fixture.map_two_granules().0, 0))),
    ("unmap_half", |fixture| verdict(fixture.unmap(fixture.map_two_granules().0, 1))),
    ("unmap_second_half", |fixture| {
        verdict(fixture.unmap(offset_by(fixture.map_two_granules().0, fixture.granule), 1))
    }),
    ("unmap_across_gap", |fixture| {
        let (at, handle) = fixture.map_two_granules();
        fixture.map(offset_by(at, 4 * fixture.granule), 2, handle).unwrap();
        verdict(fixture.unmap(at, 6))
    }),
    ("unmap_one_and_half", |fixture| verdict(fixture.unmap(fixture.map_two_handles().0, 3))),
    ("unmap_unmapped", |fixture| verdict(fixture.unmap(fixture.reserve(8), 2))),
    ("unmap_not_reserved", |fixture| {
        let local = 0u64;
        verdict(fixture.unmap(Address::from(&raw const local), 2))
    }),
    ("unmap_two_mappings_at_once", |fixture| {
        verdict(fixture.unmap(fixture.map_two_handles().0, 4))
    }),
    ("unmap_third", |fixture| {
        let (at, [first, _]) = fixture.map_two_handles();
        let third = offset_by(at, 4 * fixture.granule);
        fixture.map(third, 2, first).unwrap();
        verdict(fixture.unmap(third, 2))
    }),
];

/// Maps the memory of a handle from an offset on, and returns the verdict.
fn map_from_offset_verdict(fixture: &Fixture, offset: usize) -> String {
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
