//! Reports list the reservations and mappings of buffers, under the names that were set by address.

use super::*;
use hsa_vmm::AllocationProperties;
use hsa_vmm::buffer::{GrowableBuffer, PagedBuffer, PausableBuffer, PauseMode, RingBuffer};
use hsa_vmm::simulation::Generation;

#[test]
fn report_lists_named_buffers() {
    // In this generation, a pause keeps the addresses reserved, so no other test can take them.
    let machine =
        Machine::new(Config::mi300x(2).with_generation(Generation::A).with_granule(GRANULE as u64));
    let (vmm, properties) = (&machine.vmm, AllocationProperties::on(machine.gpu(0)));
    let mut growable =
        GrowableBuffer::builder(64 * GRANULE).with_step(GRANULE).reserve(vmm, &properties).unwrap();
    growable.resize(3 * GRANULE).unwrap();
    let paged = PagedBuffer::builder(16 * GRANULE)
        .with_page_size(GRANULE)
        .reserve(vmm, &properties)
        .unwrap();
    paged.map(2..4).unwrap();
    paged.map(9..10).unwrap();
    let mut pausable = PausableBuffer::create(vmm, GRANULE, &properties).unwrap();
    let ring = RingBuffer::create(vmm, GRANULE, 2, &properties).unwrap();
    for (address, name) in [
        (growable.address(), "growable"),
        (paged.address(), "paged"),
        (pausable.address(), "pausable"),
        (ring.address(), "ring"),
    ] {
        vmm.name_reservation(address, name).unwrap();
    }
    // The numbers of mappings, of mapped granules, and of gaps in a reservation.
    let numbers_of = |name: &str| {
        let report = vmm.report();
        let named = report.reservations.iter().find(|entry| entry.name.as_deref() == Some(name));
        let named = named.unwrap_or_else(|| panic!("no {name} in {report}"));
        (named.mappings.len(), named.mapped_size() / GRANULE, named.free_space().gaps)
    };
    assert_eq!(numbers_of("growable"), (3, 3, 1));
    assert_eq!(numbers_of("paged"), (3, 3, 3));
    assert_eq!(numbers_of("pausable"), (1, 1, 0));
    assert_eq!(numbers_of("ring"), (2, 2, 0));
    pausable.pause(PauseMode::Discard).unwrap();
    assert_eq!(numbers_of("pausable"), (0, 0, 1));
    drop((growable, paged, pausable, ring));
    assert!(vmm.report().is_empty(), "{}", vmm.report());
}
