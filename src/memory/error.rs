//! Why an operation on pool memory was refused.

use crate::agent::AgentId;
use crate::hip::{HipError, HipProfile};
use crate::native::{Failure, Status};
use core::fmt;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the method of that name")]
pub enum Operation {
    Allocate,
    Allow,
    Read,
    Write,
    Fill,
    Copy,
    Free,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allocate => "allocate",
            Self::Allow => "allow",
            Self::Read => "read",
            Self::Write => "write",
            Self::Fill => "fill",
            Self::Copy => "copy",
            Self::Free => "free",
        })
    }
}

/// What is wrong with an argument, and what would be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// No bytes at all.
    #[error("the size is zero")]
    Zero,
    /// A part that is not inside the memory.
    #[error("{size:#x} bytes from {offset:#x} on are not inside the memory's {whole:#x}")]
    Beyond {
        /// Where the part begins.
        offset: usize,
        /// Its size.
        size: usize,
        /// The size of the memory.
        whole: usize,
    },
    /// Not a multiple of four bytes, where 32-bit values are written.
    #[error("offset or size is no multiple of four bytes")]
    NotWords,
    /// An agent of another runtime, or an invented one.
    #[error("{0} is none of this runtime's; use the identifiers of agents()")]
    UnknownAgent(AgentId),
    /// An agent that has no memory of the kind that was asked for.
    #[error("{0} has no memory of this kind to allocate (Agent::pools)")]
    NoPool(AgentId),
    /// An agent that can never reach the memory.
    #[error("{agent} cannot reach the memory of {owner} (Agent::reaches)")]
    Unreachable {
        /// Who was to be allowed.
        agent: AgentId,
        /// Whose memory it is.
        owner: AgentId,
    },
    /// The agent that would copy may not use both sides.
    #[error("{0} may not use both sides of the copy; allow it first")]
    NotAllowed(AgentId),
    /// Memory of two runtimes.
    #[error("the two are memory of different runtimes")]
    ForeignMemory,
}

/// An operation on pool memory failed; nothing was changed but bytes that were to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// An argument cannot be right; the runtime was not asked.
    #[error("{operation}: {problem}")]
    InvalidArgument {
        /// What was asked for.
        operation: Operation,
        /// What is wrong.
        problem: Problem,
    },

    /// The runtime lacks the function for it.
    #[error("{operation}: the runtime has no {call}")]
    NotSupported {
        /// What was asked for.
        operation: Operation,
        /// The function.
        call: &'static str,
    },

    /// There is not that much left.
    #[error("{operation}: out of memory: {call} answered {status} to {size:#x} bytes")]
    OutOfMemory {
        /// What was asked for.
        operation: Operation,
        /// The runtime's function.
        call: &'static str,
        /// What it answered.
        status: Status,
        /// How much was asked for.
        size: usize,
    },

    /// Another process is about to open the memory by its IPC handle, and did not come to an end.
    #[error("{operation}: another process has been opening this memory for too long; try again")]
    BeingOpened {
        /// What was asked for.
        operation: Operation,
    },

    /// The runtime refused what should have been right.
    #[error("{operation}: {call} answered {status}; HSA_VMM_LOG=trace shows the calls before it")]
    Runtime {
        /// What was asked for.
        operation: Operation,
        /// The runtime's function.
        call: &'static str,
        /// What it answered.
        status: Status,
    },

    /// This process is a fork of the one that opened the runtime.
    #[error("{operation}: this process was forked; open a runtime of its own (exec first)")]
    Forked {
        /// What was asked for.
        operation: Operation,
    },
}

impl MemoryError {
    /// The operation that failed.
    #[must_use]
    pub fn operation(&self) -> Operation {
        match *self {
            Self::InvalidArgument { operation, .. }
            | Self::NotSupported { operation, .. }
            | Self::OutOfMemory { operation, .. }
            | Self::BeingOpened { operation }
            | Self::Runtime { operation, .. }
            | Self::Forked { operation } => operation,
        }
    }

    /// What is wrong with an argument, if that was it.
    #[must_use]
    pub fn problem(&self) -> Option<Problem> {
        match *self {
            Self::InvalidArgument { problem, .. } => Some(problem),
            _ => None,
        }
    }

    /// The error that HIP of this profile answers to the same mistake (`hipMalloc`, `hipFree`,
    /// `hipMemcpy`, `hipMemset`).
    #[must_use]
    pub fn hip(&self, _: HipProfile) -> HipError {
        match *self {
            Self::InvalidArgument { problem: Problem::UnknownAgent(_), .. } => {
                HipError::InvalidDevice
            }
            Self::InvalidArgument { .. } => HipError::InvalidValue,
            Self::NotSupported { .. } => HipError::NotSupported,
            Self::OutOfMemory { .. } => HipError::OutOfMemory,
            Self::BeingOpened { .. } | Self::Runtime { .. } => HipError::Unknown,
            Self::Forked { .. } => HipError::NotInitialized,
        }
    }

    pub(super) fn refused(operation: Operation, problem: Problem) -> Self {
        Self::InvalidArgument { operation, problem }
    }

    /// What a failure of the runtime means.
    pub(super) fn failure(operation: Operation, failure: Failure, size: usize) -> Self {
        let Failure { call, status } = failure;
        match status {
            Status::NOT_SUPPORTED => Self::NotSupported { operation, call },
            Status::OUT_OF_RESOURCES => Self::OutOfMemory { operation, call, status, size },
            _ => Self::Runtime { operation, call, status },
        }
    }
}

#[cfg(test)]
mod tests;
