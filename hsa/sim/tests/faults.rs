//! Planned faults: mostly of calls that return success but misbehave.

mod setup;

use setup::*;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

const PAGE: usize = 4 * KIB;

fn set_faults(setup: &Setup, plan: &str) {
    setup.simulation.set_faults(plan.parse().expect("a plan"));
}

/// Starts a simulation, and maps two pages of GPU 0's memory without access. Returns the simulation and the address of
/// the pages.
fn start_with_two_pages() -> (Setup, usize) {
    let setup = start("permissions=enforced");
    let (base, _) = setup.mapped(2 * PAGE, &[]);
    (setup, base)
}

#[test]
fn lost_calls_have_no_effect() {
    let setup = start("");
    let (base, handle) = (setup.reserve(PAGE), setup.create(PAGE));
    set_faults(&setup, "hsa_amd_vmem_map#1=lost");
    assert_eq!(setup.map(base, PAGE, handle), OK);
    assert_eq!(setup.simulation.usage().mappings, 0);
    assert_eq!(setup.map(base, PAGE, handle), OK);
    assert_eq!(setup.simulation.usage().mappings, 1);
    assert_eq!(setup.simulation.failed_calls(), [], "the call did not fail");
}

#[test]
fn late_calls_are_performed_later() {
    let setup = start("");
    let (base, handle) = (setup.reserve(PAGE), setup.create(PAGE));
    set_faults(&setup, "hsa_amd_vmem_map=late:20ms");
    assert_eq!(setup.map(base, PAGE, handle), OK);
    assert_eq!(setup.set(base, PAGE, &[(setup.gpus[0], RW)]), INVALID_ALLOCATION);
    let began = Instant::now();
    while setup.set(base, PAGE, &[(setup.gpus[0], RW)]) != OK {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(began.elapsed() >= Duration::from_millis(10));
}

#[test]
fn delay_fault_lengthens_the_call() {
    let setup = start("");
    set_faults(&setup, "hsa_amd_vmem_address_reserve_align=20ms;hsa_amd_vmem_address_reserve=20ms");
    let began = Instant::now();
    setup.reserve(PAGE);
    assert!(began.elapsed() >= Duration::from_millis(20));
}

#[test]
fn permission_faults_change_access() {
    let (setup, base) = start_with_two_pages();
    let page = || setup.simulation.page(0, base).map(|page| (page.readable, page.writable));
    set_faults(&setup, "hsa_amd_vmem_set_access=wide");
    assert_eq!(setup.set(base, 2 * PAGE, &[(setup.gpus[0], RO), (setup.cpus[0], RO)]), OK);
    assert_eq!(page(), Some((true, true)));
    write(base, 7);
    assert_eq!(setup.get(base, setup.gpus[0]), Ok(RO), "the reported permission");
    set_faults(&setup, "hsa_amd_vmem_set_access=narrow");
    assert_eq!(setup.set(base, 2 * PAGE, &[(setup.gpus[0], RW), (setup.cpus[0], RW)]), OK);
    assert_eq!(page(), Some((true, false)));
    assert_eq!(read(base), 7);
    assert_eq!(in_child(|| write(base, 8)), Ended::Signal(libc::SIGSEGV));
}

#[test]
fn set_access_faults_change_the_mapping() {
    let (setup, base) = start_with_two_pages();
    assert_eq!(setup.set(base, 2 * PAGE, &[(setup.cpus[0], RW)]), OK);
    write(base, 1);
    write(base + PAGE, 2);
    let offset = |address: usize| setup.simulation.page(0, address).map(|page| page.offset);
    set_faults(&setup, "hsa_amd_vmem_set_access=shifted");
    assert_eq!(setup.set(base, 2 * PAGE, &[(setup.gpus[0], RW)]), OK);
    assert_eq!(
        [offset(base), offset(base + PAGE + 8)],
        [Some(PAGE as u64), Some(8)],
        "the mapping wraps at the end"
    );
    assert_eq!(setup.fill(base, 9, 2), OK);
    assert_eq!((read(base), read(base + PAGE)), (1, 9 << 32 | 9));
    let (other, _) = setup.mapped(2 * PAGE, &[(setup.cpus[0], RW)]);
    write(other, 3);
    set_faults(&setup, "hsa_amd_vmem_set_access=other");
    assert_eq!(setup.set(other, 2 * PAGE, &[(setup.gpus[0], RW)]), OK);
    assert_eq!(setup.fill(other, 9, 2), OK);
    assert_eq!(read(other), 3);
    let (half, _) = setup.mapped(2 * PAGE, &[]);
    set_faults(&setup, "hsa_amd_vmem_set_access=half");
    assert_eq!(setup.set(half, 2 * PAGE, &[(setup.gpus[0], RW)]), OK);
    assert!(offset(half).is_some() && offset(half + PAGE).is_none());
}

#[test]
fn export_faults_substitute_or_leak() {
    let setup = start("");
    let (base, handle) = setup.mapped(PAGE, &[(setup.cpus[0], RW)]);
    write(base, 5);
    let read_first = |descriptor| {
        // SAFETY: the test has just exported the descriptor, and owns it.
        let file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
        let mut bytes = [0; 8];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).expect("memory");
        u64::from_ne_bytes(bytes)
    };
    assert_eq!(read_first(setup.export(handle).expect("a descriptor")), 5);
    set_faults(&setup, "hsa_amd_vmem_export_shareable_handle=other");
    assert_eq!(read_first(setup.export(handle).expect("a descriptor")), 0);
    succeeds_in_child(|| {
        let setup = start("");
        let (_, handle) = setup.mapped(PAGE, &[]);
        let open = || std::fs::read_dir("/proc/self/fd").expect("a list").count();
        set_faults(&setup, "hsa_amd_vmem_export_shareable_handle=leak");
        let before = open();
        // Three descriptors are new: the memory file, the exported descriptor and the leaked
        // descriptor.
        setup.export(handle).expect("a descriptor");
        assert_eq!(open(), before + 3);
    });
}

#[test]
fn leak_fault_keeps_memory_or_addresses() {
    let setup = start("");
    let used = || setup.simulation.usage().vram_used[0];
    for (function, leaked) in [("handle_release", 2), ("unmap", 2), ("address_free", 0)] {
        let (before, (base, handle)) = (used(), setup.mapped(2 * PAGE, &[]));
        set_faults(&setup, &format!("hsa_amd_vmem_{function}=leak"));
        assert_eq!((setup.unmap(base, 2 * PAGE), setup.release(handle)), (OK, OK));
        assert_eq!(setup.free(base, 2 * PAGE), OK);
        assert_eq!((used() - before) as usize, leaked * PAGE, "{function}");
        let leaked_addresses = setup.try_reserve(2 * PAGE, base, 0, 0) != Ok(base);
        assert_eq!(leaked_addresses, function == "address_free", "{function}");
    }
    let usage = setup.simulation.usage();
    assert_eq!((usage.handles, usage.mappings), (0, 0), "the state is consistent");
    let before = used();
    set_faults(&setup, "hsa_amd_memory_pool_free=leak");
    let memory = setup.allocate(setup.vram[0], PAGE).expect("memory");
    assert_eq!(setup.pool_free(memory), OK);
    assert_eq!((used() - before) as usize, PAGE);
}

#[test]
fn copy_faults_change_the_contents() {
    let setup = start("");
    let both = [(setup.cpus[0], RW), (setup.gpus[0], RW)];
    let ((from, _), (to, _)) = (setup.mapped(2 * PAGE, &both), setup.mapped(2 * PAGE, &both));
    for at in [from, from + PAGE] {
        write(at, 0x10);
    }
    let (copy, fill) = (|| setup.copy(to, from, 2 * PAGE), || setup.fill(to, 0x20, 2 * PAGE / 4));
    set_faults(&setup, "hsa_memory_copy=garbled;hsa_amd_memory_fill=garbled");
    assert_eq!((copy(), read(to), read(to + PAGE)), (OK, 0x11, 0x10));
    assert_eq!((fill(), read(to) as u32, read(to + PAGE) as u32), (OK, 0x21, 0x20));
    set_faults(&setup, "hsa_memory_copy=half;hsa_amd_memory_fill=half");
    assert_eq!((copy(), read(to), read(to + PAGE) as u32), (OK, 0x10, 0x20));
    assert_eq!((fill(), read(to) as u32), (OK, 0x20));
    set_faults(&setup, "hsa_memory_copy=late:20ms");
    assert_eq!((copy(), read(to) as u32), (OK, 0x20));
    let began = Instant::now();
    while read(to) != 0x10 {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn size_faults_change_reported_sizes() {
    let setup = start("vram=1g");
    let size = || pool_info::<usize>(setup.hsa, setup.vram[0], HSA_AMD_MEMORY_POOL_INFO_SIZE);
    let free = || agent_info::<u64>(setup.hsa, setup.gpus[0], HSA_AMD_AGENT_INFO_MEMORY_AVAIL);
    set_faults(&setup, "hsa_amd_memory_pool_get_info=double;hsa_agent_get_info=half");
    assert_eq!((size(), free()), (Ok(2 * GIB), Ok(GIB as u64 / 2)));
}

#[test]
fn crash_fault_aborts_and_hang_fault_blocks() {
    let crashed = in_child(|| drop(start("faults=hsa_init=crash")));
    assert_eq!(crashed, Ended::Signal(libc::SIGABRT));
    let hung = in_child(|| {
        // SAFETY: the call only ends this process after one second.
        unsafe { libc::alarm(1) };
        drop(start("faults=hsa_init=hang"));
    });
    assert_eq!(hung, Ended::Signal(libc::SIGALRM));
}
