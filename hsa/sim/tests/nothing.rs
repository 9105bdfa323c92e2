//! Virtual memory that does nothing returns plausible results.
#![allow(clippy::undocumented_unsafe_blocks)] // calls with pointers to locals

use core::ptr::null_mut;
use hsa_sim::{Config, Simulation};
use hsa_sys::*;

#[test]
fn addresses_are_distinct_and_aligned_on_every_thread() {
    let simulation = Simulation::start(Config::nothing(1)).unwrap();
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
    let several = move || {
        let sizes = sizes.into_iter().cycle().take(20);
        sizes.map(|size| (reserve(size, 1 << 30), size)).collect::<Vec<_>>()
    };
    let other = std::thread::spawn(several);
    let mut ranges = several();
    ranges.extend(other.join().unwrap());
    ranges.sort_unstable();
    for two in ranges.windows(2) {
        assert!(two[0].0 + two[0].1 <= two[1].0, "{two:x?}");
    }
}

#[test]
fn oversized_reservations_are_rejected() {
    let simulation = Simulation::start(Config::nothing(1)).unwrap();
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
    let [mut one, mut other] = [0; 2].map(|handle| hsa_amd_vmem_alloc_handle_t { handle });
    let pool = hsa_amd_memory_pool_t { handle: 0 };
    let nowhere = null_mut();
    unsafe {
        for handle in [&mut one, &mut other] {
            let create = vmem.hsa_amd_vmem_handle_create;
            assert_eq!(create(pool, 0, MEMORY_TYPE_PINNED, 0, handle), HSA_STATUS_SUCCESS);
        }
        assert_ne!(one.handle, other.handle);
        assert_eq!((vmem.hsa_amd_vmem_map)(nowhere, 0, 0, one, 0), HSA_STATUS_SUCCESS);
        assert_eq!((vmem.hsa_amd_vmem_unmap)(nowhere, 0), HSA_STATUS_SUCCESS);
        let (mut descriptor, mut imported) = (-1, other);
        let export = vmem.hsa_amd_vmem_export_shareable_handle;
        assert_eq!(export(&mut descriptor, one, 0), HSA_STATUS_SUCCESS);
        assert!(descriptor >= 0);
        let import = vmem.hsa_amd_vmem_import_shareable_handle;
        assert_eq!(import(descriptor, &mut imported), HSA_STATUS_SUCCESS);
        assert_ne!(imported.handle, other.handle);
        libc::close(descriptor);
    }
    assert_eq!(simulation.calls("hsa_amd_vmem_map"), 0);
    // An extension version without virtual memory has no such functions here either.
    let without = Config::nothing(1).with_extension(3);
    assert!(Simulation::start(without).unwrap().table().vmem.is_err());
}
