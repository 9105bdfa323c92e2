//! Granularity, reservation and free.

use super::{Call, flag, offset_by, verdict};
use hsa_vmm::error::Operation;
use hsa_vmm::vmm::Granularity;
use hsa_vmm::{Address, AllocationProperties};

pub const CALLS: &[Call] = &[
    ("granularity_minimum", |fixture| granularity(fixture, Granularity::Minimum)),
    ("granularity_recommended", |fixture| granularity(fixture, Granularity::Recommended)),
    ("granularity_bad_device", |fixture| {
        let properties = AllocationProperties::on(fixture.invented_gpu());
        verdict(fixture.vmm.allocation_granularity(&properties, Granularity::Minimum))
    }),
    ("granularity_host", granularity_of_host),
    ("granularity_host_value", granularity_of_host),
    ("reserve_size_zero", |fixture| reserve_verdict(fixture, 0, 0)),
    ("reserve_size_not_granular", |fixture| {
        reserve_verdict(fixture, fixture.granule + fixture.granule / 2, 0)
    }),
    ("reserve_size_one", |fixture| reserve_verdict(fixture, 1, 0)),
    ("reserve_align_not_pow2", |fixture| {
        reserve_verdict(fixture, fixture.granule, 3 * fixture.granule)
    }),
    ("reserve_align_small_pow2", |fixture| reserve_verdict(fixture, fixture.granule, 4096)),
    ("free_after_small_align", |fixture| {
        let at = fixture.vmm.address_reserve(fixture.granule, 4096, None).unwrap();
        verdict(fixture.vmm.address_free(at, fixture.granule))
    }),
    ("reserve_align_big", |fixture| {
        reserve_verdict(fixture, fixture.granule, 64 * fixture.granule)
    }),
    ("reserve_align_big_honoured", |fixture| {
        let at = fixture.vmm.address_reserve(fixture.granule, 64 * fixture.granule, None).unwrap();
        flag(at.get() % (64 * fixture.granule) == 0)
    }),
    ("reserve_flags_nonzero", |_| verdict(Operation::AddressReserve.check_flags(1))),
    ("reserve_huge_1pib", |fixture| reserve_verdict(fixture, 1 << 50, 0)),
    ("reserve", |fixture| reserve_verdict(fixture, 8 * fixture.granule, 0)),
    // In the recorded names, a "taken" hint is an address that is already reserved.
    ("reserve_hint_taken", |fixture| {
        let at = fixture.reserve(8);
        verdict(fixture.vmm.address_reserve(8 * fixture.granule, 0, Some(at)))
    }),
    ("reserve_hint_taken_elsewhere", |fixture| {
        let at = fixture.reserve(8);
        flag(fixture.vmm.address_reserve(8 * fixture.granule, 0, Some(at)).unwrap() != at)
    }),
    ("reserve_hint_after", |fixture| {
        let after = offset_by(fixture.reserve(8), 8 * fixture.granule);
        verdict(fixture.vmm.address_reserve(8 * fixture.granule, 0, Some(after)))
    }),
    ("reserve_hint_after_honoured", adjacent_hint_is_honoured),
    ("adjacent_reservation_honoured", adjacent_hint_is_honoured),
    ("free_null", |fixture| verdict(fixture.vmm.address_free(Address::NULL, fixture.granule))),
    ("free_size_zero", |fixture| free_verdict(fixture, 0, 0)),
    ("free_size_smaller", |fixture| free_verdict(fixture, 0, 4)),
    ("free_size_larger", |fixture| free_verdict(fixture, 0, 16)),
    ("free_inside", |fixture| free_verdict(fixture, 4, 4)),
    ("free_never_reserved", |fixture| {
        let local = 0u64;
        verdict(fixture.vmm.address_free(Address::from(&raw const local), fixture.granule))
    }),
    ("free_while_mapped", |fixture| {
        verdict(fixture.vmm.address_free(fixture.map_two_granules().0, 8 * fixture.granule))
    }),
    ("free", |fixture| free_verdict(fixture, 0, 8)),
    ("free_twice", |fixture| {
        let at = fixture.reserve(8);
        fixture.vmm.address_free(at, 8 * fixture.granule).unwrap();
        verdict(fixture.vmm.address_free(at, 8 * fixture.granule))
    }),
];

fn granularity(fixture: &super::Fixture, kind: Granularity) -> String {
    fixture.vmm.allocation_granularity(&fixture.properties(), kind).unwrap().to_string()
}

fn granularity_of_host(fixture: &super::Fixture) -> String {
    let properties = AllocationProperties::on(fixture.vmm.runtime().host().id());
    match fixture.vmm.allocation_granularity(&properties, Granularity::Minimum) {
        Ok(granule) => granule.to_string(),
        failed => verdict(failed),
    }
}

fn reserve_verdict(fixture: &super::Fixture, size: usize, alignment: usize) -> String {
    verdict(fixture.vmm.address_reserve(size, alignment, None))
}

/// Reserves eight granules, frees granules of the reservation from `first` on, and returns the verdict.
fn free_verdict(fixture: &super::Fixture, first: usize, granules: usize) -> String {
    let at = offset_by(fixture.reserve(8), first * fixture.granule);
    verdict(fixture.vmm.address_free(at, granules * fixture.granule))
}

fn adjacent_hint_is_honoured(fixture: &super::Fixture) -> String {
    let (first, second) = fixture.reserve_adjacent();
    flag(second == offset_by(first, 4 * fixture.granule))
}
