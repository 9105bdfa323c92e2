//! Whether this process has a free file descriptor.

use core::ffi::CStr;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{SocketFlags, accept_with};
use rustix::system::uname;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

/// Opens `/` with `O_PATH`: needs a descriptor, touches no file system.
fn open() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// Returns whether no descriptor is free. The runtime reports that as lack of memory.
pub(crate) fn out_of_descriptors() -> bool {
    matches!(open(), Err(Errno::MFILE | Errno::NFILE))
}

/// Checks for a free descriptor, in a quarter of the time of an open: the check precedes every grant to
/// a GPU. Unlike [`out_of_descriptors`] it does not detect that the whole system has no file left
/// (`fs.file-max`).
#[derive(Debug)]
pub(crate) struct Spare {
    /// The descriptor that `accept4` or `fcntl` is called with. It is not a socket.
    own: Option<OwnedFd>,
    /// Whether `accept4` allocates a descriptor before it fails because the file is not a socket.
    accepts_late: bool,
    /// A descriptor to close for a call that must not fail when no other is free.
    reserve: Mutex<Option<OwnedFd>>,
}

impl Spare {
    /// Opens the descriptors. Without them, [`is_last`](Self::is_last) opens a file each time.
    pub fn open() -> Self {
        let folder = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let own = rustix::fs::open("/", folder, Mode::empty()).or_else(|_| open()).ok();
        let reserve = Mutex::new(open().ok());
        Self { own, accepts_late: accepts_late(uname().release()), reserve }
    }

    /// Calls `act`, which needs a descriptor for a moment. If none is free, closes the reserve first and
    /// opens it again afterwards. If another thread takes the descriptor in between, a later call opens the
    /// reserve again.
    pub fn with_reserve<T>(&self, act: impl FnOnce() -> T) -> T {
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

    /// Returns whether no other descriptor is free.
    pub fn is_last(&self) -> bool {
        let Some(own) = &self.own else { return out_of_descriptors() };
        if self.accepts_late {
            match accept_with(own, SocketFlags::CLOEXEC) {
                Err(Errno::NOTSOCK) => return false,
                Err(Errno::MFILE) => return true,
                // Forbidden here, or closed by other code of the process.
                _ => {}
            }
        }
        match fcntl_dupfd_cloexec(own, 0) {
            Ok(_) => false,
            Err(Errno::MFILE) => true,
            // Other code of the process has closed the descriptor.
            Err(_) => out_of_descriptors(),
        }
    }
}

/// Returns whether a kernel of this release is Linux 5.15 or later (net/socket.c, `__sys_accept4_file`:
/// before, it looked for the socket first and allocated the descriptor then).
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
    fn accept_order_follows_the_kernel_version() {
        for late in [c"5.15.0-91-generic", c"5.15", c"6.1.0", c"10.0-rc1"] {
            assert!(accepts_late(late), "{late:?}");
        }
        for early in [c"5.14.0-427.el9.x86_64", c"4.18.0", c"4.4.0", c"5", c"", c"unknown", c"5.x"]
        {
            assert!(!accepts_late(early), "{early:?}");
        }
    }

    #[test]
    fn is_last_is_false_while_descriptors_are_free() {
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
    fn checks_leave_no_descriptor_open() {
        let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let (before, asked) = (count(), 500);
        let copies = Spare { own: open().ok(), accepts_late: false, reserve: Mutex::default() };
        for _ in 0..asked {
            assert!(!copies.is_last() && !out_of_descriptors());
        }
        // Other tests open descriptors meanwhile, too.
        assert!(count() < before + asked / 2);
    }
}
