//! Memory at the kernel's interface: page tables, counters, dma-bufs, errors.

mod fixture;
mod kernel;

use fixture::run_preloaded;
use kernel::{GTT, Gpu, MAP, PUBLIC, UNMAP, VRAM, call, calls, close, mmap, open, page_tables};
use libc::{EACCES, EBADF, EBUSY, EFAULT, EINVAL, ENODEV, ENOENT, ENOMEM, ENOTTY};
use std::fs;

const MIB: u64 = 1 << 20;
const ADDRESS: u64 = 0x1000_0000;

#[test]
fn mappings_appear_in_the_page_table() {
    run_preloaded("mappings_appear_in_the_page_table", &[("HSA_KFD", "vram=64MiB")], || {
        let gpu = Gpu::open();
        assert_eq!(page_tables(), (Vec::new(), "buffers 0, descriptors 0".to_owned()));
        let (handle, _) = gpu.alloc(2 * MIB, VRAM).unwrap();
        let descriptor = gpu.export(handle).unwrap();
        let gem = gpu.prime(descriptor).unwrap();
        close(descriptor).unwrap();
        gpu.gem_va(gem, MAP, ADDRESS, 2 * MIB).unwrap();
        assert_eq!(gpu.gem_va(gem, MAP, ADDRESS + MIB, MIB), Err(EINVAL), "an overlap");
        let (mappings, last) = page_tables();
        assert_eq!((mappings.len(), last.as_str()), (1, "buffers 1, descriptors 1"));
        let start = format!("  {ADDRESS:#018x} size 0x200000 buffer ");
        assert!(mappings[0].starts_with(&start), "{mappings:?}");
        assert!(mappings[0].ends_with(" of gpu 0 offset 0x0 rwx"), "{mappings:?}");
        gpu.gem_va(gem, UNMAP, ADDRESS, 2 * MIB).unwrap();
        assert_eq!(gpu.gem_va(gem, UNMAP, ADDRESS, 2 * MIB), Err(ENOENT));
        assert_eq!(page_tables().0.len(), 0);
        // Closing the last handle removes the buffer's mappings.
        gpu.gem_va(gem, MAP, ADDRESS, 2 * MIB).unwrap();
        gpu.gem_close(gem).unwrap();
        assert_eq!(gpu.gem_close(gem), Err(EINVAL));
        assert_eq!(page_tables().0.len(), 0);
        gpu.free(handle).unwrap();
        assert_eq!(page_tables().1, "buffers 0, descriptors 0");
    });
}

#[test]
fn counters_report_used_memory() {
    run_preloaded("counters_report_used_memory", &[("HSA_KFD", "vram=64MiB")], || {
        let gpu = Gpu::open();
        let number =
            |path: &str| -> u64 { fs::read_to_string(path).unwrap().trim_end().parse().unwrap() };
        let process = format!("/sys/class/kfd/kfd/proc/{}/vram_{}", std::process::id(), gpu.id);
        let card = "/sys/class/drm/renderD128/device/mem_info_vram_used";
        let (handle, _) = gpu.alloc(48 * MIB, VRAM).unwrap();
        assert_eq!((number(&process), number(card)), (48 * MIB, 48 * MIB));
        assert_eq!(gpu.available(), 16 * MIB);
        assert_eq!(gpu.alloc(17 * MIB, VRAM), Err(ENOMEM));
        // The import shares the memory and uses no further memory.
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
fn memory_aliases_agree() {
    run_preloaded("memory_aliases_agree", &[], || {
        let gpu = Gpu::open();
        for flags in [VRAM | PUBLIC, GTT] {
            let (handle, offset) = gpu.alloc(MIB, flags).unwrap();
            let descriptor = gpu.export(handle).unwrap();
            // SAFETY: the call only returns the size.
            let size = unsafe { libc::lseek(descriptor, 0, libc::SEEK_END) };
            assert_eq!(size, MIB as i64);
            let mapped = [(gpu.drm, offset), (descriptor, 0)]
                .map(|(descriptor, offset)| mmap(descriptor, offset, MIB as usize).unwrap());
            // SAFETY: the test has just made both mappings.
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
fn errors_match_the_kernel() {
    run_preloaded("errors_match_the_kernel", &[("HSA_KFD", "gpus=2")], || {
        let kfd = open("/dev/kfd").unwrap();
        let drm = open("/dev/dri/renderD128").unwrap();
        let gpu = Gpu { kfd, drm, id: Gpu::ID };
        assert_eq!(gpu.alloc(MIB, VRAM), Err(ENODEV), "no page table yet");
        let acquire = |gpu: u64| call(kfd, calls::ACQUIRE_VM, &mut [drm as u64 | gpu << 32]);
        assert_eq!(acquire(0x1009), Err(EINVAL), "no such GPU");
        assert_eq!(acquire(Gpu::SECOND_ID), Err(EINVAL), "the file of another GPU");
        assert_eq!((acquire(Gpu::ID), acquire(Gpu::ID)), (Ok(()), Ok(())));
        let other = open("/dev/dri/renderD128").unwrap();
        assert_eq!(call(kfd, calls::ACQUIRE_VM, &mut [other as u64 | Gpu::ID << 32]), Err(EBUSY));
        assert_eq!(gpu.alloc(0, VRAM), Err(EINVAL));
        assert_eq!(gpu.alloc(MIB, 0), Err(EINVAL));
        assert_eq!(gpu.alloc(u64::MAX - 4096, VRAM), Err(ENOMEM));
        assert_eq!(gpu.free(0x1001_0000_0009), Err(EINVAL));
        assert_eq!(gpu.map_memory(0x1001_0000_0009), Err(ENOMEM), "the handle does not exist");
        let (handle, _) = gpu.alloc_at(ADDRESS, MIB, VRAM).unwrap();
        assert_eq!(call(kfd, calls::MAP_MEMORY_TO_GPU, &mut [handle, 8, 1]), Err(EFAULT));
        assert_eq!(call(kfd, calls::MAP_MEMORY_TO_GPU, &mut [handle, 8, 0]), Err(EINVAL));
        // A failed call returns the number of GPUs that it has processed.
        let gpus = [Gpu::ID as u32, Gpu::SECOND_ID as u32, 7];
        let mut map = [handle, gpus.as_ptr() as u64, 3];
        assert_eq!(call(kfd, calls::MAP_MEMORY_TO_GPU, &mut map), Err(ENODEV));
        assert_eq!(map[2] >> 32, 1);
        assert_eq!(gpu.free(handle), Err(EBUSY));
        gpu.unmap_memory(handle).unwrap();
        gpu.free(handle).unwrap();
        // Each array has room for 40 numbers. amdgpu has 32 and 16.
        let mut arrays = [7u32; 80];
        let [tiles, macro_tiles] = [0, 40].map(|index| &raw mut arrays[index] as u64);
        let mut layout = [tiles, macro_tiles, 40 | 40 << 32, Gpu::ID, 0];
        call(kfd, calls::GET_TILE_CONFIG, &mut layout).unwrap();
        assert_eq!(layout[2..], [32 | 16 << 32, Gpu::ID | 0x2a11_4042 << 32, 0]);
        let zeros = |array: &[u32]| array.iter().filter(|number| **number == 0).count();
        assert_eq!((zeros(&arrays[..40]), zeros(&arrays[40..])), (32, 16));
        layout[1] = 8;
        assert_eq!(call(kfd, calls::GET_TILE_CONFIG, &mut layout), Err(EFAULT));
        assert_eq!(layout[2], 32, "the second array was not written");
        assert_eq!(call(kfd, calls::GET_TILE_CONFIG, &mut [0u64; 5]), Err(EINVAL));
        // Unknown calls.
        assert_eq!(call(kfd, (b'K', 0x7f), &mut [0u64]), Err(ENOTTY));
        assert_eq!(call(kfd, calls::SVM, &mut [0u64]), Err(ENOTTY), "SVM");
        assert_eq!(call(drm, calls::CS, &mut [0u64]), Err(EINVAL));
        // `ALLOC_MEMORY_OF_GPU`, `GET_VERSION` and `VERSION`, with an invalid argument.
        for (device, code) in [(kfd, 0xc028_4b16u64), (kfd, 0x8008_4b01), (drm, 0xc040_6400)] {
            // SAFETY: the address is invalid on purpose.
            assert_eq!(unsafe { libc::ioctl(device, code, 8usize) }, -1);
            assert_eq!(kernel::errno(), EFAULT, "{code:#x}");
        }
        // A descriptor that is not a dma-buf.
        let null = fs::File::open("/dev/null").unwrap();
        let null = std::os::fd::AsRawFd::as_raw_fd(&null);
        // SAFETY: the name ends with a zero.
        let memory = unsafe {
            libc::memfd_create(c"hsa-kfd:0:00000001:0000000000000001:00000001".as_ptr(), 0)
        };
        for descriptor in [null, memory, drm] {
            assert_eq!(gpu.import(descriptor), Err(EINVAL));
            assert_eq!(gpu.prime(descriptor), Err(EINVAL));
        }
        assert_eq!(gpu.import(999), Err(EBADF));
        // Invalid arguments of `mmap`. An offset in `/dev/kfd` contains the window from bit 62 on,
        // and the GPU from bit 46 on.
        assert_eq!(mmap(drm, 0, 4096), Err(EINVAL));
        assert_eq!(mmap(kfd, 1 << 62, 4096), Err(EFAULT));
        assert_eq!(mmap(kfd, 3 << 62 | 7 << 46, 8192), Err(ENODEV));
        assert_eq!(mmap(kfd, 3 << 62 | Gpu::ID << 46, 4096), Err(EINVAL));
        let (_, offset) = gpu.alloc(MIB, VRAM | PUBLIC).unwrap();
        assert_eq!(mmap(drm, offset, 2 * MIB as usize), Err(EINVAL));
        assert_eq!(mmap(drm, offset + 4096, 4096), Err(EINVAL));
        let other_gpu = open("/dev/dri/renderD129").unwrap();
        assert_eq!(mmap(other_gpu, offset, 4096), Err(EACCES));
    });
}

#[test]
fn unmapped_user_memory_is_rejected() {
    run_preloaded("unmapped_user_memory_is_rejected", &[], || {
        let gpu = Gpu::open();
        // More pages than the driver checks in one system call.
        let size = 8 * MIB as usize;
        let map = |protection| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: the kernel chooses unused addresses.
            let mapped =
                unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, -1, 0) };
            assert_ne!(mapped, libc::MAP_FAILED);
            mapped as u64
        };
        let host = map(libc::PROT_READ | libc::PROT_WRITE);
        let handle = gpu.register_host(host, size as u64).unwrap();
        gpu.free(handle).unwrap();
        assert_eq!(gpu.register_host(host + 1, 4096), Err(EINVAL), "not page-aligned");
        // SAFETY: the test owns the page, and does not use it.
        unsafe { libc::munmap((host + 7 * MIB) as *mut _, 4096) };
        assert_eq!(gpu.register_host(host, size as u64), Err(EFAULT), "a hole near the end");
        gpu.free(gpu.register_host(host, 7 * MIB).unwrap()).unwrap();
        assert_eq!(gpu.register_host(map(libc::PROT_NONE), 4096), Err(EFAULT), "inaccessible");
        assert_eq!(gpu.register_host(1 << 40, 4096), Err(EFAULT), "not mapped");
        assert_eq!(gpu.register_host(u64::MAX - 4095, 8192), Err(EFAULT), "beyond the end");
        assert!(page_tables().1.starts_with("buffers 0, "), "{:?}", page_tables());
    });
}

#[test]
fn small_bar_rejects_public_memory() {
    run_preloaded("small_bar_rejects_public_memory", &[("HSA_KFD", "profile=rdna3")], || {
        let gpu = Gpu::open();
        assert_eq!(gpu.alloc(MIB, VRAM | PUBLIC), Err(EINVAL));
        assert!(gpu.alloc(MIB, VRAM).is_ok());
    });
}

#[test]
fn processes_of_a_machine_share_memory() {
    let setting = format!("vram=64MiB,machine=devices-{}", std::process::id());
    let setting = std::env::var("HSA_KFD").unwrap_or(setting);
    let name = "processes_of_a_machine_share_memory";
    run_preloaded(name, &[("HSA_KFD", &setting)], || {
        let gpu = Gpu::open();
        if std::env::var_os("TEST_SECOND").is_some() {
            // The second process allocates the remaining memory and kills itself.
            assert_eq!(gpu.available(), 24 * MIB);
            assert_eq!(gpu.alloc(25 * MIB, VRAM), Err(ENOMEM));
            gpu.alloc(24 * MIB, VRAM).unwrap();
            println!("second has allocated");
            // SAFETY: the call only ends this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        gpu.alloc(40 * MIB, VRAM).unwrap();
        let second = fixture::rerun(name, &[("HSA_KFD", &setting), ("TEST_SECOND", "1")]);
        assert!(
            String::from_utf8_lossy(&second.stdout).contains("second has allocated"),
            "{second:?}"
        );
        assert_eq!(gpu.available(), 24 * MIB, "the killed process's memory is available again");
    });
    // SAFETY: the call only returns the user.
    let user = unsafe { libc::geteuid() };
    let machine = setting.rsplit_once('=').expect("a name").1;
    let file = std::env::temp_dir().join(format!("hsa-kfd-{user}-{machine}.machine"));
    // The child process may already have removed the file.
    let _ = fs::remove_file(file);
}

#[test]
fn system_memory_is_limited() {
    run_preloaded("system_memory_is_limited", &[], || {
        let gpu = Gpu::open();
        let file = open("/dev/dri/renderD128").unwrap();
        let number = |path: &str| -> u64 {
            let text = fs::read_to_string(path).unwrap();
            text.split_whitespace().next_back().unwrap().parse().unwrap()
        };
        let used = || number("/sys/class/drm/card0/device/mem_info_gtt_used");
        let limit = number("/sys/class/drm/card0/device/mem_info_gtt_total");
        let bank = "/sys/devices/virtual/kfd/kfd/topology/nodes/0/mem_banks/0/properties";
        let bank = fs::read_to_string(bank).unwrap();
        let memory = bank.lines().find_map(|line| line.strip_prefix("size_in_bytes ")).unwrap();
        assert_eq!(memory.parse::<u64>().unwrap() / 2 / 4096 * 4096, limit);
        // Sizes of GPU memory, of its visible part, and of system memory: total, usable, used, largest allocation.
        let mut sizes = [0u64; 12];
        let memory_query = 0x19 << 32 | size_of_val(&sizes) as u64;
        call(file, calls::INFO, &mut [sizes.as_mut_ptr() as u64, memory_query, 0, 0]).unwrap();
        assert_eq!(sizes[8..], [limit, limit, 0, limit]);
        for too_large in [limit + 4096, 1 << 47, 1 << 62, u64::MAX] {
            assert_eq!(gpu.alloc(too_large, GTT), Err(ENOMEM), "{too_large:#x}");
        }
        let (handle, _) = gpu.alloc(limit, GTT).unwrap();
        assert_eq!(used(), limit);
        assert_eq!(gpu.alloc(1, GTT), Err(ENOMEM));
        let create = |size| {
            let mut arguments = [size, 4096, 2, 0];
            call(file, calls::GEM_CREATE, &mut arguments).map(|()| arguments[0])
        };
        assert_eq!(create(1), Err(ENOMEM));
        gpu.free(handle).unwrap();
        for too_large in [limit, 1 << 47, 1 << 62, u64::MAX] {
            assert_eq!(create(too_large), Err(ENOMEM), "{too_large:#x}");
        }
        let handle = create(limit - 4096).unwrap();
        assert_eq!(used(), limit - 4096);
        call(file, calls::GEM_CLOSE, &mut [handle]).unwrap();
        assert_eq!(used(), 0);
        close(file).unwrap();
    });
}

/// A buffer of system memory that was exported as a dma-buf outlives the file that created it, and amdkfd can import
/// it.
#[test]
fn system_memory_is_created_and_shared() {
    run_preloaded("system_memory_is_created_and_shared", &[("HSA_KFD", "vram=64MiB")], || {
        let gpu = Gpu::open();
        let file = open("/dev/dri/renderD128").unwrap();
        // Size, alignment, location (2: system memory, 4: the GPU's memory), flags.
        let create = |mut arguments: [u64; 4]| {
            call(file, calls::GEM_CREATE, &mut arguments).map(|()| arguments[0])
        };
        for invalid in [[0, 0, 2, 0], [4096, 100, 2, 0], [4096, 4096, 4, 0], [4096, 4096, 2, 1]] {
            assert_eq!(create(invalid), Err(EINVAL), "{invalid:?}");
        }
        assert_eq!(create([u64::MAX, 4096, 2, 0]), Err(ENOMEM));
        let handle = create([2 * MIB - 1, 4096, 2, 0]).unwrap();
        assert_eq!(gpu.available(), 64 * MIB, "the GPU's memory is unused");
        let mut prime = [handle as u32, (libc::O_CLOEXEC | libc::O_RDWR) as u32, 0];
        call(file, calls::PRIME_HANDLE_TO_FD, &mut prime).unwrap();
        call(file, calls::GEM_CLOSE, &mut [handle]).unwrap();
        close(file).unwrap();
        let descriptor = prime[2] as i32;
        let import = gpu.import(descriptor).unwrap();
        let gem = gpu.prime(descriptor).unwrap();
        close(descriptor).unwrap();
        gpu.gem_va(gem, MAP, ADDRESS, 2 * MIB).unwrap();
        assert_eq!(page_tables().0.len(), 1);
        gpu.gem_va(gem, UNMAP, ADDRESS, 2 * MIB).unwrap();
        gpu.gem_close(gem).unwrap();
        gpu.free(import).unwrap();
        assert_eq!(page_tables().1, "buffers 0, descriptors 0");
    });
}
