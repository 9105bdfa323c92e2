//! The open directory streams of `/proc/self/fd`, by address.

use libc::{DIR, c_char};
use std::collections::HashSet;
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The locked set of streams. A fork waits for the lock.
pub(crate) type Guard = MutexGuard<'static, HashSet<usize>>;

/// The number of streams in the set. While the number is 0, look-ups need no lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn lock() -> Guard {
    static STREAMS: OnceLock<Mutex<HashSet<usize>>> = OnceLock::new();
    STREAMS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn insert(stream: *mut DIR) {
    if lock().insert(stream as usize) {
        COUNT.fetch_add(1, Ordering::Release);
    }
}

pub(super) fn remove(stream: *mut DIR) {
    if contains(stream) && lock().remove(&(stream as usize)) {
        COUNT.fetch_sub(1, Ordering::Release);
    }
}

pub(super) fn contains(stream: *mut DIR) -> bool {
    COUNT.load(Ordering::Acquire) > 0 && lock().contains(&(stream as usize))
}

/// Returns whether a path is the process's list of descriptors.
pub(super) fn is_descriptor_list(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: a caller of libc passes a path that ends with a zero and lives during the call.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let Some(process) = path.strip_prefix(b"/proc/") else { return false };
    let process = process.strip_suffix(b"/").unwrap_or(process);
    let Some(process) = process.strip_suffix(b"/fd") else { return false };
    matches!(process, b"self" | b"thread-self")
        || process == std::process::id().to_string().as_bytes()
}
