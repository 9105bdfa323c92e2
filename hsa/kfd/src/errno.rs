//! Error numbers of the kernel.

use libc::c_int;

/// An error number, positive as in `errno.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

/// Defines constants of the error numbers in use, and the names that fault plans accept.
macro_rules! numbers {
    ($($name:ident),*; $($other:ident),*) => {
        $(pub(crate) const $name: Errno = Errno(libc::$name);)*
        const NAMES: &[(&str, c_int)] = &[
            $((stringify!($name), libc::$name),)*
            $((stringify!($other), libc::$other),)*
        ];
    };
}

numbers! {
    EPERM, ENOENT, EIO, EBADF, ENOMEM, EACCES, EFAULT, EINVAL, ENOTTY, EAGAIN, EINTR, ENODEV, EBUSY,
    ENOSPC;
    EMFILE, ENFILE, EEXIST, ENXIO, ERANGE, ENOSYS, EOPNOTSUPP, EOVERFLOW, ETIME, ETIMEDOUT,
    ECANCELED, ENODATA, EDEADLK, ESRCH, E2BIG, EXDEV, EPIPE, EPROTO, EREMOTEIO
}

pub(crate) type Result<T> = std::result::Result<T, Errno>;

impl Errno {
    pub(crate) fn last() -> Self {
        Self(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }

    /// Finds a number by name, such as `ENOMEM`.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|entry| entry.0 == name).map(|entry| Self(entry.1))
    }

    /// Sets `errno` and returns -1, as libc does.
    pub(crate) fn set_errno(self) -> c_int {
        // SAFETY: the address is that of this thread's own errno.
        unsafe { *libc::__errno_location() = self.0 };
        -1
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match NAMES.iter().find(|entry| entry.1 == self.0) {
            Some(entry) => formatter.write_str(entry.0),
            None => write!(formatter, "errno {}", self.0),
        }
    }
}
