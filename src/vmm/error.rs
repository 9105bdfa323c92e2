//! Why an operation of virtual-memory management was refused.

use crate::Errno;
use crate::address::Address;
use crate::agent::AgentId;
use crate::handle::HandleType;
use crate::native::Status;
use core::fmt;

/// The operation that was asked for, under HIP's name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the method of that name")]
pub enum Operation {
    Open,
    AddressReserve,
    AddressFree,
    Create,
    Release,
    Map,
    Unmap,
    SetAccess,
    GetAccess,
    Revoke,
    AllocationGranularity,
    AllocationProperties,
    ExportToShareableHandle,
    ImportFromShareableHandle,
    RetainAllocationHandle,
    MapArrayAsync,
    Read,
    Write,
    Copy,
    CopyToHost,
    CopyFromHost,
    Fill,
    Name,
    Exchange,
    Relocate,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::AddressReserve => "address_reserve",
            Self::AddressFree => "address_free",
            Self::Create => "create",
            Self::Release => "release",
            Self::Map => "map",
            Self::Unmap => "unmap",
            Self::SetAccess => "set_access",
            Self::GetAccess => "get_access",
            Self::Revoke => "revoke",
            Self::AllocationGranularity => "allocation_granularity",
            Self::AllocationProperties => "allocation_properties",
            Self::ExportToShareableHandle => "export_to_shareable_handle",
            Self::ImportFromShareableHandle => "import_from_shareable_handle",
            Self::RetainAllocationHandle => "retain_allocation_handle",
            Self::MapArrayAsync => "map_array_async",
            Self::Read => "read",
            Self::Write => "write",
            Self::Copy => "copy",
            Self::CopyToHost => "copy_to_host",
            Self::CopyFromHost => "copy_from_host",
            Self::Fill => "fill",
            Self::Name => "name",
            Self::Exchange => "exchange",
            Self::Relocate => "relocate",
        })
    }
}

/// The argument that was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the argument of that name")]
pub enum Argument {
    Address,
    Size,
    Alignment,
    Hint,
    Flags,
    Offset,
    Handle,
    HandleType,
    Agent,
    Access,
    Descriptors,
    Descriptor,
    Location,
    Source,
    Destination,
    List,
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Address => "address",
            Self::Size => "size",
            Self::Alignment => "alignment",
            Self::Hint => "hint",
            Self::Flags => "flags",
            Self::Offset => "offset",
            Self::Handle => "handle",
            Self::HandleType => "handle type",
            Self::Agent => "agent",
            Self::Access => "access",
            Self::Descriptors => "descriptors",
            Self::Descriptor => "file descriptor",
            Self::Location => "location",
            Self::Source => "source",
            Self::Destination => "destination",
            Self::List => "list",
        })
    }
}

/// What is wrong with an argument, and what would be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A null address.
    #[error("is null")]
    Null,
    /// A size or count of zero.
    #[error("is zero")]
    Zero,
    /// Address and size together reach beyond the address space.
    #[error("reaches beyond the address space")]
    Overflow,
    /// A part, given by its offset, that is not inside the mapping or reservation.
    #[error("is {offset:#x}: {size:#x} bytes from there reach beyond the end at {end:#x}")]
    BeyondEnd {
        /// Where the part begins.
        offset: usize,
        /// Its size in bytes.
        size: usize,
        /// The size of the mapping or reservation in bytes.
        end: usize,
    },
    /// Flags that mean nothing.
    #[error("is {0:#x}; no flags are defined, pass 0")]
    NoFlags(u64),
    /// Not a multiple of the granule.
    #[error("is {value:#x}, not a multiple of the granule {granule:#x} (allocation_granularity)")]
    NotAligned {
        /// What was passed.
        value: usize,
        /// What it must be a multiple of.
        granule: usize,
    },
    /// An alignment that is no power of two.
    #[error("is {0}, not a power of two")]
    NotPowerOfTwo(usize),
    /// The range is not, or not entirely, inside one reservation.
    #[error("names a range that is not inside one reservation (address_reserve)")]
    NotReserved,
    /// The address is not the start of a reservation.
    #[error("is not the start of a reservation; pass what address_reserve returned")]
    NotAReservation,
    /// The size is not that of the reservation.
    #[error("is not the reservation's own size {expected:#x}; a reservation is freed as a whole")]
    WrongSize {
        /// The reservation's size.
        expected: usize,
    },
    /// Something is still mapped in the reservation.
    #[error("names a reservation with {mappings} mappings in it; unmap them first")]
    StillMapped {
        /// How many.
        mappings: usize,
    },
    /// Clones or mappings of an owned value are still there.
    #[error("names what clones or mappings of it still hold; drop them first")]
    InUse,
    /// Something is mapped there already.
    #[error("names a range in which {at} is mapped already; unmap it first")]
    AlreadyMapped {
        /// Where the mapping in the way begins.
        at: Address,
    },
    /// Nothing is mapped there.
    #[error("names a range in which {at} is not mapped")]
    NotMapped {
        /// The first address that is not mapped.
        at: Address,
    },
    /// The range begins or ends inside a mapping.
    #[error("cuts the mapping at {at} in two; name whole mappings")]
    CutsMapping {
        /// Where the mapping begins.
        at: Address,
    },
    /// The runtime cannot map from inside a handle.
    #[error("is {0:#x}; only 0 can be mapped (the runtime ignores the offset and maps the start)")]
    NotZero(usize),
    /// More than the handle holds.
    #[error("is more than the handle's {handle:#x} bytes")]
    BeyondHandle {
        /// The handle's size.
        handle: usize,
    },
    /// Handle zero.
    #[error("is no handle")]
    NoHandle,
    /// A handle that was released.
    #[error("was released; keep a reference (retain_allocation_handle) as long as it is used")]
    Released,
    /// A handle of another `Vmm`.
    #[error("belongs to another Vmm; share it with export_to_shareable_handle")]
    ForeignHandle,
    /// A handle that was never given out.
    #[error("was never given out")]
    UnknownHandle,
    /// An agent of another runtime.
    #[error("belongs to another runtime; use the identifiers of this one's agents()")]
    ForeignAgent,
    /// An agent that does not exist.
    #[error("names no agent of this runtime; use the identifiers of agents()")]
    UnknownAgent,
    /// No location where one is needed.
    #[error("is not known; memory is made on an agent (AllocationProperties::on)")]
    NoLocation,
    /// An agent that is no GPU where one is needed.
    #[error("is no GPU; physical memory is made on GPUs")]
    NotAGpu,
    /// An agent that can never reach the memory.
    #[error("({agent}) cannot reach the memory of {owner} (Agent::reaches)")]
    Unreachable {
        /// Who was to be granted access.
        agent: AgentId,
        /// Whose memory it is.
        owner: AgentId,
    },
    /// An access that HIP does not have.
    #[error("is {0}; it must be 0 (none), 1 (read) or 3 (read and write)")]
    UnknownAccess(u32),
    /// A kind of shareable handle that was not asked for when the memory was made.
    #[error("is {0}, which was not requested when the memory was made (AllocationProperties)")]
    NotRequested(HandleType),
    /// The agent has not been granted what the operation needs.
    #[error("names memory at {at} that {agent} may not {verb}; grant it with set_access")]
    NotGranted {
        /// Where.
        at: Address,
        /// Whom.
        agent: AgentId,
        /// `read` or `write`.
        verb: &'static str,
    },
    /// A descriptor that is no dma-buf, or one of another driver.
    #[error("is not memory that this runtime can import (a dma-buf of an AMD GPU)")]
    NotImportable,
    /// The address that was insisted on is not to be had.
    #[error("is taken or not aligned as asked; leave the choice to the runtime, or free it first")]
    AddressTaken,
    /// Not a multiple of four bytes, where 32-bit values are written.
    #[error("is not a multiple of four bytes")]
    NotWords,
    /// Two ranges that must be apart are not.
    #[error("names a range that shares bytes with the other one")]
    Overlapping,
    /// Two ranges whose memory is to be exchanged are not mapped in the same pieces.
    #[error("names a range whose mappings are not of the same sizes as the other one's")]
    CutDifferently,
}

/// Something this runtime, driver or version does not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Feature {
    /// Virtual-memory management.
    #[error("virtual-memory management")]
    VirtualMemory,
    /// Sparse arrays (`hipMemMapArrayAsync`); HIP has none on AMD either.
    #[error("sparse arrays")]
    SparseArrays,
    /// A kind of shareable handle.
    #[error("shareable handles of this type")]
    HandleType,
    /// Physical handles of system memory.
    #[error("physical handles of system memory")]
    HostMemory,
    /// Loads and stores of the CPU to memory without a large BAR.
    #[error("access of the CPU to this GPU's memory (it has no large BAR)")]
    CpuAccess,
    /// More agents than an access set holds.
    #[error("more than 128 agents")]
    ManyAgents,
    /// A function that this runtime does not export.
    #[error("the runtime's function for it")]
    Function,
}

/// An operation of virtual-memory management failed; nothing was changed.
///
/// That holds for every variant but [`VmmError::Quarantined`] with `now`: there the runtime
/// failed half-way and then failed to take back what it had done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VmmError {
    /// An argument cannot be right; the runtime was not asked.
    #[error("{operation}: {argument} {problem}")]
    InvalidArgument {
        /// What was asked for.
        operation: Operation,
        /// Which argument.
        argument: Argument,
        /// What is wrong with it.
        problem: Problem,
    },

    /// Neither this library nor the runtime below can do it.
    #[error("{operation}: {feature} is not supported here (`hsa-vmm info` tells what is)")]
    NotSupported {
        /// What was asked for.
        operation: Operation,
        /// What is missing.
        feature: Feature,
    },

    /// No memory or no addresses of that size are left.
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
    #[error("{operation}: {call} failed: {errno}")]
    System {
        /// What was asked for.
        operation: Operation,
        /// The system call.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },

    /// The range is not used any more, because its state is not known or no longer ours.
    #[error(
        "{operation}: the range at {address} is in quarantine{}; see Vmm::quarantine",
        if *now { " from now on" } else { "" }
    )]
    Quarantined {
        /// What was asked for.
        operation: Operation,
        /// The start of the reservation.
        address: Address,
        /// Whether it was this operation that put it there.
        now: bool,
    },

    /// This process is a fork of the one that opened the runtime.
    #[error("{operation}: this process was forked; open a runtime of its own (exec first)")]
    Forked {
        /// What was asked for.
        operation: Operation,
    },
}

impl VmmError {
    /// The operation that failed.
    #[must_use]
    pub fn operation(&self) -> Operation {
        match *self {
            Self::InvalidArgument { operation, .. }
            | Self::NotSupported { operation, .. }
            | Self::OutOfMemory { operation, .. }
            | Self::OutOfDescriptors { operation }
            | Self::Runtime { operation, .. }
            | Self::System { operation, .. }
            | Self::Quarantined { operation, .. }
            | Self::Forked { operation } => operation,
        }
    }

    /// The same, if an address was wrong: this one.
    pub(crate) fn about(self, argument: Argument) -> Self {
        match self {
            Self::InvalidArgument { operation, argument: Argument::Address, problem } => {
                Self::InvalidArgument { operation, argument, problem }
            }
            other => other,
        }
    }

    /// The same with the destination as the address, whose caller has named it by an offset.
    pub(crate) fn of_destination(self) -> Self {
        match self {
            Self::InvalidArgument { operation, argument: Argument::Destination, problem } => {
                Self::InvalidArgument { operation, argument: Argument::Address, problem }
            }
            other => other,
        }
    }

    /// The same of an operation whose caller has named an offset from `base`, not an address.
    pub(crate) fn about_offset(self, base: Address) -> Self {
        let Self::InvalidArgument { operation, argument: Argument::Address, problem } = self else {
            return self;
        };
        let problem = match problem {
            Problem::NotAligned { value, granule } => {
                Problem::NotAligned { value: value.wrapping_sub(base.get()), granule }
            }
            other => other,
        };
        Self::InvalidArgument { operation, argument: Argument::Offset, problem }
    }

    /// The argument that was wrong, if it was one.
    #[must_use]
    pub fn argument(&self) -> Option<Argument> {
        match *self {
            Self::InvalidArgument { argument, .. } => Some(argument),
            _ => None,
        }
    }

    /// What is wrong with the argument, if it was one.
    #[must_use]
    pub fn problem(&self) -> Option<Problem> {
        match *self {
            Self::InvalidArgument { problem, .. } => Some(problem),
            _ => None,
        }
    }
}

/// The rest of an error whose operation the ledger does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub argument: Argument,
    pub problem: Problem,
}

impl Refusal {
    pub fn new(argument: Argument, problem: Problem) -> Self {
        Self { argument, problem }
    }

    pub fn during(self, operation: Operation) -> VmmError {
        let Self { argument, problem } = self;
        VmmError::InvalidArgument { operation, argument, problem }
    }
}

#[cfg(test)]
mod tests;
