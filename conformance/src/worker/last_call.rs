//! A page that tells what a process did last, also when it was killed.

use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// The longest that is told, in bytes.
const LENGTH: usize = 128;

/// A page of memory that belongs to two processes: one notes what it does, the other can read it
/// when the first is gone.
#[derive(Debug)]
pub struct LastCall(File);

impl LastCall {
    /// Makes a blank page.
    pub(super) fn blank() -> io::Result<Self> {
        let page = File::from(memfd_create("hsa-vmm last call", MemfdFlags::CLOEXEC)?);
        page.write_all_at(&[0; LENGTH], 0)?;
        Ok(Self(page))
    }

    /// The page that this worker was given, for it to write on.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if this process is no worker; else what the system answers.
    pub fn of_this_worker() -> io::Result<Self> {
        let (master, page) = super::master::master()?;
        Self::of(master, page)
    }

    fn of(process: i32, page: i32) -> io::Result<Self> {
        OpenOptions::new().write(true).open(format!("/proc/{process}/fd/{page}")).map(Self)
    }

    /// Notes what is being done now, in place of what was. One system call, which cannot tear.
    pub fn note(&self, what: &str) {
        let mut line = [0; LENGTH];
        for (to, from) in line.iter_mut().zip(what.bytes()) {
            *to = from;
        }
        // Who cannot note it goes on without.
        let _ = self.0.write_all_at(&line, 0);
    }

    /// What was noted last.
    pub(super) fn read(&self) -> Option<String> {
        let mut line = [0; LENGTH];
        self.0.read_exact_at(&mut line, 0).ok()?;
        let text = line.split(|&byte| byte == 0).next().unwrap_or_default();
        Some(String::from_utf8_lossy(text).into_owned()).filter(|text| !text.is_empty())
    }

    /// The descriptor's number.
    pub(super) fn number(&self) -> i32 {
        std::os::fd::AsRawFd::as_raw_fd(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::LastCall;

    #[test]
    fn the_last_is_read_by_the_other() {
        let page = LastCall::blank().unwrap();
        assert_eq!(page.read(), None);
        let this = std::process::id().cast_signed();
        let other = LastCall::of(this, page.number()).unwrap();
        other.note("in a_function_with_a_long_name");
        other.note("in map");
        assert_eq!(page.read().as_deref(), Some("in map"));
        other.note(&"x".repeat(1000));
        assert_eq!(page.read(), Some("x".repeat(super::LENGTH)));
        assert!(LastCall::of(this, -1).is_err());
        assert!(LastCall::of_this_worker().is_err(), "this process is none");
    }
}
