//! `opendir`, `readdir` and `closedir`: a folder of the driver is one of the tree, and a list of
//! the process's descriptors lacks the emulation's own.

use super::guarded;
use crate::real::next;
use crate::{own, paths};
use libc::{DIR, c_char, c_int, dirent};
use std::collections::HashSet;
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The open lists of descriptors, by the addresses of their streams.
fn lists() -> MutexGuard<'static, HashSet<usize>> {
    static LISTS: OnceLock<Mutex<HashSet<usize>>> = OnceLock::new();
    LISTS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many there are, so that other folders cost no lock.
static OPEN: AtomicUsize = AtomicUsize::new(0);

fn is_list(stream: *mut DIR) -> bool {
    OPEN.load(Ordering::Acquire) > 0 && lists().contains(&(stream as usize))
}

fn lists_descriptors(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: a caller of libc gives a path that ends with a zero and lives during the call.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    // SAFETY: asks for a number and touches no memory.
    let process = unsafe { libc::getpid() };
    matches!(path, b"/proc/self/fd" | b"/proc/self/fd/")
        || path.starts_with(b"/proc/") && path == format!("/proc/{process}/fd").as_bytes()
}

#[unsafe(no_mangle)]
extern "C" fn opendir(path: *const c_char) -> *mut DIR {
    let other = guarded(|| paths::stand_in(path), None);
    let path = other.as_ref().map_or(path, |other| other.as_ptr());
    let stream =
        next!("opendir", fn(*const c_char) -> *mut DIR, path).unwrap_or(std::ptr::null_mut());
    if !stream.is_null() && lists_descriptors(path) {
        guarded(
            || {
                lists().insert(stream as usize);
                OPEN.fetch_add(1, Ordering::Release);
            },
            (),
        );
    }
    stream
}

#[unsafe(no_mangle)]
extern "C" fn closedir(stream: *mut DIR) -> c_int {
    if is_list(stream) && guarded(|| lists().remove(&(stream as usize)), false) {
        OPEN.fetch_sub(1, Ordering::Release);
    }
    next!("closedir", fn(*mut DIR) -> c_int, stream).unwrap_or(-1)
}

/// Whether an entry names a descriptor of the emulation's own.
fn is_own(entry: *mut dirent) -> bool {
    // SAFETY: libc gave the entry, whose name ends with a zero.
    let name = unsafe { CStr::from_ptr((*entry).d_name.as_ptr()) };
    name.to_str().ok().and_then(|name| name.parse().ok()).is_some_and(own::is)
}

/// Defines `readdir` forms, which are one on this machine: both have 64-bit numbers.
macro_rules! reads {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(stream: *mut DIR) -> *mut dirent {
            let filtered = is_list(stream);
            loop {
                let entry = next!($text, fn(*mut DIR) -> *mut dirent, stream)
                    .unwrap_or(std::ptr::null_mut());
                if entry.is_null() || !filtered || !is_own(entry) {
                    return entry;
                }
            }
        }
    )*};
}

reads!(readdir "readdir", readdir64 "readdir64");
