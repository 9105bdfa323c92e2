//! Error numbers of the kernel.

use libc::c_int;

/// An error number, positive as in `errno.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

pub(crate) const EPERM: Errno = Errno(libc::EPERM);
pub(crate) const ENOENT: Errno = Errno(libc::ENOENT);
pub(crate) const EIO: Errno = Errno(libc::EIO);
pub(crate) const EBADF: Errno = Errno(libc::EBADF);
pub(crate) const ENOMEM: Errno = Errno(libc::ENOMEM);
pub(crate) const EACCES: Errno = Errno(libc::EACCES);
pub(crate) const EFAULT: Errno = Errno(libc::EFAULT);
pub(crate) const EINVAL: Errno = Errno(libc::EINVAL);
pub(crate) const ENOTTY: Errno = Errno(libc::ENOTTY);
pub(crate) const EAGAIN: Errno = Errno(libc::EAGAIN);
pub(crate) const ENODEV: Errno = Errno(libc::ENODEV);
pub(crate) const EBUSY: Errno = Errno(libc::EBUSY);
pub(crate) const ENOSPC: Errno = Errno(libc::ENOSPC);

pub(crate) type Result<T> = std::result::Result<T, Errno>;

const NAMES: [(&str, c_int); 14] = [
    ("EPERM", libc::EPERM),
    ("ENOENT", libc::ENOENT),
    ("EINTR", libc::EINTR),
    ("EIO", libc::EIO),
    ("EBADF", libc::EBADF),
    ("EAGAIN", libc::EAGAIN),
    ("ENOMEM", libc::ENOMEM),
    ("EACCES", libc::EACCES),
    ("EFAULT", libc::EFAULT),
    ("EBUSY", libc::EBUSY),
    ("ENODEV", libc::ENODEV),
    ("EINVAL", libc::EINVAL),
    ("EMFILE", libc::EMFILE),
    ("ENOTTY", libc::ENOTTY),
];

impl Errno {
    /// What the last system call of this thread left.
    pub(crate) fn last() -> Self {
        Self(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }

    /// The number of a name such as `ENOMEM`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|known| known.0 == name).map(|known| Self(known.1))
    }

    /// Leaves the number where the caller of libc looks for it, and gives what libc returns.
    pub(crate) fn leave(self) -> c_int {
        // SAFETY: the address is that of this thread's own errno.
        unsafe { *libc::__errno_location() = self.0 };
        -1
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match NAMES.iter().find(|known| known.1 == self.0) {
            Some(known) => formatter.write_str(known.0),
            None => write!(formatter, "errno {}", self.0),
        }
    }
}
