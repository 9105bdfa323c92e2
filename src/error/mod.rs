//! The error type of this library.
//!
//! An [`Error`] contains the [`Operation`] that failed and the reason, an [`ErrorKind`]. Callers match on the kind.
//! Every variant contains its data, so that callers need not parse text.
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
mod feature;
mod hip;
mod kind;
mod message;
mod operation;

pub use crate::native::Status;
pub use argument::{Argument, Problem, Value};
pub use feature::Feature;
pub(crate) use kind::SIMULATION;
pub use kind::{ErrorKind, MalformedMessage, UnavailableReason};
pub use operation::Operation;
pub use rustix::io::Errno;

use crate::address::Address;
use crate::agent::AgentId;
use core::fmt;
use core::ops::Range;
use derive_more::{Debug, Display};
use message::describe_shortage;

/// The error of an operation that failed.
///
/// The failed operation has changed nothing, with these exceptions. A failed copy or fill may have written some of the
/// bytes. A rollback can have unmapped memory for a moment, so that agents that used it have faulted
/// ([`Vmm::set_access`](crate::Vmm::set_access)). The kinds [`ErrorKind::Quarantined`] with `now`,
/// [`ErrorKind::PagesLost`] and [`ErrorKind::PartlyFreed`] say what was lost, mostly because the runtime failed again
/// during the rollback. The documentation of a method names any other exception, such as a buffer that stays paused.
///
/// `Debug` writes the `Display` text, followed by the [sources](core::error::Error::source). Therefore a `main` that
/// returns the error prints the whole message.
///
/// ```
/// # use hsa_vmm::{Runtime, Vmm};
/// use hsa_vmm::error::{Argument, Operation};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// # let vmm = Vmm::open(&runtime)?;
/// let error = vmm.address_reserve(0, 0, None).unwrap_err();
/// assert_eq!(error.operation(), Operation::AddressReserve);
/// assert_eq!(error.argument(), Some(Argument::Size));
/// println!("{error}");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Display, PartialEq, Eq)]
#[display("cannot {}{}: {kind}", operation.phrase(), describe_context(context.as_deref()))]
pub struct Error {
    operation: Operation,
    kind: ErrorKind,
    context: Option<Box<Context>>,
}

/// The pages or the agent for which an operation failed.
#[derive(Clone, Default, PartialEq, Eq)]
struct Context {
    /// The ranges of pages, and the address of the first page of each range. An operation that transfers pages has two
    /// ranges.
    pages: Vec<(Range<usize>, Address)>,
    /// The agent whose memory has run out.
    agent: Option<AgentId>,
}

fn describe_context(context: Option<&Context>) -> String {
    let Some(Context { pages, agent }) = context else { return String::new() };
    let agent = agent.map(|agent| format!(" on {agent}")).unwrap_or_default();
    let range = |(Range { start, end }, address): &_| format!("{start}..{end} at {address}");
    match pages.iter().map(range).collect::<Vec<_>>() {
        ranges if ranges.is_empty() => agent,
        ranges => format!("{agent} (pages {})", ranges.join(" and ")),
    }
}

impl Error {
    /// Creates the error of an operation. Code on top of this library can use it for arguments that it checks itself.
    #[must_use]
    #[cold]
    pub fn new(operation: Operation, kind: impl Into<ErrorKind>) -> Self {
        Self { operation, kind: kind.into(), context: None }
    }

    /// Replaces the operation by the method that the caller called.
    pub(crate) fn with_operation(self, operation: Operation) -> Self {
        Self { operation, ..self }
    }

    /// If the error is [`ErrorKind::OutOfMemory`], adds the agent whose memory has run out.
    pub(crate) fn of_agent(mut self, agent: AgentId) -> Self {
        if matches!(self.kind, ErrorKind::OutOfMemory { .. }) {
            self.context.get_or_insert_default().agent = Some(agent);
        }
        self
    }

    /// Adds the ranges of pages for which the operation failed, and the address of the first page of each range.
    pub(crate) fn for_pages(mut self, pages: &[(Range<usize>, Address)]) -> Self {
        self.context.get_or_insert_default().pages = pages.to_vec();
        self
    }

    /// Returns the pages for which the operation failed, for an error of a
    /// [`PagedBuffer`](crate::buffer::PagedBuffer).
    ///
    /// Returns `None` if the buffer rejected the whole call, for example because of an invalid argument.
    ///
    /// If the operation moves, shares or exchanges pages, returns the pages of the buffer whose method was called. The
    /// message also names the pages of the other buffer. The runtime may have failed for the pages of either buffer.
    pub fn pages(&self) -> Option<Range<usize>> {
        self.context.as_ref()?.pages.first().map(|(pages, _)| pages.clone())
    }

    /// Returns the operation that failed.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Returns why the operation failed.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Returns why the operation failed, and consumes the error.
    pub fn into_kind(self) -> ErrorKind {
        self.kind
    }

    /// Returns the invalid argument, if there is one.
    pub fn argument(&self) -> Option<Argument> {
        match self.kind {
            ErrorKind::InvalidArgument { argument, .. } => Some(argument),
            _ => None,
        }
    }

    /// Returns what is wrong with the invalid argument, if there is one.
    pub fn problem(&self) -> Option<Problem> {
        match self.kind {
            ErrorKind::InvalidArgument { problem, .. } => Some(problem),
            _ => None,
        }
    }

    /// Returns the function of the runtime that failed first, and its status. Returns `None` if no function of the
    /// runtime failed in this operation.
    pub fn call(&self) -> Option<(&'static str, Status)> {
        failed_call(&self.kind)
    }
}

fn failed_call(kind: &ErrorKind) -> Option<(&'static str, Status)> {
    match kind {
        ErrorKind::Runtime { call, status }
        | ErrorKind::NotShared { call, status }
        | ErrorKind::OutOfMemory { call, status: Some(status), .. } => Some((call, *status)),
        ErrorKind::Start { status, .. } => Some(("hsa_init", *status)),
        ErrorKind::Quarantined { range, now: true } => failed_call(&range.failure),
        kind => kind.cause().and_then(Error::call),
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
        // The message of every other kind already contains its cause.
        self.kind.cause().map(|cause| cause as _)
    }
}

/// A value that a failed operation returns, and the error.
///
/// The value is unchanged, unless the error is [`ErrorKind::Quarantined`] or [`ErrorKind::PartlyFreed`]. The caller can
/// try again. Dropping the value unmaps, frees, releases or closes it, whatever the operation was. The operator `?`
/// drops the value and converts the error to [`Error`].
///
/// ```
/// # use hsa_vmm::error::Rejected;
/// # use hsa_vmm::{Error, PoolMemory};
/// # fn f(memory: PoolMemory) -> Result<(), Error> {
/// memory.free()?;
/// # Ok(()) }
/// # fn g(memory: PoolMemory) -> Option<PoolMemory> {
/// // Or:
/// if let Err(Rejected { value, error }) = memory.free() {
///     eprintln!("{error}; still allocated at {}", value.address());
///     # return Some(value);
/// }
/// # None }
/// ```
#[derive(Clone, Debug, Display, PartialEq, Eq)]
#[debug("{error:?}")]
#[display("{error}")]
pub struct Rejected<T> {
    /// The value.
    pub value: T,
    /// Why the operation failed.
    pub error: Error,
}

impl<T> core::error::Error for Rejected<T> {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        self.error.source()
    }
}

impl<T> From<Rejected<T>> for Error {
    fn from(rejected: Rejected<T>) -> Self {
        rejected.error
    }
}

/// A range or memory that the library does not use any more. In most cases, a rollback failed there, an agent may still
/// use it, or other code may have mapped memory in the range.
///
/// The addresses are never freed. What is mapped in the range stays mapped, and its memory allocated, at least until the
/// last [`Vmm`](crate::Vmm) is dropped. However, if [`Vmm::unmap`](crate::Vmm::unmap) could not keep the addresses
/// reserved ([`ErrorKind::HoleNotFilled`]), or could not remove the access of the CPU's view at the kernel's limit of
/// mappings (`mmap` failed), the runtime has unmapped the memory. Such a view stays accessible until the process ends.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
#[display("{size:#x} bytes at {address} since {operation}: {}", self.reason())]
#[non_exhaustive]
pub struct Quarantined {
    /// The start of the reservation, or of a mapping that a [`RetireQueue`](crate::vmm::RetireQueue) could not
    /// unmap; null for physical memory.
    pub address: Address,
    /// The size of the range or memory in bytes.
    pub size: usize,
    /// The operation that failed.
    pub operation: Operation,
    /// Why the operation failed.
    pub failure: ErrorKind,
    /// Why the operation could not be rolled back, if a rollback was tried.
    pub rollback: Option<ErrorKind>,
}

impl Quarantined {
    /// Returns whether the range may contain a foreign mapping.
    pub(crate) fn leaves_hole(&self) -> bool {
        let leaves_hole =
            |kind: &ErrorKind| kind.leaves_hole() || matches!(kind, ErrorKind::ReservedTwice(_));
        leaves_hole(&self.failure) || self.rollback.as_ref().is_some_and(leaves_hole)
    }

    /// Describes why the range or memory is quarantined: the failure of the operation and, if there is one, the
    /// failure of the rollback.
    pub fn reason(&self) -> String {
        // No memory that is released makes the range usable again.
        let describe = |kind: &ErrorKind| match *kind {
            ErrorKind::OutOfMemory { call, status, size } => {
                format!("out of memory: {}", describe_shortage(call, status, size))
            }
            ref kind => kind.to_string(),
        };
        match (&self.failure, &self.rollback) {
            (failure, None) => describe(failure),
            // Omits the advice of the first failure: the message of the rollback's failure ends with the same advice.
            (ErrorKind::Runtime { call, status }, Some(rollback @ ErrorKind::Runtime { .. })) => {
                format!("{call} returned {status}; rolling it back failed: {rollback}")
            }
            (failure, Some(rollback)) => {
                let [failure, rollback] = [failure, rollback].map(describe);
                format!("{failure}; rolling it back failed: {rollback}")
            }
        }
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Quarantined {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut fields = serializer.serialize_struct("Quarantined", 4)?;
        fields.serialize_field("address", &self.address)?;
        fields.serialize_field("size", &self.size)?;
        fields.serialize_field("operation", self.operation.name())?;
        fields.serialize_field("reason", &self.reason())?;
        fields.end()
    }
}

/// A broken invariant of the library's own state ([`Vmm::check`](crate::Vmm::check)).
///
/// This is a defect of this library, not of the runtime. Please report the defect with this message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BrokenInvariant(pub(crate) String);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::Failure;
    use std::io;

    #[test]
    fn not_supported_status_is_not_a_missing_function() {
        let call = "hsa_amd_vmem_map";
        let missing = ErrorKind::of_call(Failure::missing(call), 0);
        assert_eq!(missing, ErrorKind::NotSupported(Feature::Function(call)));
        let status = Status::NOT_SUPPORTED;
        let returned = ErrorKind::of_call(Failure { call, status }, 0);
        assert_eq!(returned, ErrorKind::Runtime { call, status });
    }

    #[test]
    fn only_calls_that_open_descriptors_lack_them() {
        use super::message::opens_descriptor;
        for call in ["hsa_amd_vmem_map", "hsa_amd_vmem_set_access", "hsa_amd_ipc_memory_create"] {
            assert!(opens_descriptor(call), "{call}");
        }
        for call in
            ["hsa_amd_vmem_handle_create", "hsa_amd_vmem_address_reserve", "hsa_amd_vmem_unmap"]
        {
            assert!(!opens_descriptor(call), "{call}");
        }
    }

    #[test]
    fn shortage_names_only_a_returned_status() {
        let describe = |call, status, size| {
            let kind = ErrorKind::OutOfMemory { call, status, size };
            let error = Error::new(Operation::Create, kind);
            (error.to_string(), error.call().is_some())
        };
        let (message, has_call) = describe("GEM_CREATE", None, 4096);
        assert!(message.contains("out of memory: GEM_CREATE failed for 0x1000 bytes"), "{message}");
        assert!(!has_call);
        let reserve = "hsa_amd_vmem_address_reserve";
        for (size, expected) in [(1 << 63, "exceed the address space"), (4096, "alignment; free")] {
            let (message, has_call) = describe(reserve, None, size);
            assert!(message.contains(expected) && !message.contains("returned"), "{message}");
            assert!(!has_call);
        }
        let create = "hsa_amd_vmem_handle_create";
        let failure = ErrorKind::of_call(Failure { call: create, status: Status::NO_RESULT }, 4096);
        let error = Error::new(Operation::Create, failure);
        let message = error.to_string();
        assert!(message.contains("returned success without a result for 0x1000"), "{message}");
        assert_eq!(error.call(), Some((create, Status::NO_RESULT)));
    }

    /// AMD's runtime returns the same status for every failure, also if the driver has no memory.
    #[test]
    fn failed_lock_names_missing_memory() {
        let status = Status::ERROR;
        let failure = Failure { call: "hsa_amd_memory_lock", status };
        let error = Error::new(Operation::CopyToHost, ErrorKind::of_call(failure, 0x1000));
        let text = "cannot copy to the host: hsa_amd_memory_lock returned HSA_STATUS_ERROR (0x1000): memory of this \
                    process could not be pinned for a GPU. Either the caller passed memory";
        assert!(error.to_string().starts_with(text), "{error}");
    }

    #[test]
    fn quarantine_advises_to_release_no_memory() {
        let shortage = |call| {
            let status = Status::OUT_OF_RESOURCES;
            ErrorKind::of_call(Failure { call, status }, 0)
        };
        let quarantined = Quarantined {
            address: Address::new(0),
            size: 0x1000,
            operation: Operation::Map,
            failure: shortage("hsa_amd_vmem_set_access"),
            rollback: Some(shortage("hsa_amd_vmem_unmap")),
        };
        let reason = quarantined.reason();
        assert!(reason.contains("hsa_amd_vmem_set_access returned"), "{reason}");
        assert!(reason.contains("failed: out of memory: hsa_amd_vmem_unmap returned"), "{reason}");
        assert!(!reason.contains("release memory"), "{reason}");
    }

    #[test]
    fn errno_displays_its_message() {
        let no_space = ErrorKind::of_system("mmap", Errno::NOSPC);
        assert_eq!(no_space.to_string(), "mmap failed: No space left on device (os error 28)");
        let no_memory = ErrorKind::of_system("mmap", Errno::NOMEM).to_string();
        assert!(no_memory.contains("vm.max_map_count"), "{no_memory}");
        assert_eq!(io::Error::from(Errno::NOSPC).kind(), io::ErrorKind::StorageFull);
    }
}
