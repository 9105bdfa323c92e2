//! Programs that use the devices, at the kernel's interface.

mod ground;
mod kernel;

use ground::under;
use kernel::{GTT, Gpu, MAP, PUBLIC, UNMAP, VRAM, call, close, mmap, open, page_tables};
use libc::{EACCES, EBADF, EBUSY, EFAULT, EINVAL, EMFILE, ENODEV, ENOENT, ENOMEM, ENOTTY};
use std::fs;

const MIB: u64 = 1 << 20;
const AT: u64 = 0x1000_0000;

#[test]
fn mappings_come_and_go_in_the_page_table() {
    under("mappings_come_and_go_in_the_page_table", &[("HSA_KFD", "vram=64MiB")], || {
        let gpu = Gpu::open();
        assert_eq!(page_tables(), (Vec::new(), "buffers 0, descriptors 0".to_owned()));
        let (handle, _) = gpu.alloc(2 * MIB, VRAM).unwrap();
        let descriptor = gpu.export(handle).unwrap();
        let gem = gpu.prime(descriptor).unwrap();
        close(descriptor).unwrap();
        gpu.gem_va(gem, MAP, AT, 2 * MIB).unwrap();
        assert_eq!(gpu.gem_va(gem, MAP, AT + MIB, MIB), Err(EINVAL), "an overlap");
        let (mappings, last) = page_tables();
        assert_eq!((mappings.len(), last.as_str()), (1, "buffers 1, descriptors 1"));
        let start = format!("  {AT:#018x} size 0x200000 buffer ");
        assert!(mappings[0].starts_with(&start), "{mappings:?}");
        assert!(mappings[0].ends_with(" of gpu 0 offset 0x0 rwx"), "{mappings:?}");
        gpu.gem_va(gem, UNMAP, AT, 2 * MIB).unwrap();
        assert_eq!(gpu.gem_va(gem, UNMAP, AT, 2 * MIB), Err(ENOENT));
        assert_eq!(page_tables().0.len(), 0);
        // Closing the last handle takes its mappings along.
        gpu.gem_va(gem, MAP, AT, 2 * MIB).unwrap();
        gpu.gem_close(gem).unwrap();
        assert_eq!(gpu.gem_close(gem), Err(EINVAL));
        assert_eq!(page_tables().0.len(), 0);
        gpu.free(handle).unwrap();
        assert_eq!(page_tables().1, "buffers 0, descriptors 0");
    });
}

#[test]
fn memory_is_counted() {
    under("memory_is_counted", &[("HSA_KFD", "vram=64MiB")], || {
        let gpu = Gpu::open();
        let number =
            |path: &str| -> u64 { fs::read_to_string(path).unwrap().trim_end().parse().unwrap() };
        let process = format!("/sys/class/kfd/kfd/proc/{}/vram_{}", std::process::id(), gpu.id);
        let card = "/sys/class/drm/renderD128/device/mem_info_vram_used";
        let (handle, _) = gpu.alloc(48 * MIB, VRAM).unwrap();
        assert_eq!((number(&process), number(card)), (48 * MIB, 48 * MIB));
        assert_eq!(gpu.available(), 16 * MIB);
        assert_eq!(gpu.alloc(17 * MIB, VRAM), Err(ENOMEM));
        // Memory that was exported and imported is the same memory.
        let descriptor = gpu.export(handle).unwrap();
        let import = gpu.import(descriptor).unwrap();
        gpu.free(handle).unwrap();
        assert_eq!(number(&process), 48 * MIB);
        gpu.free(import).unwrap();
        assert_eq!((number(&process), gpu.available()), (0, 64 * MIB));
        assert!(fs::read_to_string("/sys/class/kfd/kfd/proc/1/vram_4097").is_err());
    });
}

#[test]
fn memory_is_one_however_it_is_reached() {
    under("memory_is_one_however_it_is_reached", &[], || {
        let gpu = Gpu::open();
        for flags in [VRAM | PUBLIC, GTT] {
            let (handle, offset) = gpu.alloc(MIB, flags).unwrap();
            let descriptor = gpu.export(handle).unwrap();
            // SAFETY: asks for a position.
            let size = unsafe { libc::lseek(descriptor, 0, libc::SEEK_END) };
            assert_eq!(size, MIB as i64);
            let mapped = [(gpu.drm, offset), (descriptor, 0)]
                .map(|(descriptor, offset)| mmap(descriptor, offset, MIB as usize).unwrap());
            // SAFETY: both were mapped just now.
            unsafe {
                mapped[0].add(5000).write_volatile(77);
                assert_eq!(mapped[1].add(5000).read_volatile(), 77);
            }
            close(descriptor).unwrap();
            gpu.free(handle).unwrap();
        }
    });
}

#[test]
fn errors_are_the_kernels() {
    under("errors_are_the_kernels", &[("HSA_KFD", "gpus=2")], || {
        let kfd = open("/dev/kfd").unwrap();
        let drm = open("/dev/dri/renderD128").unwrap();
        let gpu = Gpu { kfd, drm, id: Gpu::ID };
        assert_eq!(gpu.alloc(MIB, VRAM), Err(ENODEV), "no page table yet");
        let acquire = |gpu: u64| call(kfd, b'K', 0x15, &mut [drm as u64 | gpu << 32]);
        assert_eq!(acquire(0x1111 + 1), Err(EINVAL));
        assert_eq!(acquire(0x1112), Err(EINVAL), "another GPU's file");
        assert_eq!((acquire(0x1001), acquire(0x1001)), (Ok(()), Ok(())));
        let other = open("/dev/dri/renderD128").unwrap();
        assert_eq!(call(kfd, b'K', 0x15, &mut [other as u64 | 0x1001 << 32]), Err(EBUSY));
        assert_eq!(gpu.alloc(0, VRAM), Err(EINVAL));
        assert_eq!(gpu.alloc(MIB, 0), Err(EINVAL));
        assert_eq!(gpu.alloc(u64::MAX - 4096, VRAM), Err(ENOMEM));
        assert_eq!(gpu.free(0x1001_0000_0009), Err(EINVAL));
        assert_eq!(gpu.map(0x18, 0x1001_0000_0009), Err(ENOMEM), "no such handle");
        let (handle, _) = gpu.alloc_at(AT, MIB, VRAM).unwrap();
        assert_eq!(call(kfd, b'K', 0x18, &mut [handle, 8, 1]), Err(EFAULT));
        assert_eq!(call(kfd, b'K', 0x18, &mut [handle, 8, 0]), Err(EINVAL));
        // How many were done is told when one fails.
        let gpus = [0x1001u32, 0x1112, 7];
        let mut map = [handle, gpus.as_ptr() as u64, 3];
        assert_eq!(call(kfd, b'K', 0x18, &mut map), Err(ENODEV));
        assert_eq!(map[2] >> 32, 1);
        assert_eq!(gpu.free(handle), Err(EBUSY));
        gpu.map(0x19, handle).unwrap();
        gpu.free(handle).unwrap();
        // Unknown calls; an argument that is nowhere.
        assert_eq!(call(kfd, b'K', 0x7f, &mut [0u64]), Err(ENOTTY));
        assert_eq!(call(kfd, b'K', 0x20, &mut [0u64]), Err(ENOTTY), "SVM");
        assert_eq!(call(drm, b'd', 0x44, &mut [0u64]), Err(EINVAL));
        for (device, code) in [(kfd, 0xc028_4b16u64), (kfd, 0x8008_4b01), (drm, 0xc040_6400)] {
            // SAFETY: the address is that of nothing, which is the point.
            assert_eq!(unsafe { libc::ioctl(device, code, 8usize) }, -1);
            assert_eq!(kernel::errno(), EFAULT, "{code:#x}");
        }
        // What is no dma-buf.
        let plain = fs::File::open("/dev/null").unwrap();
        let plain = std::os::fd::AsRawFd::as_raw_fd(&plain);
        // SAFETY: the name ends with a zero.
        let memory =
            unsafe { libc::memfd_create(c"hsa-kfd:0:00000001:0000000000000001".as_ptr(), 0) };
        for descriptor in [plain, memory, drm] {
            assert_eq!(gpu.import(descriptor), Err(EINVAL));
            assert_eq!(gpu.prime(descriptor), Err(EINVAL));
        }
        assert_eq!(gpu.import(999), Err(EBADF));
        // What can be mapped.
        assert_eq!(mmap(drm, 0, 4096), Err(EINVAL));
        assert_eq!(mmap(kfd, 1 << 62, 4096), Err(EFAULT));
        assert_eq!(mmap(kfd, 3 << 62 | 7 << 46, 8192), Err(ENODEV));
        assert_eq!(mmap(kfd, 3 << 62 | 0x1001 << 46, 4096), Err(EINVAL));
        let (_, offset) = gpu.alloc(MIB, VRAM | PUBLIC).unwrap();
        assert_eq!(mmap(drm, offset, 2 * MIB as usize), Err(EINVAL));
        assert_eq!(mmap(drm, offset + 4096, 4096), Err(EINVAL));
        let stranger = open("/dev/dri/renderD129").unwrap();
        assert_eq!(mmap(stranger, offset, 4096), Err(EACCES));
    });
}

#[test]
fn a_small_bar_shows_no_memory() {
    under("a_small_bar_shows_no_memory", &[("HSA_KFD", "profile=rdna3")], || {
        let gpu = Gpu::open();
        assert_eq!(gpu.alloc(MIB, VRAM | PUBLIC), Err(EINVAL));
        assert!(gpu.alloc(MIB, VRAM).is_ok());
    });
}

/// What is behind a descriptor, by its kind.
fn is_render(descriptor: i32) -> bool {
    call(descriptor, b'd', 0x00, &mut [0u64; 8]).is_ok()
}

#[test]
fn duplicates_are_the_device_too() {
    under("duplicates_are_the_device_too", &[], || {
        let gpu = Gpu::open();
        let (handle, _) = gpu.alloc(MIB, VRAM).unwrap();
        let descriptor = gpu.export(handle).unwrap();
        let gem = gpu.prime(descriptor).unwrap();
        close(descriptor).unwrap();
        // SAFETY: these make descriptors, at numbers that are free.
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
            copy.gem_va(gem, MAP, AT, MIB).unwrap();
            copy.gem_va(gem, UNMAP, AT, MIB).unwrap();
            close(copy.drm).unwrap();
        }
        // The process's page table outlives the file it came with.
        gpu.free(handle).unwrap();
        let (handle, _) = gpu.alloc_at(AT, MIB, VRAM).unwrap();
        gpu.map(0x18, handle).unwrap();
        assert_eq!(page_tables().0.len(), 1);
    });
}

#[test]
fn a_number_that_names_another_file_is_no_device() {
    under("a_number_that_names_another_file_is_no_device", &[], || {
        // SAFETY: here and below, each closes the test's own descriptor.
        let directly = |descriptor: i32| unsafe { libc::syscall(libc::SYS_close, descriptor) };
        let of_range = |descriptor: i32| {
            // SAFETY: as above.
            i64::from(unsafe { libc::close_range(descriptor as u32, descriptor as u32, 0) })
        };
        let of_stream = |descriptor: i32| {
            // SAFETY: as above; the mode ends with a zero.
            i64::from(unsafe { libc::fclose(libc::fdopen(descriptor, c"r".as_ptr())) })
        };
        // SAFETY: as above.
        let by_another = |descriptor: i32| i64::from(unsafe { libc::dup2(0, descriptor) });
        let closes: [&dyn Fn(i32) -> i64; 4] = [&directly, &of_range, &of_stream, &by_another];
        for (index, close_it) in closes.iter().enumerate() {
            let descriptor = open("/dev/dri/renderD128").unwrap();
            assert!(is_render(descriptor));
            assert!(close_it(descriptor) >= 0);
            if index < 3 {
                assert_eq!(open("/dev/null").unwrap(), descriptor, "the lowest number is free");
            }
            assert!(!is_render(descriptor), "{index}");
            close(descriptor).unwrap();
        }
    });
}

fn listed() -> Vec<i32> {
    let entries = fs::read_dir("/proc/self/fd").unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut numbers: Vec<i32> = names.map(|name| name.parse().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn the_drivers_descriptors_are_its_own() {
    under("the_drivers_descriptors_are_its_own", &[], || {
        let before = listed();
        let gpu = Gpu::open();
        let (handle, offset) = gpu.alloc(MIB, VRAM | PUBLIC).unwrap();
        let memory = mmap(gpu.drm, offset, MIB as usize).unwrap();
        assert_eq!(page_tables().1, "buffers 1, descriptors 1");
        // Nothing but the two devices is seen, and the lowest number is free.
        assert_eq!(listed().len(), before.len() + 2);
        let next = open("/dev/null").unwrap();
        assert_eq!(next, gpu.drm + 1);
        // Whatever the program closes, the memory stays.
        for descriptor in next..70_000 {
            // SAFETY: the test has nothing open there; what the driver has it must keep.
            unsafe { libc::close(descriptor) };
        }
        // SAFETY: as above.
        assert_eq!(unsafe { libc::close_range(next as u32, u32::MAX, 0) }, 0);
        assert_eq!(page_tables().1, "buffers 1, descriptors 1");
        let descriptor = gpu.export(handle).unwrap();
        let again = mmap(descriptor, 0, MIB as usize).unwrap();
        // SAFETY: both were mapped above.
        unsafe {
            memory.write_volatile(9);
            assert_eq!(again.read_volatile(), 9);
        }
    });
}

#[test]
fn running_out_of_descriptors_loses_nothing() {
    under("running_out_of_descriptors_loses_nothing", &[], || {
        let gpu = Gpu::open();
        let limit = libc::rlimit { rlim_cur: 40, rlim_max: 4096 };
        // SAFETY: reads the struct.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
        // More buffers than the program may have descriptors, each with its own memory.
        let buffers: Vec<_> = (0..200).map(|_| gpu.alloc(4096, VRAM | PUBLIC).unwrap()).collect();
        for (_, offset) in &buffers {
            mmap(gpu.drm, *offset, 4096).unwrap();
        }
        assert_eq!(page_tables().1, "buffers 200, descriptors 200");
        let mut now = limit;
        // SAFETY: fills the struct.
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut now) };
        assert_eq!(now.rlim_cur, 40, "the limit is what it was");
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
        assert_eq!(page_tables().1, "buffers 1, descriptors 1", "the one that was imported");
    });
}

#[test]
fn processes_of_a_machine_share_its_memory() {
    let setting = format!("vram=64MiB,machine=devices-{}", std::process::id());
    let setting = std::env::var("HSA_KFD").unwrap_or(setting);
    let name = "processes_of_a_machine_share_its_memory";
    under(name, &[("HSA_KFD", &setting)], || {
        let gpu = Gpu::open();
        if std::env::var_os("TEST_SECOND").is_some() {
            // It takes what is left and is killed with it.
            assert_eq!(gpu.available(), 24 * MIB);
            assert_eq!(gpu.alloc(25 * MIB, VRAM), Err(ENOMEM));
            gpu.alloc(24 * MIB, VRAM).unwrap();
            println!("second has it");
            // SAFETY: ends this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        gpu.alloc(40 * MIB, VRAM).unwrap();
        let second = ground::again(name, &[("HSA_KFD", &setting), ("TEST_SECOND", "1")]);
        assert!(String::from_utf8_lossy(&second.stdout).contains("second has it"), "{second:?}");
        assert_eq!(gpu.available(), 24 * MIB, "its share came back");
    });
    // SAFETY: asks for a number.
    let user = unsafe { libc::geteuid() };
    let machine = setting.rsplit_once('=').expect("a name").1;
    let file = std::env::temp_dir().join(format!("hsa-kfd-{user}-{machine}.machine"));
    // The inner process removes it first.
    let _ = fs::remove_file(file);
}

#[test]
fn a_device_is_not_written_to() {
    under("a_device_is_not_written_to", &[], || {
        for path in ["/dev/kfd", "/dev/dri/renderD128"] {
            let descriptor = open(path).unwrap();
            // SAFETY: reads a byte of a constant.
            assert_eq!(unsafe { libc::write(descriptor, c"x".as_ptr().cast(), 1) }, -1);
            // SAFETY: asks for a flag; a device is no terminal.
            assert_eq!(unsafe { libc::isatty(descriptor) }, 0);
        }
    });
}

/// The log of a process that runs this test's body.
fn log_of(name: &str, faults: &str, body: impl FnOnce()) -> Option<String> {
    let log = std::env::temp_dir().join(format!("hsa-kfd-{name}-{}", std::process::id()));
    let path = log.to_str().expect("text").to_owned();
    let inside = std::env::var_os("HSA_KFD_LOG").is_some();
    under(name, &[("HSA_KFD_LOG", &path), ("HSA_KFD_FAULTS", faults)], body);
    if inside {
        return None;
    }
    let text = fs::read_to_string(&log).expect("a log");
    fs::remove_file(&log).expect("a log");
    Some(text)
}

#[test]
fn the_log_tells_each_call() {
    let text = log_of("the_log_tells_each_call", "", || {
        let gpu = Gpu::open();
        let (handle, offset) = gpu.alloc(4096, VRAM | PUBLIC).unwrap();
        let mapped = mmap(gpu.drm, offset, 4096).unwrap();
        // SAFETY: mapped just now.
        unsafe { libc::munmap(mapped.cast(), 4096) };
        gpu.free(handle).unwrap();
        gpu.free(handle).unwrap_err();
        call(gpu.kfd, b'K', 0x20, &mut [0u64]).unwrap_err();
        gpu.close();
    });
    let Some(text) = text else { return };
    let expected = [
        "kfd OPEN descriptor=",
        "drm0 OPEN descriptor=",
        "kfd ACQUIRE_VM drm_fd=",
        "kfd ALLOC_MEMORY_OF_GPU address=0x0 size=0x1000 handle=0x0 offset=0x0 gpu_id=4097 \
         flags=VRAM|PUBLIC|WRITABLE -> handle=0x100100000001 offset=0x100000000 (",
        "drm0 MMAP address=0x0 length=0x1000 protection=R|W flags=SHARED offset=0x100000000 -> 0x",
        "drm0 MUNMAP address=0x",
        "kfd FREE_MEMORY_OF_GPU handle=0x100100000001 -> ok (",
        "kfd FREE_MEMORY_OF_GPU handle=0x100100000001 = EINVAL (",
        "NOT EMULATED: kfd call 0xc0084b20 SVM = ENOTTY",
        "drm0 CLOSE descriptor=",
        "kfd CLOSE descriptor=",
    ];
    // A process and a thread, and the time, come first.
    let lines: Vec<_> = text.lines().map(|line| line.splitn(3, ' ').nth(2).unwrap()).collect();
    assert_eq!(lines.len(), expected.len(), "{text}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line}\n{expected}");
    }
}

#[test]
fn calls_fail_and_last_as_planned() {
    let plan = "ALLOC_MEMORY_OF_GPU#2-3=EBUSY,MMAP#1=EIO,AVAILABLE_MEMORY#2=30ms";
    let text = log_of("calls_fail_and_last_as_planned", plan, || {
        let gpu = Gpu::open();
        let results = [(); 4].map(|()| gpu.alloc(4096, VRAM));
        assert_eq!(results.map(|result| result.err()), [None, Some(EBUSY), Some(EBUSY), None]);
        let (_, offset) = results[0].unwrap();
        assert_eq!(mmap(gpu.drm, offset, 4096), Err(libc::EIO));
        assert!(mmap(gpu.drm, offset, 4096).is_ok());
        let took = || {
            let began = std::time::Instant::now();
            gpu.available();
            began.elapsed().as_millis()
        };
        assert!(took() < 30);
        assert!(took() >= 30);
    });
    if let Some(text) = text {
        assert_eq!(text.matches(" = EBUSY (").count(), 2, "{text}");
    }
}

#[test]
fn the_page_tables_are_written_at_the_end() {
    let file = std::env::temp_dir().join(format!("hsa-kfd-tables-{}", std::process::id()));
    let name = file.to_str().expect("text");
    let inside = std::env::var_os("HSA_KFD_PAGE_TABLES").is_some();
    under("the_page_tables_are_written_at_the_end", &[("HSA_KFD_PAGE_TABLES", name)], || {
        let gpu = Gpu::open();
        let (handle, _) = gpu.alloc_at(AT, MIB, VRAM).unwrap();
        gpu.map(0x18, handle).unwrap();
    });
    if inside {
        return;
    }
    let text = fs::read_to_string(&file).expect("page tables");
    fs::remove_file(&file).expect("page tables");
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("process "), "{text}");
    assert_eq!(lines[1], "gpu 0 id 4097 file 0: 1 mappings");
    assert!(lines[2].starts_with(&format!("  {AT:#018x} size 0x100000 buffer ")), "{text}");
    assert!(lines[2].ends_with(" offset 0x0 rw-"), "{text}");
    assert_eq!(lines[3..], ["buffers 1, descriptors 0"]);
}

#[test]
fn the_machines_memory_ends_too() {
    under("the_machines_memory_ends_too", &[], || {
        let gpu = Gpu::open();
        assert_eq!(gpu.alloc(1 << 47, GTT), Err(ENOMEM));
        let (handle, _) = gpu.alloc(MIB, GTT).unwrap();
        gpu.free(handle).unwrap();
    });
}
