//! Locks on single bytes of a file, which belong to an open of it and not to a process
//! (`F_OFD_SETLK`): threads of one process exclude each other too, and the kernel takes the lock
//! back when the last descriptor of that open is closed, in whatever way its process ends.

use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// What is done with a byte's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteLock {
    /// Taken together with others; the file must be open for reading.
    Shared,
    /// Taken alone; the file must be open for writing.
    Alone,
    /// Given back.
    Free,
}

/// Takes or gives back a byte's lock, without waiting.
///
/// # Errors
/// `AGAIN` if another open of the file has a lock that excludes this one.
pub(crate) fn lock_byte(file: BorrowedFd<'_>, byte: u64, kind: ByteLock) -> Result<(), Errno> {
    let kind = match kind {
        ByteLock::Shared => libc::F_RDLCK,
        ByteLock::Alone => libc::F_WRLCK,
        ByteLock::Free => libc::F_UNLCK,
    };
    let range = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: i64::try_from(byte).map_err(|_| Errno::OVERFLOW)?,
        l_len: 1,
        // The kernel wants it so for locks of this kind.
        l_pid: 0,
    };
    // SAFETY: the descriptor is open while borrowed, and the kernel only reads the range.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) };
    if done == 0 {
        return Ok(());
    }
    let code = std::io::Error::last_os_error().raw_os_error();
    Err(code.map_or(Errno::IO, Errno::from_raw_os_error))
}
