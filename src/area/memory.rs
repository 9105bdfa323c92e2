//! The memory that an area allocates: its properties, and methods to read, write, fill and copy it.

use super::Backing;
use super::allocated::{Allocated, Memory};
use crate::agent::AgentId;
use crate::error::{Argument, Error, ErrorKind, Operation, Problem, Rejected};
use crate::memory::Span;
use crate::vmm::{Access, Address};
use core::marker::PhantomData;
use derive_more::Debug;

/// The size in bytes of the buffer through which this process copies if no GPU can make the copy.
const BUFFER_SIZE: usize = 1 << 20;

/// Memory of an area ([`Area::mmap`](super::Area::mmap)). Dropping the value unmaps the memory.
///
/// [`read`](Self::read) and [`write`](Self::write) check bounds and access, and therefore cannot fault. The device
/// copies from and to its own memory, whether or not a CPU can access that memory. This process copies from and to
/// memory of the host with atomic loads and stores, because agents can access the memory at the same time. For other
/// uses, [`address`](Self::address) returns the address, which dangles once the memory is unmapped.
///
/// ```
/// # use hsa_vmm::area::{AreaFlags, MmapOptions};
/// # use hsa_vmm::{Area, Runtime, Vmm};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// let area = Area::new(&Vmm::open(&runtime)?, 0, AreaFlags::DEFAULT)?;
/// let memory = area.mmap(100, MmapOptions::new())?;
/// memory.fill(0, 7, 100)?;
/// assert_eq!((memory.size(), memory.allocated_size()), (100, 4096));
/// memory.munmap()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[debug("AreaMemory({}, {span:?})", self.backing())]
pub struct AreaMemory<'a> {
    /// The memory, of the requested size. The span's agent is the memory's owner.
    pub(super) span: Span,
    pub(super) allocated: Box<Allocated>,
    pub(super) borrowed: PhantomData<&'a mut [u8]>,
}

/// The memory is unmapped by the drop of `allocated`. This implementation makes the compiler keep the caller's memory
/// borrowed until then.
impl Drop for AreaMemory<'_> {
    fn drop(&mut self) {}
}

impl AreaMemory<'_> {
    /// Returns the start address for this process. Every agent with access uses the same address, except for memory of
    /// the caller ([`device_address`](Self::device_address)).
    pub fn address(&self) -> Address {
        self.span.address()
    }

    /// Returns the start address for the device (`hipHostGetDevicePointer`). It can differ from
    /// [`address`](Self::address) only if the memory is the caller's.
    pub fn device_address(&self) -> Address {
        Address::new(self.span.device_start)
    }

    /// Returns the size in bytes that was requested.
    pub fn size(&self) -> usize {
        self.span.size()
    }

    /// Returns the allocated size in bytes, a multiple of the granule. For the caller's memory, returns the requested
    /// size.
    pub fn allocated_size(&self) -> usize {
        match &self.allocated.memory {
            Memory::Mapped(memory) => memory.allocated_size(),
            Memory::Pool(memory) => memory.allocated_size(),
            Memory::Locked(_) => self.size(),
        }
    }

    /// Returns the GPU that the memory was allocated for.
    pub fn device(&self) -> AgentId {
        self.allocated.device
    }

    /// Returns the agent that owns the memory: the device or a CPU.
    pub fn owner(&self) -> AgentId {
        self.span.agent()
    }

    /// Returns the agents with access. A CPU among them means that this process can load and store.
    pub fn agents(&self) -> &[AgentId] {
        &self.allocated.agents
    }

    /// Returns how the memory is implemented.
    pub fn backing(&self) -> Backing {
        match &self.allocated.memory {
            Memory::Mapped(_) => Backing::Virtual,
            Memory::Pool(_) => Backing::Pool,
            Memory::Locked(_) => Backing::Locked,
        }
    }

    /// Copies from the memory (`hipMemcpyDtoH`), `offset` bytes from its start.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`Problem::OutOfBounds`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.while_mapped(Operation::Read, self.owner(), || self.span.read(offset, bytes))
    }

    /// Copies to the memory (`hipMemcpyHtoD`), `offset` bytes from its start.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.while_mapped(Operation::Write, self.owner(), || self.span.write(offset, bytes))
    }

    /// Fills a part with a 32-bit value (`hipMemsetD32`). `offset` and `size` are in bytes.
    ///
    /// # Errors
    /// As for [`read`](Self::read), and
    /// [`Problem::NotMultipleOfFour`].
    pub fn fill(&self, offset: usize, value: u32, size: usize) -> Result<(), Error> {
        self.while_mapped(Operation::Fill, self.owner(), || self.span.fill(offset, value, size))
    }

    /// Copies from memory of this or another area (`hipMemcpyDtoD`). Offsets and size are in bytes.
    ///
    /// A GPU that owns one of the two memories and has access to the other makes the copy. If both memories are on the
    /// host, this process makes the copy. Otherwise, for example between two GPUs without peer access, this process
    /// copies the bytes through a buffer. If that copy fails, a part of the destination may have been written.
    ///
    /// # Errors
    /// As for [`read`](Self::read), and [`Problem::Overlapping`].
    pub fn copy(
        &self,
        offset: usize,
        source: &AreaMemory<'_>,
        source_offset: usize,
        size: usize,
    ) -> Result<(), Error> {
        let operation = Operation::Copy;
        let checked = self.span.check_copy(offset, &source.span, source_offset, size);
        checked.map_err(|kind| Error::new(operation, kind))?;
        let can_access_both =
            |agent| self.agents().contains(&agent) && source.agents().contains(&agent);
        let copier = match self.span.copier(&source.span, can_access_both) {
            Ok(copier) if self.span.runtime().is_same(source.span.runtime()) => copier,
            _ => {
                let mut buffer = Vec::new();
                let reserved = buffer.try_reserve_exact(size.min(BUFFER_SIZE));
                reserved.map_err(|_| {
                    Error::new(operation, ErrorKind::of_system("malloc", rustix::io::Errno::NOMEM))
                })?;
                buffer.resize(size.min(BUFFER_SIZE), 0);
                for copied_size in (0..size).step_by(BUFFER_SIZE) {
                    let part = &mut buffer[..BUFFER_SIZE.min(size - copied_size)];
                    let copied = source.read(source_offset + copied_size, part);
                    let copied = copied.and_then(|()| self.write(offset + copied_size, part));
                    copied.map_err(|error| error.with_operation(operation))?;
                }
                return Ok(());
            }
        };
        let copy = || {
            // SAFETY: `copier` has access to both memories until the copy has ended: `while_mapped` keeps the access to
            // mapped memory, and the access to other memory of an area never changes.
            unsafe { self.span.copy(offset, &source.span, source_offset, size, Ok(copier)) }
        };
        if core::ptr::eq(self, source) {
            return self.while_mapped(operation, copier, copy);
        }
        // Locks the memory at the lower address first, so that two copies cannot deadlock.
        let [first, second]: [&AreaMemory<'_>; 2] =
            if self.address() < source.address() { [self, source] } else { [source, self] };
        // If `second` was unmapped and freed by its address, `first` can be in a reservation that contains this
        // address. Locking this reservation a second time would panic, so `second` is checked first.
        second.while_mapped(operation, copier, || Ok(()))?;
        first.while_mapped(operation, copier, || second.while_mapped(operation, copier, copy))
    }

    /// Calls `act` while the memory is mapped and the agent has access.
    fn while_mapped(
        &self,
        operation: Operation,
        agent: AgentId,
        act: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Memory::Mapped(memory) = &self.allocated.memory else { return act() };
        let address = self.address();
        let not_mapped =
            || ErrorKind::invalid(Argument::Address, address, Problem::NotMapped(address));
        let mapping = memory.mapping.as_ref().ok_or_else(|| Error::new(operation, not_mapped()))?;
        // The error names the method that the caller called, and not `with_access`.
        mapping
            .with_access(agent, Access::ReadWrite, |_| act())
            .unwrap_or_else(|error| Err(error.with_operation(operation)))
    }

    /// Unmaps the memory now, and returns an error if that fails (`hipFree`, `hipHostFree`, `hipHostUnregister`).
    /// Dropping the value also unmaps the memory, but only logs an error. After `munmap`, the caller can use its own
    /// host memory again.
    ///
    /// # Errors
    /// [`ErrorKind::Runtime`]; the error contains this value, and the memory keeps its contents.
    /// [`ErrorKind::PartlyFreed`] if the runtime failed after the memory was unmapped; after this error, only another
    /// `munmap` can succeed. [`ErrorKind::Quarantined`] if the state of the memory is unknown after repeated failures of
    /// the runtime: the memory is never used or freed again. [`ErrorKind::BeingOpened`] for pool memory that another
    /// process is opening.
    #[allow(
        clippy::result_large_err,
        reason = "the error returns the memory; freeing is not frequent"
    )]
    pub fn munmap(mut self) -> Result<(), Rejected<Self>> {
        let Allocated { agents, memory, .. } = &mut *self.allocated;
        let freed = self.span.runtime().check_not_forked().and_then(|()| match memory {
            Memory::Mapped(memory) => memory.free(agents),
            // SAFETY: this value is being consumed. After a failure, the memory stays allocated.
            Memory::Pool(memory) => unsafe { memory.release() },
            // SAFETY: this value is being consumed. After a failure, the memory stays locked.
            Memory::Locked(memory) => unsafe { memory.unlock() },
        });
        freed.map_err(|kind| Rejected { value: self, error: Error::new(Operation::Munmap, kind) })
    }
}
