//! If the program's subscriber of log events panics, the library's operations still succeed.

use hsa_vmm::area::{Area, AreaFlags, MmapOptions};
use hsa_vmm::simulation::Config;
use hsa_vmm::{Access, Allocation, AllocationProperties, PoolMemory, Reservation, Runtime, Vmm};
use std::sync::atomic::{AtomicUsize, Ordering};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

/// The number of logged events.
static EVENTS: AtomicUsize = AtomicUsize::new(0);

/// A subscriber that panics at every event.
struct PanickingSubscriber;

impl Subscriber for PanickingSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("hsa_vmm")
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut FieldFormatter);
        EVENTS.fetch_add(1, Ordering::Relaxed);
        panic!("deliberate");
    }
}

/// Formats every field.
struct FieldFormatter;

impl Visit for FieldFormatter {
    fn record_debug(&mut self, _: &Field, value: &dyn std::fmt::Debug) {
        let _ = format!("{value:?}");
    }
}

#[test]
fn subscriber_panics_do_not_affect_operations() {
    // Does not print the messages of the deliberate panics, because they would hide messages of failures.
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |report| {
        if report.payload().downcast_ref() != Some(&"deliberate") {
            default_hook(report);
        }
    }));
    tracing::subscriber::set_global_default(PanickingSubscriber).unwrap();
    let runtime = Runtime::simulated(Config::mi300x(2)).unwrap();
    let vmm = Vmm::open(&runtime).unwrap();
    let gpus: Vec<_> = runtime.gpus().map(|gpu| gpu.id()).collect();
    let host = runtime.host().id();
    let size = vmm.reservation_granule();

    let reservation = Reservation::builder(4 * size).reserve(&vmm).unwrap();
    let allocation = Allocation::create(&vmm, size, &AllocationProperties::on(gpus[0])).unwrap();
    let mapping = reservation.map(0, &allocation).unwrap();
    mapping.grant(&[gpus[0], gpus[1], host], Access::ReadWrite).unwrap();
    mapping.fill(0, 0x0101_0101, size).unwrap();
    let mut bytes = [0; 100];
    vmm.copy_to_host(gpus[1], &mut bytes, mapping.address()).unwrap();
    assert_eq!(bytes, [1; 100]);
    mapping.revoke(&[gpus[1]]).unwrap();
    mapping.read(0, &mut bytes).unwrap();
    mapping.unmap().unwrap();
    vmm.check().unwrap();

    // `free` must free the memory only once. A second free would free the memory that reuses the address.
    let first = PoolMemory::allocate(&runtime, host, size).unwrap();
    first.free().unwrap();
    let second = PoolMemory::allocate(&runtime, host, size).unwrap();
    second.fill(0, 0x0202_0202, size).unwrap();
    second.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [2; 100]);

    let area = Area::new(&vmm, 0, AreaFlags::MAPPED).unwrap();
    let mut host_memory = vec![3; 4096];
    let part = area.mmap(4096, MmapOptions::new().with_host_memory(&mut host_memory)).unwrap();
    part.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [3; 100]);
    part.munmap().unwrap();

    drop((reservation, allocation, second));
    assert!(vmm.report().is_empty());
    assert!(EVENTS.load(Ordering::Relaxed) > 50, "nothing was logged");
}
