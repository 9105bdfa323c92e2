//! Look-ups and rejected calls make no heap allocation.

mod allocations;
mod machine;
mod process;

use hsa_vmm::simulation::Config;
use hsa_vmm::vmm::Granularity;
use hsa_vmm::{Access, Address, Error};
use machine::{Machine, at};

/// Calls a function a hundred times, and returns the number of its allocations.
fn count_allocations<T>(function: impl Fn() -> T) -> usize {
    let before = allocations::count();
    for _ in 0..100 {
        std::hint::black_box(function());
    }
    allocations::count() - before
}

#[test]
fn look_ups_and_rejections_allocate_nothing() {
    let machine = Machine::new(Config::mi300x(2));
    let (vmm, granule, gpu) = (&machine.vmm, machine.granule(), machine.gpu(0));
    let base = machine.reserve(64 * granule);
    let handle = machine.create(0, granule);
    for number in 0..32 {
        machine.map(at(base, 2 * number * granule), granule, handle);
    }
    let properties = machine.shareable_on(0);
    let (inside, gap) = (at(base, 10 * granule + 7), at(base, 11 * granule));
    let rejected = |result: Result<(), Error>| result.unwrap_err();
    let map = |address: Address| vmm.map(address, granule, 0, handle);
    for (call, count) in [
        ("get_access", count_allocations(|| vmm.get_access(gpu, inside).unwrap())),
        (
            "get_access of an unmapped address",
            count_allocations(|| vmm.get_access(gpu, gap).unwrap_err()),
        ),
        ("mapped_range_at", count_allocations(|| vmm.mapped_range_at(inside).unwrap())),
        ("mapped_range_at of an unmapped address", count_allocations(|| vmm.mapped_range_at(gap))),
        ("location_at", count_allocations(|| vmm.location_at(inside).unwrap())),
        ("reservation_at", count_allocations(|| vmm.reservation_at(gap).unwrap())),
        ("retain", count_allocations(|| vmm.retain_allocation_handle(inside).unwrap())),
        ("allocation_size", count_allocations(|| vmm.allocation_size(handle).unwrap())),
        ("allocation_properties", count_allocations(|| vmm.allocation_properties(handle).unwrap())),
        (
            "allocation_granularity",
            count_allocations(|| {
                vmm.allocation_granularity(&properties, Granularity::Minimum).unwrap()
            }),
        ),
        ("unmap over a gap", count_allocations(|| rejected(vmm.unmap(base, 4 * granule)))),
        ("map over a mapping", count_allocations(|| rejected(map(base)))),
        ("free while mapped", count_allocations(|| rejected(vmm.address_free(base, 64 * granule)))),
    ] {
        assert_eq!(count, 0, "allocations by {call}");
    }
    assert_eq!(vmm.mapped_range_at(inside), Some((at(base, 10 * granule), granule)));
    assert_eq!(vmm.mapped_range_at(gap), None);
    // This call allocates, which shows that the counter works.
    assert!(count_allocations(|| vmm.mappings()) >= 100);
    assert_eq!(vmm.get_access(gpu, inside), Ok(Access::None));
}
