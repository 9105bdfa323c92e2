//! Whether this process may open anything more.

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, close, fcntl_dupfd_cloexec};
use std::os::fd::{IntoRawFd, OwnedFd};

/// A way to a place without a file behind it, asked of the kernel itself.
fn open() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// Whether a descriptor cannot be had just now, which the runtime reports as lack of memory.
pub(crate) fn out_of_descriptors() -> bool {
    match open() {
        Ok(descriptor) => {
            close_quickly(descriptor);
            false
        }
        Err(errno) => errno == Errno::MFILE || errno == Errno::NFILE,
    }
}

/// Closes what nothing is written to, without the C library.
fn close_quickly(descriptor: OwnedFd) {
    // SAFETY: it is ours, and nobody else has seen its number.
    unsafe { close(descriptor.into_raw_fd()) };
}

/// A descriptor to copy: half of what it costs to open something. Asked before GPUs are granted access,
/// that has to be cheap. Unlike [`out_of_descriptors`] it does not see that the whole system has no
/// file left (`fs.file-max`).
#[derive(Debug)]
pub(crate) struct Spare(Option<OwnedFd>);

impl Spare {
    /// Opens one; if there is none to be had, it will be found out the long way.
    pub fn open() -> Self {
        Self(open().ok())
    }

    /// Whether no other descriptor can be had just now.
    pub fn is_last(&self) -> bool {
        match self.0.as_ref().map(|own| fcntl_dupfd_cloexec(own, 0)) {
            Some(Ok(copy)) => {
                close_quickly(copy);
                false
            }
            Some(Err(Errno::MFILE)) => true,
            // It is not ours any more: somebody has closed all that there was.
            Some(Err(_)) | None => out_of_descriptors(),
        }
    }
}
