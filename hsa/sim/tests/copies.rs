//! Copies and fills access exactly the pages in the page table of their agent.
#![allow(clippy::undocumented_unsafe_blocks)] // calls with pointers to locals

mod setup;
use core::ffi::c_void;
use core::ptr::{null, without_provenance, without_provenance_mut};
use setup::*;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const SIZE: usize = 4 * MIB;

/// The faults that a handler received: agent, address, reason.
type Faults = Mutex<Vec<(hsa_agent_t, u64, u32)>>;

unsafe extern "C" fn record(event: *const hsa_amd_event_t, data: *mut c_void) -> hsa_status_t {
    let (event, faults) = unsafe { (&*event, &*data.cast::<Faults>()) };
    assert_eq!(event.event_type, HSA_AMD_GPU_MEMORY_FAULT_EVENT);
    let fault = unsafe { event.__bindgen_anon_1.memory_fault };
    let fault = (fault.agent, fault.virtual_address, fault.fault_reason_mask);
    faults.lock().expect("no panic").push(fault);
    OK
}

/// Registers a handler that records faults. The list is leaked, because the simulation keeps a
/// pointer to it.
fn record_faults(setup: &Setup) -> &'static Faults {
    let faults: &'static Faults = Box::leak(Box::default());
    let register = setup.hsa.hsa_amd_register_system_event_handler.expect("in the table");
    let data = core::ptr::from_ref(faults).cast_mut().cast();
    assert_eq!(unsafe { register(Some(record), data) }, OK);
    faults
}

fn take(faults: &Faults) -> Vec<(hsa_agent_t, u64, u32)> {
    core::mem::take(&mut faults.lock().expect("no panic"))
}

const ABSENT: u32 = HSA_AMD_MEMORY_FAULT_PAGE_NOT_PRESENT;
const READ_ONLY: u32 = HSA_AMD_MEMORY_FAULT_READ_ONLY;

/// AMD's runtime selects the agent by the owner of the address. Before extension 1.12, the runtime does
/// not know the owner of virtual memory (6.4.3 on the emulated driver also returned `INVALID_ALLOCATION`).
#[test]
fn fill_rejects_vmem_before_rocm_7_2() {
    for (generation, status) in [("a", INVALID_ALLOCATION), ("b", OK)] {
        let setup = start(&format!("gpus=1,era={generation}"));
        let (base, _) = setup.mapped(SIZE, &[(setup.gpus[0], RW)]);
        assert_eq!(setup.fill(base, 7, 1), status, "generation {generation}");
    }
}

#[test]
fn copies_between_gpus_and_host() {
    let setup = start("gpus=2");
    let (buffer_a, _) = setup.mapped(SIZE, &[(setup.gpus[0], RW)]);
    let buffer_b = setup.reserve(SIZE);
    let handle = setup.try_create(setup.vram[1], SIZE, MEMORY_TYPE_PINNED, 0).expect("memory");
    assert_eq!(setup.map(buffer_b, SIZE, handle), OK);
    assert_eq!(setup.set(buffer_b, SIZE, &[(setup.gpus[1], RW), (setup.gpus[0], RW)]), OK);
    let text: Vec<u8> = (0..SIZE).map(|index| (index * 7 / 5) as u8).collect();
    let mut back = vec![1u8; SIZE];
    // Memory that was never written reads as zeros, and has no file.
    assert_eq!(setup.copy(back.as_mut_ptr().addr(), buffer_a, SIZE), OK);
    assert!(back.iter().all(|byte| *byte == 0));
    assert_eq!(setup.simulation.usage().descriptors, 0);
    // A copy of several chunks between unaligned addresses.
    assert_eq!(setup.copy(buffer_a + 3, text.as_ptr().addr(), SIZE - 3), OK);
    assert_eq!(setup.copy(back.as_mut_ptr().addr(), buffer_a + 3, SIZE - 3), OK);
    assert_eq!(back[..SIZE - 3], text[..SIZE - 3]);
    // GPU 1 owns the destination and has no access to the source.
    let faults = record_faults(&setup);
    assert_eq!(setup.copy(buffer_b, buffer_a, SIZE), ERROR);
    assert_eq!(take(faults), [(setup.gpus[1], buffer_a as u64, ABSENT)]);
    assert_eq!(setup.set(buffer_a, SIZE, &[(setup.gpus[1], RW)]), OK);
    assert_eq!(setup.copy(buffer_b, buffer_a, SIZE), OK);
    assert_eq!(setup.fill(buffer_b + 4, 0x0102_0304, 2), OK);
    assert_eq!(setup.peek(buffer_b + 4), 0x0102_0304_0102_0304);
    assert_eq!(setup.fill(buffer_b + 1, 0, 1), INVALID_ARGUMENT);
    assert_eq!(setup.copy(buffer_b, buffer_a, 0), OK);
}

#[test]
fn copies_fault_after_the_last_mapping() {
    let setup = start("gpus=1,era=d");
    let base = setup.reserve(4 * SIZE);
    for (at, handle) in [(base, setup.create(SIZE)), (base + SIZE, setup.create(SIZE))] {
        assert_eq!(setup.map(at, SIZE, handle), OK);
        assert_eq!(setup.set(at, SIZE, &[(setup.gpus[0], RW)]), OK);
    }
    let faults = record_faults(&setup);
    assert_eq!(setup.fill(base, 7, 2 * SIZE / 4), OK, "two mappings are one range");
    assert_eq!(setup.fill(base + SIZE, 8, SIZE / 4 + 1), ERROR);
    assert_eq!(take(faults), [(setup.gpus[0], (base + 2 * SIZE) as u64, ABSENT)]);
    assert_eq!(setup.peek(base + 2 * SIZE - 8), 8 << 32 | 8, "bytes before the fault are written");
    assert_eq!(setup.unmap(base, SIZE), OK);
    assert_eq!(setup.fill(base + 100, 7, 1), ERROR);
    assert_eq!(take(faults), [(setup.gpus[0], base as u64, ABSENT)]);
    // The memory is mapped, but no agent has access.
    assert_eq!(setup.map(base, SIZE, setup.create(SIZE)), OK);
    assert_eq!(setup.fill(base + 5000, 7, 1), ERROR);
    assert_eq!(take(faults), [(setup.gpus[0], (base + 4096) as u64, ABSENT)]);
    // Address 4096 is not mapped in the process.
    assert_eq!(setup.copy(base + SIZE, 4096, 8), ERROR);
    assert_eq!(take(faults), [(setup.gpus[0], 4096, ABSENT)]);
}

#[test]
fn copies_obey_enforced_permissions() {
    for enforced in [false, true] {
        let permissions = if enforced { "permissions=enforced" } else { "permissions=recorded" };
        let setup = start(&format!("gpus=1,{permissions}"));
        let faults = record_faults(&setup);
        let (base, _) = setup.mapped(SIZE, &[(setup.gpus[0], RO)]);
        let expected = |forbidden| if enforced && forbidden { ERROR } else { OK };
        assert_eq!(setup.fill(base, 1, 1), expected(true));
        assert_eq!(take(faults).pop(), enforced.then_some((setup.gpus[0], base as u64, READ_ONLY)));
        let mut word = 0u64;
        let host = (&raw mut word).addr();
        assert_eq!(setup.copy(host, base, 8), expected(false));
        assert_eq!(setup.set(base, SIZE, &[(setup.gpus[0], WO)]), OK);
        assert_eq!(setup.fill(base, 1, 1), expected(false));
        assert_eq!(setup.copy(host, base, 8), expected(true));
        assert_eq!(setup.set(base, SIZE, &[(setup.gpus[0], NONE)]), OK);
        assert_eq!(setup.fill(base, 1, 1), expected(true));
        take(faults);
    }
}

#[test]
fn pool_memory_obeys_allow_access() {
    let setup = start("gpus=2");
    let faults = record_faults(&setup);
    let host = setup.allocate(setup.system, SIZE).expect("memory");
    let own = setup.allocate(setup.vram[0], SIZE).expect("memory");
    write(host, 3);
    assert_eq!(setup.copy(own, host, 8), ERROR, "GPU 0 has no access");
    assert_eq!(take(faults), [(setup.gpus[0], host as u64, ABSENT)]);
    assert_eq!(setup.allow(&[setup.gpus[0]], host), OK);
    assert_eq!(setup.copy(own, host, 8), OK);
    assert_eq!(read(own), 3);
    assert_eq!(setup.copy(host + 8, own, 8), OK);
    assert_eq!(read(host + 8), 3);
}

#[test]
fn unhandled_fault_aborts() {
    let ended = in_child(|| {
        let setup = start("gpus=1");
        let (base, _) = setup.mapped(SIZE, &[]);
        setup.fill(base, 1, 1);
    });
    assert_eq!(ended, Ended::Signal(libc::SIGABRT));
}

#[test]
fn async_copies_wait_for_dependencies() {
    let setup = start("gpus=2");
    let faults = record_faults(&setup);
    let (buffer_a, _) = setup.mapped(SIZE, &[(setup.gpus[0], RW), (setup.gpus[1], RW)]);
    let (buffer_b, _) = setup.mapped(SIZE, &[(setup.gpus[0], RW)]);
    let copy = setup.hsa.hsa_amd_memory_async_copy.expect("in the table");
    let copy = |to: usize,
                to_agent,
                from: usize,
                from_agent,
                dependencies: &[hsa_signal_t],
                done| unsafe {
        let (to, from) = (without_provenance_mut(to), without_provenance(from));
        let list = if dependencies.is_empty() { null() } else { dependencies.as_ptr() };
        copy(to, to_agent, from, from_agent, SIZE, dependencies.len() as u32, list, done)
    };
    let (first, second) = (setup.signal(1), setup.signal(1));
    setup.poke(buffer_a, 6);
    // The copy that changes `second` waits for `first`. The copy that changes `first` is submitted later,
    // and waits for `released`.
    let released = setup.signal(1);
    let mut host = vec![0u8; SIZE];
    let back = setup.lock(host.as_mut_ptr().addr(), SIZE).expect("host memory");
    assert_eq!(copy(back, setup.cpus[0], buffer_b, setup.gpus[0], &[first], second), OK);
    assert_eq!(copy(buffer_b, setup.gpus[0], buffer_a, setup.gpus[0], &[released], first), OK);
    let load = setup.hsa.hsa_signal_load_scacquire.expect("in the table");
    assert_eq!(unsafe { (load(first), load(second)) }, (1, 1));
    let store = setup.hsa.hsa_signal_store_screlease.expect("in the table");
    unsafe { store(released, 0) };
    assert_eq!(setup.wait_below(second, 1), 0);
    assert_eq!(read(back), 6);
    // GPU 1 has no access to the destination.
    let third = setup.signal(5);
    assert_eq!(copy(buffer_b, setup.gpus[1], buffer_a, setup.gpus[1], &[], third), OK);
    assert!(setup.wait_below(third, 0) < 0);
    assert_eq!(take(faults), [(setup.gpus[1], buffer_b as u64, ABSENT)]);
    let none = hsa_signal_t { handle: 0 };
    let invalid = HSA_STATUS_ERROR_INVALID_SIGNAL;
    assert_eq!(copy(buffer_b, setup.gpus[0], buffer_a, setup.gpus[0], &[], none), invalid);
    assert_eq!(copy(buffer_b, setup.gpus[0], buffer_a, setup.gpus[0], &[none], first), invalid);
    let unknown = hsa_agent_t { handle: 3 };
    assert_eq!(copy(buffer_b, unknown, buffer_a, setup.gpus[0], &[], first), INVALID_AGENT);
    let destroy = setup.hsa.hsa_signal_destroy.expect("in the table");
    assert_eq!(unsafe { (destroy(third), destroy(third)) }, (OK, invalid));
}

/// Copies eight bytes with GPU 0 in the background, and waits. Returns 0 on success, and a negative
/// value after a fault.
fn copy_in_background(setup: &Setup, to: usize, from: usize) -> i64 {
    let copy = setup.hsa.hsa_amd_memory_async_copy.expect("in the table");
    let (done, gpu) = (setup.signal(1), setup.gpus[0]);
    let (to, from) = (without_provenance_mut(to), without_provenance(from));
    assert_eq!(unsafe { copy(to, gpu, from, gpu, 8, 0, null(), done) }, OK);
    setup.wait_below(done, 1)
}

/// `tests/amd/transfers.rs` shows that AMD's runtimes behave in the same way.
#[test]
fn gpu_faults_on_host_memory_that_is_not_locked() {
    for generation in ["a", "b", "c", "d"] {
        let setup = start(&format!("gpus=1,era={generation}"));
        let faults = record_faults(&setup);
        let (base, _) = setup.mapped(SIZE, &[(setup.cpus[0], RW), (setup.gpus[0], RW)]);
        write(base, 6);
        let mut host = vec![0u64; 3 * 512];
        // `host` contains at least two whole pages from this address on.
        let page = host.as_mut_ptr().addr().next_multiple_of(4096);
        assert_eq!(copy_in_background(&setup, page, base), -1, "generation {generation}");
        assert_eq!(take(faults), [(setup.gpus[0], page as u64, ABSENT)]);
        assert_eq!(copy_in_background(&setup, base, page), -1, "generation {generation}");
        assert_eq!(take(faults), [(setup.gpus[0], page as u64, ABSENT)]);
        assert_eq!(read(page), 0, "nothing was copied");

        // Exactly the pages of the range are locked.
        let at = setup.lock(page + 100, 8).expect("host memory");
        assert_eq!(copy_in_background(&setup, at - 100, base), 0, "generation {generation}");
        assert_eq!(read(page), 6);
        assert_eq!(
            copy_in_background(&setup, at - 100 + 4096 - 4, base),
            -1,
            "generation {generation}"
        );
        assert_eq!(take(faults), [(setup.gpus[0], page as u64 + 4096, ABSENT)]);
        setup.unlock(page + 100);
        assert_eq!(copy_in_background(&setup, page, base), -1, "no longer locked");
        take(faults);

        // `hsa_memory_copy` locks its host memory itself.
        assert_eq!(setup.copy(page + 8, base, 8), OK);
        assert_eq!(read(page + 8), 6);
        assert_eq!(take(faults), []);
    }
}

#[test]
fn gpu_with_xnack_accesses_all_host_memory() {
    let setup = start("gpus=1,xnack=on");
    let (base, _) = setup.mapped(SIZE, &[(setup.gpus[0], RW)]);
    setup.poke(base, 6);
    let mut word = 0u64;
    assert_eq!(copy_in_background(&setup, (&raw mut word).addr(), base), 0);
    assert_eq!(word, 6);
}

#[test]
fn first_wait_returns_early_if_configured() {
    for early in [false, true] {
        let setup = start(if early { "gpus=1,early-waits=on" } else { "gpus=1" });
        let (base, _) = setup.mapped(SIZE, &[(setup.gpus[0], RW)]);
        let copy = setup.hsa.hsa_amd_memory_async_copy.expect("in the table");
        let wait = setup.hsa.hsa_signal_wait_scacquire.expect("in the table");
        let (done, gpu) = (setup.signal(1), setup.gpus[0]);
        let (to, from) = (without_provenance_mut(base), without_provenance(base + SIZE / 2));
        assert_eq!(unsafe { copy(to, gpu, from, gpu, SIZE / 2, 0, null(), done) }, OK);
        let (condition, state) = (HSA_SIGNAL_CONDITION_LT, HSA_WAIT_STATE_BLOCKED);
        let wait = || unsafe { wait(done, condition, 1, u64::MAX, state) };
        assert_eq!((wait(), wait()), (i64::from(early), 0));
    }
}

#[test]
fn signal_wait_times_out() {
    let setup = start("gpus=1");
    let signal = setup.signal(1);
    let wait = setup.hsa.hsa_signal_wait_scacquire.expect("in the table");
    let start = std::time::Instant::now();
    let state = HSA_WAIT_STATE_BLOCKED;
    let value = unsafe { wait(signal, HSA_SIGNAL_CONDITION_EQ, 0, 20_000_000, state) };
    assert_eq!(value, 1);
    assert!(start.elapsed().as_millis() >= 20);
    let now = unsafe { wait(signal, HSA_SIGNAL_CONDITION_GTE, 1, u64::MAX, state) };
    assert_eq!(now, 1);
}

#[test]
fn async_copy_ends_with_its_simulation() {
    let setup = start("gpus=1");
    let (base, _) = setup.mapped(SIZE, &[(setup.gpus[0], RW)]);
    let copy = setup.hsa.hsa_amd_memory_async_copy.expect("in the table");
    let (never, done) = (setup.signal(1), setup.signal(1));
    let (to, from) = (without_provenance_mut(base), without_provenance(base + SIZE / 2));
    let before = threads();
    let status = unsafe { copy(to, setup.gpus[0], from, setup.gpus[0], 8, 1, &never, done) };
    assert_eq!(status, OK);
    // The copy's thread, and perhaps threads of tests that run at the same time.
    let started: BTreeSet<_> = threads().difference(&before).cloned().collect();
    assert!(!started.is_empty());
    drop(setup);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !threads().is_disjoint(&started) {
        assert!(Instant::now() < deadline, "the copy's thread still runs");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the numbers of this process's threads.
fn threads() -> BTreeSet<std::ffi::OsString> {
    let entries = std::fs::read_dir("/proc/self/task").expect("/proc");
    entries.map(|entry| entry.expect("a thread").file_name()).collect()
}
