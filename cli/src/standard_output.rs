//! Writes to standard output, and detects whether it was closed when this process began.

use crate::output;
use rustix::io::Errno;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether standard output was closed when this process began (`hsa-vmm info >&-`).
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// The C library calls `record_if_closed` before Rust's runtime starts. Later, a closed standard output could not be
/// recognised, because Rust's runtime opens `/dev/null` in its place.
#[used]
#[unsafe(link_section = ".init_array")]
static CALL_AT_START: extern "C" fn() = record_if_closed;

extern "C" fn record_if_closed() {
    let flags = rustix::io::fcntl_getfd(rustix::stdio::stdout());
    IS_CLOSED.store(flags == Err(Errno::BADF), Ordering::Relaxed);
}

/// Returns whether standard output was closed when this process began.
pub fn is_closed() -> bool {
    IS_CLOSED.load(Ordering::Relaxed)
}

/// Makes `command` start its program with standard output closed, if standard output was closed when this process
/// began. Otherwise, the program would write to the `/dev/null` that Rust's runtime has opened.
pub fn keep_closed(command: &mut Command) {
    let close = || {
        // SAFETY: Rust's runtime has opened the descriptor, and nothing uses it between `fork` and `exec`.
        unsafe { rustix::io::close(1) };
        Ok(())
    };
    if is_closed() {
        // SAFETY: `close` is async-signal-safe.
        unsafe { command.pre_exec(close) };
    }
}

/// Writes to standard output, without a buffer. Unlike [`io::Stdout`], returns an error if standard output is closed.
///
/// If the reader has closed the pipe (`hsa-vmm conform | head -1`), discards the text. The command continues, so that
/// its exit status is the status of the complete run.
#[derive(Clone, Copy, Debug)]
pub struct StandardOutput;

impl Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let write = || match is_closed() {
            true => Err(Errno::BADF),
            false => rustix::io::write(rustix::stdio::stdout(), bytes),
        };
        match rustix::io::retry_on_intr(write) {
            Err(Errno::PIPE) => Ok(bytes.len()),
            result => {
                result.map_err(|cause| output::record_failure("to standard output", &cause.into()))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
