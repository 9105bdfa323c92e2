//! A shared page with the last native call of a worker. The page outlives the worker.

use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// The maximum length of a note, in bytes.
const MAX_NOTE: usize = 128;

/// Memory that a worker and its parent share. The worker notes each native call. The parent can read the last note
/// after the worker has crashed.
#[derive(Debug)]
pub struct LastCall(File);

impl LastCall {
    /// Creates an empty page.
    pub(super) fn new() -> io::Result<Self> {
        let page = File::from(memfd_create("hsa-vmm last call", MemfdFlags::CLOEXEC)?);
        page.write_all_at(&[0; MAX_NOTE], 0)?;
        Ok(Self(page))
    }

    /// Opens this worker's page for writing.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if this process is not a worker; otherwise the error of the
    /// system.
    pub fn open_in_worker() -> io::Result<Self> {
        let (parent, page) = super::parent::parent_ids()?;
        Self::open(parent, page)
    }

    fn open(process: i32, page: i32) -> io::Result<Self> {
        OpenOptions::new().write(true).open(format!("/proc/{process}/fd/{page}")).map(Self)
    }

    /// Replaces the note. Uses a single system call, so that the parent never reads half a note.
    pub fn note(&self, call: &str) {
        let mut line = [0; MAX_NOTE];
        for (target, byte) in line.iter_mut().zip(call.bytes()) {
            *target = byte;
        }
        // The worker continues without the note if writing fails.
        let _ = self.0.write_all_at(&line, 0);
    }

    /// Returns the last note.
    pub(super) fn read(&self) -> Option<String> {
        let mut line = [0; MAX_NOTE];
        self.0.read_exact_at(&mut line, 0).ok()?;
        let text = line.split(|&byte| byte == 0).next().unwrap_or_default();
        Some(String::from_utf8_lossy(text).into_owned()).filter(|text| !text.is_empty())
    }

    /// Returns the number of the page's descriptor.
    pub(super) fn descriptor_number(&self) -> i32 {
        std::os::fd::AsRawFd::as_raw_fd(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::LastCall;

    #[test]
    fn read_returns_the_last_note_of_the_worker() {
        let page = LastCall::new().unwrap();
        assert_eq!(page.read(), None);
        let this = std::process::id().cast_signed();
        let writer = LastCall::open(this, page.descriptor_number()).unwrap();
        writer.note("in a_function_with_a_long_name");
        writer.note("in map");
        assert_eq!(page.read().as_deref(), Some("in map"));
        writer.note(&"x".repeat(1000));
        assert_eq!(page.read(), Some("x".repeat(super::MAX_NOTE)));
        assert!(LastCall::open(this, -1).is_err());
        assert!(LastCall::open_in_worker().is_err(), "this process is not a worker");
    }
}
