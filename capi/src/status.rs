//! The status of a call. Each thread has its own last error number and last message.

use crate::errors;
use crate::names::with_c_names;
use crate::pointers::to_char_array;
use crate::process::{InUse, current_process, profile};
use crate::types::hipError_t;
use core::ffi::{c_char, c_int};
use hsa_vmm::Error;
use hsa_vmm::error::{ErrorKind, Problem, Value};
use hsa_vmm::hip::HipProfile;
use hsa_vmm::runtime::printable;
use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static LAST: Cell<hipError_t> = const { Cell::new(errors::SUCCESS) };
    /// The message of the last error. The array never moves, so pointers to the message stay valid while the thread
    /// runs.
    static MESSAGE: RefCell<[c_char; 1024]> = const { RefCell::new([0; 1024]) };
}

/// The error number and the message of a failed call.
#[derive(Clone, Debug)]
pub struct Failure {
    pub code: hipError_t,
    pub message: String,
}

impl Failure {
    pub fn new(code: hipError_t, message: impl Display) -> Self {
        Self { code, message: message.to_string() }
    }

    /// Describes an invalid argument.
    pub fn invalid_argument(argument: &str, problem: impl Display) -> Self {
        Self::new(errors::INVALID_VALUE, format_args!("`{argument}` {problem}"))
    }

    /// Describes a feature that this library does not have on any runtime.
    pub fn not_supported(feature: impl Display) -> Self {
        Self::new(errors::NOT_SUPPORTED, format_args!("{feature}: not supported by this library"))
    }
}

/// Converts an error. The process's profile selects the error code.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let text = with_c_names(&error);
        let text = match is_of_other_memory(error.kind()) {
            true => format!(
                "the address is memory of hipMalloc or a similar call, not virtual memory ({text})"
            ),
            false => text,
        };
        Self::new(error.hip(profile()).code(), text)
    }
}

/// Returns whether a call of virtual memory has failed because its address is memory of hipMalloc or a similar call.
fn is_of_other_memory(kind: &ErrorKind) -> bool {
    let ErrorKind::InvalidArgument { value, problem, .. } = kind else { return false };
    let (Value::Address(at) | Value::Range(at, _)) = value else { return false };
    if !matches!(problem, Problem::NotReserved | Problem::NotMapped(_)) {
        return false;
    }
    let Ok(_in_use) = InUse::begin() else { return false };
    current_process().is_some_and(|process| process.allocations.at(*at).is_some())
}

/// Disables the cancellation of this thread (`pthread_cancel`) until the value is dropped. A cancellation inside a call
/// would unwind the stack, which aborts the process in `catch_unwind`.
struct WithoutCancellation {
    previous: c_int,
}

// The crate libc lacks this function on Linux.
unsafe extern "C" {
    safe fn pthread_setcancelstate(state: c_int, previous: &mut c_int) -> c_int;
}

impl WithoutCancellation {
    fn begin() -> Self {
        const PTHREAD_CANCEL_DISABLE: c_int = 1;
        let mut previous = PTHREAD_CANCEL_DISABLE;
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut previous);
        Self { previous }
    }
}

impl Drop for WithoutCancellation {
    fn drop(&mut self) {
        pthread_setcancelstate(self.previous, &mut 0);
    }
}

/// Runs the body of a C function, and converts its result to an error number. Catches panics.
pub fn run(function: &str, act: impl FnOnce() -> Result<(), Failure>) -> hipError_t {
    let code = run_without_last_error(function, act);
    if code != errors::SUCCESS || profile() == HipProfile::Hip6 {
        let _ = LAST.try_with(|last| last.set(code));
    }
    code
}

/// Does the same as [`run`], but does not change the thread's last error.
pub fn run_without_last_error(
    function: &str,
    act: impl FnOnce() -> Result<(), Failure>,
) -> hipError_t {
    let _without_cancellation = WithoutCancellation::begin();
    let outcome = catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|_| {
        let message =
            "libhsavmm panicked, which is a defect; please report the calls that led to it";
        Err(Failure::new(errors::UNKNOWN, message))
    });
    match outcome {
        Ok(()) => errors::SUCCESS,
        Err(failure) => {
            record(function, &failure);
            failure.code
        }
    }
}

/// Logs a failure, except in a forked child, and stores its message for this thread.
fn record(function: &str, failure: &Failure) {
    let name = errors::name(failure.code).to_string_lossy();
    let text = format!("{function}: {}: {name} ({})", failure.message, failure.code);
    // In a forked child, a thread that exists only in the parent can hold the lock of standard error.
    if let Ok(_in_use) = InUse::begin() {
        // A panic of a Rust program's log subscriber must not unwind into C, which would abort the process.
        let _ = catch_unwind(|| tracing::warn!(target: "hsavmm", "{text}"));
    }
    // In an exiting thread the message is dropped: no caller can read it.
    let _ = MESSAGE.try_with(|buffer| buffer.replace(to_char_array(&printable(&text))));
}

#[unsafe(no_mangle)]
extern "C" fn hipGetLastError() -> hipError_t {
    LAST.try_with(|last| last.replace(errors::SUCCESS)).unwrap_or(errors::SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn hipPeekAtLastError() -> hipError_t {
    LAST.try_with(Cell::get).unwrap_or(errors::SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn hsavmm_last_message() -> *const c_char {
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
