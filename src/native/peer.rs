//! Who is at the other end of a Unix socket.
//!
//! By hand, because a process that this one has no number for (of another PID namespace) is 0 to
//! the kernel, which rustix's type for it cannot be.

use rustix::io::Errno;
use std::num::NonZero;
use std::os::fd::{AsFd, AsRawFd};

/// The process that connected or listened, or made the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// `None` if it has no number in the PID namespace of this process.
    pub process: Option<NonZero<i32>>,
    /// Its effective user then, as this process's user namespace numbers it.
    pub user: u32,
}

/// Asks the kernel (`SO_PEERCRED`).
pub(crate) fn peer_of(socket: impl AsFd) -> Result<Peer, Errno> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open while borrowed; `found` is writable, of `size` bytes, and any
    // bytes are a ucred.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut size,
        )
    };
    if asked != 0 {
        let code = std::io::Error::last_os_error().raw_os_error();
        return Err(code.map_or(Errno::IO, Errno::from_raw_os_error));
    }
    Ok(Peer { process: NonZero::new(found.pid), user: found.uid })
}
