//! Whether this process may open anything more.

use core::ffi::CStr;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{SocketFlags, accept_with};
use rustix::system::uname;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

/// A way to a place without a file behind it, asked of the kernel itself.
fn open() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// Whether a descriptor cannot be had just now, which the runtime reports as lack of memory.
pub(crate) fn out_of_descriptors() -> bool {
    matches!(open(), Err(Errno::MFILE | Errno::NFILE))
}

/// Asks whether there is a descriptor, in a quarter of the time that it takes to open something:
/// before GPUs are granted access, that has to be cheap. Unlike [`out_of_descriptors`] it does not see
/// that the whole system has no file left (`fs.file-max`).
#[derive(Debug)]
pub(crate) struct Spare {
    /// What is asked of: no socket.
    own: Option<OwnedFd>,
    /// Whether the kernel takes a number for a connection before it sees that there can be none.
    accepts_late: bool,
    /// For what must not fail when no other descriptor is left.
    reserve: Mutex<Option<OwnedFd>>,
}

impl Spare {
    /// Opens what is asked of; if there is nothing to be had, it will be found out the long way.
    pub fn open() -> Self {
        let folder = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let own = rustix::fs::open("/", folder, Mode::empty()).or_else(|_| open()).ok();
        let reserve = Mutex::new(open().ok());
        Self { own, accepts_late: accepts_late(uname().release()), reserve }
    }

    /// Does something that needs a descriptor for a moment: if there is none left, closes the reserve
    /// first and opens it again afterwards. Another thread may open a file in between; it then has the
    /// descriptor, and the reserve is opened again when there is one.
    pub fn lend<T>(&self, act: impl FnOnce() -> T) -> T {
        let mut reserve = self.reserve.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_last() {
            *reserve = reserve.take().or_else(|| open().ok());
            drop(reserve);
            return act();
        }
        drop(reserve.take());
        let done = act();
        *reserve = open().ok();
        done
    }

    /// Whether no other descriptor can be had just now.
    pub fn is_last(&self) -> bool {
        let Some(own) = &self.own else { return out_of_descriptors() };
        if self.accepts_late {
            match accept_with(own, SocketFlags::CLOEXEC) {
                Err(Errno::NOTSOCK) => return false,
                Err(Errno::MFILE) => return true,
                // Forbidden here, or not ours any more.
                _ => {}
            }
        }
        match fcntl_dupfd_cloexec(own, 0) {
            Ok(_) => false,
            Err(Errno::MFILE) => true,
            // It is not ours any more: somebody has closed all that there was.
            Err(_) => out_of_descriptors(),
        }
    }
}

/// Whether a kernel of this name is Linux 5.15 or later (net/socket.c, `__sys_accept4_file`: before, it
/// looked for the socket first, and took a number then).
fn accepts_late(release: &CStr) -> bool {
    let release = release.to_string_lossy();
    let mut numbers =
        release.split(|it: char| !it.is_ascii_digit()).map_while(|it| it.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (5, 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_told_apart() {
        for late in [c"5.15.0-91-generic", c"5.15", c"6.1.0", c"10.0-rc1"] {
            assert!(accepts_late(late), "{late:?}");
        }
        for early in [c"5.14.0-427.el9.x86_64", c"4.18.0", c"4.4.0", c"5", c"", c"unknown", c"5.x"]
        {
            assert!(!accepts_late(early), "{early:?}");
        }
    }

    #[test]
    fn there_is_a_descriptor_whatever_is_asked_of() {
        let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        for own in [Spare::open().own, Some(open().unwrap()), Some(file), None] {
            for accepts_late in [false, true] {
                let own = own.as_ref().map(|own| own.try_clone().unwrap());
                let reserve = Mutex::default();
                assert!(!Spare { own, accepts_late, reserve }.is_last());
            }
        }
    }

    #[test]
    fn to_ask_leaves_none_open() {
        let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let (before, asked) = (count(), 500);
        let copies = Spare { own: open().ok(), accepts_late: false, reserve: Mutex::default() };
        for _ in 0..asked {
            assert!(!copies.is_last() && !out_of_descriptors());
        }
        // Other tests open some meanwhile, too.
        assert!(count() < before + asked / 2);
    }
}
