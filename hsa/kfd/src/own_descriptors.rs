//! The emulation's own descriptors and files.
//!
//! A real driver's memory uses no descriptors of the process. The emulation therefore hides its descriptors. They start
//! at the process's soft limit, or at half of the soft limit if the hard limit is equal. They start at
//! [`HIGHEST_FLOOR`] at the latest. libc's `readdir` omits them from lists of descriptors, and libc's `close` does not
//! close them. Direct system calls reach them.

use libc::{c_int, rlimit};
use std::fs::File;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The emulation treats all descriptors from this number on as the program's. Default limits are lower.
const MAX_DESCRIPTORS: usize = 1 << 20;
/// The maximum of the floor (see [`with_raised_limit`]). It keeps the kernel's table of descriptors small: the table
/// grows to the highest open descriptor.
const HIGHEST_FLOOR: u64 = 1 << 16;

static OWN: [AtomicBool; MAX_DESCRIPTORS] = [const { AtomicBool::new(false) }; MAX_DESCRIPTORS];
/// One more than the highest descriptor ever marked.
static END: AtomicUsize = AtomicUsize::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn flag(descriptor: c_int) -> Option<&'static AtomicBool> {
    OWN.get(usize::try_from(descriptor).ok()?)
}

/// Marks a descriptor as the emulation's, or as the program's.
pub(crate) fn mark(descriptor: c_int, own: bool) {
    let Some(flag) = flag(descriptor) else { return };
    match (flag.swap(own, Ordering::AcqRel), own) {
        (false, true) => {
            COUNT.fetch_add(1, Ordering::Relaxed);
            END.fetch_max(descriptor as usize + 1, Ordering::Release);
        }
        (true, false) => {
            COUNT.fetch_sub(1, Ordering::Relaxed);
        }
        _ => {}
    }
}

/// Returns whether a descriptor is the emulation's.
pub(crate) fn contains(descriptor: c_int) -> bool {
    flag(descriptor).is_some_and(|flag| flag.load(Ordering::Acquire))
}

pub(crate) fn count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// Returns the emulation's descriptors from `first` to `last`, in order.
pub(crate) fn within(first: usize, last: usize) -> impl Iterator<Item = usize> {
    let end = END.load(Ordering::Acquire).min(last.saturating_add(1));
    (first.min(end)..end).filter(|descriptor| OWN[*descriptor].load(Ordering::Acquire))
}

/// Closes all of the emulation's descriptors except for `kept`, in a forked child.
pub(crate) fn close_all_except(kept: Option<c_int>) {
    for descriptor in within(0, MAX_DESCRIPTORS) {
        if Some(descriptor as c_int) == kept {
            continue;
        }
        mark(descriptor as c_int, false);
        crate::real::close(descriptor as c_int);
    }
}

/// Returns the lock that a thread holds while it temporarily changes the limit of open files.
pub(crate) fn limit_lock() -> MutexGuard<'static, ()> {
    static LIMIT: Mutex<()> = Mutex::new(());
    LIMIT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a function with the soft limit of open files raised to the hard limit. Its argument is the floor:
/// the lowest number for the emulation's descriptors.
pub(crate) fn with_raised_limit<T>(run: impl FnOnce(c_int) -> T) -> T {
    let _limit = limit_lock();
    let mut limit = rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel only fills the struct.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if limit.rlim_cur >= limit.rlim_max {
        return run((limit.rlim_cur / 2).min(HIGHEST_FLOOR) as c_int);
    }
    let raised = rlimit { rlim_cur: limit.rlim_max, ..limit };
    // SAFETY: the kernel only reads the struct.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) };
    let result = run(limit.rlim_cur.min(HIGHEST_FLOOR) as c_int);
    // SAFETY: the kernel only reads the struct.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    result
}

/// Moves a descriptor to the lowest free number that is at least `floor`, if there is such a
/// number. Marks the descriptor as the emulation's, and returns its number.
pub(crate) fn move_above_floor(descriptor: c_int, floor: c_int) -> c_int {
    // SAFETY: the call accesses no memory; the emulation has just opened the descriptor.
    let high = unsafe { libc::syscall(libc::SYS_fcntl, descriptor, libc::F_DUPFD_CLOEXEC, floor) }
        as c_int;
    let moved = if high < 0 { descriptor } else { high };
    mark(moved, true);
    if moved != descriptor {
        crate::real::close(descriptor);
    }
    moved
}

/// Moves and marks the descriptor of a file, as [`move_above_floor`] does.
pub(crate) fn move_file_above_floor(file: File) -> File {
    let descriptor = with_raised_limit(|floor| move_above_floor(file.into_raw_fd(), floor));
    // SAFETY: the descriptor is open, and nothing else owns it.
    unsafe { File::from_raw_fd(descriptor) }
}

/// Unmarks the descriptor of a file that [`move_file_above_floor`] has marked, which the caller then drops.
pub(crate) fn unmark_file(file: &File) {
    mark(std::os::fd::AsRawFd::as_raw_fd(file), false);
}
