//! Checks whether this process has a free file descriptor, and keeps one to spare.

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

/// Opens `/` with `O_PATH`, which needs a descriptor, but does not access the file system.
fn open() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// Duplicates a descriptor of memory. The copy is not a standard stream (0 to 2): if the program has closed standard
/// error, the log would be written into the memory.
pub(crate) fn duplicate(descriptor: impl AsFd) -> Result<OwnedFd, Errno> {
    fcntl_dupfd_cloexec(descriptor, 3)
}

/// Replaces a descriptor of memory that has the number of a standard stream ([`duplicate`]).
pub(crate) fn above_streams(descriptor: OwnedFd) -> Result<OwnedFd, Errno> {
    if descriptor.as_raw_fd() > 2 { Ok(descriptor) } else { duplicate(descriptor) }
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
    /// The descriptor that [`with_spare`](Self::with_spare) closes.
    spare: Mutex<Option<OwnedFd>>,
}

impl SpareDescriptors {
    /// Opens the descriptors. If this fails, [`none_free`](Self::none_free) opens a file on each call.
    pub fn open() -> Self {
        Self { probe: open().ok(), spare: Mutex::new(open().ok()) }
    }

    /// Calls `act`, which opens a descriptor and closes it. If no descriptor is free, or if `act` must not fail, first
    /// closes the spare descriptor, and opens it again after `act`. If another thread has used the descriptor in the
    /// meantime, a later call opens the spare descriptor again. `act` must not call this function: the lock is held.
    ///
    /// An `act` that must not fail, such as a rollback, does not rely on a free descriptor, because another thread can
    /// take the descriptor before `act` does.
    pub fn with_spare<T>(&self, must_not_fail: bool, act: impl FnOnce() -> T) -> T {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if !must_not_fail && !self.none_free() {
            *spare = spare.take().or_else(|| open().ok());
            drop(spare);
            return act();
        }
        drop(spare.take());
        let result = act();
        *spare = open().ok();
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
            assert!(!SpareDescriptors { probe, spare: Mutex::default() }.none_free());
        }
    }

    #[test]
    fn unneeded_spare_stays_open_if_act_may_fail() {
        let descriptors = SpareDescriptors::open();
        for must_not_fail in [false, true] {
            let is_locked =
                descriptors.with_spare(must_not_fail, || descriptors.spare.try_lock().is_err());
            assert_eq!(is_locked, must_not_fail);
            assert!(descriptors.spare.lock().unwrap().is_some());
        }
    }

    #[test]
    fn none_free_leaves_no_descriptor_open() {
        let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let descriptors = SpareDescriptors::open();
        let (count_before, calls) = (count(), 500);
        for _ in 0..calls {
            assert!(!descriptors.none_free() && !out_of_descriptors());
        }
        // Other tests open descriptors at the same time.
        assert!(count() < count_before + calls / 2);
    }
}
