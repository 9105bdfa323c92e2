//! A copy by the CPU runs in a thread of the runtime. This thread decrements the signal and then uses it again,
//! although the waiting thread may have destroyed the signal by then.
//!
//! The process only crashes if the signal is destroyed within a few instructions: two of several hundred runs of
//! `hsa-vmm fuzz` crashed. The test makes the copying thread single-step, and stops the thread after the instruction
//! that decrements the signal.

use crate::amd_runtime::on_each;
use crate::amd_runtime::raw::{PAGE, RawRuntime, load, store};
use crate::table::SIGNAL_USED_AFTER_COPY;
use hsa_vmm::{Access, AccessDescriptor, AllocationProperties, Runtime, Vmm};
use libc::{c_int, c_void, siginfo_t, ucontext_t};
use std::hint::black_box;
use std::ptr::without_provenance_mut;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The address of the copy's destination page.
static TARGET: AtomicUsize = AtomicUsize::new(0);
/// The address of the signal's value, which the copying thread decrements.
static SIGNAL_VALUE: AtomicUsize = AtomicUsize::new(0);
/// The ID of the thread that copies.
static COPY_THREAD: AtomicI32 = AtomicI32::new(0);
/// The progress of the copying thread: one of the constants below.
static PHASE: AtomicI32 = AtomicI32::new(0);
const STOPPED: i32 = 1;
const RESUMED: i32 = 2;
const PAST_THE_DEFECT: i32 = 3;

/// The offset of the value in a signal (`amd_signal_t`).
const VALUE_OFFSET: u64 = 8;
/// The processor's flag for single-stepping (TF).
const TRAP: i64 = 0x100;

fn this_thread() -> i32 {
    // SAFETY: the call takes no arguments, and only returns a number.
    unsafe { libc::gettid() }
}

fn protect(address: usize, protection: c_int) {
    // SAFETY: the test mapped this page, and a fault in the page calls `on_store`.
    let status = unsafe { libc::mprotect(without_provenance_mut(address), PAGE, protection) };
    assert_eq!(status, 0);
}

/// Handles the first store to the target: allows the store. If `SIGNAL_VALUE` is set, also makes the thread
/// single-step.
extern "C" fn on_store(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
    COPY_THREAD.store(this_thread(), Ordering::SeqCst);
    protect(TARGET.load(Ordering::SeqCst), libc::PROT_READ | libc::PROT_WRITE);
    if SIGNAL_VALUE.load(Ordering::SeqCst) != 0 {
        // SAFETY: `context` is the argument that this handler received.
        unsafe { change_flags(context, |flags| flags | TRAP) };
    }
}

/// Handles a single step: stops the thread once an instruction has decremented the signal's value.
extern "C" fn on_step(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
    if load(SIGNAL_VALUE.load(Ordering::SeqCst)) != 0 {
        return;
    }
    PHASE.store(STOPPED, Ordering::SeqCst);
    while PHASE.load(Ordering::SeqCst) != RESUMED {
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: `context` is the argument that this handler received.
    unsafe { change_flags(context, |flags| flags & !TRAP) };
    PHASE.store(PAST_THE_DEFECT, Ordering::SeqCst);
}

/// Changes the processor's flags for the code to which a handler returns.
///
/// # Safety
/// `context` must be the argument that the handler received.
unsafe fn change_flags(context: *mut c_void, change: impl FnOnce(i64) -> i64) {
    // SAFETY: the caller guarantees that `context` points to the `ucontext_t` of a handler.
    let flags = unsafe { &mut (*context.cast::<ucontext_t>()).uc_mcontext };
    let flags = &mut flags.gregs[libc::REG_EFL as usize];
    *flags = change(*flags);
}

type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

fn set_handler(signal: c_int, handler: Handler, extra_flags: c_int) {
    // SAFETY: all members are integers, pointers or arrays, for which zero is valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | extra_flags;
    // SAFETY: `action` is initialised, and its handler is a function of this program.
    assert_eq!(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) }, 0);
}

/// Makes the next store to the page at `target` call [`on_store`].
fn watch(target: usize) {
    TARGET.store(target, Ordering::SeqCst);
    // Handles one fault only. A second fault is the defect, and ends the process.
    set_handler(libc::SIGSEGV, on_store, libc::SA_RESETHAND);
    protect(target, libc::PROT_READ);
}

fn map_page() -> usize {
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the kernel chooses a free address, so it replaces no mapping.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    page.addr()
}

#[test]
fn freed_signal_is_used_on_the_runtime() {
    SIGNAL_USED_AFTER_COPY.check_on_each_release(
        "copy_by_cpu::freed_signal_is_used_on_the_runtime",
        |fixture| {
            let raw = RawRuntime::start(fixture);
            let (target, source) = (map_page(), map_page());
            store(source, 0x5eed);
            watch(target);
            set_handler(libc::SIGTRAP, on_step, 0);
            raw.copy_by_cpu(target, source, |signal| {
                SIGNAL_VALUE.store((signal + VALUE_OFFSET) as usize, Ordering::SeqCst);
            });
            assert_eq!(load(target), 0x5eed);
            assert_ne!(COPY_THREAD.load(Ordering::SeqCst), this_thread());
            let begun = Instant::now();
            let wait_for = |phase| {
                while PHASE.load(Ordering::SeqCst) != phase {
                    assert!(
                        begun.elapsed() < Duration::from_secs(100),
                        "phase {phase} is not reached"
                    );
                    std::thread::sleep(Duration::from_millis(1));
                }
            };
            wait_for(STOPPED);
            // Reuses the signal's memory, which was freed.
            for size in (16..1024).step_by(16) {
                for _ in 0..8 {
                    black_box(Vec::leak(vec![0x41u8; size]));
                }
            }
            PHASE.store(RESUMED, Ordering::SeqCst);
            wait_for(PAST_THE_DEFECT);
            std::thread::sleep(Duration::from_millis(200));
            false
        },
    );
}

#[test]
fn this_thread_copies_through_the_library() {
    on_each("copy_by_cpu::this_thread_copies_through_the_library", |fixture| {
        // SAFETY: the file is a fetched release of AMD's runtime.
        let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
        let vmm = Vmm::open(&runtime).unwrap();
        let (cpu, gpu) = (runtime.host().id(), runtime.gpus().next().unwrap().id());
        let memory = vmm.create(2 * PAGE, &AllocationProperties::on(gpu)).unwrap();
        let source = vmm.address_reserve(2 * PAGE, 0, None).unwrap();
        vmm.map(source, 2 * PAGE, 0, memory).unwrap();
        let cpu_access = AccessDescriptor { agent: cpu, access: Access::ReadWrite };
        vmm.set_access(source, 2 * PAGE, &[cpu_access]).unwrap();
        let target = source.get() + PAGE;
        vmm.write(source, b"from one page to another").unwrap();
        watch(target);
        vmm.copy(cpu, hsa_vmm::Address::new(target), source, PAGE).unwrap();
        assert_eq!(COPY_THREAD.load(Ordering::SeqCst), this_thread(), "this thread copied");
        let mut bytes = [0; 24];
        vmm.copy_to_host(cpu, &mut bytes, hsa_vmm::Address::new(target)).unwrap();
        assert_eq!(&bytes, b"from one page to another");
        vmm.copy_from_host(cpu, source, b"to").unwrap();
        vmm.read(source, &mut bytes).unwrap();
        assert_eq!(&bytes, b"toom one page to another");
    });
}
