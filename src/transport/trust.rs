//! Who may be at the other end.

use super::TransportError;
use rustix::process::getuid;

/// Whose processes memory is exchanged with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

impl Trust {
    /// Refuses a process of a user who is not trusted.
    pub(super) fn check(self, user: u32) -> Result<(), TransportError> {
        let trusted = match self {
            Self::SameUser => getuid().as_raw(),
            Self::User(trusted) => trusted,
            Self::Anyone => return Ok(()),
        };
        if user == trusted { Ok(()) } else { Err(TransportError::Stranger { user, trusted }) }
    }
}
