//! Buffers built on virtual memory management.
//!
//! * [`GrowableBuffer`] grows and shrinks in place; [`GrowableVec`] is a vector of typed values in such a buffer.
//! * [`PagedBuffer`] maps and unmaps single pages, for example of a KV cache. Its pages can be moved and shared
//!   between buffers without copying. They can be retired while a kernel still reads them.
//! * [`PausableBuffer`] releases its memory while it is paused, and keeps its addresses.
//! * [`RingBuffer`] maps the same memory several times in a row.
//!
//! [`GrowableBuffer`], [`PausableBuffer`] and [`RingBuffer`] dereference to a [`DeviceBuffer`], whose methods return
//! the address, change the access, read and write.
//!
//! No method returns a slice of device memory, because agents and other processes may change the memory at any time.
//! Methods copy bytes from and to device memory ([memory model](crate::vmm#memory-model)). An invalid offset is an
//! error, not a fault.
//!
//! Calls by address can unmap a part of a buffer ([`Vmm::unmap`]) and map other memory there. The buffer's calls on
//! that part then fail with [`Problem::NotMapped`] and change nothing. A page of a [`PagedBuffer`] stays
//! [`PageState::Mapped`]: [`PagedBuffer::map`] fails with [`Problem::PageMapped`], and [`PagedBuffer::retire`] makes the
//! page empty again. Other buffers and a buffer with a zero page have no such call: drop the buffer, and reserve another.
//!
//! The [operation](crate::Error::operation) of an error of virtual memory is the step that failed, such as `create` or
//! `map`. For methods that unmap, move, share or exchange pages, and for methods that pause or resume a buffer, the
//! operation is the method itself. If the runtime fails, and fails again during the rollback, the library quarantines the
//! reservation ([`ErrorKind::Quarantined`]).

mod growable;
mod handle_pool;
// `PagedBuffer::retire` is unsafe, because the caller must not destroy the signals too early.
#[allow(unsafe_code)]
mod paged;
mod pausable;
mod ring;
mod typed;

pub use growable::{GrowableBuffer, GrowableBuilder};
pub use paged::{PageState, PagedBuffer, PagedBuilder, PagedStatistics};
pub use pausable::{PausableBuffer, PauseMode};
pub use ring::RingBuffer;
pub use typed::GrowableVec;

use crate::agent::AgentId;
use crate::error::{Argument, Error, ErrorKind, Operation, Problem};
use crate::sync::{Mutex, MutexGuard, lock};
use crate::vmm::{
    Access, AccessDescriptor, Address, AllocationProperties, Granularity, Mapping, Reservation, Vmm,
};
use derive_more::Debug;
use smallvec::SmallVec;

/// Returns the size of a page or step in bytes: the requested size, or by default the recommended granule, rounded up
/// to whole granules. `argument` is the page size or the step.
fn step_size(
    vmm: &Vmm,
    properties: &AllocationProperties,
    argument: Argument,
    requested: Option<usize>,
) -> Result<usize, Error> {
    if let Some(size) = requested {
        let overflow = || ErrorKind::invalid(argument, size, Problem::Overflow);
        Operation::AddressReserve.run(|| {
            argument.check_not_zero(size)?;
            isize::try_from(size).map(drop).map_err(|_| overflow())
        })?;
    }
    let recommended = vmm
        .allocation_granularity(properties, Granularity::Recommended)
        .map_err(|error| error.with_operation(Operation::AddressReserve))?;
    whole_granules(vmm, requested.unwrap_or(recommended))
}

/// Rounds a size of at least one byte up to whole granules.
fn whole_granules(vmm: &Vmm, size: usize) -> Result<usize, Error> {
    Operation::AddressReserve.run(|| Argument::Size.check_not_zero(size))?;
    round_up(size, vmm.reservation_granule())
}

fn round_up(size: usize, granule: usize) -> Result<usize, Error> {
    let overflow = || ErrorKind::invalid(Argument::Size, size, Problem::Overflow);
    let rounded = size.checked_next_multiple_of(granule);
    Operation::AddressReserve.run(|| rounded.ok_or_else(overflow))
}

/// Returns whether this process can probably allocate the lists of a call that maps `count` mappings. If an allocation
/// of such a list fails, the process ends.
fn can_list_mappings(count: usize) -> bool {
    /// The lists need less than this number of bytes for each mapping.
    const BYTES_PER_MAPPING: usize = 1280;
    let mut lists: Vec<[u8; BYTES_PER_MAPPING]> = Vec::new();
    let is_allocated = lists.try_reserve_exact(count).is_ok();
    // Without this use, the compiler could remove the allocation.
    std::hint::black_box(&lists);
    is_allocated
}

/// Returns whether the error says that a range was quarantined. The caller must not reuse memory that may be mapped in
/// this range.
fn is_quarantine(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Quarantined { .. })
}

/// Checks that agents belong to the runtime and that this process is not a forked child.
fn check_agents(
    operation: Operation,
    vmm: &Vmm,
    properties: &AllocationProperties,
    agents: &[AgentId],
) -> Result<(), Error> {
    let checked = vmm.check_access(properties, &AccessDescriptor::of_each(agents, Access::None));
    checked.map_err(|error| error.with_operation(operation))
}

/// Returns the current access of each agent to a mapping. Agents without access are not in the list. Returns `None` if a
/// call by address has unmapped the memory.
fn current_access(mapping: &Mapping) -> Option<Vec<AccessDescriptor>> {
    let access = mapping.reservation().vmm().mapping_at(mapping.address())?.access;
    Some(access.into_iter().map(|(agent, access)| AccessDescriptor { agent, access }).collect())
}

/// The access of agents to a whole buffer. Agents without access are not in the list.
#[derive(Clone, Debug, Default)]
struct Grants(Vec<AccessDescriptor>);

impl Grants {
    fn of(&self, agent: AgentId) -> Access {
        let descriptor = self.0.iter().find(|descriptor| descriptor.agent == agent);
        descriptor.map_or(Access::None, |descriptor| descriptor.access)
    }

    fn set(&mut self, agents: &[AgentId], access: Access) {
        for &agent in agents {
            self.0.retain(|descriptor| descriptor.agent != agent);
            if access != Access::None {
                self.0.push(AccessDescriptor { agent, access });
            }
        }
    }

    /// Returns the access of each agent, reduced to at most read access.
    fn for_reading(&self) -> Vec<AccessDescriptor> {
        let limit = |descriptor: &AccessDescriptor| AccessDescriptor {
            access: descriptor.access.min(Access::Read),
            ..*descriptor
        };
        self.0.iter().map(limit).collect()
    }
}

/// Contiguous device memory, with methods to read, write and fill it, and to change agents' access.
///
/// [`GrowableBuffer`], [`PausableBuffer`] and [`RingBuffer`] dereference to this type. Concurrent accesses are
/// described in the [memory model](crate::vmm#memory-model).
///
/// ```
/// use hsa_vmm::buffer::{DeviceBuffer, PausableBuffer};
/// # use hsa_vmm::{Access, AllocationProperties, Error, Runtime, Vmm};
///
/// fn clear(buffer: &DeviceBuffer) -> Result<(), Error> {
///     buffer.fill(0, 0, buffer.size())
/// }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// # let vmm = Vmm::open(&runtime)?;
/// # let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
/// let buffer = PausableBuffer::create(&vmm, 4096, &AllocationProperties::on(gpu))?;
/// buffer.grant(&[gpu], Access::ReadWrite)?;
/// clear(&buffer)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[debug("{size:#x} bytes at {address}")]
pub struct DeviceBuffer {
    vmm: Vmm,
    properties: AllocationProperties,
    address: Address,
    /// The size in bytes. The last mapping may extend past this size.
    size: usize,
    paused: bool,
    /// Adjacent mappings of `step` bytes, from the start of the buffer.
    mappings: Vec<Mapping>,
    step: usize,
    /// Locked while the mappings' access is changed.
    grants: Mutex<Grants>,
}

impl DeviceBuffer {
    fn new(
        reservation: &Reservation,
        properties: &AllocationProperties,
        step: usize,
        mappings: Vec<Mapping>,
    ) -> Self {
        Self {
            vmm: reservation.vmm().clone(),
            properties: *properties,
            address: reservation.address(),
            size: step * mappings.len(),
            paused: false,
            mappings,
            step,
            grants: Mutex::default(),
        }
    }

    /// Returns the buffer's address. For a paused buffer, this is the address at which the buffer will resume.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Grants agents access to the whole buffer, including memory that it maps later (`hipMemSetAccess`).
    /// Other agents keep their access. The call can unmap the memory for a moment, as [`Vmm::set_access`] describes.
    ///
    /// # Errors
    /// As for [`Vmm::set_access`].
    pub fn grant(&self, agents: &[AgentId], access: Access) -> Result<(), Error> {
        let mut grants = self.lock_grants(Operation::SetAccess)?;
        let descriptors = AccessDescriptor::of_each(agents, access);
        match self.mappings.is_empty() {
            true => self.vmm.check_access(&self.properties, &descriptors),
            false => self.set_access(&descriptors),
        }?;
        grants.set(agents, access);
        Ok(())
    }

    /// Revokes all access of agents, including GPUs. During the call, the other agents may have no access.
    ///
    /// # Errors
    /// As for [`Vmm::revoke`].
    pub fn revoke(&self, agents: &[AgentId]) -> Result<(), Error> {
        check_agents(Operation::Revoke, &self.vmm, &self.properties, agents)?;
        let mut grants = self.lock_grants(Operation::Revoke)?;
        Mapping::revoke_many(&self.mappings.iter().collect::<Vec<_>>(), agents)?;
        grants.set(agents, Access::None);
        Ok(())
    }

    /// Returns the access that an agent was granted to the whole buffer.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an unknown agent, or if a part of the buffer was unmapped by its address.
    pub fn access(&self, agent: AgentId) -> Result<Access, Error> {
        check_agents(Operation::GetAccess, &self.vmm, &self.properties, &[agent])?;
        self.mappings.iter().try_for_each(|mapping| mapping.access(agent).map(drop))?;
        Ok(lock(&self.grants).of(agent))
    }

    /// Copies from the buffer, `offset` bytes from its start; a CPU must have read access.
    ///
    /// # Errors
    /// [`Problem::OutOfBounds`]; [`ErrorKind::Paused`]; otherwise as for [`Vmm::read`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.part(Operation::Read, offset, bytes.len())?.read(bytes)
    }

    /// Copies to the buffer, `offset` bytes from its start; a CPU must have write access.
    ///
    /// # Errors
    /// [`Problem::OutOfBounds`]; [`ErrorKind::Paused`]; otherwise as for [`Vmm::write`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.part(Operation::Write, offset, bytes.len())?.write(bytes)
    }

    /// Fills a part of the buffer with a 32-bit value, as [`Vmm::fill`] does. `offset` and
    /// `size` are in bytes, multiples of four. If `size` is 0, writes nothing.
    ///
    /// # Errors
    /// [`Problem::OutOfBounds`]; [`ErrorKind::Paused`]; otherwise as for [`Vmm::fill`].
    pub fn fill(&self, offset: usize, value: u32, size: usize) -> Result<(), Error> {
        self.part(Operation::Fill, offset, size)?.fill(value, size)
    }

    /// Locks the grants. Fails in a forked child.
    fn lock_grants(&self, operation: Operation) -> Result<MutexGuard<'_, Grants>, Error> {
        operation.run(|| self.vmm.runtime().check_not_forked())?;
        Ok(lock(&self.grants))
    }

    fn set_access(&self, descriptors: &[AccessDescriptor]) -> Result<(), Error> {
        let changes: Vec<_> = self.mappings.iter().map(|mapping| (mapping, descriptors)).collect();
        Mapping::set_access_many(&changes)
    }

    /// Returns a part of the buffer. Fails if the part is out of bounds or the buffer is paused, and in a forked child,
    /// even if the part is empty.
    fn part(
        &self,
        operation: Operation,
        offset: usize,
        size: usize,
    ) -> Result<BufferPart<'_>, Error> {
        operation.run(|| {
            self.vmm.runtime().check_not_forked()?;
            match self.paused {
                true => Err(ErrorKind::Paused),
                false => Argument::Offset.check_bounds(offset, size, self.size),
            }
        })?;
        let steps = offset / self.step..(offset + size).div_ceil(self.step);
        let mappings = self.mappings.get(steps).unwrap_or_default().iter().collect();
        Ok(BufferPart { base: self.address, offset, mappings })
    }
}

/// A part of a buffer, and the mappings that contain its bytes.
#[derive(Debug)]
struct BufferPart<'a> {
    /// The start of the buffer.
    base: Address,
    offset: usize,
    mappings: SmallVec<[&'a Mapping; 8]>,
}

impl BufferPart<'_> {
    fn read(&self, bytes: &mut [u8]) -> Result<(), Error> {
        self.for_offset(Mapping::read_many(&self.mappings, self.address(), bytes))
    }

    fn write(&self, bytes: &[u8]) -> Result<(), Error> {
        self.for_offset(Mapping::write_many(&self.mappings, self.address(), bytes))
    }

    fn fill(&self, value: u32, size: usize) -> Result<(), Error> {
        self.for_offset(Mapping::fill_many(&self.mappings, self.address(), value, size))
    }

    fn address(&self) -> Address {
        Address::new(self.base.get() + self.offset)
    }

    /// Replaces the address in an error by the offset in the buffer.
    fn for_offset(&self, result: Result<(), Error>) -> Result<(), Error> {
        result.map_err(|error| {
            let operation = error.operation();
            Error::new(operation, error.into_kind().for_offset(Argument::Address, self.base))
        })
    }
}
