//! Whether this process may open anything more.

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, close, fcntl_dupfd_cloexec};
use std::os::fd::{IntoRawFd, OwnedFd};

fn is_out<T>(answer: Result<T, Errno>) -> bool {
    answer.err().is_some_and(|errno| errno == Errno::MFILE || errno == Errno::NFILE)
}

fn any() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// Whether a descriptor cannot be had just now, which the runtime reports as lack of memory.
pub(crate) fn out_of_descriptors() -> bool {
    is_out(any())
}

/// A descriptor of nothing in particular, by which to see whether there are more: to copy one and
/// close the copy takes a fraction of the time that it takes to open something.
#[derive(Debug)]
pub(crate) struct Sample(Option<OwnedFd>);

impl Sample {
    /// Takes one, if there is one.
    pub fn take() -> Self {
        Self(any().ok())
    }

    /// As [`out_of_descriptors`].
    pub fn is_last(&self) -> bool {
        let Some(sample) = &self.0 else { return out_of_descriptors() };
        match fcntl_dupfd_cloexec(sample, 0) {
            Ok(copy) => {
                // SAFETY: the copy is ours, and nobody else has seen its number.
                unsafe { close(copy.into_raw_fd()) };
                false
            }
            Err(errno) => is_out::<()>(Err(errno)),
        }
    }
}
