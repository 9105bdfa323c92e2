//! Checks whether this process has a free file descriptor.

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

/// The check for a free descriptor before every grant to a GPU, and a descriptor in reserve.
///
/// The check takes a quarter of the time of an open. Unlike [`out_of_descriptors`] it does not detect
/// that the whole system has no file left (`fs.file-max`).
#[derive(Debug)]
pub(crate) struct Spare {
    /// The descriptor for calls of `accept4` or `fcntl`. It is not a socket.
    probe: Option<OwnedFd>,
    /// Whether `accept4` allocates a descriptor before it fails because the file is not a socket.
    accept_allocates: bool,
    /// A descriptor to close for a call that must not fail when no other descriptor is free.
    reserve: Mutex<Option<OwnedFd>>,
}

impl Spare {
    /// Opens the descriptors. If that fails, [`none_free`](Self::none_free) opens a file each time.
    pub fn open() -> Self {
        let folder = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let probe = rustix::fs::open("/", folder, Mode::empty()).or_else(|_| open()).ok();
        let reserve = Mutex::new(open().ok());
        Self { probe, accept_allocates: accept_allocates(uname().release()), reserve }
    }

    /// Calls `act`, which opens a descriptor and closes it. If none is free, closes the reserve first and
    /// opens it again afterwards. If another thread takes that descriptor, a later call opens the reserve
    /// again.
    pub fn with_reserve<T>(&self, act: impl FnOnce() -> T) -> T {
        let mut reserve = self.reserve.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.none_free() {
            *reserve = reserve.take().or_else(|| open().ok());
            drop(reserve);
            return act();
        }
        drop(reserve.take());
        let result = act();
        *reserve = open().ok();
        result
    }

    /// Returns whether the process has no free descriptor.
    pub fn none_free(&self) -> bool {
        let Some(probe) = &self.probe else { return out_of_descriptors() };
        if self.accept_allocates {
            match accept_with(probe, SocketFlags::CLOEXEC) {
                Err(Errno::NOTSOCK) => return false,
                Err(Errno::MFILE) => return true,
                // A security policy forbids the call, or other code of the process has closed the descriptor.
                _ => {}
            }
        }
        match fcntl_dupfd_cloexec(probe, 0) {
            Ok(_) => false,
            Err(Errno::MFILE) => true,
            // Other code of the process has closed the descriptor.
            Err(_) => out_of_descriptors(),
        }
    }
}

/// Returns whether `accept4` allocates a descriptor before it looks up the socket: since Linux 5.15
/// (net/socket.c, `__sys_accept4_file`).
fn accept_allocates(release: &CStr) -> bool {
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
        for newer in [c"5.15.0-91-generic", c"5.15", c"6.1.0", c"10.0-rc1"] {
            assert!(accept_allocates(newer), "{newer:?}");
        }
        for older in [c"5.14.0-427.el9.x86_64", c"4.18.0", c"4.4.0", c"5", c"", c"unknown", c"5.x"]
        {
            assert!(!accept_allocates(older), "{older:?}");
        }
    }

    #[test]
    fn none_free_is_false_while_descriptors_are_free() {
        let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        for probe in [Spare::open().probe, Some(open().unwrap()), Some(file), None] {
            for accept_allocates in [false, true] {
                let probe = probe.as_ref().map(|probe| probe.try_clone().unwrap());
                let reserve = Mutex::default();
                assert!(!Spare { probe, accept_allocates, reserve }.none_free());
            }
        }
    }

    #[test]
    fn none_free_leaves_no_descriptor_open() {
        let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let (before, calls) = (count(), 500);
        let spare =
            Spare { probe: open().ok(), accept_allocates: false, reserve: Mutex::default() };
        for _ in 0..calls {
            assert!(!spare.none_free() && !out_of_descriptors());
        }
        // Other tests open descriptors at the same time.
        assert!(count() < before + calls / 2);
    }
}
