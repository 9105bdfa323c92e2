//! Other processes: their identification, and the users who are trusted.
//!
//! A process number identifies a process only within a PID namespace. `/proc` shows the processes of the namespace in
//! which `/proc` was mounted. That namespace can differ from the namespace of this process.

use rustix::fs::stat;
use rustix::io::Errno;
use rustix::process::{Pid, geteuid};
use std::fs;

/// The users whose processes can exchange memory with this process. User numbers are numbers in this process's user
/// namespace.
///
/// For the process at the other end of a socket, the effective user is checked: when the process connected or began to
/// listen, its effective user must have been the trusted user. A [`Ticket`](crate::transport::Ticket) and an
/// [`IpcHandle`](crate::ipc::IpcHandle) name a process by its number. The real, effective, saved and file system user
/// of the named process must all be the trusted user. The effective user alone is not sufficient, because a process
/// that runs a set-user-id program still has the descriptors of the user who started it.
///
/// ```
/// use hsa_vmm::transport::Channel;
/// use hsa_vmm::transport::Trust;
///
/// # fn main() -> Result<(), hsa_vmm::Error> {
/// let (local, _remote) = Channel::pair()?;
/// let channel = local.with_trust(Trust::User(1000));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trust {
    /// The effective user of this process.
    #[default]
    SameUser,
    /// One user, by number.
    User(u32),
    /// Every user. The library still validates received data, but other users share the memory.
    Anyone,
}

/// A user who is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("of {}; only user {trusted} is trusted (see Trust)", .user.map_or_else(
    || "a user who has no number in this user namespace".to_owned(),
    |user| format!("user {user}"),
))]
pub struct UntrustedUser {
    /// The user of the other process; `None` if that user has no number in the user namespace of this
    /// process.
    pub user: Option<u32>,
    /// The user who is trusted.
    pub trusted: u32,
}

impl Trust {
    /// Rejects a user who is not trusted.
    pub(crate) fn check(self, user: u32) -> Result<(), UntrustedUser> {
        let trusted = match self {
            Self::SameUser => geteuid().as_raw(),
            Self::User(trusted) => trusted,
            Self::Anyone => return Ok(()),
        };
        let user = Some(user).filter(|user| !is_overflow_user(*user));
        if user == Some(trusted) { Ok(()) } else { Err(UntrustedUser { user, trusted }) }
    }

    /// Rejects a process if any of its four users ([`Process::users`]) is not trusted.
    pub(crate) fn check_all(self, users: [u32; 4]) -> Result<(), UntrustedUser> {
        users.into_iter().try_for_each(|user| self.check(user))
    }
}

/// Returns whether this is the number that the kernel shows for every user without a number in this user namespace.
/// This number identifies no user, even if it is also the number of this process's user.
fn is_overflow_user(user: u32) -> bool {
    let text = fs::read_to_string("/proc/sys/kernel/overflowuid");
    // 65534 is the kernel's default.
    let number = text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(65534);
    // In a namespace that maps all users, such as the initial namespace, every number identifies a user.
    let uid_map = || fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    user == number && !uid_map().split_whitespace().eq(["0", "0", "4294967295"])
}

/// Another process. Its start time distinguishes it from a later process with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pid: Pid,
    /// The start time in clock ticks, from `/proc/PID/stat`.
    pub start_time: u64,
    /// The real, effective, saved and file system user. They differ while the process runs a set-user-id program: the
    /// effective user is the program's owner, but the process still has the real user's descriptors.
    pub users: [u32; 4],
}

impl Process {
    /// Looks up a process by its number. Returns `None` if no process has the number.
    pub fn find(pid: Pid) -> Result<Option<Self>, Errno> {
        let (Some(start_time), Some(users)) = (start_time(pid)?, users(pid)?) else {
            return Ok(None);
        };
        let found = Self { pid, start_time, users };
        // The number can have been reused between the reads of the two files.
        Ok((self::start_time(pid)? == Some(start_time)).then_some(found))
    }

    /// Returns whether `self` and `other` are the same process, even if its users have changed.
    pub fn is_same_process(self, other: Self) -> bool {
        (self.pid, self.start_time) == (other.pid, other.start_time)
    }
}

/// Returns the inode number of this process's PID namespace, which is unique on this machine. Returns
/// `None` if `/proc` is missing or shows another namespace.
pub(crate) fn pid_namespace() -> Result<Option<u64>, Errno> {
    // `NSpid` lists the process's number in each namespace, from the namespace of `/proc` down to the process's own.
    let status = read("self", "status")?.unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    if numbers.is_none_or(|numbers| numbers.split_whitespace().count() != 1) {
        return Ok(None);
    }
    Ok(Some(stat("/proc/self/ns/pid")?.st_ino))
}

fn start_time(pid: Pid) -> Result<Option<u64>, Errno> {
    let line = read(&pid.as_raw_nonzero().to_string(), "stat")?;
    // The second word is the program's name in parentheses, which may contain anything.
    let name_and_rest = line.as_deref().and_then(|line| line.rsplit_once(')'));
    Ok(name_and_rest.and_then(|(_, rest)| rest.split_whitespace().nth(19)?.parse().ok()))
}

fn users(pid: Pid) -> Result<Option<[u32; 4]>, Errno> {
    let status = read(&pid.as_raw_nonzero().to_string(), "status")?;
    let Some(status) = status else { return Ok(None) };
    // The program's name is in an earlier line; the kernel escapes line breaks in it.
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let numbers = line.unwrap_or_default().split_whitespace().map(str::parse);
    let numbers: Vec<u32> = numbers.collect::<Result<_, _>>().map_err(|_| Errno::IO)?;
    numbers.try_into().map(Some).map_err(|_| Errno::IO)
}

/// Reads a file of a process in `/proc`. Returns `None` if there is no such process.
fn read(process: &str, file: &str) -> Result<Option<String>, Errno> {
    // A program's name need not be UTF-8.
    match fs::read(format!("/proc/{process}/{file}")) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) => match Errno::from_io_error(&error).unwrap_or(Errno::IO) {
            // A process that ends during the read causes `SRCH`.
            Errno::NOENT | Errno::SRCH => Ok(None),
            errno => Err(errno),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getpid;

    #[test]
    fn untrusted_user_names_both_users() {
        let user = UntrustedUser { user: Some(7), trusted: 1000 };
        assert_eq!(user.to_string(), "of user 7; only user 1000 is trusted (see Trust)");
        let text = UntrustedUser { user: None, trusted: 0 }.to_string();
        assert!(text.starts_with("of a user who has no number in this user namespace;"), "{text}");
    }

    #[test]
    fn check_accepts_only_the_trusted_user() {
        let this = geteuid().as_raw();
        assert_eq!(Trust::SameUser.check(this), Ok(()));
        assert_eq!(Trust::User(this).check(this), Ok(()));
        assert_eq!(Trust::Anyone.check(this + 1), Ok(()));
        let other = this + 1;
        let untrusted = UntrustedUser { user: Some(other), trusted: this };
        assert_eq!(Trust::SameUser.check(other), Err(untrusted));
        assert_eq!(Trust::User(other).check(this).unwrap_err().trusted, other);
        assert_eq!(Trust::SameUser.check_all([this; 4]), Ok(()));
        for index in 0..4 {
            let mut users = [this; 4];
            users[index] = other;
            assert_eq!(Trust::SameUser.check_all(users), Err(untrusted));
            assert_eq!(Trust::Anyone.check_all(users), Ok(()));
        }
    }

    #[test]
    fn find_returns_this_process() {
        let found = Process::find(getpid()).unwrap().unwrap();
        assert!(found.start_time > 0, "{found:?}");
        assert_eq!(found.users, [geteuid().as_raw(); 4]);
        assert!(pid_namespace().unwrap().is_some());
        let earlier = Process { start_time: found.start_time - 1, ..found };
        assert!(found.is_same_process(found) && !earlier.is_same_process(found));
    }

    #[test]
    fn find_returns_none_without_a_process() {
        assert_eq!(Process::find(Pid::from_raw(i32::MAX).unwrap()), Ok(None));
    }
}
