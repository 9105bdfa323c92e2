//! Tests the configuration `nothing`. Its functions of virtual memory do nothing and return
//! plausible results.
#![allow(clippy::undocumented_unsafe_blocks)] // calls with pointers to locals

use core::ptr::null_mut;
use hsa_sim::{Config, Simulation};
use hsa_sys::*;

#[test]
fn addresses_are_distinct_and_aligned_on_every_thread() {
    let simulation = Simulation::start(Config::no_op_vmem(1)).unwrap();
    let vmem = *simulation.table().vmem.as_ref().unwrap();
    let reserve = move |size: usize, alignment: u64| {
        let mut address = null_mut();
        let function = vmem.hsa_amd_vmem_address_reserve_align.unwrap();
        let status = unsafe { function(&mut address, size, 0, alignment, 0) };
        assert_eq!(status, HSA_STATUS_SUCCESS);
        assert_eq!(address as u64 % alignment, 0);
        address as usize
    };
    let sizes = [4096, 1 << 45, 2 << 20, 1 << 44, 3 << 30];
    let reserve_many = move || {
        let sizes = sizes.into_iter().cycle().take(20);
        sizes.map(|size| (reserve(size, 1 << 30), size)).collect::<Vec<_>>()
    };
    let thread = std::thread::spawn(reserve_many);
    let mut ranges = reserve_many();
    ranges.extend(thread.join().unwrap());
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:x?}");
    }
}

#[test]
fn oversized_reservations_are_rejected() {
    let simulation = Simulation::start(Config::no_op_vmem(1)).unwrap();
    let vmem = simulation.table().vmem.as_ref().unwrap();
    let reserve = vmem.hsa_amd_vmem_address_reserve_align.unwrap();
    let mut address = null_mut();
    for (size, alignment) in
        [(usize::MAX, 0), (usize::MAX - (4 << 20), 1 << 21), (4096, u64::MAX), (1 << 63, 1 << 63)]
    {
        let status = unsafe { reserve(&mut address, size, 0, alignment, 0) };
        assert_eq!(status, HSA_STATUS_ERROR_OUT_OF_RESOURCES, "{size:#x} {alignment:#x}");
    }
    assert_eq!(unsafe { reserve(&mut address, 4096, 0, 0, 0) }, HSA_STATUS_SUCCESS);
}

#[test]
fn calls_succeed_and_are_not_counted() {
    let simulation = Simulation::start("nothing,gpus=3".parse().unwrap()).unwrap();
    assert_eq!(simulation.config().gpus.len(), 3);
    let vmem = simulation.table().vmem.as_ref().unwrap();
    let [mut first, mut second] = [0; 2].map(|handle| hsa_amd_vmem_alloc_handle_t { handle });
    let pool = hsa_amd_memory_pool_t { handle: 0 };
    let null = null_mut();
    unsafe {
        for handle in [&mut first, &mut second] {
            let create = vmem.hsa_amd_vmem_handle_create;
            assert_eq!(create(pool, 0, MEMORY_TYPE_PINNED, 0, handle), HSA_STATUS_SUCCESS);
        }
        assert_ne!(first.handle, second.handle);
        assert_eq!((vmem.hsa_amd_vmem_map)(null, 0, 0, first, 0), HSA_STATUS_SUCCESS);
        assert_eq!((vmem.hsa_amd_vmem_unmap)(null, 0), HSA_STATUS_SUCCESS);
        let (mut descriptor, mut imported) = (-1, second);
        let export = vmem.hsa_amd_vmem_export_shareable_handle;
        assert_eq!(export(&mut descriptor, first, 0), HSA_STATUS_SUCCESS);
        assert!(descriptor >= 0);
        let import = vmem.hsa_amd_vmem_import_shareable_handle;
        assert_eq!(import(descriptor, &mut imported), HSA_STATUS_SUCCESS);
        assert_ne!(imported.handle, second.handle);
        libc::close(descriptor);
    }
    assert_eq!(simulation.calls("hsa_amd_vmem_map"), 0);
    // With an extension version that has no virtual memory, the functions are missing in this
    // configuration too.
    let without = Config::no_op_vmem(1).with_extension(3);
    assert!(Simulation::start(without).unwrap().table().vmem.is_err());
}
