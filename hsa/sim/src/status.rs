//! Status codes: the result type of internal functions, and names and texts.

use crate::instance::Instance;
use core::ffi::{CStr, c_char};
use core::ptr::NonNull;
use hsa_sys::*;
use std::io;

/// The result of an internal function. Every status but success is an error, including
/// `HSA_STATUS_INFO_BREAK`.
pub(crate) type HsaResult<T = ()> = Result<T, hsa_status_t>;

/// Checks that a caller's pointer is not null.
pub(crate) fn non_null<T>(pointer: *mut T) -> HsaResult<NonNull<T>> {
    NonNull::new(pointer).ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)
}

pub(crate) fn file_error_status(error: &io::Error) -> hsa_status_t {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => HSA_STATUS_ERROR_OUT_OF_RESOURCES,
        _ => HSA_STATUS_ERROR,
    }
}

macro_rules! statuses {
    ($($name:ident: $text:literal,)*) => {
        const STATUSES: &[(hsa_status_t, &str, &CStr)] = &[$(($name, stringify!($name), $text),)*];
    };
}

statuses! {
    HSA_STATUS_SUCCESS: c"HSA_STATUS_SUCCESS: success",
    HSA_STATUS_INFO_BREAK: c"HSA_STATUS_INFO_BREAK: a callback ended the iteration",
    HSA_STATUS_ERROR_INVALID_MEMORY_POOL: c"HSA_STATUS_ERROR_INVALID_MEMORY_POOL: no such memory pool",
    HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: c"HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: an access outside all apertures",
    HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION: c"HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION: an illegal instruction",
    HSA_STATUS_ERROR_MEMORY_FAULT: c"HSA_STATUS_ERROR_MEMORY_FAULT: a memory fault",
    HSA_STATUS_CU_MASK_REDUCED: c"HSA_STATUS_CU_MASK_REDUCED: the mask of compute units was reduced",
    HSA_STATUS_ERROR_OUT_OF_REGISTERS: c"HSA_STATUS_ERROR_OUT_OF_REGISTERS: too few registers",
    HSA_STATUS_ERROR_RESOURCE_BUSY: c"HSA_STATUS_ERROR_RESOURCE_BUSY: the resource is busy",
    HSA_STATUS_ERROR_NOT_SUPPORTED: c"HSA_STATUS_ERROR_NOT_SUPPORTED: not supported",
    HSA_STATUS_ERROR: c"HSA_STATUS_ERROR: unspecified error",
    HSA_STATUS_ERROR_INVALID_ARGUMENT: c"HSA_STATUS_ERROR_INVALID_ARGUMENT: an argument is invalid",
    HSA_STATUS_ERROR_INVALID_QUEUE_CREATION: c"HSA_STATUS_ERROR_INVALID_QUEUE_CREATION: the queue cannot be created",
    HSA_STATUS_ERROR_INVALID_ALLOCATION: c"HSA_STATUS_ERROR_INVALID_ALLOCATION: no such allocation, or the allocation failed",
    HSA_STATUS_ERROR_INVALID_AGENT: c"HSA_STATUS_ERROR_INVALID_AGENT: no such agent",
    HSA_STATUS_ERROR_INVALID_REGION: c"HSA_STATUS_ERROR_INVALID_REGION: no such region",
    HSA_STATUS_ERROR_INVALID_SIGNAL: c"HSA_STATUS_ERROR_INVALID_SIGNAL: no such signal",
    HSA_STATUS_ERROR_INVALID_QUEUE: c"HSA_STATUS_ERROR_INVALID_QUEUE: no such queue",
    HSA_STATUS_ERROR_OUT_OF_RESOURCES: c"HSA_STATUS_ERROR_OUT_OF_RESOURCES: not enough memory, addresses or descriptors",
    HSA_STATUS_ERROR_INVALID_PACKET_FORMAT: c"HSA_STATUS_ERROR_INVALID_PACKET_FORMAT: a malformed packet",
    HSA_STATUS_ERROR_RESOURCE_FREE: c"HSA_STATUS_ERROR_RESOURCE_FREE: the resource could not be freed",
    HSA_STATUS_ERROR_NOT_INITIALIZED: c"HSA_STATUS_ERROR_NOT_INITIALIZED: the runtime was not started",
    HSA_STATUS_ERROR_REFCOUNT_OVERFLOW: c"HSA_STATUS_ERROR_REFCOUNT_OVERFLOW: too many references",
    HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS: c"HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS: the arguments contradict each other",
    HSA_STATUS_ERROR_INVALID_INDEX: c"HSA_STATUS_ERROR_INVALID_INDEX: an index out of range",
    HSA_STATUS_ERROR_INVALID_ISA: c"HSA_STATUS_ERROR_INVALID_ISA: no such instruction set",
    HSA_STATUS_ERROR_INVALID_CODE_OBJECT: c"HSA_STATUS_ERROR_INVALID_CODE_OBJECT: an invalid code object",
    HSA_STATUS_ERROR_INVALID_EXECUTABLE: c"HSA_STATUS_ERROR_INVALID_EXECUTABLE: no such executable",
    HSA_STATUS_ERROR_FROZEN_EXECUTABLE: c"HSA_STATUS_ERROR_FROZEN_EXECUTABLE: the executable is frozen",
    HSA_STATUS_ERROR_INVALID_SYMBOL_NAME: c"HSA_STATUS_ERROR_INVALID_SYMBOL_NAME: no symbol of that name",
    HSA_STATUS_ERROR_VARIABLE_ALREADY_DEFINED: c"HSA_STATUS_ERROR_VARIABLE_ALREADY_DEFINED: the variable is defined already",
    HSA_STATUS_ERROR_VARIABLE_UNDEFINED: c"HSA_STATUS_ERROR_VARIABLE_UNDEFINED: the variable is not defined",
    HSA_STATUS_ERROR_EXCEPTION: c"HSA_STATUS_ERROR_EXCEPTION: the device raised an exception",
    HSA_STATUS_ERROR_INVALID_ISA_NAME: c"HSA_STATUS_ERROR_INVALID_ISA_NAME: no instruction set of that name",
    HSA_STATUS_ERROR_INVALID_CODE_SYMBOL: c"HSA_STATUS_ERROR_INVALID_CODE_SYMBOL: no such symbol of a code object",
    HSA_STATUS_ERROR_INVALID_EXECUTABLE_SYMBOL: c"HSA_STATUS_ERROR_INVALID_EXECUTABLE_SYMBOL: no such symbol of an executable",
    HSA_STATUS_ERROR_INVALID_FILE: c"HSA_STATUS_ERROR_INVALID_FILE: an invalid file descriptor",
    HSA_STATUS_ERROR_INVALID_CODE_OBJECT_READER: c"HSA_STATUS_ERROR_INVALID_CODE_OBJECT_READER: no such reader of code objects",
    HSA_STATUS_ERROR_INVALID_CACHE: c"HSA_STATUS_ERROR_INVALID_CACHE: no such cache",
    HSA_STATUS_ERROR_INVALID_WAVEFRONT: c"HSA_STATUS_ERROR_INVALID_WAVEFRONT: no such wavefront",
    HSA_STATUS_ERROR_INVALID_SIGNAL_GROUP: c"HSA_STATUS_ERROR_INVALID_SIGNAL_GROUP: no such group of signals",
    HSA_STATUS_ERROR_INVALID_RUNTIME_STATE: c"HSA_STATUS_ERROR_INVALID_RUNTIME_STATE: not allowed in this state of the runtime",
    HSA_STATUS_ERROR_FATAL: c"HSA_STATUS_ERROR_FATAL: the runtime is unusable",
}

/// Finds a status by its C name, with or without `HSA_STATUS_` and `ERROR_`.
pub(crate) fn by_name(word: &str) -> Option<hsa_status_t> {
    let word = word.to_ascii_uppercase();
    let matches = |name: &str| {
        let short = name.strip_prefix("HSA_STATUS_").unwrap_or(name);
        name == word || short == word || short.strip_prefix("ERROR_") == Some(&word)
    };
    STATUSES.iter().find(|(_, name, _)| matches(name)).map(|(status, ..)| *status)
}

/// `hsa_status_string`
///
/// # Safety
/// `text` must be null or writable.
pub(crate) unsafe fn string(
    _: &Instance,
    status: hsa_status_t,
    text: *mut *const c_char,
) -> HsaResult {
    let text = non_null(text)?;
    let entry = STATUSES.iter().find(|(code, ..)| *code == status);
    let (.., message) = entry.ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
    // SAFETY: not null, therefore writable (`# Safety`).
    unsafe { text.write(message.as_ptr()) };
    Ok(())
}
