//! Why memory was not sent or received.

use super::Malformed;
use crate::Errno;
use crate::trust::UntrustedUser;
use crate::vmm::VmmError;
use core::fmt;
use core::time::Duration;
use rustix::io::Errno as Number;

/// The part of the exchange that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each says it")]
pub enum Step {
    Connect,
    AskWhoItIs,
    Send,
    Receive,
    Offer,
    Fetch,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "making a channel",
            Self::AskWhoItIs => "asking who the other end is",
            Self::Send => "sending",
            Self::Receive => "receiving",
            Self::Offer => "offering",
            Self::Fetch => "fetching",
        })
    }
}

/// Why memory was not sent or received. Whatever had arrived is closed again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The system refused a call.
    #[error("{step}: the system says: {errno}")]
    System {
        /// What was being done.
        step: Step,
        /// What the system said.
        errno: Errno,
    },
    /// The exchange took too long.
    #[error("{step}: the other end did not finish within {patience:?}")]
    TimedOut {
        /// What was being done.
        step: Step,
        /// How long it may take as a whole.
        patience: Duration,
    },
    /// The other end is gone.
    #[error("{step}: the other end has gone, after {bytes} bytes of a message")]
    Gone {
        /// What was being done.
        step: Step,
        /// How much of the message went through.
        bytes: usize,
    },
    /// The other end is another user's process.
    #[error("the other end is {0}")]
    Stranger(#[from] UntrustedUser),
    /// A message that cannot be understood.
    #[error("the message {0}")]
    Malformed(Malformed),
    /// A message with too few or too many descriptors.
    #[error("the message brings {0} descriptors; it must be one")]
    Descriptors(usize),
    /// This process has no descriptor left for what was sent.
    #[error("{step}: out of file descriptors; raise the limit (`ulimit -n`) or close some")]
    OutOfDescriptors {
        /// What was being done.
        step: Step,
    },
    /// The memory is not of the size that was described.
    #[error("{described} bytes were described, and the memory has {found}")]
    OtherSize {
        /// What the message says.
        described: u64,
        /// What the descriptor has.
        found: u64,
    },
    /// The process that made a ticket has ended, or no longer offers that memory.
    #[error("process {process} offers that memory no longer")]
    Withdrawn {
        /// Which.
        process: u32,
    },
    /// A ticket's number means another process here, or none.
    #[error(
        "process {process} is a number of another PID namespace than that of this process, or /proc \
         is not of this one; a Channel needs no number"
    )]
    OtherNamespace {
        /// Which.
        process: u32,
    },
    /// The system keeps processes from taking descriptors of each other.
    #[error(
        "descriptors of process {process} may not be taken (ptrace's permissions; on systems with \
         Yama, it can allow it by prctl PR_SET_PTRACER); a Channel needs no permission"
    )]
    NotPermitted {
        /// Whose.
        process: u32,
    },
    /// The memory could not be exported or imported.
    #[error(transparent)]
    Vmm(#[from] VmmError),
}

impl TransportError {
    pub(super) fn system(step: Step, errno: Number) -> Self {
        match errno {
            Number::MFILE | Number::NFILE => Self::OutOfDescriptors { step },
            Number::PIPE | Number::CONNRESET | Number::NOTCONN => Self::Gone { step, bytes: 0 },
            errno => Self::System { step, errno: Errno::of(errno) },
        }
    }
}

impl From<Malformed> for TransportError {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

#[cfg(test)]
mod tests;
