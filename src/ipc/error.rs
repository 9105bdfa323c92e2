//! Why sharing pool memory between processes was refused.

use crate::Errno;
use crate::hip::{HipError, HipProfile};
use crate::native::{Failure, Status};
use crate::trust::UntrustedUser;
use core::fmt;
use rustix::io::Errno as Number;

/// What was asked for, under HIP's name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the method of that name")]
pub enum Operation {
    Open,
    GetMemHandle,
    OpenMemHandle,
    CloseMemHandle,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::GetMemHandle => "get_mem_handle",
            Self::OpenMemHandle => "open_mem_handle",
            Self::CloseMemHandle => "close_mem_handle",
        })
    }
}

/// What is wrong with an argument, and what would be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A null address.
    #[error("the address is null")]
    Null,
    /// Nothing is there.
    #[error("nothing is allocated at the address")]
    NotAllocated,
    /// Virtual memory, which HIP hands down to the runtime all the same.
    #[error(
        "the address is virtual memory, which IPC cannot share; share its handle as a file \
         descriptor (Vmm::export_to_shareable_handle)"
    )]
    VirtualMemory,
    /// Memory that this library knows nothing of.
    #[error("the address is memory that PoolMemory did not allocate")]
    NotPoolMemory,
    /// Memory of a CPU.
    #[error("the address is memory of the host; IPC shares memory of GPUs")]
    HostMemory,
    /// Flags that mean nothing.
    #[error("the flags are {0:#x}; pass 0 or LAZY_ENABLE_PEER_ACCESS (1)")]
    UnknownFlags(u32),
    /// A handle of no bytes, such as one that was never filled in.
    #[error("the handle names no bytes; was it ever filled in by get_mem_handle?")]
    EmptyHandle,
    /// A handle whose address is not inside its memory.
    #[error("the handle's offset is not inside its memory")]
    OffsetBeyond,
    /// Reserved bytes that are neither HIP's zeros nor this library's.
    #[error(
        "the handle's reserved bytes have an unknown format: it was changed on its way, or another \
         version of this library made it"
    )]
    UnknownFormat,
    /// A runtime without GPUs.
    #[error("this runtime has no GPU, whose memory could be shared")]
    NoGpu,
    /// An agent that is no GPU of this runtime.
    #[error("the agent is no GPU of this runtime; use the identifiers of gpus()")]
    NotAGpu,
    /// Memory of this very process.
    #[error("the address is memory of this process; free it where it was allocated")]
    OwnMemory,
    /// Memory that only values of [`OpenedMemory`](crate::OpenedMemory) have open.
    #[error("an OpenedMemory owns the memory at the address; close or drop that value")]
    Owned,
    /// An address that was not opened, or is closed already.
    #[error("nothing that was opened is at the address")]
    NotOpened,
}

/// Why the memory of a handle is not to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Stale {
    /// The exporter has ended, or never had this number here.
    #[error("that process has ended, or is one of another PID namespace (use transport::Channel)")]
    NoProcess,
    /// The memory was freed, or the handle was changed on its way.
    #[error("that process has freed it or never exported it, or the handle was changed on its way")]
    Freed,
    /// The runtime has mapped fewer bytes than the handle says.
    #[error(
        "the runtime maps fewer bytes of it than the handle's size; the handle is forged or was \
         changed on its way"
    )]
    TooLarge,
    /// The memory is being freed.
    #[error("that process has been freeing it for too long")]
    BeingFreed,
    /// The exporter's runtime has nobody who hands the memory out.
    #[error(
        "its runtime does not hand it out; that ends when a process is killed while it opens \
         memory (AMD's runtime), until the exporter calls get_mem_handle again"
    )]
    NoServer,
    /// Another process listens under the name of the exporter's server.
    #[error(
        "another process listens at its abstract socket, hsa and its number, where anyone may; the \
         memory can be opened when the exporter has called get_mem_handle again, after that process \
         has ended"
    )]
    Impostor,
    /// The exporter's runtime does not answer.
    #[error(
        "that process does not answer; is it stopped, or does another process keep its server busy?"
    )]
    NoAnswer,
}

/// An operation of IPC failed; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IpcError {
    /// An argument cannot be right; nobody was asked.
    #[error("{operation}: {problem}")]
    InvalidArgument {
        /// What was asked for.
        operation: Operation,
        /// What is wrong.
        problem: Problem,
    },

    /// The handle is this process's own.
    #[error("{operation}: the memory is this process's own; use the address it has here")]
    SameProcess {
        /// What was asked for.
        operation: Operation,
    },

    /// The memory that the handle names is not there, or not any more.
    #[error("{operation}: the memory of process {process} is not to be had: {stale}")]
    Stale {
        /// What was asked for.
        operation: Operation,
        /// The process that exported it, as far as the handle is to be believed.
        process: i32,
        /// Why not.
        stale: Stale,
    },

    /// The exporter is another user's.
    #[error("{operation}: process {process} is {stranger}")]
    Stranger {
        /// What was asked for.
        operation: Operation,
        /// The exporter.
        process: i32,
        /// Whose it is.
        stranger: UntrustedUser,
    },

    /// The exporter's number means another process here, or none.
    #[error(
        "{operation}: process {process} is a number of another PID namespace than that of this \
         process, or /proc is not of this one; share between them by transport::Channel"
    )]
    OtherNamespace {
        /// What was asked for.
        operation: Operation,
        /// The exporter's number.
        process: i32,
    },

    /// This process may not look at the exporter.
    #[error(
        "{operation}: process {process} may not be looked at (/proc/{process}/fd); both processes \
         must belong to the same user, in the same user namespace; transport::Channel needs neither"
    )]
    Forbidden {
        /// What was asked for.
        operation: Operation,
        /// The exporter.
        process: i32,
    },

    /// The runtime will not share memory that is fit to be shared.
    #[error(
        "{operation}: {call} answered {status}; with a kernel driver that is not AMD's own \
         package, the runtime shares memory only if HSA_ENABLE_IPC_MODE_LEGACY=0 is set before it \
         starts (ROCm 6.1 not at all)"
    )]
    NotShared {
        /// What was asked for.
        operation: Operation,
        /// The runtime's function.
        call: &'static str,
        /// What it answered.
        status: Status,
    },

    /// Another process waits where this one's runtime would, to hand memory out by dma-buf. AMD's
    /// runtime is not asked: it asserts that nobody does.
    #[error(
        "{operation}: another process has the abstract socket hsa{process}: one of the same number \
         in another PID namespace, or a process of any user in the same network namespace; give \
         each a network namespace of its own, or share by transport::Channel"
    )]
    NameTaken {
        /// What was asked for.
        operation: Operation,
        /// This process's number.
        process: u32,
    },

    /// The runtime lacks the function for it.
    #[error("{operation}: the runtime has no {call}")]
    NotSupported {
        /// What was asked for.
        operation: Operation,
        /// The function.
        call: &'static str,
    },

    /// More allocations are exported than there is room for.
    #[error("{operation}: 65536 allocations are exported already; free some")]
    TooMany {
        /// What was asked for.
        operation: Operation,
    },

    /// The process has no file descriptor left.
    #[error("{operation}: out of file descriptors; raise the limit (`ulimit -n`) or close some")]
    OutOfDescriptors {
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

    /// The operating system refused.
    #[error("{operation}: the operating system refused: {errno}")]
    System {
        /// What was asked for.
        operation: Operation,
        /// Its error.
        errno: Errno,
    },

    /// This process is a fork of the one that opened the runtime.
    #[error("{operation}: this process was forked; open a runtime of its own (exec first)")]
    Forked {
        /// What was asked for.
        operation: Operation,
    },
}

impl IpcError {
    /// The operation that failed.
    #[must_use]
    pub fn operation(&self) -> Operation {
        match *self {
            Self::InvalidArgument { operation, .. }
            | Self::SameProcess { operation }
            | Self::Stale { operation, .. }
            | Self::Stranger { operation, .. }
            | Self::OtherNamespace { operation, .. }
            | Self::Forbidden { operation, .. }
            | Self::NotShared { operation, .. }
            | Self::NameTaken { operation, .. }
            | Self::NotSupported { operation, .. }
            | Self::TooMany { operation }
            | Self::OutOfDescriptors { operation }
            | Self::Runtime { operation, .. }
            | Self::System { operation, .. }
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

    /// The error that HIP of this profile answers to the same mistake.
    #[must_use]
    pub fn hip(&self, _: HipProfile) -> HipError {
        match *self {
            Self::InvalidArgument { problem: Problem::NoGpu, .. } => HipError::NoDevice,
            Self::InvalidArgument { problem: Problem::NotAGpu, .. } => HipError::InvalidDevice,
            Self::InvalidArgument { .. } => HipError::InvalidValue,
            Self::SameProcess { .. } => HipError::InvalidContext,
            Self::Stale { .. }
            | Self::Stranger { .. }
            | Self::OtherNamespace { .. }
            | Self::Forbidden { .. } => HipError::InvalidDevicePointer,
            Self::NotSupported { .. } => HipError::NotSupported,
            Self::TooMany { .. } => HipError::OutOfMemory,
            // HIP says that the value is invalid; it has a code that tells the truth.
            Self::OutOfDescriptors { .. } | Self::NameTaken { .. } | Self::System { .. } => {
                HipError::OperatingSystem
            }
            Self::NotShared { operation, .. } | Self::Runtime { operation, .. } => {
                match operation {
                    Operation::OpenMemHandle => HipError::InvalidDevicePointer,
                    _ => HipError::InvalidValue,
                }
            }
            Self::Forked { .. } => HipError::NotInitialized,
        }
    }

    pub(super) fn refused(operation: Operation, problem: Problem) -> Self {
        Self::InvalidArgument { operation, problem }
    }

    /// What a failure of the runtime means.
    pub(super) fn failure(operation: Operation, failure: Failure) -> Self {
        let Failure { call, status } = failure;
        match status {
            Status::NOT_SUPPORTED => Self::NotSupported { operation, call },
            _ if crate::vmm::out_of_descriptors() => Self::OutOfDescriptors { operation },
            _ => Self::Runtime { operation, call, status },
        }
    }

    /// What a failure of the operating system means.
    pub(super) fn system(operation: Operation, errno: Number) -> Self {
        match errno {
            Number::MFILE | Number::NFILE => Self::OutOfDescriptors { operation },
            Number::NOSPC => Self::TooMany { operation },
            errno => Self::System { operation, errno: Errno::of(errno) },
        }
    }
}

#[cfg(test)]
mod tests;
