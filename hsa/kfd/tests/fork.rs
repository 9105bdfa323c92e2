//! The devices of a process after a fork.

mod fixture;
mod kernel;

use fixture::run_preloaded;
use kernel::{Gpu, MAP, PUBLIC, UNMAP, VRAM, call, calls, close, mmap, page_tables};
use libc::{EBADF, ENOENT};
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = 1 << 20;
const ADDRESS: u64 = 0x1000_0000;

/// Runs a function in a forked child. Panics unless the child succeeds within a minute.
fn in_child(run: impl FnOnce()) {
    // SAFETY: the child has only this thread, which holds no lock of the test.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", kernel::errno()),
        0 => {
            // SAFETY: the call sets a timer, whose signal ends the child if it hangs.
            unsafe { libc::alarm(60) };
            let succeeded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_ok();
            // SAFETY: the call ends the child without the parent's exit handlers.
            unsafe { libc::_exit(if succeeded { 0 } else { 1 }) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the call only fills the number.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(status, 0, "the child's status");
        }
    }
}

#[test]
fn forked_child_has_no_driver_state() {
    run_preloaded("forked_child_has_no_driver_state", &[("HSA_KFD", "vram=64MiB")], || {
        let gpu = Gpu::open();
        let (handle, offset) = gpu.alloc(48 * MIB, VRAM | PUBLIC).unwrap();
        let descriptor = gpu.export(handle).unwrap();
        let gem = gpu.prime(descriptor).unwrap();
        gpu.gem_va(gem, MAP, ADDRESS, MIB).unwrap();
        let memory = mmap(gpu.drm, offset, MIB as usize).unwrap();
        // SAFETY: the test has just mapped the memory.
        unsafe { memory.write_volatile(5) };
        in_child(|| {
            // The child inherits the mapping, but cannot use amdkfd's file.
            // SAFETY: the test has mapped the memory above.
            assert_eq!(unsafe { memory.read_volatile() }, 5);
            assert_eq!(gpu.free(handle), Err(EBADF));
            assert_eq!(gpu.gem_va(gem, UNMAP, ADDRESS, MIB), Err(ENOENT));
            gpu.close();
            let child_gpu = Gpu::open();
            assert_eq!(page_tables(), (Vec::new(), "buffers 0, descriptors 0".to_owned()));
            assert_eq!(child_gpu.available(), 64 * MIB);
            // The child imports the parent's memory as a dma-buf.
            let import = child_gpu.import(descriptor).unwrap();
            // SAFETY: this expression maps the memory.
            assert_eq!(unsafe { mmap(descriptor, 0, 4096).unwrap().read_volatile() }, 5);
            child_gpu.free(import).unwrap();
            let (handle, _) = child_gpu.alloc(64 * MIB, VRAM).unwrap();
            child_gpu.free(handle).unwrap();
        });
        // The parent's state is unchanged.
        assert_eq!(page_tables().0.len(), 1);
        gpu.gem_va(gem, UNMAP, ADDRESS, MIB).unwrap();
        gpu.free(handle).unwrap();
    });
}

#[test]
fn forked_child_logs_calls_of_the_real_driver() {
    let name = "forked_child_logs_calls_of_the_real_driver";
    let log = std::env::temp_dir().join(format!("hsa-kfd-{name}-{}", std::process::id()));
    let path = log.to_str().expect("a UTF-8 path");
    run_preloaded(name, &[("HSA_KFD", "real"), ("HSA_KFD_LOG", path)], || {
        // This file fails each call, but the log treats the calls as those of AMD's driver.
        let file = kernel::open("/dev/null").unwrap();
        let fail = || assert!(call(file, calls::AVAILABLE_MEMORY, &mut [0u64; 2]).is_err());
        fail();
        in_child(fail);
        fail();
    });
    if fixture::is_child() {
        return;
    }
    let text = std::fs::read_to_string(&log).expect("a log");
    std::fs::remove_file(&log).expect("a log");
    assert_eq!(text.lines().count(), 3, "{text}");
}

#[test]
fn fork_during_driver_calls_does_not_hang() {
    run_preloaded("fork_during_driver_calls_does_not_hang", &[], || {
        let gpu = Gpu::open();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let stop = &stop;
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let (handle, _) = gpu.alloc(4096, VRAM | PUBLIC).unwrap();
                        let descriptor = gpu.export(handle).unwrap();
                        let gem = gpu.prime(descriptor).unwrap();
                        let address = ADDRESS + thread * MIB;
                        gpu.gem_va(gem, MAP, address, 4096).unwrap();
                        gpu.gem_close(gem).unwrap();
                        close(descriptor).unwrap();
                        let other = kernel::open("/dev/dri/renderD128").unwrap();
                        call(other, calls::VERSION, &mut [0u64; 8]).unwrap();
                        close(other).unwrap();
                        gpu.free(handle).unwrap();
                        assert!(std::fs::read_dir("/proc/self/fd").unwrap().count() > 0);
                    }
                });
            }
            for _ in 0..100 {
                in_child(|| {
                    gpu.close();
                    let child_gpu = Gpu::open();
                    let (handle, _) = child_gpu.alloc(4096, VRAM).unwrap();
                    close(child_gpu.export(handle).unwrap()).unwrap();
                    assert!(std::fs::read_dir("/proc/self/fd").unwrap().count() > 0);
                });
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(page_tables().1, "buffers 0, descriptors 0");
    });
}

#[test]
fn vfork_child_leaves_parent_intact() {
    run_preloaded("vfork_child_leaves_parent_intact", &[], || {
        let gpu = Gpu::open();
        let mut status = 0;
        // SAFETY: the child closes descriptors, which are its own, and ends.
        unsafe {
            #[allow(deprecated)]
            let child = libc::vfork();
            if child == 0 {
                libc::close(gpu.drm);
                libc::close_range(gpu.kfd as u32, u32::MAX, 0);
                libc::_exit(0);
            }
            libc::waitpid(child, &raw mut status, 0);
        }
        assert_eq!(status, 0);
        assert!(gpu.alloc(MIB, VRAM).is_ok());
        call(gpu.drm, calls::VERSION, &mut [0u64; 8]).unwrap();
    });
}
