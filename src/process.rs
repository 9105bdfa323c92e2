//! Other processes by number, and what the numbers mean.
//!
//! A number is a process only within a PID namespace; and `/proc` speaks of the namespace that it
//! was mounted in, which need not be this process's.

use rustix::fs::stat;
use rustix::io::Errno;
use rustix::process::Pid;
use std::fs;

/// The PID namespace of this process, which no other on this machine has the number of; `None` if
/// `/proc` is not there, or speaks of another one.
pub(crate) fn namespace() -> Result<Option<u64>, Errno> {
    // One number for each namespace, from that of `/proc` down to the process's own.
    let status = read("self", "status")?.unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    if numbers.is_none_or(|numbers| numbers.split_whitespace().count() != 1) {
        return Ok(None);
    }
    Ok(Some(stat("/proc/self/ns/pid")?.st_ino))
}

/// When a process began, in the clock ticks of `/proc/PID/stat`; `None` if there is none of this
/// number.
pub(crate) fn began(process: Pid) -> Result<Option<u64>, Errno> {
    let line = read(&process.as_raw_nonzero().to_string(), "stat")?;
    // The second word is the program's name in parentheses, which may contain anything.
    let after = line.as_deref().and_then(|line| line.rsplit_once(')'));
    Ok(after.and_then(|(_, rest)| rest.split_whitespace().nth(19)?.parse().ok()))
}

/// Returns the real, effective, saved and file system user of a process; `None` if there is none of
/// this number. They differ while the process runs a set-user-id program: its effective user is then
/// the program's, and its descriptors are still those of the real user, who started it.
pub(crate) fn users(process: Pid) -> Result<Option<[u32; 4]>, Errno> {
    let status = read(&process.as_raw_nonzero().to_string(), "status")?;
    let Some(status) = status else { return Ok(None) };
    // The kernel escapes a line break in the program's name, which comes first.
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let numbers = line.unwrap_or_default().split_whitespace().map(str::parse);
    let numbers: Vec<u32> = numbers.collect::<Result<_, _>>().map_err(|_| Errno::IO)?;
    numbers.try_into().map(Some).map_err(|_| Errno::IO)
}

/// Another process as it was found, told from a later one of the same number by its start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    process: Pid,
    began: u64,
    /// As [`users`] returns them.
    pub users: [u32; 4],
}

impl Found {
    /// Looks a process up; `None` if there is none of this number.
    pub fn of(process: Pid) -> Result<Option<Self>, Errno> {
        let (Some(began), Some(users)) = (began(process)?, users(process)?) else {
            return Ok(None);
        };
        let found = Self { process, began, users };
        Ok(found.is_alive()?.then_some(found))
    }

    /// Whether both are one process, whatever its users were.
    pub fn is_same(self, other: Self) -> bool {
        (self.process, self.began) == (other.process, other.began)
    }

    /// Whether the number is still this process's.
    fn is_alive(self) -> Result<bool, Errno> {
        Ok(began(self.process)? == Some(self.began))
    }
}

/// A file of a process's in `/proc`; `None` if there is no such process.
fn read(process: &str, file: &str) -> Result<Option<String>, Errno> {
    // A program's name need not be text.
    match fs::read(format!("/proc/{process}/{file}")) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) => match Errno::from_io_error(&error).unwrap_or(Errno::IO) {
            // One that ends while it is read is `SRCH`.
            Errno::NOENT | Errno::SRCH => Ok(None),
            errno => Err(errno),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{geteuid, getpid};

    #[test]
    fn this_process_is_found() {
        let (began, users) = (began(getpid()).unwrap(), users(getpid()).unwrap());
        assert!(began.is_some_and(|ticks| ticks > 0), "{began:?}");
        assert_eq!(users, Some([geteuid().as_raw(); 4]));
        assert!(namespace().unwrap().is_some());
    }

    #[test]
    fn numbers_of_no_process_are_nobody() {
        let none = Pid::from_raw(i32::MAX).unwrap();
        assert_eq!((began(none), users(none)), (Ok(None), Ok(None)));
        assert_eq!(Found::of(none), Ok(None));
    }

    #[test]
    fn found_tells_a_process_from_one_before_it() {
        let found = Found::of(getpid()).unwrap().unwrap();
        assert_eq!((found.users, found.is_alive()), ([geteuid().as_raw(); 4], Ok(true)));
        let before = Found { began: found.began - 1, ..found };
        assert_eq!((before.is_alive(), before.is_same(found)), (Ok(false), false));
    }
}
