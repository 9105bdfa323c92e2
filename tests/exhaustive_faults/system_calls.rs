//! Makes system calls fail: `mmap` and `mprotect` of watched addresses.
//!
//! A seccomp filter of this thread redirects both calls to a signal handler. The handler returns an error, or makes
//! the call itself from an instruction that the filter allows.

use libc::{c_int, c_long, c_void};
use std::ops::Range;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering::SeqCst};

core::arch::global_asm!(
    ".globl exhaustive_faults_call, exhaustive_faults_called",
    "exhaustive_faults_call:",
    // Loads the number, then the six arguments from memory.
    "mov rax, rdi",
    "mov r11, rsi",
    "mov rdi, [r11]",
    "mov rsi, [r11 + 8]",
    "mov rdx, [r11 + 16]",
    "mov r10, [r11 + 24]",
    "mov r8, [r11 + 32]",
    "mov r9, [r11 + 40]",
    "syscall",
    "exhaustive_faults_called:",
    "ret",
);

unsafe extern "C" {
    fn exhaustive_faults_call(number: c_long, arguments: *const [u64; 6]) -> c_long;
    fn exhaustive_faults_called();
}

/// The first and the last of the calls at watched addresses that fail, counted from 1.
static FIRST_FAILING_CALL: AtomicU64 = AtomicU64::new(0);
static LAST_FAILING_CALL: AtomicU64 = AtomicU64::new(0);
/// The error of the failing calls.
static ERRNO: AtomicI32 = AtomicI32::new(0);
/// Whether a failing `mmap` also unmaps the range.
static UNMAPS: AtomicBool = AtomicBool::new(false);
/// The number of calls at watched addresses so far.
static CALLS: AtomicU64 = AtomicU64::new(0);
/// The number of calls that failed so far.
static FAILED_CALLS: AtomicU64 = AtomicU64::new(0);
/// The watched addresses: pairs of start and end.
static WATCHED: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];

fn is_watched(address: usize) -> bool {
    let inside =
        |pair: &[AtomicUsize]| (pair[0].load(SeqCst)..pair[1].load(SeqCst)).contains(&address);
    WATCHED.chunks(2).any(inside)
}

/// Handles a redirected call: makes the call, or returns an error.
extern "C" fn on_call(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the context of the thread that made the call. Until this handler returns, no other code
    // uses the context.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let value = |register: c_int| registers[register as usize] as u64;
    let arguments =
        [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9]
            .map(value);
    let number = registers[libc::REG_RAX as usize];
    if is_watched(arguments[0] as usize) {
        let call_number = CALLS.fetch_add(1, SeqCst) + 1;
        if (FIRST_FAILING_CALL.load(SeqCst)..=LAST_FAILING_CALL.load(SeqCst)).contains(&call_number)
        {
            FAILED_CALLS.fetch_add(1, SeqCst);
            if UNMAPS.load(SeqCst) && number == libc::SYS_mmap {
                // SAFETY: the caller of `mmap` with `MAP_FIXED` has allowed the kernel to unmap the range.
                unsafe { libc::munmap(arguments[0] as *mut c_void, arguments[1] as usize) };
            }
            registers[libc::REG_RAX as usize] = -i64::from(ERRNO.load(SeqCst));
            return;
        }
    }
    // SAFETY: the redirected call was made with these arguments, so its caller guarantees that they are valid.
    registers[libc::REG_RAX as usize] = unsafe { exhaustive_faults_call(number, &arguments) };
}

/// Installs the filter for this thread and for the threads that this thread starts.
pub fn watch_this_thread() {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        // SAFETY: all members are integers, pointers or arrays, for which zero is valid.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_call;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: `action` is initialised, and its handler uses only atomics and its arguments.
        let status = unsafe { libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut()) };
        assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
    });
    let allowed = exhaustive_faults_called as *const () as u64;
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let ret = (libc::BPF_RET | libc::BPF_K) as u16;
    let instruction = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    // struct seccomp_data: number, architecture, instruction pointer (low, high), arguments.
    let mut program = [
        instruction(load, 0, 0, 0),
        instruction(equal, libc::SYS_mmap as u32, 1, 0),
        instruction(equal, libc::SYS_mprotect as u32, 0, 4),
        instruction(load, 8, 0, 0),
        instruction(equal, allowed as u32, 0, 3),
        instruction(load, 12, 0, 0),
        instruction(equal, (allowed >> 32) as u32, 0, 1),
        instruction(ret, libc::SECCOMP_RET_ALLOW, 0, 0),
        instruction(ret, libc::SECCOMP_RET_TRAP, 0, 0),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the call accesses no memory; it prevents this thread from gaining privileges.
    let status = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: `program` points to a valid filter, which the kernel copies.
    let status = unsafe {
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0)
    };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
}

/// Calls `function`. The system calls at watched addresses whose numbers are in `calls` fail with `errno`. Returns the
/// result and the number of failed calls.
pub fn with_failing_calls<T>(
    watched: &[Range<usize>],
    calls: std::ops::RangeInclusive<u64>,
    errno: c_int,
    function: impl FnOnce() -> T,
) -> (T, u64) {
    assert!(watched.len() <= WATCHED.len() / 2, "too many ranges to watch");
    CALLS.store(0, SeqCst);
    FAILED_CALLS.store(0, SeqCst);
    ERRNO.store(errno, SeqCst);
    FIRST_FAILING_CALL.store(*calls.start(), SeqCst);
    LAST_FAILING_CALL.store(*calls.end(), SeqCst);
    for (pair, range) in WATCHED.chunks(2).zip(watched) {
        pair[0].store(range.start, SeqCst);
        pair[1].store(range.end, SeqCst);
    }
    let result = function();
    WATCHED.iter().for_each(|address| address.store(0, SeqCst));
    (result, FAILED_CALLS.load(SeqCst))
}

/// Calls `function`, as [`with_failing_calls`] does with `ENOMEM`. A failing `mmap` also unmaps the range. Up to Linux
/// 6.11, the kernel can unmap the old mapping before `mmap` fails.
pub fn with_unmapping_mmap<T>(
    watched: Range<usize>,
    calls: std::ops::RangeInclusive<u64>,
    function: impl FnOnce() -> T,
) -> T {
    UNMAPS.store(true, SeqCst);
    let (result, failed) = with_failing_calls(&[watched], calls, libc::ENOMEM, function);
    UNMAPS.store(false, SeqCst);
    assert_ne!(failed, 0, "no call has failed");
    result
}
