//! During a runtime call, other threads see the state before it.

mod hostile;

use hostile::Hostile;
use hsa_vmm::{Access, AccessDescriptor, AllocationProperties};
use std::thread;

const SIZE: usize = 4096;

/// A change of several mappings is visible at once, after the runtime has granted the access.
#[test]
fn get_access_changes_after_the_runtime_call() {
    let hostile = Hostile::new();
    let (_runtime, vmm, gpu) = hostile.open();
    let base = vmm.address_reserve(2 * SIZE, 0, None).unwrap();
    let last = base.checked_add(SIZE).unwrap();
    let handle = vmm.create(SIZE, &AllocationProperties::on(gpu)).unwrap();
    for place in [base, last] {
        vmm.map(place, SIZE, 0, handle).unwrap();
    }
    hostile.set(c"hostile_linger", 20_000);
    let granted = |place| vmm.get_access(gpu, place).unwrap() == Access::ReadWrite;
    let all = AccessDescriptor { agent: gpu, access: Access::ReadWrite };
    thread::scope(|scope| {
        let grant = scope.spawn(|| vmm.set_access(base, 2 * SIZE, &[all]));
        while !granted(base) && !grant.is_finished() {
            thread::yield_now();
        }
        assert_eq!(
            hostile.get(c"hostile_access_changes"),
            1,
            "the runtime has not granted access yet"
        );
        assert!(granted(last), "all of the range has changed");
        grant.join().unwrap().unwrap();
    });
    vmm.unmap(base, 2 * SIZE).unwrap();
}
