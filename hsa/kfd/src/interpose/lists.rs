//! Open directory streams of `/proc/self/fd`, by address.

use libc::{DIR, c_char};
use std::collections::HashSet;
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Locks the lists; a fork waits meanwhile.
pub(crate) type Held = MutexGuard<'static, HashSet<usize>>;

/// The number of lists, so that other folders need no lock.
static OPEN: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn open() -> Held {
    static LISTS: OnceLock<Mutex<HashSet<usize>>> = OnceLock::new();
    LISTS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn insert(stream: *mut DIR) {
    if open().insert(stream as usize) {
        OPEN.fetch_add(1, Ordering::Release);
    }
}

pub(super) fn remove(stream: *mut DIR) {
    if has(stream) && open().remove(&(stream as usize)) {
        OPEN.fetch_sub(1, Ordering::Release);
    }
}

pub(super) fn has(stream: *mut DIR) -> bool {
    OPEN.load(Ordering::Acquire) > 0 && open().contains(&(stream as usize))
}

/// Returns whether a path is such a list.
pub(super) fn is_at(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: a caller of libc gives a path that ends with a zero and lives during the call.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let Some(process) = path.strip_prefix(b"/proc/") else { return false };
    let process = process.strip_suffix(b"/").unwrap_or(process);
    let Some(process) = process.strip_suffix(b"/fd") else { return false };
    matches!(process, b"self" | b"thread-self")
        || process == std::process::id().to_string().as_bytes()
}
