//! During a runtime call, other threads observe the state before the call.

mod hostile;

use hostile::HostileRuntime;
use hsa_vmm::{Access, AccessDescriptor, AllocationProperties};
use std::thread;

const SIZE: usize = 4096;

/// Other threads see the new access to several mappings all at once, after the runtime has granted the access.
#[test]
fn new_access_is_visible_after_the_runtime_call() {
    let hostile = HostileRuntime::new();
    let (_runtime, vmm, gpu) = hostile.open();
    let base = vmm.address_reserve(2 * SIZE, 0, None).unwrap();
    let last = base.checked_add(SIZE).unwrap();
    let handle = vmm.create(SIZE, &AllocationProperties::on(gpu)).unwrap();
    for address in [base, last] {
        vmm.map(address, SIZE, 0, handle).unwrap();
    }
    hostile.set(c"hostile_delay_us", 20_000);
    let is_granted = |address| vmm.get_access(gpu, address).unwrap() == Access::ReadWrite;
    let descriptor = AccessDescriptor { agent: gpu, access: Access::ReadWrite };
    thread::scope(|scope| {
        let grant = scope.spawn(|| vmm.set_access(base, 2 * SIZE, &[descriptor]));
        while !is_granted(base) && !grant.is_finished() {
            thread::yield_now();
        }
        assert_eq!(
            hostile.get(c"hostile_access_changes"),
            1,
            "access is visible only after the runtime has granted it"
        );
        assert!(is_granted(last), "the second mapping has changed with the first");
        grant.join().unwrap().unwrap();
    });
    vmm.unmap(base, 2 * SIZE).unwrap();
}
