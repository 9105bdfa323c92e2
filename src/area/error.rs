//! Why an operation on an area was refused, in AML's categories.

use crate::agent::AgentId;
use crate::hip::{HipError, HipProfile};
use crate::memory::MemoryError;
use crate::native::{Failure, Status};
use crate::vmm::{Address, VmmError};
use core::fmt;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the method of that name")]
pub enum Operation {
    Create,
    Mmap,
    Munmap,
    Read,
    Write,
    Fill,
    Copy,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "create",
            Self::Mmap => "mmap",
            Self::Munmap => "munmap",
            Self::Read => "read",
            Self::Write => "write",
            Self::Fill => "fill",
            Self::Copy => "copy",
        })
    }
}

/// The argument that was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the argument of that name")]
pub enum Argument {
    Device,
    Flags,
    Size,
    Host,
    Offset,
    Source,
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "device",
            Self::Flags => "flags",
            Self::Size => "size",
            Self::Host => "host",
            Self::Offset => "offset",
            Self::Source => "source",
        })
    }
}

/// What is wrong with an argument, and what would be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// No bytes at all.
    #[error("is zero")]
    Zero,
    /// A device that there is not.
    #[error("is {number}, of {devices}; they are counted from 0, in the order of gpus()")]
    NoSuchDevice {
        /// What was asked for.
        number: usize,
        /// How many there are.
        devices: usize,
    },
    /// An agent that is no GPU of this runtime.
    #[error("is {0}, which is no GPU of this runtime; use the identifiers of gpus()")]
    NotAGpu(AgentId),
    /// Flags that mean nothing.
    #[error("have {0:#x}, which means nothing")]
    UnknownFlags(u32),
    /// No memory where there must be some.
    #[error("memory is missing; an area that is MAPPED without HOST maps memory that is there")]
    NoHostMemory,
    /// Memory where none is used.
    #[error("memory is given, which only areas take that are MAPPED without HOST and UNIFIED")]
    HostMemoryUnused,
    /// More than the memory of the host has.
    #[error("is {size:#x}, more than the {host:#x} bytes of host memory")]
    BeyondHostMemory {
        /// What was asked for.
        size: usize,
        /// What is there.
        host: usize,
    },
    /// Memory of the host that reaches beyond the end of all addresses.
    #[error("memory at {0} reaches beyond the address space")]
    Overflow(Address),
    /// A part that is not inside the memory.
    #[error("names {size:#x} bytes from {offset:#x} on, not inside the memory's {whole:#x}")]
    Beyond {
        /// Where the part begins.
        offset: usize,
        /// Its size.
        size: usize,
        /// The size of the memory.
        whole: usize,
    },
    /// Not a multiple of four bytes, where 32-bit values are written.
    #[error("is no multiple of four bytes")]
    NotWords,
    /// A copy within one memory whose two parts have bytes in common.
    #[error("overlaps the destination; copy it in two steps")]
    Overlaps,
}

/// What is behind an error that is not about an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The runtime has no GPU.
    #[error("the runtime has no GPU (`hsa-vmm info` tells what it has)")]
    NoDevice,
    /// A GPU that was to see the memory cannot.
    #[error("{agent} cannot reach the memory of {owner} (Agent::reaches)")]
    Unreachable {
        /// Who cannot.
        agent: AgentId,
        /// Whose memory it is.
        owner: AgentId,
    },
    /// Memory of the host that an area maps already.
    #[error("host memory at {at} is mapped by an area already; munmap that first")]
    AlreadyMapped {
        /// Where what is mapped begins.
        at: Address,
    },
    /// More than there are addresses.
    #[error("there are not so many addresses")]
    TooLarge,
    /// Memory that was unmapped, but could not be given back.
    #[error("it was unmapped, but not all of it could be given back; munmap tries again")]
    Unmapped,
    /// A function of the runtime answered something else than success.
    #[error("{call} answered {status}; HSA_VMM_LOG=trace shows the calls before it")]
    Call {
        /// The function.
        call: &'static str,
        /// What it answered.
        status: Status,
    },
    /// Virtual memory failed.
    #[error("{0}")]
    Vmm(VmmError),
    /// Pool memory failed.
    #[error("{0}")]
    Memory(MemoryError),
    /// This process is a fork of the one that opened the runtime.
    #[error("this process was forked; open a runtime of its own (exec first)")]
    Forked,
}

/// An operation on an area failed; nothing was changed but bytes that were to be written.
///
/// The variants are AML's categories; [`aml`](Self::aml) is its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AreaError {
    /// Neither runtime nor device can do it (`AML_ENOTSUP`).
    #[error("{operation}: not supported: {cause}")]
    NotSupported {
        /// What was asked for.
        operation: Operation,
        /// What is missing.
        cause: Cause,
    },

    /// An argument cannot be right; the runtime was not asked (`AML_EINVAL`).
    #[error("{operation}: {argument} {problem}")]
    InvalidValue {
        /// What was asked for.
        operation: Operation,
        /// Which argument.
        argument: Argument,
        /// What is wrong with it.
        problem: Problem,
    },

    /// What is to be used is in use (`AML_EBUSY`).
    #[error("{operation}: in use: {cause}")]
    Busy {
        /// What was asked for.
        operation: Operation,
        /// By whom.
        cause: Cause,
    },

    /// There is not that much left (`AML_ENOMEM`).
    #[error("{operation}: out of memory for {size:#x} bytes: {cause}")]
    OutOfMemory {
        /// What was asked for.
        operation: Operation,
        /// How much was asked for.
        size: usize,
        /// What said so.
        cause: Cause,
    },

    /// The runtime or the system refused what should have been right (`AML_FAILURE`).
    #[error("{operation}: {cause}")]
    Failure {
        /// What was asked for.
        operation: Operation,
        /// Why.
        cause: Cause,
    },
}

impl AreaError {
    /// What was asked for.
    #[must_use]
    pub fn operation(&self) -> Operation {
        match *self {
            Self::NotSupported { operation, .. }
            | Self::InvalidValue { operation, .. }
            | Self::Busy { operation, .. }
            | Self::OutOfMemory { operation, .. }
            | Self::Failure { operation, .. } => operation,
        }
    }

    /// What is wrong with an argument, if that was it.
    #[must_use]
    pub fn problem(&self) -> Option<Problem> {
        match *self {
            Self::InvalidValue { problem, .. } => Some(problem),
            _ => None,
        }
    }

    /// What was behind it, if not an argument.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        match *self {
            Self::InvalidValue { .. } => None,
            Self::NotSupported { cause, .. }
            | Self::Busy { cause, .. }
            | Self::OutOfMemory { cause, .. }
            | Self::Failure { cause, .. } => Some(cause),
        }
    }

    /// AML's number for it (`aml/utils/error.h`), which is positive. AML returns it negated from
    /// some functions; here there is one sign.
    #[must_use]
    pub fn aml(&self) -> i32 {
        match self {
            Self::Failure { .. } => 1,
            Self::OutOfMemory { .. } => 2,
            Self::InvalidValue { .. } => 3,
            Self::NotSupported { .. } => 5,
            Self::Busy { .. } => 6,
        }
    }

    /// The error that HIP of this profile answers to the same mistake.
    #[must_use]
    pub fn hip(&self, profile: HipProfile) -> HipError {
        match *self {
            Self::InvalidValue { argument: Argument::Device, .. } => HipError::InvalidDevice,
            Self::InvalidValue { .. } => HipError::InvalidValue,
            Self::NotSupported { .. } => HipError::NotSupported,
            Self::Busy { .. } => HipError::HostMemoryAlreadyRegistered,
            Self::OutOfMemory { .. } => HipError::OutOfMemory,
            Self::Failure { cause: Cause::Vmm(error), .. } => error.hip(profile),
            Self::Failure { cause: Cause::Memory(error), .. } => error.hip(profile),
            Self::Failure { cause: Cause::Forked, .. } => HipError::NotInitialized,
            Self::Failure { .. } => HipError::Unknown,
        }
    }

    pub(super) fn refused(operation: Operation, argument: Argument, problem: Problem) -> Self {
        Self::InvalidValue { operation, argument, problem }
    }

    /// What a failure of the runtime means.
    pub(super) fn of_call(operation: Operation, failure: Failure, size: usize) -> Self {
        let Failure { call, status } = failure;
        let cause = Cause::Call { call, status };
        match status {
            Status::NOT_SUPPORTED => Self::NotSupported { operation, cause },
            Status::OUT_OF_RESOURCES => Self::OutOfMemory { operation, size, cause },
            Status::RESOURCE_BUSY => Self::Busy { operation, cause },
            _ => Self::Failure { operation, cause },
        }
    }

    /// What an error of virtual memory means.
    pub(super) fn of_vmm(operation: Operation, error: VmmError, size: usize) -> Self {
        let cause = Cause::Vmm(error);
        match error {
            VmmError::Forked { .. } => Self::Failure { operation, cause: Cause::Forked },
            VmmError::NotSupported { .. } => Self::NotSupported { operation, cause },
            VmmError::OutOfMemory { .. } => Self::OutOfMemory { operation, size, cause },
            VmmError::Runtime { status: Status::RESOURCE_BUSY, .. } => {
                Self::Busy { operation, cause }
            }
            _ => Self::Failure { operation, cause },
        }
    }

    /// What an error of pool memory means.
    pub(super) fn of_memory(operation: Operation, error: MemoryError, size: usize) -> Self {
        let cause = Cause::Memory(error);
        match error {
            MemoryError::Forked { .. } => Self::Failure { operation, cause: Cause::Forked },
            MemoryError::NotSupported { .. } => Self::NotSupported { operation, cause },
            MemoryError::OutOfMemory { .. } => Self::OutOfMemory { operation, size, cause },
            MemoryError::BeingOpened { .. }
            | MemoryError::Runtime { status: Status::RESOURCE_BUSY, .. } => {
                Self::Busy { operation, cause }
            }
            MemoryError::InvalidArgument { problem: crate::memory::Problem::NoPool(_), .. } => {
                Self::NotSupported { operation, cause }
            }
            _ => Self::Failure { operation, cause },
        }
    }
}

#[cfg(test)]
mod tests;
