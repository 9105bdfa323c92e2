//! Owned values: each lives as long as anything needs it, in whatever order they are dropped.

use crate::amd_runtime::on_each;
use crate::machine::{Library, MIB};
use crate::process::{assert_untouchable, descriptors};
use hsa_vmm::{Access, Allocation, AllocationProperties, Mapping, Reservation};
use std::any::Any;

const SIZE: usize = 2 * MIB;

#[test]
fn values_may_be_dropped_in_any_order() {
    on_each("owned::values_may_be_dropped_in_any_order", |ground| {
        for order in orders() {
            let Library { runtime, vmm } = Library::load(ground.runtime());
            let gpu = runtime.gpus().next().unwrap().id();
            let reservation = Reservation::of(2 * SIZE).reserve(&vmm).unwrap();
            let memory = Allocation::create(&vmm, SIZE, &AllocationProperties::on(gpu)).unwrap();
            let mapping = reservation.map(SIZE, &memory).unwrap();
            mapping.grant(&[gpu, runtime.host().id()], Access::ReadWrite).unwrap();
            mapping.write(0, b"kept").unwrap();
            drop(runtime);
            let mut values: [Option<Box<dyn Any>>; 4] = [
                Some(Box::new(vmm)),
                Some(Box::new(reservation)),
                Some(Box::new(memory)),
                Some(Box::new(mapping)),
            ];
            for index in order {
                values[index] = None;
                if let Some(mapping) = values[3].as_ref().and_then(|v| v.downcast_ref::<Mapping>())
                {
                    let mut bytes = [0; 4];
                    mapping.read(0, &mut bytes).unwrap();
                    assert_eq!(&bytes, b"kept", "{order:?}");
                }
            }
        }
    });
}

/// Every order of four things.
fn orders() -> impl Iterator<Item = [usize; 4]> {
    (0..256).filter_map(|number| {
        let order = [number & 3, number >> 2 & 3, number >> 4 & 3, number >> 6 & 3];
        let mut sorted = order;
        sorted.sort_unstable();
        (sorted == [0, 1, 2, 3]).then_some(order)
    })
}

#[test]
fn a_dropped_mapping_leaves_its_addresses_reserved_and_empty() {
    on_each("owned::a_dropped_mapping_leaves_its_addresses_reserved_and_empty", |ground| {
        let library = Library::load(ground.runtime());
        let reservation = Reservation::of(2 * SIZE).reserve(&library.vmm).unwrap();
        let memory = Allocation::create(&library.vmm, SIZE, &library.on(1)).unwrap();
        let before = descriptors();
        for round in 0..20u8 {
            let mapping = reservation.map(SIZE, &memory).unwrap();
            mapping.grant(&[library.cpu(0), library.gpu(0)], Access::ReadWrite).unwrap();
            if round > 0 {
                let mut byte = [0];
                mapping.read(100, &mut byte).unwrap();
                assert_eq!(byte, [round - 1], "the memory has kept it");
            }
            mapping.write(100, &[round]).unwrap();
            drop(mapping);
            assert_untouchable(reservation.address().get(), 2 * SIZE, "dropped");
        }
        assert_eq!(descriptors(), before);
        drop((reservation, memory));
        library.assert_nothing_held();
    });
}

#[test]
fn a_panic_gives_everything_back() {
    on_each("owned::a_panic_gives_everything_back", |ground| {
        let library = Library::load(ground.runtime());
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let reservation = Reservation::of(SIZE).reserve(&library.vmm).unwrap();
            let memory = Allocation::create(&library.vmm, SIZE, &library.on(0)).unwrap();
            let mapping = reservation.map(0, &memory).unwrap();
            mapping.grant(&library.gpus(), Access::ReadWrite).unwrap();
            std::panic::resume_unwind(Box::new("of the test's own"));
        }));
        unwound.unwrap_err();
        library.assert_nothing_held();
    });
}
