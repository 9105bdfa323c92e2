//! Granularity, reservation and free.

use super::{Call, flag, offset_by, verdict};
use hsa_vmm::error::Operation;
use hsa_vmm::vmm::Granularity;
use hsa_vmm::{Address, AllocationProperties};

pub const CALLS: &[Call] = &[
    ("granularity_minimum", |s| granularity(s, Granularity::Minimum)),
    ("granularity_recommended", |s| granularity(s, Granularity::Recommended)),
    ("granularity_bad_device", |s| {
        let properties = AllocationProperties::on(s.invented_gpu());
        verdict(s.vmm.allocation_granularity(&properties, Granularity::Minimum))
    }),
    ("granularity_host", granularity_of_host),
    ("granularity_host_value", granularity_of_host),
    ("reserve_size_zero", |s| reserve(s, 0, 0)),
    ("reserve_size_not_granular", |s| reserve(s, s.granule + s.granule / 2, 0)),
    ("reserve_size_one", |s| reserve(s, 1, 0)),
    ("reserve_align_not_pow2", |s| reserve(s, s.granule, 3 * s.granule)),
    ("reserve_align_small_pow2", |s| reserve(s, s.granule, 4096)),
    ("free_after_small_align", |s| {
        let at = s.vmm.address_reserve(s.granule, 4096, None).unwrap();
        verdict(s.vmm.address_free(at, s.granule))
    }),
    ("reserve_align_big", |s| reserve(s, s.granule, 64 * s.granule)),
    ("reserve_align_big_honoured", |s| {
        let at = s.vmm.address_reserve(s.granule, 64 * s.granule, None).unwrap();
        flag(at.get() % (64 * s.granule) == 0)
    }),
    ("reserve_flags_nonzero", |_| verdict(Operation::AddressReserve.check_flags(1))),
    ("reserve_huge_1pib", |s| reserve(s, 1 << 50, 0)),
    ("reserve", |s| reserve(s, 8 * s.granule, 0)),
    ("reserve_hint_taken", |s| {
        let at = s.reserve(8);
        verdict(s.vmm.address_reserve(8 * s.granule, 0, Some(at)))
    }),
    ("reserve_hint_taken_elsewhere", |s| {
        let at = s.reserve(8);
        flag(s.vmm.address_reserve(8 * s.granule, 0, Some(at)).unwrap() != at)
    }),
    ("reserve_hint_after", |s| {
        let after = offset_by(s.reserve(8), 8 * s.granule);
        verdict(s.vmm.address_reserve(8 * s.granule, 0, Some(after)))
    }),
    ("reserve_hint_after_honoured", adjacent),
    ("adjacent_reservation_honoured", adjacent),
    ("free_null", |s| verdict(s.vmm.address_free(Address::NULL, s.granule))),
    ("free_size_zero", |s| free(s, 0, 0)),
    ("free_size_smaller", |s| free(s, 0, 4)),
    ("free_size_larger", |s| free(s, 0, 16)),
    ("free_inside", |s| free(s, 4, 4)),
    ("free_never_reserved", |s| {
        let local = 0u64;
        verdict(s.vmm.address_free(Address::from(&raw const local), s.granule))
    }),
    ("free_while_mapped", |s| verdict(s.vmm.address_free(s.map_two().0, 8 * s.granule))),
    ("free", |s| free(s, 0, 8)),
    ("free_twice", |s| {
        let at = s.reserve(8);
        s.vmm.address_free(at, 8 * s.granule).unwrap();
        verdict(s.vmm.address_free(at, 8 * s.granule))
    }),
];

fn granularity(fixture: &super::Fixture, kind: Granularity) -> String {
    fixture.vmm.allocation_granularity(&fixture.properties(), kind).unwrap().to_string()
}

fn granularity_of_host(fixture: &super::Fixture) -> String {
    let properties = AllocationProperties::on(fixture.vmm.runtime().host().id());
    match fixture.vmm.allocation_granularity(&properties, Granularity::Minimum) {
        Ok(granule) => granule.to_string(),
        error => verdict(error),
    }
}

fn reserve(fixture: &super::Fixture, size: usize, alignment: usize) -> String {
    verdict(fixture.vmm.address_reserve(size, alignment, None))
}

/// Frees a part of eight granules.
fn free(fixture: &super::Fixture, first: usize, granules: usize) -> String {
    let at = offset_by(fixture.reserve(8), first * fixture.granule);
    verdict(fixture.vmm.address_free(at, granules * fixture.granule))
}

fn adjacent(fixture: &super::Fixture) -> String {
    let (first, second) = fixture.reserve_adjacent();
    flag(second == offset_by(first, 4 * fixture.granule))
}
