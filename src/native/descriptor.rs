//! Checks whether this process has a free file descriptor, and keeps one in reserve.

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

/// Opens `/` with `O_PATH`, which needs a descriptor, but does not access the file system.
fn open() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// Returns whether no descriptor is free, or the system's limit of open files is reached. In these cases, the runtime
/// reports a lack of memory.
pub(crate) fn out_of_descriptors() -> bool {
    matches!(open(), Err(Errno::MFILE | Errno::NFILE))
}

/// Two open descriptors. Duplicating the first checks whether a descriptor is free. Closing the second provides a
/// free descriptor.
///
/// [`none_free`](Self::none_free) opens no file, unlike [`out_of_descriptors`]. Therefore it does not detect that the
/// system's limit of open files is reached (`fs.file-max`).
#[derive(Debug)]
pub(crate) struct SpareDescriptors {
    /// The descriptor that [`none_free`](Self::none_free) duplicates.
    probe: Option<OwnedFd>,
    /// The descriptor that [`with_reserve`](Self::with_reserve) closes.
    reserve: Mutex<Option<OwnedFd>>,
}

impl SpareDescriptors {
    /// Opens the descriptors. If this fails, [`none_free`](Self::none_free) opens a file on each call.
    pub fn open() -> Self {
        Self { probe: open().ok(), reserve: Mutex::new(open().ok()) }
    }

    /// Calls `act`, which opens a descriptor and closes it. If no descriptor is free, or if `act` must not fail, first
    /// closes the reserve, and opens it again after `act`. If another thread has used the descriptor in the meantime, a
    /// later call opens the reserve again. `act` must not call this function: the reserve is locked.
    ///
    /// An `act` that must not fail, such as a rollback, does not rely on a free descriptor, because another thread can
    /// take the descriptor before `act` does.
    pub fn with_reserve<T>(&self, must_not_fail: bool, act: impl FnOnce() -> T) -> T {
        let mut reserve = self.reserve.lock().unwrap_or_else(PoisonError::into_inner);
        if !must_not_fail && !self.none_free() {
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
        match fcntl_dupfd_cloexec(probe, 0) {
            Ok(_) => false,
            Err(Errno::MFILE) => true,
            // Other code of the process has closed the descriptor.
            Err(_) => out_of_descriptors(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_free_is_false_while_descriptors_are_free() {
        for probe in [open().ok(), None] {
            assert!(!SpareDescriptors { probe, reserve: Mutex::default() }.none_free());
        }
    }

    #[test]
    fn unneeded_reserve_stays_open_if_act_may_fail() {
        let spare = SpareDescriptors::open();
        for must_not_fail in [false, true] {
            let is_locked = spare.with_reserve(must_not_fail, || spare.reserve.try_lock().is_err());
            assert_eq!(is_locked, must_not_fail);
            assert!(spare.reserve.lock().unwrap().is_some());
        }
    }

    #[test]
    fn none_free_leaves_no_descriptor_open() {
        let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let spare = SpareDescriptors::open();
        let (count_before, calls) = (count(), 500);
        for _ in 0..calls {
            assert!(!spare.none_free() && !out_of_descriptors());
        }
        // Other tests open descriptors at the same time.
        assert!(count() < count_before + calls / 2);
    }
}
