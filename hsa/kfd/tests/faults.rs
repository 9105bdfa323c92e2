//! Driver calls that return success but misbehave as planned.

mod fixture;
mod kernel;

use fixture::{is_child, rerun, run_preloaded};
use kernel::{Gpu, MAP, PUBLIC, Result, UNMAP, VRAM, call, calls, close, mmap, page_tables};
use libc::{EINVAL, ENOENT};
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const ADDRESS: u64 = 0x1000_0000;
/// The flag of a readable entry (`AMDGPU_VM_PAGE_READABLE`).
const READ: u64 = 2;

fn with_plan(name: &str, plan: &str, body: impl FnOnce()) {
    run_preloaded(name, &[("HSA_KFD_FAULTS", plan), ("HSA_KFD", "vram=64MiB")], body);
}

/// Allocates 2 MiB of the first GPU's memory. Returns its handles in amdkfd and DRM.
fn allocate(gpu: Gpu) -> (u64, u64) {
    let (handle, _) = gpu.alloc(2 * MIB, VRAM | PUBLIC).unwrap();
    let descriptor = gpu.export(handle).unwrap();
    let gem = gpu.prime(descriptor).unwrap();
    close(descriptor).unwrap();
    (handle, gem)
}

/// Maps memory read-only for the GPU.
fn map_read_only(gpu: Gpu, gem: u64, address: u64) -> Result<()> {
    call(gpu.drm, calls::GEM_VA, &mut [gem, MAP | READ << 32, address, 0, 2 * MIB])
}

#[test]
fn page_table_faults_change_entries() {
    let plan = "GEM_VA.MAP#1=lost,GEM_VA.UNMAP#1=lost,GEM_VA.MAP#3=wide,GEM_VA.MAP#4=narrow,\
                GEM_VA.MAP#5=half,GEM_VA.MAP#6=shifted";
    with_plan("page_table_faults_change_entries", plan, || {
        let gpu = Gpu::open();
        let (_, gem) = allocate(gpu);
        let (map, unmap) =
            (|at| gpu.gem_va(gem, MAP, at, 2 * MIB), |at| gpu.gem_va(gem, UNMAP, at, 2 * MIB));
        map(ADDRESS).unwrap();
        assert_eq!(page_tables().0.len(), 0, "lost");
        map(ADDRESS).unwrap();
        unmap(ADDRESS).unwrap();
        assert_eq!(page_tables().0.len(), 1, "the entry stays");
        unmap(ADDRESS).unwrap();
        assert_eq!(unmap(ADDRESS), Err(ENOENT));
        map_read_only(gpu, gem, ADDRESS).unwrap();
        map(ADDRESS + 16 * MIB).unwrap();
        map(ADDRESS + 32 * MIB).unwrap();
        map(ADDRESS + 48 * MIB).unwrap();
        let (tables, _) = page_tables();
        assert_eq!(tables.len(), 4, "{tables:?}");
        let ends = ["offset 0x0 rw-", "offset 0x0 r-x", "offset 0x0 rwx", "offset 0x1000 rwx"];
        for (line, end) in tables.iter().zip(ends) {
            assert!(line.ends_with(end), "{line}");
        }
        assert!(tables[2].contains("size 0x100000 "), "half: {}", tables[2]);
    });
}

#[test]
fn mmap_faults_change_mappings() {
    let plan = "MMAP#2=lost,MMAP#3=shifted,MMAP#4=narrow";
    with_plan("mmap_faults_change_mappings", plan, || {
        let gpu = Gpu::open();
        let (_, offset) = gpu.alloc(2 * MIB, VRAM | PUBLIC).unwrap();
        let [correct, lost, shifted, narrow] =
            [(); 4].map(|()| mmap(gpu.drm, offset, 2 * MIB as usize).unwrap());
        // SAFETY: the test has just mapped the memory; the addresses are inside, whatever the fault.
        unsafe {
            correct.write(1);
            correct.add(4096).write(2);
            assert_eq!((lost.read(), shifted.read(), narrow.read()), (0, 2, 1));
        }
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let start = format!("{:x}-", narrow.addr());
        let line = maps.lines().find(|line| line.starts_with(&start)).unwrap();
        assert!(line.contains(" r--s "), "{line}");
    });
}

#[test]
fn leak_fault_keeps_memory() {
    let plan = "FREE_MEMORY_OF_GPU#1=leak,GEM_CLOSE#2=leak,EXPORT_DMABUF#3=leak";
    with_plan("leak_fault_keeps_memory", plan, || {
        let gpu = Gpu::open();
        for remaining in [62, 60, 60] {
            let (handle, gem) = allocate(gpu);
            gpu.gem_close(gem).unwrap();
            gpu.free(handle).unwrap();
            assert_eq!(gpu.free(handle), Err(EINVAL), "the handle is freed");
            assert_eq!(gpu.available(), remaining * MIB);
        }
        let open = std::fs::read_dir("/proc/self/fd").unwrap();
        let remaining = open.filter(|entry| {
            let target = std::fs::read_link(entry.as_ref().unwrap().path());
            target.is_ok_and(|target| target.to_string_lossy().contains("hsa-kfd:0"))
        });
        assert_eq!(remaining.count(), 1, "the third export leaks a descriptor");
    });
}

#[test]
fn export_fault_substitutes_memory() {
    with_plan("export_fault_substitutes_memory", "EXPORT_DMABUF#2=other", || {
        let gpu = Gpu::open();
        let (handle, offset) = gpu.alloc(2 * MIB, VRAM | PUBLIC).unwrap();
        let memory = mmap(gpu.drm, offset, 4096).unwrap();
        let [exported, substitute] = [(); 2].map(|()| {
            let descriptor = gpu.export(handle).unwrap();
            mmap(descriptor, 0, 4096).unwrap()
        });
        // SAFETY: the test has just mapped the memory.
        unsafe {
            memory.write(7);
            assert_eq!((exported.read(), substitute.read()), (7, 0));
        }
    });
}

#[test]
fn late_fault_delays_the_call() {
    with_plan(
        "late_fault_delays_the_call",
        "GEM_VA=late:20ms,FREE_MEMORY_OF_GPU=late:20ms",
        || {
            let gpu = Gpu::open();
            let (handle, gem) = allocate(gpu);
            gpu.gem_va(gem, MAP, ADDRESS, 2 * MIB).unwrap();
            assert_eq!(page_tables().0.len(), 0);
            let began = Instant::now();
            let wait = |condition: &dyn Fn() -> bool| {
                while !condition() {
                    assert!(began.elapsed() < Duration::from_secs(20));
                    std::thread::sleep(Duration::from_millis(1));
                }
            };
            wait(&|| page_tables().0.len() == 1);
            gpu.gem_close(gem).unwrap();
            gpu.free(handle).unwrap();
            assert_eq!(gpu.available(), 62 * MIB);
            wait(&|| gpu.available() == 64 * MIB);
        },
    );
}

#[test]
fn size_faults_change_reported_sizes() {
    with_plan(
        "size_faults_change_reported_sizes",
        "AVAILABLE_MEMORY#1=half,AVAILABLE_MEMORY#2=double",
        || {
            let gpu = Gpu::open();
            assert_eq!([(); 3].map(|()| gpu.available()), [32 * MIB, 128 * MIB, 64 * MIB]);
        },
    );
}

/// Runs a test in a process with a planned fault of `AVAILABLE_MEMORY`. Returns the signal that ended the process.
fn ending_signal(name: &str, effect: &str) -> Option<i32> {
    let plan = format!("AVAILABLE_MEMORY={effect}");
    let output = rerun(name, &[("HSA_KFD_FAULTS", &plan)]);
    output.status.signal()
}

#[test]
fn crash_and_hang_faults_end_the_process() {
    let name = "crash_and_hang_faults_end_the_process";
    if is_child() {
        // SAFETY: the call only ends this process after one second.
        unsafe { libc::alarm(1) };
        Gpu::open().available();
        return;
    }
    assert_eq!(ending_signal(name, "crash"), Some(libc::SIGABRT));
    assert_eq!(ending_signal(name, "hang"), Some(libc::SIGALRM));
    assert_eq!(ending_signal(name, "1us"), None);
}
