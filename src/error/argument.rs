//! Invalid arguments: the argument's name, its value, and the problem.

use super::ErrorKind;
use crate::access::Access;
use crate::address::Address;
use crate::agent::AgentId;
use crate::handle::{Handle, HandleType};
use derive_more::{Display, From};

macro_rules! arguments {
    ($($variant:ident: $name:literal;)+) => {
        /// An argument of an operation.
        ///
        /// ```
        /// use hsa_vmm::error::{Argument, ErrorKind};
        ///
        /// /// Returns whether to ask the user for another size.
        /// fn is_wrong_size(kind: &ErrorKind) -> bool {
        ///     matches!(kind, ErrorKind::InvalidArgument { argument: Argument::Size, .. })
        /// }
        /// ```
        #[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Argument {
            $(#[doc = concat!("The ", $name, ".")] #[display($name)] $variant,)+
        }
    };
}

arguments! {
    Address: "address";
    Agent: "agent";
    Alignment: "alignment";
    Buffer: "buffer";
    Capacity: "capacity";
    Descriptor: "file descriptor";
    Descriptors: "list of agents";
    Destination: "destination";
    DestinationPage: "destination page";
    Device: "device";
    FabricHandle: "fabric handle";
    Flags: "flags";
    Handle: "handle";
    HandleType: "handle type";
    Host: "host memory";
    IpcHandle: "IPC handle";
    List: "list";
    Location: "location";
    Mappings: "list of mappings";
    Name: "name";
    Offset: "offset";
    OtherBuffer: "other buffer";
    OtherPage: "other page";
    Page: "page";
    PageSize: "page size";
    Reservation: "reservation";
    Signal: "signal";
    Signals: "list of signals";
    Size: "size";
    Source: "source";
    Step: "step";
    Times: "times";
}

impl Argument {
    pub(crate) fn check_not_zero(self, number: usize) -> Result<(), ErrorKind> {
        if number == 0 { Err(ErrorKind::invalid(self, number, Problem::Zero)) } else { Ok(()) }
    }

    /// Rejects a number that is not a multiple of the granule.
    pub(crate) fn check_multiple(self, number: usize, granule: usize) -> Result<(), ErrorKind> {
        match number.is_multiple_of(granule) {
            true => Ok(()),
            false => Err(ErrorKind::invalid(self, number, Problem::NotAligned { granule })),
        }
    }

    /// Rejects an offset if the `size` bytes from `offset` on are not all before `end`.
    pub(crate) fn check_bounds(
        self,
        offset: usize,
        size: usize,
        end: usize,
    ) -> Result<(), ErrorKind> {
        match offset.checked_add(size).is_some_and(|part_end| part_end <= end) {
            true => Ok(()),
            false => Err(ErrorKind::invalid(self, offset, Problem::OutOfBounds { size, end })),
        }
    }
}

/// The value of an invalid argument.
#[derive(Clone, Copy, Debug, Display, From, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Value {
    /// No value, or a value that messages do not show, such as a list or an object.
    #[display("")]
    None,
    /// An address.
    #[display(" {_0}")]
    #[from]
    Address(Address),
    /// A range of addresses: its start, and its size in bytes.
    #[display(" {_0}..{}", Address::new(_0.get().saturating_add(*_1)))]
    Range(Address, usize),
    /// A hexadecimal number: an offset, a size or an alignment in bytes, or flags.
    #[display(" {_0:#x}")]
    Bytes(u64),
    /// A decimal number.
    #[display(" {_0}")]
    Number(u64),
    /// The number of elements of a list.
    #[display(" with {_0} elements")]
    Count(usize),
    /// A handle.
    #[display(" {_0}")]
    #[from]
    Handle(Handle),
    /// A type of shareable handle, shown by its name.
    #[display(" {}", name_of(*_0))]
    #[from]
    HandleType(HandleType),
    /// An agent.
    #[display(" {_0}")]
    #[from]
    Agent(AgentId),
}

impl From<usize> for Value {
    fn from(bytes: usize) -> Self {
        Self::Bytes(bytes as u64)
    }
}

/// Returns the name of a type of handle, or its bits if the type has no name.
fn name_of(handle_type: HandleType) -> String {
    let mut names = handle_type.iter_names().filter(|(_, named)| *named == handle_type);
    names.next().map_or_else(|| format!("{:#x}", handle_type.bits()), |(name, _)| name.to_owned())
}

/// What is wrong with an argument, and what would be valid.
///
/// ```
/// use hsa_vmm::Error;
/// use hsa_vmm::error::Problem;
///
/// /// Returns the granule that a size or an address must be a multiple of.
/// fn required_granule(error: &Error) -> Option<usize> {
///     match error.problem() {
///         Some(Problem::NotAligned { granule }) => Some(granule),
///         _ => None,
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A null address or handle.
    #[error("is null")]
    Null,
    /// A size or count of zero.
    #[error("is zero")]
    Zero,
    /// A list without elements, or an IPC handle without bytes.
    #[error("is empty")]
    Empty,
    /// Address and size together extend past the end of the address space.
    #[error("extends past the end of the address space")]
    Overflow,
    /// An offset of a part that extends past the end of the memory, mapping or buffer.
    #[error("is out of bounds: {size:#x} bytes from there extend past the end at {end:#x}")]
    OutOfBounds {
        /// The size of the part in bytes.
        size: usize,
        /// The end of the memory, mapping or buffer: its size in bytes, or an address.
        end: usize,
    },
    /// An address that no mapping of the list contains.
    #[error("is not inside the mappings of the list; list all mappings that contain the bytes")]
    NotInMappings,
    /// Flags with undefined bits. Contains all defined bits.
    #[error("{}", undefined_flags(*.0))]
    UndefinedFlags(u64),
    /// Not a multiple of the granule.
    #[error(
        "is not a multiple of the granule {granule:#x} (Vmm::allocation_granularity; for reservations, \
         Vmm::reservation_granule)"
    )]
    NotAligned {
        /// The granule in bytes.
        granule: usize,
    },
    /// An alignment that is not a power of two.
    #[error("is not a power of two")]
    NotPowerOfTwo,
    /// An address, offset or size that is not a multiple of four bytes, in a call that writes 32-bit
    /// values.
    #[error("is not a multiple of four bytes")]
    NotMultipleOfFour,
    /// The range is not, or not entirely, inside one reservation.
    #[error(
        "is not inside one reservation of this Vmm, or the reservation was freed already; reserve addresses first \
         (Vmm::address_reserve), or make one call for each reservation"
    )]
    NotReserved,
    /// The address is not the start of a reservation.
    #[error(
        "is not the start of a reservation of this Vmm, or the reservation was freed already; pass what \
         Vmm::address_reserve returned"
    )]
    NotAReservation,
    /// The size is not the size of the reservation. Contains the size of the reservation.
    #[error("is not the size of the reservation, {0:#x}; free the whole reservation")]
    WrongSize(usize),
    /// The reservation contains this many mappings.
    #[error(
        "is a reservation that contains mappings ({0}); unmap them first, or drain their retire queue"
    )]
    StillMapped(usize),
    /// Clones or mappings of an owned value exist.
    #[error("is in use by clones or mappings; drop them first")]
    InUse,
    /// The range overlaps a mapping. Contains the start of that mapping.
    #[error("overlaps the mapping at {0}; unmap it first, or drain its retire queue")]
    AlreadyMapped(Address),
    /// The range is not mapped completely. Contains the first address that is not mapped. If a call by address has
    /// unmapped a mapping of an owned value, contains that mapping's address, even if another mapping is there now.
    #[error(
        "is not mapped at {0}; map it first; if a call by address has unmapped it, other memory may be mapped there \
         now (Vmm::mapped_range_at)"
    )]
    NotMapped(Address),
    /// The range begins or ends inside a mapping. Contains the start of that mapping.
    #[error("splits the mapping at {0}; pass whole mappings")]
    SplitsMapping(Address),
    /// A size or offset that exceeds the size of another argument, such as the handle or the buffer.
    #[error("is larger than the {maximum:#x} bytes of the {whole}")]
    TooLarge {
        /// The largest valid size in bytes.
        maximum: usize,
        /// The argument that limits the size, such as the handle.
        whole: Argument,
    },
    /// A handle that was released.
    #[error("was released; retain a handle while it is used (Vmm::retain_allocation_handle)")]
    Released,
    /// A handle of another `Vmm`.
    #[error("belongs to another Vmm; export it there and import it here")]
    ForeignHandle,
    /// A handle that never existed.
    #[error("does not exist; pass the handle of memory that was created, imported or retained")]
    UnknownHandle,
    /// An agent that does not exist, or an agent of another runtime.
    #[error("is not an agent of this runtime; use the identifiers of agents()")]
    UnknownAgent,
    /// An agent that is not a GPU.
    #[error("is not a GPU of this runtime; use the identifiers of gpus()")]
    NotAGpu,
    /// A number that is not the number of any CPU's NUMA node.
    #[error("is not a NUMA node of this runtime's CPUs (Agent::numa_node)")]
    NotANumaNode,
    /// A location without an agent.
    #[error("names no agent; create memory on an agent (AllocationProperties::on)")]
    MissingLocation,
    /// An agent that can never access the memory. Contains the memory's owner.
    #[error("cannot access the memory of {0} (Agent::can_access)")]
    NoPeerAccess(AgentId),
    /// An agent without memory of the requested kind.
    #[error("has no pool for this kind of memory (Agent::pools)")]
    NoPool,
    /// The agent lacks access that the operation needs.
    #[error(
        "is not accessible at {at}: {agent} needs {access} access; grant it first (Vmm::set_access, or `grant` of \
         the mapping or buffer)"
    )]
    NotGranted {
        /// The address.
        at: Address,
        /// The agent.
        agent: AgentId,
        /// The access that the agent needs.
        access: Access,
    },
    /// A page of a [`PagedBuffer`](crate::buffer::PagedBuffer) without memory, in a call that writes to it by address.
    /// Contains the address.
    #[error(
        "cannot be written at {0}: a page of a buffer has no memory there, and maps the zero page; map the page first \
         (PagedBuffer::map)"
    )]
    ZeroPage(Address),
    /// The agent that would make the copy lacks access to the source or the destination.
    #[error("is not accessible to {0}; allow it first (PoolMemory::allow)")]
    NotAllowed(AgentId),
    /// A type of shareable handle that was not requested when the memory was created.
    #[error("was not requested when the memory was created (AllocationProperties::shareable_as)")]
    NotRequested,
    /// A descriptor that is not a dma-buf.
    #[error("is not memory that this runtime can import (a dma-buf of an AMD GPU)")]
    NotImportable,
    /// A fabric handle that does not contain the size of its memory, because HIP exported it.
    #[error(
        "contains no size, because other software exported it; add it (FabricHandle::with_size)"
    )]
    NoSize,
    /// A fabric handle that the runtime rejects.
    #[error("is not memory of this fabric: it was released, or the handle was modified")]
    UnknownFabricMemory,
    /// The requested address is not available.
    #[error(
        "is not available: it is in use, not aligned or below 16 MiB; let the runtime choose, or free it"
    )]
    AddressTaken,
    /// Two ranges that must be disjoint overlap.
    #[error("overlaps the other range")]
    Overlapping,
    /// The two ranges to exchange have mappings of different sizes.
    #[error("has mappings of other sizes than the other range")]
    DifferentLayout,
    /// Memory of another runtime.
    #[error("belongs to another runtime")]
    ForeignMemory,
    /// Host memory is required.
    #[error(
        "is missing; an area that is MAPPED, and neither HOST nor UNIFIED, maps memory of the program"
    )]
    MissingHostMemory,
    /// Host memory is not allowed.
    #[error("is not used; only areas that are MAPPED, and neither HOST nor UNIFIED, use it")]
    UnusedHostMemory,
    /// Not memory that this library has allocated.
    #[error("is not memory that PoolMemory allocated")]
    NotAllocated,
    /// Virtual memory, which IPC cannot share.
    #[error("is virtual memory, which IPC cannot share; use Vmm::export_to_shareable_handle")]
    VirtualMemory,
    /// Memory of a CPU.
    #[error("is host memory; only memory of GPUs can be shared")]
    HostMemory,
    /// An IPC handle of this library in which a bit of the format was changed.
    #[error("has an unknown format: it was modified")]
    UnknownFormat,
    /// Memory of this process.
    #[error("belongs to this process; free it where it was allocated")]
    OwnMemory,
    /// Memory of another process, which this process has opened by IPC.
    #[error("belongs to another process; pass on the handle by which this process opened it")]
    OpenedByIpc,
    /// Memory that an owned value keeps open.
    #[error("is owned by an OpenedMemory; close or drop that value")]
    OwnedMemory,
    /// Memory that is not open.
    #[error("was not opened")]
    NotOpened,
    /// A capacity for which no memory can be allocated.
    #[error("needs more memory than can be allocated; use a smaller one")]
    OutOfMemory,
    /// A list that is too long. Contains the maximum number of elements.
    #[error("is too long; the maximum is {0}")]
    TooMany(usize),
    /// More mappings than even an empty retire queue can hold. Contains the capacity of the queue.
    #[error(
        "is longer than the capacity of the queue, {0}; submit fewer at once, or build a queue with a larger \
         capacity (RetireQueue::builder)"
    )]
    ExceedsCapacity(usize),
    /// A ring that would be mapped less than twice.
    #[error("is less than 2: a ring is mapped at least twice in a row")]
    TooFewTimes,
    /// A name that is too long to be sent. Contains the maximum number of bytes.
    #[error("is longer than {0} bytes")]
    TooLong(usize),
    /// The number of a device or page that does not exist. Contains the count of devices or pages.
    #[error("does not exist: there are {0}, counted from 0")]
    OutOfRange(usize),
    /// A range whose start is after its end. Contains the end of the range.
    #[error("is after the end of its range, {0}")]
    StartAfterEnd(usize),
    /// A page that is in use. Its memory is mapped, unless a call by address has unmapped it.
    #[error(
        "has memory already; unmap it first. If a call by address has unmapped it, retire it (PagedBuffer::retire), \
         which makes it empty and reports a failure in the queue; drop a buffer with a zero page instead"
    )]
    PageMapped,
    /// A page that is not mapped.
    #[error("is not mapped")]
    PageNotMapped,
    /// A page that was submitted to a retire queue and is still mapped.
    #[error(
        "is retiring; use another page, or map this page again after the queue has unmapped it \
         (RetireQueue::drain)"
    )]
    PageRetiring,
    /// A page that a retire queue could not unmap ([`PageState::Quarantined`](crate::buffer::PageState)).
    #[error(
        "is quarantined, because a retire queue could not unmap it (Vmm::quarantined_ranges); use other pages"
    )]
    PageQuarantined,
    /// A page that was lost ([`ErrorKind::PagesLost`](super::ErrorKind::PagesLost)).
    #[error(
        "was lost when the runtime failed, and the buffer is quarantined (Vmm::quarantined_ranges); use another buffer"
    )]
    PageLost,
    /// Pages of another size.
    #[error(
        "has pages of another size; use one size for both buffers (PagedBuilder::with_page_size)"
    )]
    DifferentPages,
    /// Pages whose memory is at another location, such as another GPU.
    #[error(
        "has its memory at another location; grant the other agent access to these pages \
         (PagedBuffer::grant), so that it can use or copy them (Vmm::copy)"
    )]
    DifferentLocation,
    /// Pages whose memory has another kind, other handle types, or another setting for PCIe devices.
    #[error(
        "has memory of another kind or with other handle types; reserve both buffers with the same \
         AllocationProperties"
    )]
    DifferentProperties,
}

impl Problem {
    /// Describes the problem of an argument. Omits an address that the message already shows as the value.
    pub(super) fn describe(&self, argument: Argument, value: &Value) -> String {
        match (self, value) {
            (Self::NotMapped(at), Value::Address(address)) if at == address => {
                self.to_string().replacen(&format!(" at {at}"), "", 1)
            }
            (&Self::StartAfterEnd(end), Value::Bytes(_)) => {
                format!("is after the end of its range, {end:#x}")
            }
            (Self::ForeignHandle, _) if argument == Argument::Mappings => {
                "contains a mapping of another Vmm; submit it to a queue of that Vmm".to_owned()
            }
            (Self::ForeignHandle, _)
                if matches!(argument, Argument::Destination | Argument::OtherBuffer) =>
            {
                "belongs to another Vmm; reserve both buffers on one Vmm".to_owned()
            }
            (Self::Overlapping, _) if argument == Argument::List => {
                "overlaps another entry of the list".to_owned()
            }
            (Self::Empty, _) if argument == Argument::Descriptors => {
                format!("{self}; name at least one agent")
            }
            _ => self.to_string(),
        }
    }
}

fn undefined_flags(defined: u64) -> String {
    match defined {
        0 => "must be 0".to_owned(),
        _ => format!("has undefined bits; the defined ones are {defined:#x}"),
    }
}
