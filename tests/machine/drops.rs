//! Drops owned values in every order.

use super::Library;
use hsa_vmm::{Access, Allocation, AllocationProperties, Mapping, Reservation};
use std::any::Any;

/// Returns the 24 orders of four indices.
pub fn orders() -> Vec<[usize; 4]> {
    let order = |number: usize| [0, 2, 4, 6].map(|shift| number >> shift & 3);
    let is_order = |order: &[usize; 4]| (0..4).all(|index| order.contains(&index));
    let orders: Vec<_> = (0..256).map(order).filter(is_order).collect();
    assert_eq!(orders.len(), 24);
    orders
}

/// Creates a value of each owned type, drops the runtime, and drops the values in the order of `order`. Fails unless
/// the memory stays readable until the mapping is dropped.
pub fn drop_in_order(
    order: [usize; 4],
    Library { runtime, vmm }: Library,
    size: usize,
    context: &str,
) {
    let gpu = runtime.gpus().next().unwrap().id();
    let reservation = Reservation::builder(2 * size).reserve(&vmm).unwrap();
    let memory = Allocation::create(&vmm, size, &AllocationProperties::on(gpu)).unwrap();
    let mapping = reservation.map(size, &memory).unwrap();
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
        if let Some(mapping) = values[3].as_ref().and_then(|value| value.downcast_ref::<Mapping>())
        {
            let mut bytes = [0; 4];
            mapping.read(0, &mut bytes).unwrap();
            assert_eq!(&bytes, b"kept", "{context}, {order:?}");
        }
    }
}
