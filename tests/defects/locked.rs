//! A GPU can access locked host memory although the lock call does not name the GPU. Memory that was locked twice stays
//! locked after two unlocks.

use crate::amd_runtime::on_each;
use crate::amd_runtime::raw::{PAGE, RawRuntime};
use crate::table::{LOCKED_FOR_ALL_GPUS, TWICE_LOCKED_STAYS_LOCKED};
use hsa_vmm::area::{AreaFlags, MmapOptions};
use hsa_vmm::{Area, ErrorKind, Runtime};
use std::ptr::NonNull;

/// Allocates pages that are never freed, and returns their address.
fn leak_pages() -> usize {
    Vec::leak(vec![1u8; 4 * PAGE]).as_ptr() as usize
}

#[test]
fn lock_gives_other_gpus_access_on_the_runtime() {
    LOCKED_FOR_ALL_GPUS.check_on_each_release(
        "locked::lock_gives_other_gpus_access_on_the_runtime",
        |fixture| {
            let (raw, address) = (RawRuntime::start(fixture), leak_pages());
            let device_address = raw.lock(address, 64, &raw.gpus[..1]).unwrap();
            assert_eq!(raw.read_by(raw.gpus[0], device_address), Ok(0x0101_0101_0101_0101));
            raw.read_by(raw.gpus[1], device_address).is_ok()
        },
    );
}

#[test]
fn double_lock_is_kept_on_the_runtime() {
    TWICE_LOCKED_STAYS_LOCKED.check_on_each_release(
        "locked::double_lock_is_kept_on_the_runtime",
        |fixture| {
            let (raw, address) = (RawRuntime::start(fixture), leak_pages());
            // Memory that is locked once can be unlocked.
            raw.lock(address, PAGE, &raw.gpus).unwrap();
            raw.unlock(address).unwrap();
            assert!(!raw.is_locked(address));
            raw.lock(address, PAGE, &raw.gpus).unwrap();
            raw.lock(address, 2 * PAGE, &raw.gpus).unwrap();
            for _ in 0..2 {
                raw.unlock(address).unwrap();
            }
            raw.is_locked(address)
        },
    );
}

#[test]
fn double_lock_is_rejected_through_the_library() {
    on_each("locked::double_lock_is_rejected_through_the_library", |fixture| {
        let raw = RawRuntime::start(fixture);
        // SAFETY: the file is a fetched release of AMD's runtime.
        let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
        let area = Area::without_vmm(&runtime, 0, AreaFlags::MAPPED).unwrap();
        let address = leak_pages();
        let map = |size| {
            let pointer = NonNull::new(address as *mut u8).unwrap();
            // SAFETY: the pages are leaked, and nothing else accesses them.
            area.mmap(size, unsafe { MmapOptions::new().with_host_pointer(pointer) })
        };
        let memory = map(PAGE).unwrap();
        let error = map(2 * PAGE).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::HostMemoryMapped(_)), "{error}");
        memory.munmap().unwrap();
        assert!(!raw.is_locked(address));
        map(2 * PAGE).unwrap().munmap().unwrap();
        assert!(!raw.is_locked(address));
    });
}
