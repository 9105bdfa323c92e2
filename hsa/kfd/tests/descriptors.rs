//! Descriptors: recognising devices, and hiding the driver's own descriptors.

mod fixture;
mod kernel;

use fixture::run_preloaded;
use kernel::{Gpu, MAP, PUBLIC, UNMAP, VRAM, call, calls, close, mmap, open, page_tables};
use libc::EMFILE;
use std::fs;

const MIB: u64 = 1 << 20;
const ADDRESS: u64 = 0x1000_0000;

/// Returns whether a descriptor is a render node.
fn is_render(descriptor: i32) -> bool {
    call(descriptor, calls::VERSION, &mut [0u64; 8]).is_ok()
}

/// As in the kernel, root cannot open these files for writing, either.
#[test]
fn generated_files_cannot_be_opened_for_writing() {
    run_preloaded("generated_files_cannot_be_opened_for_writing", &[], || {
        let path = c"/sys/class/drm/card0/device/mem_info_vram_used";
        let flags = [libc::O_WRONLY, libc::O_RDWR];
        // SAFETY: the path ends with a zero.
        let opened = flags.map(|flags| unsafe { libc::open(path.as_ptr(), flags) });
        assert_eq!((opened, kernel::errno()), ([-1, -1], libc::EACCES));
        for mode in [c"w", c"we", c"a", c"r+", c"rb+", c"w+"] {
            // SAFETY: both strings end with a zero.
            let file = unsafe { libc::fopen(path.as_ptr(), mode.as_ptr()) };
            assert!(file.is_null(), "{mode:?}");
            assert_eq!(kernel::errno(), libc::EACCES, "{mode:?}");
        }
        for mode in [c"r", c"re", c"rb"] {
            // SAFETY: both strings end with a zero; the stream is closed once.
            let file = unsafe { libc::fopen(path.as_ptr(), mode.as_ptr()) };
            assert!(!file.is_null(), "{mode:?}");
            // SAFETY: as above.
            unsafe { libc::fclose(file) };
        }
    });
}

#[test]
fn duplicated_descriptors_are_devices() {
    run_preloaded("duplicated_descriptors_are_devices", &[], || {
        let gpu = Gpu::open();
        let (handle, _) = gpu.alloc(MIB, VRAM).unwrap();
        let descriptor = gpu.export(handle).unwrap();
        let gem = gpu.prime(descriptor).unwrap();
        close(descriptor).unwrap();
        // SAFETY: the calls create descriptors with free numbers.
        let copies = unsafe {
            [
                libc::dup(gpu.drm),
                libc::dup2(gpu.drm, 150),
                libc::dup3(gpu.drm, 151, libc::O_CLOEXEC),
                libc::fcntl(gpu.drm, libc::F_DUPFD_CLOEXEC, 200),
            ]
        };
        close(gpu.drm).unwrap();
        assert!(!is_render(gpu.drm));
        for copy in copies {
            assert!(is_render(copy), "{copy}");
            let copy = Gpu { drm: copy, ..gpu };
            copy.gem_va(gem, MAP, ADDRESS, MIB).unwrap();
            copy.gem_va(gem, UNMAP, ADDRESS, MIB).unwrap();
            close(copy.drm).unwrap();
        }
        // The process's page table still exists after all descriptors of its render node are closed.
        gpu.free(handle).unwrap();
        let (handle, _) = gpu.alloc_at(ADDRESS, MIB, VRAM).unwrap();
        gpu.map_memory(handle).unwrap();
        assert_eq!(page_tables().0.len(), 1);
    });
}

/// With `AT_EMPTY_PATH`, only an empty path means the descriptor.
#[test]
fn empty_path_is_the_device() {
    run_preloaded("empty_path_is_the_device", &[], || {
        let gpu = Gpu::open();
        let device_of = |path: &std::ffi::CStr| {
            // SAFETY: the struct consists of numbers, for which all zeros is a value.
            let mut status: libc::stat = unsafe { std::mem::zeroed() };
            // SAFETY: the path and the struct are valid.
            let result =
                unsafe { libc::fstatat(gpu.drm, path.as_ptr(), &mut status, libc::AT_EMPTY_PATH) };
            assert_eq!(result, 0, "{path:?}");
            (libc::major(status.st_rdev), libc::minor(status.st_rdev))
        };
        assert_eq!(device_of(c""), (226, 128));
        assert_eq!(device_of(c"/dev/null"), (1, 3));
    });
}

#[test]
fn reused_descriptor_is_not_a_device() {
    run_preloaded("reused_descriptor_is_not_a_device", &[], || {
        // SAFETY: the function closes the test's own descriptor.
        let close_directly = |number: i32| unsafe { libc::syscall(libc::SYS_close, number) };
        let close_in_range = |descriptor: i32| {
            // SAFETY: the function closes the test's own descriptor.
            i64::from(unsafe { libc::close_range(descriptor as u32, descriptor as u32, 0) })
        };
        let close_stream = |descriptor: i32| {
            // SAFETY: the function closes the test's own descriptor; the mode ends with a zero.
            i64::from(unsafe { libc::fclose(libc::fdopen(descriptor, c"r".as_ptr())) })
        };
        // SAFETY: the function closes the test's own descriptor.
        let replace = |descriptor: i32| i64::from(unsafe { libc::dup2(0, descriptor) });
        let close_functions: [&dyn Fn(i32) -> i64; 4] =
            [&close_directly, &close_in_range, &close_stream, &replace];
        for (index, close_function) in close_functions.iter().enumerate() {
            let descriptor = open("/dev/dri/renderD128").unwrap();
            assert!(is_render(descriptor));
            assert!(close_function(descriptor) >= 0);
            // `dup2` has reused the number itself.
            if index < 3 {
                assert_eq!(
                    open("/dev/null").unwrap(),
                    descriptor,
                    "the lowest free number is reused"
                );
            }
            assert!(!is_render(descriptor), "{index}");
            close(descriptor).unwrap();
        }
    });
}

fn open_descriptors() -> Vec<i32> {
    let entries = fs::read_dir("/proc/self/fd").unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut numbers: Vec<i32> = names.map(|name| name.parse().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn driver_descriptors_are_protected() {
    run_preloaded("driver_descriptors_are_protected", &[], || {
        let before = open_descriptors();
        let gpu = Gpu::open();
        let (handle, offset) = gpu.alloc(MIB, VRAM | PUBLIC).unwrap();
        let memory = mmap(gpu.drm, offset, MIB as usize).unwrap();
        assert_eq!(page_tables().1, "buffers 1, descriptors 1");
        // Only the two devices are visible, and the lowest number is free.
        assert_eq!(open_descriptors().len(), before.len() + 2);
        // While `before` was listed, the folder itself had a descriptor. The devices reuse its
        // number and take one more.
        let lowest = (0..).filter(|number| !before.contains(number)).nth(1);
        let next = open("/dev/null").unwrap();
        assert_eq!(Some(next), lowest);
        // The program cannot close the driver's descriptors, which hold the memory.
        for descriptor in next..70_000 {
            // SAFETY: the test has no descriptor with this number, and the driver must keep its
            // own.
            unsafe { libc::close(descriptor) };
        }
        // SAFETY: the test has no descriptor in this range, and the driver must keep its own.
        assert_eq!(unsafe { libc::close_range(next as u32, u32::MAX, 0) }, 0);
        assert_eq!(page_tables().1, "buffers 1, descriptors 1");
        let descriptor = gpu.export(handle).unwrap();
        let exported = mmap(descriptor, 0, MIB as usize).unwrap();
        // SAFETY: the test has mapped both addresses above.
        unsafe {
            memory.write_volatile(9);
            assert_eq!(exported.read_volatile(), 9);
        }
    });
}

#[test]
fn calls_work_after_descriptor_exhaustion() {
    run_preloaded("calls_work_after_descriptor_exhaustion", &[], || {
        let gpu = Gpu::open();
        let limit = libc::rlimit { rlim_cur: 40, rlim_max: 250 };
        // SAFETY: the call only reads the struct.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
        // The program creates more buffers than it can have descriptors. Each buffer has its own memory.
        let buffers: Vec<_> = (0..200).map(|_| gpu.alloc(4096, VRAM | PUBLIC).unwrap()).collect();
        for (_, offset) in &buffers {
            mmap(gpu.drm, *offset, 4096).unwrap();
        }
        assert_eq!(page_tables().1, "buffers 200, descriptors 200");
        let mut current = limit;
        // SAFETY: the call only fills the struct.
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut current) };
        assert_eq!(current.rlim_cur, 40, "the limit is unchanged");
        let mut taken = Vec::new();
        let error = loop {
            match open("/dev/null") {
                Ok(descriptor) => taken.push(descriptor),
                Err(error) => break error,
            }
        };
        assert_eq!((error, taken.iter().max()), (EMFILE, Some(&39)));
        assert_eq!(gpu.export(buffers[0].0), Err(EMFILE));
        assert_eq!(open("/dev/kfd"), Err(EMFILE));
        close(taken.pop().unwrap()).unwrap();
        let descriptor = gpu.export(buffers[0].0).unwrap();
        assert!(gpu.prime(descriptor).is_ok());
        for (handle, _) in buffers {
            gpu.free(handle).unwrap();
        }
        taken.into_iter().for_each(|descriptor| assert!(close(descriptor).is_ok()));
        assert_eq!(page_tables().1, "buffers 1, descriptors 1", "only the imported buffer remains");
    });
}

#[test]
fn device_rejects_write() {
    run_preloaded("device_rejects_write", &[], || {
        for path in ["/dev/kfd", "/dev/dri/renderD128"] {
            let descriptor = open(path).unwrap();
            // SAFETY: the call reads a byte of a constant.
            assert_eq!(unsafe { libc::write(descriptor, c"x".as_ptr().cast(), 1) }, -1);
            // SAFETY: the call only queries a flag. A device is not a terminal.
            assert_eq!(unsafe { libc::isatty(descriptor) }, 0);
        }
    });
}
