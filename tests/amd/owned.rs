//! Owned values can be dropped in any order. Each value keeps the values alive that it depends on.

use crate::amd_runtime::on_each;
use crate::machine::drops::{drop_in_order, orders};
use crate::machine::{Library, MIB};
use crate::process::{assert_inaccessible, descriptors};
use hsa_vmm::{Access, Allocation, Reservation};

const SIZE: usize = 2 * MIB;

#[test]
fn values_drop_in_any_order() {
    on_each("owned::values_drop_in_any_order", |fixture| {
        for order in orders() {
            drop_in_order(order, Library::load(fixture.runtime()), SIZE, "dropped in order");
        }
    });
}

#[test]
fn dropped_mapping_leaves_addresses_reserved() {
    on_each("owned::dropped_mapping_leaves_addresses_reserved", |fixture| {
        let library = Library::load(fixture.runtime());
        let reservation = Reservation::builder(2 * SIZE).reserve(&library.vmm).unwrap();
        let memory = Allocation::create(&library.vmm, SIZE, &library.shareable_on(1)).unwrap();
        let before = descriptors();
        for round in 0..20u8 {
            let mapping = reservation.map(SIZE, &memory).unwrap();
            mapping.grant(&[library.cpu(0), library.gpu(0)], Access::ReadWrite).unwrap();
            if round > 0 {
                let mut byte = [0];
                mapping.read(100, &mut byte).unwrap();
                assert_eq!(byte, [round - 1], "the memory kept the byte");
            }
            mapping.write(100, &[round]).unwrap();
            drop(mapping);
            assert_inaccessible(reservation.address().get(), 2 * SIZE, "dropped");
        }
        assert_eq!(descriptors(), before);
        drop((reservation, memory));
        library.assert_everything_freed();
    });
}

#[test]
fn panic_frees_everything() {
    on_each("owned::panic_frees_everything", |fixture| {
        let library = Library::load(fixture.runtime());
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let reservation = Reservation::builder(SIZE).reserve(&library.vmm).unwrap();
            let memory = Allocation::create(&library.vmm, SIZE, &library.shareable_on(0)).unwrap();
            let mapping = reservation.map(0, &memory).unwrap();
            mapping.grant(&library.gpus(), Access::ReadWrite).unwrap();
            std::panic::resume_unwind(Box::new("the test's own panic"));
        }));
        unwound.unwrap_err();
        library.assert_everything_freed();
    });
}
