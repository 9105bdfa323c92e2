//! Who may be at the other end when memory goes from process to process.

use core::fmt;
use rustix::process::geteuid;
use std::fs;

/// Whose processes memory is exchanged with. Users are numbered as in the user namespace of this
/// process.
///
/// At the other end of a socket the effective user counts, as it was when the process connected or began
/// to listen. A process that is looked up by its number (a [`Ticket`](crate::transport::Ticket), an
/// [`IpcHandle`](crate::IpcHandle)) must have the trusted user as its real, effective, saved and file
/// system user: one that runs a set-user-id program still has the descriptors of whoever started it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trust {
    /// Those of the user of this process.
    #[default]
    SameUser,
    /// Those of one user, by number.
    User(u32),
    /// Anybody's. What arrives is checked all the same, but the memory is no longer this user's
    /// alone.
    Anyone,
}

/// A user who is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UntrustedUser {
    /// Whose process it is; `None` if that user has no number in the user namespace of this
    /// process.
    pub user: Option<u32>,
    /// Whose it would have to be.
    pub trusted: u32,
}

impl Trust {
    /// Refuses a process of a user who is not trusted.
    pub(crate) fn check(self, user: u32) -> Result<(), UntrustedUser> {
        let trusted = match self {
            Self::SameUser => geteuid().as_raw(),
            Self::User(trusted) => trusted,
            Self::Anyone => return Ok(()),
        };
        let user = Some(user).filter(|user| !stands_for_many(*user));
        if user == Some(trusted) { Ok(()) } else { Err(UntrustedUser { user, trusted }) }
    }

    /// Refuses a process one of whose users is not trusted.
    pub(crate) fn check_all(self, users: [u32; 4]) -> Result<(), UntrustedUser> {
        let [real, ..] = users;
        self.check(real)?;
        users.into_iter().filter(|user| *user != real).try_for_each(|user| self.check(user))
    }
}

/// Whether a number is what the kernel calls all users that this user namespace has none for: then
/// it is nobody's, also if it is the one of this process.
fn stands_for_many(user: u32) -> bool {
    let number = fs::read_to_string("/proc/sys/kernel/overflowuid");
    // The kernel's own default.
    let number = number.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(65534);
    user == number && !every_user_has_a_number()
}

/// Whether the user namespace of this process is the first, or one that leaves nobody out.
fn every_user_has_a_number() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let words: Vec<_> = map.split_whitespace().collect();
    words == ["0", "0", "4294967295"]
}

impl fmt::Display for UntrustedUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.user {
            Some(user) => write!(f, "of user {user}")?,
            None => f.write_str("of a user who has no number in this user namespace")?,
        }
        write!(f, "; only user {} is trusted (Trust says whom)", self.trusted)
    }
}

impl core::error::Error for UntrustedUser {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_is_named_and_so_is_who_would_be_trusted() {
        let known = UntrustedUser { user: Some(7), trusted: 1000 };
        assert_eq!(known.to_string(), "of user 7; only user 1000 is trusted (Trust says whom)");
        let nobody = UntrustedUser { user: None, trusted: 0 };
        let words = nobody.to_string();
        assert!(
            words.starts_with("of a user who has no number in this user namespace;"),
            "{words}"
        );
    }

    #[test]
    fn who_is_trusted_gets_in_and_nobody_else() {
        let this = geteuid().as_raw();
        assert_eq!(Trust::SameUser.check(this), Ok(()));
        assert_eq!(Trust::User(this).check(this), Ok(()));
        assert_eq!(Trust::Anyone.check(this + 1), Ok(()));
        let other = this + 1;
        let stranger = UntrustedUser { user: Some(other), trusted: this };
        assert_eq!(Trust::SameUser.check(other), Err(stranger));
        assert_eq!(Trust::User(other).check(this).unwrap_err().trusted, other);
        assert_eq!(Trust::SameUser.check_all([this; 4]), Ok(()));
        for at in 0..4 {
            let mut users = [this; 4];
            users[at] = other;
            assert_eq!(Trust::SameUser.check_all(users), Err(stranger));
            assert_eq!(Trust::Anyone.check_all(users), Ok(()));
        }
    }
}
