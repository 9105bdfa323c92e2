//! Why an operation failed.

use super::feature::Feature;
use super::message::{
    OR_SIMULATION, advice, advise_mapping, advise_start, describe_hole, describe_shortage,
    explain_status, is_shortage, list_libraries, opens_descriptor,
};
use super::{Argument, Errno, Error, Problem, Quarantined, Value};
use crate::address::Address;
use crate::native::{DriverState, FailedCall, Failure, Status, out_of_descriptors};
use crate::signal::SignalCondition;
use crate::trust::UntrustedUser;
use core::time::Duration;
use derive_more::Debug;
use hsa_sys::{LoadError, LoadedLibrary, printable};
use std::path::PathBuf;
use std::sync::Arc;

/// The name of the simulation in errors, in place of the path of a library.
pub(crate) const SIMULATION: &str = "simulation";

/// Why an operation failed.
///
/// ```
/// # use hsa_vmm::{Error, ErrorKind};
/// /// Returns whether to free something and try again.
/// fn is_out_of_memory(error: &Error) -> bool {
///     matches!(error.kind(), ErrorKind::OutOfMemory { .. })
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is invalid. In most cases, the library finds this before it calls the runtime.
    #[error("{argument}{value} {}", problem.describe(*argument, value))]
    InvalidArgument {
        /// The argument.
        argument: Argument,
        /// Its value.
        value: Value,
        /// What is wrong with the value.
        problem: Problem,
    },
    /// This library, the runtime or the hardware does not support a feature.
    #[error("{feature} is not supported{end}", feature = .0, end = .0.message_end())]
    NotSupported(Feature),
    /// No memory or no address range of the requested size is left.
    #[error("out of memory: {}; {}", describe_shortage(call, *.status, *.size), advice(call))]
    OutOfMemory {
        /// The function of the runtime, or the call of the driver, that provides the memory or the addresses.
        call: &'static str,
        /// The status that the function returned. `None` if a call of the driver failed, or if no call failed, but no
        /// suitable range of addresses was found.
        status: Option<Status>,
        /// The size in bytes that was requested; 0 if the call does not request a size.
        size: usize,
    },
    /// The process has no free file descriptor.
    #[error("out of file descriptors; raise the limit (`ulimit -n`) or close some")]
    OutOfDescriptors,
    /// A table of this library is full.
    #[error("the maximum is {limit} {table}; {advice}")]
    LimitReached {
        /// The name of the table.
        table: &'static str,
        /// The maximum number of entries.
        limit: usize,
        /// What the caller can do.
        advice: &'static str,
    },
    /// An area already maps this host memory. Contains the start of the mapped memory.
    #[error("in use: an area maps the host memory at {0}; munmap that area first")]
    HostMemoryMapped(Address),
    /// Another process is opening the memory by its IPC handle.
    #[error("in use: another process is opening this memory and did not finish in time; try again")]
    BeingOpened,
    /// The runtime failed although the arguments are valid.
    #[error(
        "{call} returned {status}{}; HSA_VMM_LOG=trace (in Rust, target hsa_vmm::native of `tracing`) shows the calls \
         before it",
        explain_status(call, *.status)
    )]
    Runtime {
        /// The runtime's function.
        call: &'static str,
        /// Its status.
        status: Status,
    },
    /// A system call failed.
    #[error("{call} failed: {errno}{}", advise_mapping(call, *errno))]
    System {
        /// The system call.
        call: &'static str,
        /// Its error number.
        errno: Errno,
    },
    /// The range is quarantined: its state is unknown, and the library never uses it again.
    #[error("the range is{} quarantined (Vmm::quarantined_ranges): {range}", if *.now { " now" } else { "" })]
    Quarantined {
        /// The range, and the reason of the quarantine.
        range: Arc<Quarantined>,
        /// True if the range was quarantined during this operation, by this operation or by another thread. If false,
        /// this operation has changed nothing, except that `PausableBuffer::pause` pauses the buffer.
        now: bool,
    },
    /// The runtime or the library left an address-space hole in a reservation, and the library could not fill the hole.
    /// Either a foreign mapping was created there, or the process has reached a limit.
    #[error(
        "{size:#x} bytes at {address} of the reservation {}", describe_hole(*errno)
    )]
    HoleNotFilled {
        /// The start of the hole.
        address: Address,
        /// The size of the hole in bytes.
        size: usize,
        /// The error number of `mmap`.
        errno: Errno,
    },
    /// The runtime reserved addresses that it had already reserved. Contains the first of these addresses.
    #[error(
        "hsa_amd_vmem_address_reserve returned addresses at {0} that it had reserved already; this is a defect of the \
         runtime"
    )]
    ReservedTwice(Address),
    /// The runtime returned a dma-buf that does not contain the exported range.
    #[error(
        "the runtime returned a dma-buf of {size:#x} bytes and the offset {offset:#x}, which leaves no \
         room for {length:#x} bytes; this is a defect of the runtime"
    )]
    OutsideDmaBuf {
        /// The offset that the runtime returned, in bytes.
        offset: u64,
        /// The size of the exported range in bytes.
        length: usize,
        /// The size of the dma-buf in bytes.
        size: usize,
    },
    /// This process was forked after its parent had opened the runtime. A forked child can open only the simulation.
    #[error(
        "this process was forked after the runtime was opened; fork first, or start a new program"
    )]
    Forked,
    /// No library with the required functions was found. Contains the files that were tried.
    #[error(
        "{_0}\ninstall ROCm's runtime, or name the library in HSA_VMM_RUNTIME{}",
        OR_SIMULATION
    )]
    Load(LoadError),
    /// The library was loaded, but `hsa_init` failed.
    #[error("hsa_init returned {status} ({})\n{}{}", printable(&.path.to_string_lossy()), advise_start(path, driver), list_libraries(loaded))]
    Start {
        /// The library.
        path: PathBuf,
        /// The status of `hsa_init`.
        status: Status,
        /// The state of the kernel driver's device file.
        driver: DriverState,
        /// The HSA libraries that the process has loaded. Two libraries can disturb each other.
        loaded: Vec<LoadedLibrary>,
    },
    /// The runtime has no CPU agent, which HSA requires.
    #[error("the runtime has no CPU agent: its kernel topology is incomplete")]
    NoCpu,
    /// The simulation could not be started.
    #[error("the simulation did not start: {0}")]
    Simulation(String),

    /// The IPC handle is this process's own.
    #[error("the memory belongs to this process; use the address it has here")]
    SameProcess,
    /// The memory of another process is not available.
    #[error("the memory of process {process} is not available: {reason}")]
    Unavailable {
        /// The number of the process, from the handle or ticket.
        process: i32,
        /// Why the memory is not available.
        reason: UnavailableReason,
    },
    /// The runtime did not share the memory, although IPC can share memory of this kind.
    #[error(
        "{call} returned {status}; with a kernel driver that is not AMD's own package, the runtime shares memory only if \
         HSA_ENABLE_IPC_MODE_LEGACY=0 is set before it starts (the default since ROCm 7.2; not possible before 6.4)"
    )]
    NotShared {
        /// The runtime's function.
        call: &'static str,
        /// Its status.
        status: Status,
    },
    /// Another process listens at the abstract socket on which this process's runtime would share memory. Contains
    /// the number of this process.
    #[error(
        "another process has the abstract socket hsa{0}: a process with the same number in another PID \
         namespace, or any other process in the same network namespace; give each process its own \
         network namespace, or use transport::Channel"
    )]
    SocketTaken(u32),

    /// The process at the other end belongs to another user.
    #[error("the process at the other end is {0}")]
    Untrusted(UntrustedUser),
    /// The exchange did not end within this time limit.
    #[error("the other end did not finish within {0:?}")]
    TimedOut(Duration),
    /// The connection ended: the other end closed it, or an earlier call shut it down. Contains the number of bytes of
    /// the message that were sent or received.
    #[error(
        "the connection ended after {0} bytes of a message: the other end disconnected, or this end shut the \
         connection down after an incomplete or invalid message"
    )]
    Disconnected(usize),
    /// A message that cannot be decoded.
    #[error("the message {0}")]
    Malformed(MalformedMessage),
    /// A message with too few or too many descriptors.
    #[error("the message has {0} file descriptors; it must have one")]
    UnexpectedDescriptors(usize),
    /// The size of the memory is not the size in the message.
    #[error(
        "the message says {described} bytes, and the memory has {found}; the sender is faulty, or the message was modified"
    )]
    SizeMismatch {
        /// The size in the message.
        described: u64,
        /// The size of the memory.
        found: u64,
    },
    /// A signal did not fire in time ([`RetireQueue`](crate::vmm::RetireQueue)). The mapping stays mapped.
    #[error(
        "signal {signal:#x} had the value {value} after {limit:?}, not {condition}; the mapping stays mapped, \
         because an agent may use it"
    )]
    NotSignaled {
        /// The handle of the signal.
        #[debug("{signal:#x}")]
        signal: u64,
        /// The condition that did not hold.
        condition: SignalCondition,
        /// The last value.
        value: i64,
        /// The time limit of the queue.
        limit: Duration,
    },
    /// The buffer is paused: nothing is mapped at its addresses.
    #[error("the buffer is paused; resume it first")]
    Paused,
    /// The buffer is not paused.
    #[error("the buffer is not paused")]
    NotPaused,
    /// The addresses of a paused buffer are in use by other code: the program has freed them by their address.
    #[error(
        "the buffer is paused, and its {size:#x} bytes of addresses at {address} are not available any \
         more; resume later, or at another address (PausableBuffer::resume_anywhere)"
    )]
    AddressLost {
        /// The buffer's address.
        address: Address,
        /// The size of the buffer in bytes.
        size: usize,
        /// Why the addresses could not be reserved again.
        cause: Box<Error>,
    },
    /// Pages were lost: the runtime failed, and failed again during the rollback. The buffer's addresses are
    /// quarantined: its other pages keep their memory, but the buffer cannot use them any more. To read a page, map its
    /// memory at other addresses ([`Allocation::at`](crate::Allocation::at)).
    #[error(
        "pages {first}..{} of the buffer at {address} are lost, and that buffer is quarantined; use new buffers",
        first + count
    )]
    PagesLost {
        /// The start address of the buffer that has lost the pages: this buffer, or the operation's other buffer. The
        /// other buffer can have lost pages, too.
        address: Address,
        /// The first lost page.
        first: usize,
        /// The number of adjacent lost pages from `first` on. [`PagedBuffer::state`](crate::buffer::PagedBuffer::state)
        /// finds other lost pages.
        count: usize,
        /// The first failure.
        cause: Box<Error>,
    },
    /// An area was unmapped, but not all of its memory could be freed. Another call of `munmap` tries again.
    #[error("the memory was unmapped, but not all of it was freed; munmap tries again")]
    PartlyFreed(Box<Error>),
}

/// Why the memory of another process is not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum UnavailableReason {
    /// The process has ended, no process of this PID namespace has this number, or a ticket is of another time namespace.
    #[error(
        "the process has ended, is in another PID or time namespace (use transport::Channel), or the handle was \
         modified"
    )]
    NoProcess,
    /// The memory was freed or never exported, or the handle was modified.
    #[error("the memory was freed or never exported, or the handle was modified")]
    Freed,
    /// The memory has fewer bytes than the handle says.
    #[error("the handle's size is larger than the memory; the handle is forged or was modified")]
    TooLarge,
    /// The memory is being freed.
    #[error("the process has been freeing the memory for too long")]
    BeingFreed,
    /// The exporting process has no server for the memory.
    #[error(
        "its runtime does not serve the memory: AMD's runtime stops serving when a process is killed \
         while it opens memory; call get_mem_handle again in the exporting process"
    )]
    NoServer,
    /// One of the two runtimes shares by dma-buf and the other one through the driver, or the handle was modified.
    #[error(
        "its handle is not of the kind that this process's runtime opens: set HSA_ENABLE_IPC_MODE_LEGACY to the same \
         value in both processes; if it is the same, the handle was modified"
    )]
    NotServed,
    /// Another process listens at the exporter's socket.
    #[error(
        "another process listens at its abstract socket hsa<pid>, which any process may do; end that \
         process, then call get_mem_handle again in the exporting process"
    )]
    Impostor,
    /// The exporting process does not respond.
    #[error("the process does not answer: it is stopped, or another process keeps its server busy")]
    NoAnswer,
    /// The process belongs to another user.
    #[error("the process is {0}")]
    Untrusted(UntrustedUser),
    /// The process is in another PID namespace. Its number identifies another process, or no process, in the
    /// namespace of this process.
    #[error(
        "its number is of another PID namespace, /proc is not this namespace's, or the handle was modified; between \
         namespaces, use transport::Channel"
    )]
    OtherNamespace,
    /// This process may not inspect the other process.
    #[error(
        "permission denied for /proc/<pid>/fd: both processes must belong to the same user in the same user \
         namespace, and the exporter must be dumpable and have no capability that this process lacks; \
         transport::Channel has no such requirement"
    )]
    Forbidden,
    /// This process may not take descriptors of the other process.
    #[error(
        "permission denied for its descriptors (ptrace; with Yama, the process can allow this by prctl \
         PR_SET_PTRACER); transport::Channel needs no permission"
    )]
    NotPermitted,
    /// The process withdrew its offer.
    #[error("the process does not offer the memory any more")]
    Withdrawn,
}

/// Why the bytes of a message are not a valid [`Description`](crate::transport::Description).
///
/// ```
/// use hsa_vmm::error::MalformedMessage;
/// use hsa_vmm::transport::Description;
///
/// assert_eq!(Description::decode(b"hello"), Err(MalformedMessage::Truncated { length: 64, found: 5 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MalformedMessage {
    /// The first bytes are not those of a message of this library.
    #[error("is not a message of hsa-vmm")]
    WrongMagic,
    /// The message has another version.
    #[error("has the unsupported version {0}")]
    Version(u8),
    /// No message has this length.
    #[error("has the invalid length {0}")]
    Length(u32),
    /// The number of bytes differs from the length in the header.
    #[error("has {found} bytes instead of {length}")]
    Truncated {
        /// The length in the header.
        length: usize,
        /// The number of bytes.
        found: usize,
    },
    /// The handle has a type that cannot be sent over a socket.
    #[error("has a handle of type {0}; only file descriptors (1) can be sent")]
    HandleType(u32),
    /// The size of the memory is zero.
    #[error("describes memory of size zero")]
    ZeroSize,
    /// A reserved byte is not zero.
    #[error("has reserved bytes that are not zero")]
    Reserved,
    /// The name is not UTF-8.
    #[error("has a name that is not UTF-8")]
    NotUtf8,
}

impl ErrorKind {
    /// Returns the error for an invalid argument.
    #[cold]
    pub(crate) fn invalid(argument: Argument, value: impl Into<Value>, problem: Problem) -> Self {
        Self::InvalidArgument { argument, value: value.into(), problem }
    }

    /// Returns the error for an invalid argument that has no value to show.
    pub(crate) fn without_value(argument: Argument, problem: Problem) -> Self {
        Self::InvalidArgument { argument, value: Value::None, problem }
    }

    /// Returns the error for a failed call of the runtime. `size` is the requested size in bytes.
    ///
    /// If the call opens a descriptor, and its status can mean that no descriptor is left, tests this by opening a file.
    /// Callers must call this function before a rollback closes descriptors.
    #[cold]
    pub(crate) fn of_call(failure: Failure, size: usize) -> Self {
        let Failure { call, status } = failure;
        match status {
            Status::MISSING_FUNCTION => Self::NotSupported(Feature::Function(call)),
            // From ROCm 7.14 on, set_access opens a descriptor and reports every failure as ERROR.
            Status::OUT_OF_RESOURCES | Status::ERROR
                if opens_descriptor(call) && out_of_descriptors() =>
            {
                Self::OutOfDescriptors
            }
            _ if is_shortage(call, status) => {
                Self::OutOfMemory { call, status: Some(status), size }
            }
            _ => Self::Runtime { call, status },
        }
    }

    /// Returns the error for a failed system call.
    pub(crate) fn of_system(call: &'static str, errno: Errno) -> Self {
        match errno {
            Errno::MFILE | Errno::NFILE => Self::OutOfDescriptors,
            errno => Self::System { call, errno },
        }
    }

    /// Returns the error for a failed system call of the standard library.
    pub(crate) fn of_io(call: &'static str, error: &std::io::Error) -> Self {
        Self::of_system(call, Errno::from_io_error(error).unwrap_or(Errno::IO))
    }

    /// If the error names the argument `address`, names `argument` instead.
    pub(crate) fn for_argument(self, argument: Argument) -> Self {
        match self {
            Self::InvalidArgument { argument: Argument::Address, value, problem } => {
                Self::InvalidArgument { argument, value, problem }
            }
            other => other,
        }
    }

    /// If the error names the argument `replaced` and its address, names the offset of that address from `base`
    /// instead. For methods whose caller passes an offset.
    pub(crate) fn for_offset(self, replaced: Argument, base: Address) -> Self {
        match self {
            Self::InvalidArgument {
                argument,
                value: Value::Address(address) | Value::Range(address, _),
                problem,
            } if argument == replaced => {
                let offset = address.get().wrapping_sub(base.get());
                Self::invalid(Argument::Offset, offset, problem)
            }
            other => other,
        }
    }

    /// Returns whether the operation left a hole that may contain a foreign mapping.
    pub(crate) fn leaves_hole(&self) -> bool {
        matches!(self, Self::HoleNotFilled { .. })
    }

    pub(super) fn cause(&self) -> Option<&Error> {
        match self {
            Self::AddressLost { cause, .. } | Self::PagesLost { cause, .. } => Some(cause),
            Self::PartlyFreed(cause) => Some(cause),
            _ => None,
        }
    }
}

/// As [`ErrorKind::of_call`], without a size.
impl From<Failure> for ErrorKind {
    fn from(failure: Failure) -> Self {
        Self::of_call(failure, 0)
    }
}

impl From<FailedCall> for ErrorKind {
    fn from(FailedCall { call, errno }: FailedCall) -> Self {
        Self::of_system(call, errno)
    }
}
