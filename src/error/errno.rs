//! Error numbers of the operating system.

use core::fmt;
use std::io;

/// An error number of the operating system, as errno(3) lists them.
///
/// Shown as the system's own words: `No space left on device (os error 28)`. It becomes an
/// [`io::Error`] by `into`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

impl Errno {
    /// The number, such as `ENOSPC`.
    #[must_use]
    pub const fn code(self) -> i32 {
        self.0
    }

    // Not `From`: the library that makes system calls here is nobody's business.
    pub(crate) fn of(errno: rustix::io::Errno) -> Self {
        Self(errno.raw_os_error())
    }
}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from(*self).fmt(f)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({}: {self})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_in_the_systems_words() {
        let full = Errno::of(rustix::io::Errno::NOSPC);
        assert_eq!(
            (full.code(), full.to_string().as_str()),
            (28, "No space left on device (os error 28)")
        );
        assert_eq!(io::Error::from(full).kind(), io::ErrorKind::StorageFull);
    }
}
