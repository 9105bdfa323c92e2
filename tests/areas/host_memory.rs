//! Areas that map the caller's host memory: borrowed memory, memory by pointer, memory mapped twice, and leaked memory.

use crate::AML_BUSY;
use crate::GIB;
use crate::fixture::{Fixture, on_amd};
use crate::process;
use hsa_vmm::area::{AreaFlags, MmapOptions};
use hsa_vmm::error::{Argument, Operation, Problem};
use hsa_vmm::hsa_sys::HSA_STATUS_ERROR;
use hsa_vmm::simulation::{Config, FaultPlan};
use hsa_vmm::{Area, ErrorKind, Runtime};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Zeroed memory. Only its accessed pages use physical memory.
pub struct ZeroedMemory {
    start: *mut u8,
    size: usize,
}

impl ZeroedMemory {
    #[track_caller]
    pub fn new(size: usize) -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the kernel chooses a free address, so it replaces no mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Self { start: start.cast(), size }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `new` mapped `size` readable and writable bytes, and the slice borrows `self`.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.size) }
    }
}

impl Drop for ZeroedMemory {
    fn drop(&mut self) {
        // SAFETY: `new` created the mapping, and no slice borrows it any more.
        unsafe { libc::munmap(self.start.cast(), self.size) };
    }
}

/// Returns `VmRSS` of this process, in bytes.
fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

fn areas(fixture: &Fixture) -> [Area; 2] {
    let area = |flags| fixture.area(0, flags).unwrap();
    [area(AreaFlags::MAPPED), area(AreaFlags::DEFAULT)]
}

/// Maps two adjacent parts of one page. When the borrows end, the page contains the bytes that the device has written.
fn check_page_parts(fixture: &Fixture) {
    let [mapped_area, default_area] = areas(fixture);
    let memory = default_area.mmap(200, MmapOptions::new()).unwrap();
    memory.fill(0, 0x0707_0707, 200).unwrap();
    let mut page = vec![1u8; 1000];
    let (left, right) = page[300..].split_at_mut(100);
    let first = mapped_area.mmap(left.len(), MmapOptions::new().with_host_memory(left)).unwrap();
    // Maps fewer bytes than the slice has.
    let second = mapped_area.mmap(77, MmapOptions::new().with_host_memory(right)).unwrap();
    assert_eq!(second.address().get(), first.address().get() + 100);
    assert!(fixture.can_access(0, first.device_address()));
    assert!(fixture.can_access(0, second.device_address()));
    first.copy(10, &memory, 0, 80).unwrap();
    second.write(70, b"written").unwrap();
    // The device copies back, and must access both mappings.
    memory.copy(0, &first, 0, 100).unwrap();
    memory.copy(100, &second, 0, 77).unwrap();
    let mut bytes = [0; 177];
    memory.read(0, &mut bytes).unwrap();
    drop((first, second));
    assert_eq!(bytes[..], page[300..477]);
    assert_eq!(page[300..310], [1; 10]);
    assert_eq!(page[310..390], [7; 80]);
    assert_eq!(page[390..470], [1; 80]);
    assert_eq!(&page[470..477], b"written");
    assert_eq!(page[477..], [1; 523]);
}

#[test]
fn page_parts_can_be_mapped_on_the_simulation() {
    let fixture = Fixture::simulated(Config::mi300x(2));
    check_page_parts(&fixture);
    fixture.assert_idle();
}

#[test]
fn page_parts_can_be_mapped_on_amds_runtime() {
    on_amd("host_memory::page_parts_can_be_mapped_on_amds_runtime", check_page_parts);
}

/// Mapping host memory that is already mapped fails. AMD's runtime would count locks of the same range, and would
/// confuse two ranges with the same start.
fn check_mapped_host_memory(fixture: &Fixture) {
    let [mapped_area, _] = areas(fixture);
    let mut page = vec![0u8; 8192];
    let start = NonNull::new(page.as_mut_ptr()).unwrap();
    let map = |offset: usize, size: usize| {
        // SAFETY: the range is inside `page`, which outlives its mappings and is not accessed meanwhile.
        let options = unsafe { MmapOptions::new().with_host_pointer(start.add(offset)) };
        mapped_area.mmap(size, options)
    };
    let mapped = map(1000, 1000).unwrap();
    for (offset, size) in
        [(1000, 1000), (1000, 1), (1000, 4000), (0, 1001), (1999, 1), (0, 8192), (1500, 100)]
    {
        let error = map(offset, size).unwrap_err();
        let busy = ErrorKind::HostMemoryMapped(mapped.address());
        assert_eq!(*error.kind(), busy, "{offset} {size}");
        assert_eq!(error.aml(), AML_BUSY);
    }
    let (before, after) = (map(0, 1000).unwrap(), map(2000, 6192).unwrap());
    drop(mapped);
    let remapped = map(1000, 500).unwrap();
    assert_eq!(map(1499, 1).map(drop).unwrap_err().aml(), AML_BUSY);
    let rest = map(1500, 500).unwrap();
    drop((before, after, remapped, rest));
    drop(map(0, 8192).unwrap());
}

#[test]
fn mapped_host_memory_is_busy_on_the_simulation() {
    let fixture = Fixture::simulated(Config::mi300x(2));
    check_mapped_host_memory(&fixture);
    fixture.assert_idle();
}

#[test]
fn mapped_host_memory_is_busy_on_amds_runtime() {
    on_amd("host_memory::mapped_host_memory_is_busy_on_amds_runtime", check_mapped_host_memory);
}

/// Host memory that one `Runtime` has mapped is busy for another `Runtime`. The two share AMD's loaded library. If
/// their ranges overlapped, AMD's library would unlock neither range.
fn check_host_memory_of_two_runtimes(fixtures: [&Fixture; 2]) {
    let mut bytes = vec![3u8; 64];
    let pointer = NonNull::new(bytes.as_mut_ptr()).unwrap();
    let [first, second] = fixtures.map(|fixture| areas(fixture)[0].clone());
    let map = |area: &Area, size| {
        // SAFETY: the bytes outlive their mapping, and nothing else accesses them meanwhile.
        area.mmap(size, unsafe { MmapOptions::new().with_host_pointer(pointer) })
    };
    let mapped = map(&first, 64).unwrap();
    let error = map(&second, 32).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::HostMemoryMapped(_)), "{error}");
    mapped.munmap().unwrap();
    map(&second, 32).unwrap().munmap().unwrap();
}

#[test]
fn other_runtimes_memory_is_busy_on_the_simulation() {
    let fixtures = [(); 2].map(|()| Fixture::simulated(Config::mi300x(1)));
    check_host_memory_of_two_runtimes([&fixtures[0], &fixtures[1]]);
    fixtures.iter().for_each(Fixture::assert_idle);
}

#[test]
fn other_runtimes_memory_is_busy_on_amds_runtime() {
    let test = "host_memory::other_runtimes_memory_is_busy_on_amds_runtime";
    on_amd(test, |fixture| {
        let path = fixture.runtime.info().path.clone().unwrap();
        // SAFETY: the file is a fetched release of AMD's runtime.
        let runtime = unsafe { Runtime::load_from(path) }.unwrap();
        let second_fixture = Fixture { runtime, simulation: None };
        check_host_memory_of_two_runtimes([fixture, &second_fixture]);
    });
}

#[test]
fn mmap_rejects_missing_small_and_unused_host_memory() {
    let fixture = Fixture::simulated(Config::mi300x(2));
    let mut bytes = [0u8; 10];
    for bits in 0..16 {
        let flags = AreaFlags::from_bits_retain(bits);
        let area = fixture.area(0, flags).unwrap();
        let assert_rejected = |error: hsa_vmm::Error, argument, problem| {
            assert_eq!(error.operation(), Operation::Mmap, "{flags}");
            assert_eq!(error.argument().zip(error.problem()), Some((argument, problem)), "{flags}");
        };
        let maps_host_memory = bits & 0b0111 == AreaFlags::MAPPED.bits();
        if maps_host_memory {
            let error = area.mmap(10, MmapOptions::new()).unwrap_err();
            assert_rejected(error, Argument::Host, Problem::MissingHostMemory);
            let error = area.mmap(11, MmapOptions::new().with_host_memory(&mut bytes)).unwrap_err();
            assert_rejected(
                error,
                Argument::Size,
                Problem::TooLarge { maximum: 10, whole: Argument::Host },
            );
            area.mmap(10, MmapOptions::new().with_host_memory(&mut bytes)).unwrap();
            // SAFETY: `mmap` rejects the size, and does not access the bytes.
            let options =
                unsafe { MmapOptions::new().with_host_pointer(NonNull::from(&mut bytes[0])) };
            let error = area.mmap(usize::MAX, options).unwrap_err();
            assert_eq!(error.problem(), Some(Problem::Overflow), "{error}");
        } else {
            let error = area.mmap(10, MmapOptions::new().with_host_memory(&mut bytes)).unwrap_err();
            assert_rejected(error, Argument::Host, Problem::UnusedHostMemory);
        }
    }
    fixture.assert_idle();
}

/// Mapping host memory makes only the accessed pages resident.
fn check_untouched_pages(fixture: &Fixture) {
    let [mapped_area, _] = areas(fixture);
    let mut memory = ZeroedMemory::new(3 * GIB);
    let before = resident_bytes();
    let mapped =
        mapped_area.mmap(3 * GIB, MmapOptions::new().with_host_memory(memory.bytes())).unwrap();
    for offset in [0, GIB, 3 * GIB - 1] {
        assert!(fixture.can_access(0, mapped.device_address().checked_add(offset).unwrap()));
        mapped.write(offset, b"x").unwrap();
    }
    drop(mapped);
    assert_eq!(memory.bytes()[3 * GIB - 1], b'x');
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < GIB / 16, "{grown:#x} bytes became resident");
}

#[test]
fn untouched_pages_use_no_memory_on_the_simulation() {
    if process::rerun_in_own_process() {
        return;
    }
    // Runs in a child, which has one thread. Other threads would also change the resident memory.
    let end = process::in_child(|| {
        let fixture = Fixture::simulated(Config::mi300x(2));
        check_untouched_pages(&fixture);
        fixture.assert_idle();
    });
    assert_eq!(end, process::End::Success);
}

#[test]
fn untouched_pages_use_no_memory_on_amds_runtime() {
    on_amd("host_memory::untouched_pages_use_no_memory_on_amds_runtime", check_untouched_pages);
}

/// Host memory stays locked if `mem::forget` leaks its `AreaMemory`. Another `mmap` of the same memory fails.
#[test]
fn leaked_host_memory_stays_busy() {
    let fixture = Fixture::simulated(Config::mi300x(1));
    let [mapped_area, _] = areas(&fixture);
    // No other test uses this memory later.
    let bytes = Vec::leak(vec![0u8; 100]);
    std::mem::forget(mapped_area.mmap(100, MmapOptions::new().with_host_memory(bytes)).unwrap());
    let error = mapped_area.mmap(50, MmapOptions::new().with_host_memory(bytes)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::HostMemoryMapped(_)), "{error}");
}

/// Host memory stays busy after a failed unlock. AMD's runtime 7.2 aborts the process at the unlock of memory that is
/// locked twice.
#[test]
fn failed_unlock_keeps_memory_busy() {
    let fixture = Fixture::simulated(Config::mi300x(1));
    let simulation = fixture.simulation.as_ref().unwrap();
    let [mapped_area, _] = areas(&fixture);
    // No other test uses this memory later.
    let bytes = Vec::leak(vec![0u8; 100]);
    let mapped = mapped_area.mmap(100, MmapOptions::new().with_host_memory(bytes)).unwrap();
    simulation.set_faults(FaultPlan::none().always("hsa_amd_memory_unlock", HSA_STATUS_ERROR));
    drop(mapped);
    simulation.set_faults(FaultPlan::none());
    for size in [50, 100] {
        let remapped = mapped_area.mmap(size, MmapOptions::new().with_host_memory(bytes));
        let error = remapped.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::HostMemoryMapped(_)), "{error}");
    }
    assert_eq!(simulation.calls("hsa_amd_memory_lock"), 1);
}

#[test]
fn failed_lock_does_not_keep_memory_busy() {
    let fixture = Fixture::simulated(Config::mi300x(1));
    let simulation = fixture.simulation.as_ref().unwrap();
    let [mapped_area, _] = areas(&fixture);
    let mut bytes = vec![0u8; 100];
    simulation.set_faults(FaultPlan::none().always("hsa_amd_memory_lock", HSA_STATUS_ERROR));
    mapped_area.mmap(100, MmapOptions::new().with_host_memory(&mut bytes)).unwrap_err();
    simulation.set_faults(FaultPlan::none());
    mapped_area.mmap(100, MmapOptions::new().with_host_memory(&mut bytes)).unwrap();
}

/// The child maps host memory that its parent has mapped. While the parent forks, other threads map and unmap other
/// memory.
#[test]
fn forked_child_maps_the_parents_host_memory() {
    if process::rerun_in_own_process() {
        return;
    }
    let map = |fixture: &Fixture, bytes: &'static mut [u8]| {
        let area = fixture.area(0, AreaFlags::MAPPED).unwrap();
        area.mmap(bytes.len(), MmapOptions::new().with_host_memory(bytes)).unwrap()
    };
    let fixture = Fixture::simulated(Config::mi300x(1));
    let bytes = Vec::leak(vec![0; 1 << 16]);
    let (start, size) = (bytes.as_mut_ptr(), bytes.len());
    let mapped = map(&fixture, bytes);
    let stop = AtomicBool::new(false);
    let mut ends = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut bytes = vec![0; 1 << 20];
                let area = fixture.area(0, AreaFlags::MAPPED).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let options = MmapOptions::new().with_host_memory(&mut bytes);
                    drop(area.mmap(1 << 20, options).unwrap());
                }
            });
        }
        for _ in 0..50 {
            let child = process::Child::start(|| {
                // SAFETY: the memory is leaked, and this process has not mapped it.
                let bytes = unsafe { std::slice::from_raw_parts_mut(start, size) };
                map(&Fixture::simulated(Config::mi300x(1)), bytes).munmap().unwrap();
                0
            });
            ends.push(child.wait_for(Duration::from_secs(10)));
            if ends.last() != Some(&process::End::Success) {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(ends, [process::End::Success; 50]);
    mapped.munmap().unwrap();
}
