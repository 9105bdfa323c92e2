//! Whether this process may open anything more.

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, close};
use std::os::fd::IntoRawFd;

/// Whether a descriptor cannot be had just now, which the runtime reports as lack of memory.
///
/// Asked before GPUs are granted access, and therefore cheap: a place without a way to it and
/// without a file behind it, asked of the kernel itself.
pub(crate) fn out_of_descriptors() -> bool {
    match rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(descriptor) => {
            // SAFETY: it is ours, and nobody else has seen its number.
            unsafe { close(descriptor.into_raw_fd()) };
            false
        }
        Err(errno) => errno == Errno::MFILE || errno == Errno::NFILE,
    }
}
