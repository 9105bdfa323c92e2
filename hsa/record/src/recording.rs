//! Opens and closes the file of a recording, and writes calls to the file.

use crate::line::Line;
use crate::stack;
use libc::c_int;
use std::cell::Cell;
use std::ffi::{CString, OsStr, OsString};
use std::io::{Error, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};

/// The environment variable that names the file to write.
const FILE: &str = "HSA_VMM_RECORD";
/// The environment variable that requests call stacks.
const STACKS: &str = "HSA_VMM_RECORD_STACKS";
/// The file's descriptor has at least this number, if the limit permits: programs expect small numbers for their
/// own files.
const MIN_DESCRIPTOR: c_int = 512;
/// The maximum number of recordings of one process.
const MAX_RECORDINGS: u32 = 100;

/// The descriptor of the file. Negative if calls are not recorded.
static DESCRIPTOR_IN_USE: AtomicI32 = AtomicI32::new(-1);
/// The time at which the recording began, in nanoseconds of the monotonic clock.
static START_TIME: AtomicU64 = AtomicU64::new(0);
static WITH_STACKS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The kernel's ID of the thread. 0 if the ID is not known yet.
    static THREAD_ID: Cell<u32> = const { Cell::new(0) };
}

/// The time at which a call began, in nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start(u64);

/// Opens the file and writes the header. Returns whether calls are recorded from now on.
pub(crate) fn begin(header: Line) -> bool {
    static FORK_HANDLER: Once = Once::new();
    let Some(name) = hsa_sys::library::variable(FILE) else { return false };
    let descriptor = match open(&name) {
        Ok(descriptor) => descriptor,
        Err(error) => {
            print_error(format_args!("not recording: {}: {error}", name.display()));
            return false;
        }
    };
    // SAFETY: the function lives as long as this object; glibc removes the handler when it unloads the object.
    FORK_HANDLER.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(stop_in_child));
    });
    let with_stacks = hsa_sys::library::variable(STACKS).is_some_and(|value| value != "0");
    if with_stacks {
        stack::prepare();
    }
    let mut header = header;
    header.bool("stacks", with_stacks);
    WITH_STACKS.store(with_stacks, Relaxed);
    START_TIME.store(now(), Relaxed);
    DESCRIPTOR_IN_USE.store(descriptor, Relaxed);
    write(descriptor, &header.end());
    let is_recording = DESCRIPTOR_IN_USE.load(Relaxed) >= 0;
    if !is_recording {
        // SAFETY: the descriptor belongs to this function, because `write` has failed and no call is recorded.
        unsafe { libc::close(descriptor) };
    }
    is_recording
}

/// Creates the file `name`. If this file exists, tries `name.PID`, then `name.PID.2` and so on.
/// Returns the descriptor.
fn open(name: &OsStr) -> Result<c_int, Error> {
    for attempt in 0..MAX_RECORDINGS {
        let suffix = match attempt {
            0 => String::new(),
            1 => format!(".{}", std::process::id()),
            number => format!(".{}.{number}", std::process::id()),
        };
        let path: OsString = [name, suffix.as_ref()].into_iter().collect();
        let path = CString::new(path.into_vec())?;
        let flags =
            libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC;
        // SAFETY: the path ends with NUL.
        let descriptor = unsafe { libc::open(path.as_ptr(), flags, 0o666) };
        if descriptor < 0 {
            let error = Error::last_os_error();
            if error.raw_os_error() == Some(libc::EEXIST) {
                continue;
            }
            return Err(error);
        }
        // SAFETY: only this function owns the descriptor, which it closes if there is a duplicate.
        unsafe {
            let high = libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, MIN_DESCRIPTOR);
            if high >= 0 {
                libc::close(descriptor);
                return Ok(high);
            }
        }
        return Ok(descriptor);
    }
    Err(Error::from_raw_os_error(libc::EEXIST))
}

/// Returns the time at which a call begins, or `None` if calls are not recorded.
///
/// If call stacks were requested, writes the call and its stack immediately. The file then contains a call in which the
/// program crashes. `write_fields` writes the call's arguments.
#[inline]
pub(crate) fn start(call: &'static str, write_fields: impl FnOnce(&mut Line)) -> Option<Start> {
    let descriptor = DESCRIPTOR_IN_USE.load(Relaxed);
    if descriptor < 0 {
        return None;
    }
    if WITH_STACKS.load(Relaxed) {
        let mut line = Line::new();
        line.text("call", call.as_bytes());
        write_fields(&mut line);
        line.bool("pending", true);
        line.number("tid", thread_id().into());
        stack::write(&mut line);
        write(descriptor, &line.end());
    }
    Some(Start(now()))
}

/// Writes a call that has returned. `write_fields` writes the call's arguments and results.
#[inline(never)]
pub(crate) fn finish(
    start: Start,
    call: &'static str,
    status: u32,
    write_fields: impl FnOnce(&mut Line),
) {
    let end = now();
    let mut line = Line::new();
    line.text("call", call.as_bytes());
    write_fields(&mut line);
    line.number("status", status.into());
    line.number("t", start.0.saturating_sub(START_TIME.load(Relaxed)));
    line.number("ns", end.saturating_sub(start.0));
    line.number("tid", thread_id().into());
    let descriptor = DESCRIPTOR_IN_USE.load(Relaxed);
    if descriptor >= 0 {
        write(descriptor, &line.end());
    }
}

/// Writes the end of the recording, and closes the file.
pub(crate) fn end() {
    if let Some(descriptor) = write_end() {
        // SAFETY: the descriptor belongs to this module. The runtime has stopped, so no call uses the descriptor.
        unsafe { libc::close(descriptor) };
    }
}

/// Writes the end of the recording. Returns the descriptor of the file, or `None` if calls are not recorded.
fn write_end() -> Option<c_int> {
    let descriptor = DESCRIPTOR_IN_USE.swap(-1, Relaxed);
    if descriptor < 0 {
        return None;
    }
    let mut line = Line::new();
    line.text("call", b"end");
    line.number("t", now().saturating_sub(START_TIME.load(Relaxed)));
    write(descriptor, &line.end());
    Some(descriptor)
}

/// Ends the recording of a program that exits without stopping the runtime. Leaves the file open, because other threads
/// may still write calls.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end_at_exit;

extern "C" fn end_at_exit() {
    let _ = std::panic::catch_unwind(write_end);
}

/// Stops the recording in a forked child, in which AMD's runtime cannot be used.
extern "C" fn stop_in_child() {
    DESCRIPTOR_IN_USE.store(-1, Relaxed);
}

/// Writes a line in one system call, so that lines of several threads do not mix. If the call fails, the recording
/// stops.
fn write(descriptor: c_int, line: &[u8]) {
    loop {
        // SAFETY: the kernel reads `line.len()` bytes of `line`.
        let written = unsafe { libc::write(descriptor, line.as_ptr().cast(), line.len()) };
        if usize::try_from(written).is_ok_and(|written| written == line.len()) {
            return;
        }
        let error = Error::last_os_error();
        if written < 0 && error.raw_os_error() == Some(libc::EINTR) {
            continue;
        }
        DESCRIPTOR_IN_USE.store(-1, Relaxed);
        if written < 0 {
            print_error(format_args!("the recording stops: {error}"));
        } else {
            print_error(format_args!("the recording stops: the file system is full"));
        }
        return;
    }
}

/// Returns the monotonic time in nanoseconds.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes `time`, which lives until the call returns.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Returns the kernel's ID of the calling thread.
fn thread_id() -> u32 {
    // A thread that is exiting may have no thread-local storage left.
    THREAD_ID.try_with(Cell::get).ok().filter(|&id| id != 0).unwrap_or_else(|| {
        // SAFETY: the call accesses no memory.
        let id = unsafe { libc::gettid() } as u32;
        let _ = THREAD_ID.try_with(|cell| cell.set(id));
        id
    })
}

/// Prints an error to standard error. Ignores failures.
pub(crate) fn print_error(message: std::fmt::Arguments<'_>) {
    let _ = std::io::stderr().write_all(format!("hsa-vmm record: {message}\n").as_bytes());
}

pub(crate) fn bytes(path: &std::path::Path) -> &[u8] {
    path.as_os_str().as_bytes()
}
