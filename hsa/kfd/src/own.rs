//! The emulation's own descriptors and files.
//!
//! A real driver's memory uses no descriptors of the process. The emulation's are therefore hidden:
//! they lie above the process's limit, are not listed, and the program cannot close them.

use crate::errno::Errno;
use libc::{c_int, rlimit};
use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Descriptors from here on are not distinguished from the program's; default limits are lower.
const MOST: usize = 1 << 20;
/// The kernel's table of descriptors is as long as its highest one.
const HIGHEST_FLOOR: u64 = 1 << 16;

static OWN: [AtomicBool; MOST] = [const { AtomicBool::new(false) }; MOST];
/// One more than the highest ever used.
static END: AtomicUsize = AtomicUsize::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn flag(descriptor: c_int) -> Option<&'static AtomicBool> {
    OWN.get(usize::try_from(descriptor).ok()?)
}

pub(crate) fn set(descriptor: c_int, own: bool) {
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

pub(crate) fn is(descriptor: c_int) -> bool {
    flag(descriptor).is_some_and(|flag| flag.load(Ordering::Acquire))
}

/// Returns their number.
pub(crate) fn count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// Returns those in a range, in order.
pub(crate) fn within(first: usize, last: usize) -> impl Iterator<Item = usize> {
    let end = END.load(Ordering::Acquire).min(last.saturating_add(1));
    (first.min(end)..end).filter(|descriptor| OWN[*descriptor].load(Ordering::Acquire))
}

/// Closes all of them, in a forked child.
pub(crate) fn close_all() {
    for descriptor in within(0, MOST) {
        set(descriptor as c_int, false);
        crate::real::close(descriptor as c_int);
    }
}

/// Serialises temporary changes of the limit.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs with the soft limit of open files raised to the hard limit. Passes the number from which on
/// the emulation's descriptors are placed.
pub(crate) fn above<T>(run: impl FnOnce(c_int) -> T) -> T {
    let _turn = turn();
    let mut limit = rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills the struct, which lives until the call returns.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if limit.rlim_cur >= limit.rlim_max {
        return run((limit.rlim_cur / 2).min(HIGHEST_FLOOR) as c_int);
    }
    let raised = rlimit { rlim_cur: limit.rlim_max, ..limit };
    // SAFETY: reads the struct, which lives until the call returns.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) };
    let result = run(limit.rlim_cur.min(HIGHEST_FLOOR) as c_int);
    // SAFETY: as above.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    result
}

/// Moves a descriptor above the program's and makes it the emulation's.
pub(crate) fn keep(descriptor: c_int, floor: c_int) -> c_int {
    // SAFETY: touches no memory; the descriptor is one the emulation has just opened.
    let high = unsafe { libc::syscall(libc::SYS_fcntl, descriptor, libc::F_DUPFD_CLOEXEC, floor) }
        as c_int;
    let kept = if high < 0 { descriptor } else { high };
    set(kept, true);
    if kept != descriptor {
        crate::real::close(descriptor);
    }
    kept
}

/// Does the same for a `File`.
pub(crate) fn keep_file(file: File) -> io::Result<File> {
    let kept = above(|floor| keep(file.into_raw_fd(), floor));
    if kept < 0 {
        return Err(io::Error::from_raw_os_error(Errno::last().0));
    }
    // SAFETY: the descriptor is open, and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(kept) })
}

/// Closes a kept file.
pub(crate) fn forget_file(file: &File) {
    set(std::os::fd::AsRawFd::as_raw_fd(file), false);
}

/// The user that owns the files shared between processes.
pub(crate) fn user() -> libc::uid_t {
    // SAFETY: asks for a number and touches no memory.
    unsafe { libc::geteuid() }
}
