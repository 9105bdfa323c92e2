//! Calls of a process that has reached the kernel's limit of mappings (`vm.max_map_count`).

use crate::amd_runtime::on_each;
use crate::amd_runtime::raw::{RW, RawRuntime, SIZE};
use crate::machine::{Library, access};
use crate::table::CPU_GRANT_AT_MAPPING_LIMIT_ABORTS;
use hsa_vmm::{Access, Runtime, Vmm};
use std::ptr::null_mut;

/// Makes mappings until the kernel allows only `free` more. Returns all of them.
fn exhaust_mappings(free: usize) -> Vec<*mut libc::c_void> {
    // Allocates the vector before the limit is reached.
    let mut pages = Vec::with_capacity(1 << 20);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    while pages.len() < pages.capacity() {
        // The kernel does not merge adjacent mappings with different protection.
        let protection = if pages.len() % 2 == 0 { libc::PROT_READ } else { libc::PROT_NONE };
        // SAFETY: the kernel chooses a free address, so it replaces no mapping.
        let page = unsafe { libc::mmap(null_mut(), 4096, protection, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            let rest = pages.split_off(pages.len() - free);
            unmap(rest);
            return pages;
        }
        pages.push(page);
    }
    panic!("the kernel's limit of mappings is not reached");
}

fn unmap(pages: Vec<*mut libc::c_void>) {
    for page in pages {
        // SAFETY: `exhaust_mappings` mapped the page, and nothing else uses it.
        unsafe { libc::munmap(page, 4096) };
    }
}

#[test]
fn grant_to_the_cpu_aborts_on_the_runtime() {
    let test = "mapping_limit::grant_to_the_cpu_aborts_on_the_runtime";
    CPU_GRANT_AT_MAPPING_LIMIT_ABORTS.check_on_each_release(test, |fixture| {
        let raw = RawRuntime::start(fixture);
        let (base, _) = raw.map_new_memory(SIZE, &[]);
        let _pages = exhaust_mappings(0);
        raw.set_access(base, SIZE, &[(raw.cpu, RW)]).is_ok()
    });
}

#[test]
fn grant_to_the_cpu_does_not_abort_by_the_library() {
    on_each("mapping_limit::grant_to_the_cpu_does_not_abort_by_the_library", |fixture| {
        let library = Library::load(fixture.runtime());
        let (base, _) = library.map_new_memory(0, SIZE);
        let cpu = library.cpu(0);
        let pages = exhaust_mappings(0);
        let granted = library.vmm.set_access(base, SIZE, &[access(cpu, Access::ReadWrite)]);
        unmap(pages);
        library.vmm.check().unwrap();
        let expected = if granted.is_ok() { Access::ReadWrite } else { Access::None };
        assert_eq!(library.vmm.get_access(cpu, base).unwrap(), expected, "{granted:?}");
    });
}

/// The probes for quirks also grant the CPU access.
#[test]
fn opening_near_the_limit_does_not_abort() {
    on_each("mapping_limit::opening_near_the_limit_does_not_abort", |fixture| {
        // SAFETY: the file is a runtime that the tests fetched.
        let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
        for free in 0..12 {
            let pages = exhaust_mappings(free);
            let opened = Vmm::open(&runtime);
            unmap(pages);
            assert!(opened.unwrap().probes().is_empty(), "{free} free mappings");
        }
    });
}
