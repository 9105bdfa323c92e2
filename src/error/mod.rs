//! The one error of this library.
//!
//! An [`Error`] says which [`Operation`] failed, and its [`ErrorKind`] says why. Callers match on the
//! kind: every case carries its data, so that no text has to be parsed.
//!
//! ```
//! use hsa_vmm::error::{Argument, ErrorKind, Problem};
//! # use hsa_vmm::{Runtime, Vmm};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
//! # let vmm = Vmm::open(&runtime)?;
//! let error = vmm.address_reserve(12345, 0, None).unwrap_err();
//! match error.kind() {
//!     ErrorKind::InvalidArgument { argument: Argument::Size, problem, .. } => {
//!         assert!(matches!(problem, Problem::NotAligned { .. }));
//!     }
//!     other => panic!("{other}"),
//! }
//! assert!(error.to_string().starts_with("cannot reserve addresses: size 0x3039 is not a multiple"));
//! # Ok(())
//! # }
//! ```

mod argument;
mod errno;
mod hip;
mod malformed;
mod operation;
mod quarantined;
mod rejected;

pub use argument::{Argument, Problem, Value};
pub use errno::Errno;
pub use malformed::Malformed;
pub use operation::Operation;
pub use quarantined::{BrokenInvariant, Quarantined};
pub use rejected::Rejected;

use crate::address::Address;
use crate::agent::AgentId;
pub use crate::native::Status;
use crate::native::{DriverState, Failure, out_of_descriptors};
use crate::trust::UntrustedUser;
use core::fmt;
use core::time::Duration;
use hsa_sys::{LoadError, printable};
use std::path::PathBuf;
use std::sync::Arc;

/// An operation failed.
///
/// Nothing was changed, except where the kind is [`ErrorKind::Quarantined`] with `now`,
/// [`ErrorKind::PagesLost`] or [`ErrorKind::AddressLost`]: there the runtime failed, and then failed
/// again while the operation was rolled back.
///
/// Its `Debug` is its `Display` followed by its [sources](core::error::Error::source), so that a `main`
/// that returns it prints the whole message.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    operation: Operation,
    kind: ErrorKind,
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is invalid. The runtime was not called.
    InvalidArgument {
        /// Which argument.
        argument: Argument,
        /// Its value.
        value: Value,
        /// What is wrong with it.
        problem: Problem,
    },
    /// This library, the runtime or the hardware cannot do it.
    NotSupported(Feature),
    /// No memory or no addresses of that size are left.
    OutOfMemory {
        /// The runtime's function.
        call: &'static str,
        /// Its status.
        status: Status,
        /// The size in bytes that was requested.
        size: usize,
    },
    /// The process has no free file descriptor.
    OutOfDescriptors,
    /// A table of this library is full.
    LimitReached {
        /// The name of the table.
        table: &'static str,
        /// The most entries.
        limit: usize,
    },
    /// The memory is in use.
    Busy(Busy),
    /// The runtime failed although the arguments are valid.
    Runtime {
        /// The runtime's function.
        call: &'static str,
        /// Its status.
        status: Status,
    },
    /// A system call failed.
    System {
        /// The system call.
        call: &'static str,
        /// Its error number.
        errno: Errno,
    },
    /// The range is quarantined: its state is unknown, and it is never used again.
    Quarantined {
        /// The range, and what put it into quarantine.
        range: Arc<Quarantined>,
        /// Whether this operation put it there.
        now: bool,
    },
    /// The runtime left an address-space hole in a reservation, which could not be filled: a foreign
    /// mapping was created there, or the kernel allows no more mappings.
    HoleNotFilled {
        /// Where the hole begins.
        address: Address,
        /// Its size in bytes.
        size: usize,
        /// The error number of `mmap`.
        errno: Errno,
    },
    /// The runtime reserved addresses that it had reserved already.
    ReservedTwice {
        /// The first of them.
        address: Address,
    },
    /// This process is a child of a fork of the process that opened the runtime.
    Forked,

    /// No library was found, or none that exports what is needed. Lists what was tried.
    Load(LoadError),
    /// The library was loaded, but `hsa_init` failed.
    Start {
        /// The library.
        path: PathBuf,
        /// The status of `hsa_init`.
        status: Status,
        /// The state of the kernel driver's device file.
        driver: DriverState,
    },
    /// The runtime has no CPU agent, which HSA requires.
    NoCpu,
    /// The simulation could not be started.
    Simulation(String),

    /// The IPC handle is this process's own.
    SameProcess,
    /// The memory of another process is not available.
    Unavailable {
        /// The process, as the handle or ticket names it.
        process: i32,
        /// Why not.
        reason: Unavailable,
    },
    /// The runtime refused to share memory that can be shared.
    NotShared {
        /// The runtime's function.
        call: &'static str,
        /// Its status.
        status: Status,
    },
    /// Another process listens at the abstract socket on which this process's runtime would share
    /// memory.
    SocketTaken {
        /// This process's number.
        process: u32,
    },

    /// The process at the other end belongs to another user.
    Untrusted(UntrustedUser),
    /// The exchange took too long.
    TimedOut {
        /// How long it may take.
        limit: Duration,
    },
    /// The other end closed the connection.
    Disconnected {
        /// The bytes of the message that were transferred.
        bytes: usize,
    },
    /// A message that cannot be decoded.
    Malformed(Malformed),
    /// A message with too few or too many descriptors.
    UnexpectedDescriptors(usize),
    /// The memory does not have the size that the message says.
    SizeMismatch {
        /// The size in the message.
        described: u64,
        /// The size of the memory.
        found: u64,
    },

    /// The buffer is paused: nothing is mapped at its addresses.
    Paused,
    /// The buffer is not paused.
    NotPaused,
    /// The addresses of a paused buffer were freed, as its memory returns only with them, and are in
    /// use now.
    AddressLost {
        /// The buffer's address.
        address: Address,
        /// Its size in bytes.
        size: usize,
        /// Why they could not be reserved again.
        cause: Box<Error>,
    },
    /// Pages that are never used again: the runtime failed, and then failed again while the operation
    /// was rolled back.
    PagesLost {
        /// The first page.
        first: usize,
        /// The number of pages.
        count: usize,
        /// The first failure.
        cause: Box<Error>,
    },
    /// An area was unmapped, but not all of its memory could be freed; `munmap` tries again.
    PartlyFreed(Box<Error>),
}

/// What this library, the runtime or the hardware cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Feature {
    /// Virtual-memory management.
    #[error("virtual-memory management")]
    VirtualMemory,
    /// Sparse arrays (`hipMemMapArrayAsync`); HIP has none on AMD either.
    #[error("sparse arrays")]
    SparseArrays,
    /// A GPU: the runtime has none.
    #[error("an operation that needs a GPU")]
    Gpu,
    /// A type of shareable handle.
    #[error("this type of shareable handle")]
    HandleType,
    /// Physical handles of system memory.
    #[error("physical memory of a CPU")]
    HostMemory,
    /// Loads and stores of the CPU to memory without a large BAR.
    #[error("CPU access to a GPU's memory without a large BAR")]
    CpuAccess,
    /// A GPU that cannot access another's memory.
    #[error("access of {agent} to the memory of {owner} (Agent::reaches)")]
    PeerAccess {
        /// The agent that cannot access the memory.
        agent: AgentId,
        /// The owner of the memory.
        owner: AgentId,
    },
    /// More agents than an access set holds.
    #[error("a machine with more than 128 agents")]
    ManyAgents,
    /// A kind of memory that an agent has no pool for.
    #[error("this kind of memory on {0}")]
    Pool(AgentId),
    /// Memory that is not cached; since extension 1.18.
    #[error("uncached memory")]
    Uncached,
    /// A function that the runtime does not export.
    #[error("{0}, which the runtime does not export,")]
    Function(&'static str),
}

/// What uses the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Busy {
    /// An area maps this host memory.
    #[error("an area maps the host memory at {at}; munmap that area first")]
    HostMemoryMapped {
        /// Where the mapped memory begins.
        at: Address,
    },
    /// Another process is opening the memory by its IPC handle.
    #[error("another process is opening this memory and did not finish in time; try again")]
    BeingOpened,
}

/// Why the memory of another process is not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The process has ended, or the number never was its number here.
    #[error("the process has ended, or is in another PID namespace (use transport::Channel)")]
    NoProcess,
    /// The memory was freed, or the handle was modified.
    #[error("the memory was freed or never exported, or the handle was modified")]
    Freed,
    /// The runtime maps fewer bytes than the handle says.
    #[error("the handle's size is larger than the memory; the handle is forged or was modified")]
    TooLarge,
    /// The memory is being freed.
    #[error("the process has been freeing the memory for too long")]
    BeingFreed,
    /// Nothing in the exporting process serves the memory.
    #[error(
        "its runtime does not serve the memory: AMD's runtime stops serving when a process is killed \
         while it opens memory; call get_mem_handle again in the exporting process"
    )]
    NoServer,
    /// Another process listens at the exporter's socket.
    #[error(
        "another process listens at its abstract socket hsa<pid>, which any process may do; end that \
         process, then call get_mem_handle again in the exporting process"
    )]
    Impostor,
    /// The exporting process does not answer.
    #[error("the process does not answer: it is stopped, or another process keeps its server busy")]
    NoAnswer,
    /// The process belongs to another user.
    #[error("the process is {0}")]
    Untrusted(UntrustedUser),
    /// The number means another process here, or none.
    #[error(
        "its number is of another PID namespace, or /proc is not this namespace's; use \
         transport::Channel"
    )]
    OtherNamespace,
    /// This process may not inspect the other.
    #[error(
        "permission denied for /proc/<pid>/fd: both processes must belong to the same user in the \
         same user namespace; transport::Channel needs neither"
    )]
    Forbidden,
    /// This process may not take descriptors of the other.
    #[error(
        "permission denied for its descriptors (ptrace; with Yama it can allow this by prctl \
         PR_SET_PTRACER); transport::Channel needs no permission"
    )]
    NotPermitted,
    /// The process withdrew its offer.
    #[error("the process does not offer the memory any more")]
    Withdrawn,
}

impl Error {
    /// Returns the error of an operation, for layers that check arguments on top of this library.
    #[must_use]
    pub fn new(operation: Operation, kind: impl Into<ErrorKind>) -> Self {
        Self { operation, kind: kind.into() }
    }

    /// Returns the operation that failed.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Returns why it failed.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Returns why it failed, by value.
    #[must_use]
    pub fn into_kind(self) -> ErrorKind {
        self.kind
    }

    /// Returns the invalid argument, if one is invalid.
    #[must_use]
    pub fn argument(&self) -> Option<Argument> {
        match self.kind {
            ErrorKind::InvalidArgument { argument, .. } => Some(argument),
            _ => None,
        }
    }

    /// Returns what is wrong with the argument, if one is invalid.
    #[must_use]
    pub fn problem(&self) -> Option<Problem> {
        match self.kind {
            ErrorKind::InvalidArgument { problem, .. } => Some(problem),
            _ => None,
        }
    }

    /// Returns the function of the runtime that failed, and its status.
    #[must_use]
    pub fn call(&self) -> Option<(&'static str, Status)> {
        match self.kind {
            ErrorKind::Runtime { call, status }
            | ErrorKind::NotShared { call, status }
            | ErrorKind::OutOfMemory { call, status, .. } => Some((call, status)),
            ErrorKind::Start { status, .. } => Some(("hsa_init", status)),
            _ => None,
        }
    }
}

impl ErrorKind {
    /// Blames an argument.
    pub(crate) fn invalid(argument: Argument, value: impl Into<Value>, problem: Problem) -> Self {
        Self::InvalidArgument { argument, value: value.into(), problem }
    }

    /// Blames an argument that has no value to show.
    pub(crate) fn invalid_list(argument: Argument, problem: Problem) -> Self {
        Self::InvalidArgument { argument, value: Value::None, problem }
    }

    /// Says what a failed call of the runtime means. `size` is the size in bytes that was requested.
    pub(crate) fn of_call(failure: Failure, size: usize) -> Self {
        let Failure { call, status } = failure;
        match status {
            Status::NOT_SUPPORTED => Self::NotSupported(Feature::Function(call)),
            // From ROCm 7.14 on, set_access opens an import and answers only ERROR.
            Status::OUT_OF_RESOURCES | Status::ERROR if out_of_descriptors() => {
                Self::OutOfDescriptors
            }
            Status::OUT_OF_RESOURCES => Self::OutOfMemory { call, status, size },
            _ => Self::Runtime { call, status },
        }
    }

    /// Says what a failed system call means.
    pub(crate) fn of_system(call: &'static str, errno: rustix::io::Errno) -> Self {
        match errno {
            rustix::io::Errno::MFILE | rustix::io::Errno::NFILE => Self::OutOfDescriptors,
            errno => Self::System { call, errno: Errno::of(errno) },
        }
    }

    /// Blames another argument in place of the address, because the caller passed that one.
    pub(crate) fn about(self, argument: Argument) -> Self {
        match self {
            Self::InvalidArgument { argument: Argument::Address, value, problem } => {
                Self::InvalidArgument { argument, value, problem }
            }
            other => other,
        }
    }

    /// Blames the offset in place of the address, because the caller passed an offset from `base`.
    pub(crate) fn about_offset(self, base: Address) -> Self {
        match self.about(Argument::Offset) {
            Self::InvalidArgument {
                argument: Argument::Offset,
                value: Value::Address(address) | Value::Range(address, _),
                problem,
            } => {
                let offset = address.get().wrapping_sub(base.get());
                Self::invalid(Argument::Offset, offset, problem)
            }
            other => other,
        }
    }

    /// The same for a destination, which the caller passed as an offset from `base`.
    pub(crate) fn about_destination(self, base: Address) -> Self {
        match self {
            Self::InvalidArgument { argument: Argument::Destination, value, problem } => {
                Self::InvalidArgument { argument: Argument::Address, value, problem }
                    .about_offset(base)
            }
            other => other,
        }
    }

    fn cause(&self) -> Option<&Error> {
        match self {
            Self::AddressLost { cause, .. } | Self::PagesLost { cause, .. } => Some(cause),
            Self::PartlyFreed(cause) => Some(cause),
            _ => None,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidArgument { argument, value, problem } => {
                write!(f, "{argument}{value} {problem}")
            }
            Self::NotSupported(feature) => {
                write!(f, "{feature} is not supported here (`hsa-vmm info` lists what is)")
            }
            Self::OutOfMemory { call, status, size } => {
                write!(f, "out of memory: {call} answered {status} for {size:#x} bytes")
            }
            Self::OutOfDescriptors => {
                f.write_str("out of file descriptors; raise the limit (`ulimit -n`) or close some")
            }
            Self::LimitReached { table, limit } => {
                write!(f, "{limit} {table} exist already; free some")
            }
            Self::Busy(busy) => write!(f, "in use: {busy}"),
            Self::Runtime { call, status } => {
                write!(f, "{call} answered {status}; HSA_VMM_LOG=trace shows the calls before it")
            }
            Self::System { call, errno } => write!(f, "{call} failed: {errno}"),
            Self::Quarantined { range, now } => {
                let when = if *now { "is now" } else { "is" };
                write!(f, "the range {when} quarantined (Vmm::quarantine): {range}")
            }
            Self::HoleNotFilled { address, size, errno } => write!(
                f,
                "hsa_amd_vmem_unmap left a hole of {size:#x} bytes at {address} in the reservation, and \
                 mmap could not fill it: {errno}"
            ),
            Self::ReservedTwice { address } => write!(
                f,
                "hsa_amd_vmem_address_reserve returned addresses at {address} that it had reserved \
                 already"
            ),
            Self::Forked => f.write_str(
                "this process is a child of a fork; open a runtime in the child, after exec",
            ),
            Self::Load(error) => write!(
                f,
                "{error}\ninstall ROCm's runtime, or name the library in HSA_VMM_RUNTIME (`sim` for \
                 the simulation)"
            ),
            Self::Start { path, status, driver } => {
                let path = printable(&path.to_string_lossy()).to_string();
                write!(f, "hsa_init answered {status} ({path})\n{driver}")
            }
            Self::NoCpu => {
                f.write_str("the runtime has no CPU agent: its kernel topology is incomplete")
            }
            Self::Simulation(reason) => write!(f, "the simulation did not start: {reason}"),
            Self::SameProcess => {
                f.write_str("the memory belongs to this process; use the address it has here")
            }
            Self::Unavailable { process, reason } => {
                write!(f, "the memory of process {process} is not available: {reason}")
            }
            Self::NotShared { call, status } => write!(
                f,
                "{call} answered {status}; with a kernel driver that is not AMD's own package, the \
                 runtime shares memory only if HSA_ENABLE_IPC_MODE_LEGACY=0 is set before it starts \
                 (ROCm 6.1: not at all)"
            ),
            Self::SocketTaken { process } => write!(
                f,
                "another process has the abstract socket hsa{process}: one with the same number in \
                 another PID namespace, or any process in the same network namespace; give each a \
                 network namespace of its own, or use transport::Channel"
            ),
            Self::Untrusted(user) => write!(f, "the process at the other end is {user}"),
            Self::TimedOut { limit } => write!(f, "the other end did not finish within {limit:?}"),
            Self::Disconnected { bytes } => {
                write!(f, "the other end disconnected after {bytes} bytes of a message")
            }
            Self::Malformed(malformed) => write!(f, "the message {malformed}"),
            Self::UnexpectedDescriptors(count) => {
                write!(f, "the message has {count} file descriptors; it must have one")
            }
            Self::SizeMismatch { described, found } => {
                write!(f, "the message says {described} bytes, and the memory has {found}")
            }
            Self::Paused => f.write_str("the buffer is paused; resume it first"),
            Self::NotPaused => f.write_str("the buffer is not paused"),
            Self::AddressLost { address, size, .. } => write!(
                f,
                "the {size:#x} bytes of addresses at {address} are not available any more; resume \
                 later, or at another address (PausableBuffer::resume_anywhere)"
            ),
            Self::PagesLost { first, count, .. } => {
                write!(f, "{count} pages from page {first} on are lost and never used again")
            }
            Self::PartlyFreed(_) => {
                f.write_str("it was unmapped, but not all of it was freed; munmap tries again")
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.operation.phrase(), self.kind)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind.cause() {
            Some(cause) => write!(f, "{self}: {cause:?}"),
            None => fmt::Display::fmt(self, f),
        }
    }
}

impl core::error::Error for Error {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        // The message of every other kind already contains what caused it.
        self.kind.cause().map(|cause| cause as _)
    }
}

impl From<LoadError> for ErrorKind {
    fn from(error: LoadError) -> Self {
        Self::Load(error)
    }
}

impl From<Failure> for ErrorKind {
    fn from(failure: Failure) -> Self {
        Self::of_call(failure, 0)
    }
}

impl From<Feature> for ErrorKind {
    fn from(feature: Feature) -> Self {
        Self::NotSupported(feature)
    }
}
