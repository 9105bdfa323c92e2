//! The same memory several times in a row.

use super::{BufferError, round_up, wrong_size};
use crate::agent::AgentId;
use crate::vmm::{
    Access, AccessDescriptor, Address, Allocation, AllocationProperties, Mapping, Operation,
    Problem, Reservation, Serial, Vmm,
};
use smallvec::SmallVec;

/// How a [`RingBuffer`] is to be made; see [`RingBuffer::of`].
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is mapped before `map`"]
pub struct RingOptions {
    size: usize,
    times: usize,
}

impl RingOptions {
    /// Maps the memory so many times in a row, two or more; else twice.
    pub fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    /// Reserves the addresses, makes the memory and maps it (`hipMemAddressReserve`,
    /// `hipMemCreate`, `hipMemMap`). The size is rounded up to the granule.
    ///
    /// # Errors
    /// [`BufferError::NoRing`] for fewer than two times; else as for [`Vmm::address_reserve`],
    /// [`Vmm::create`] and [`Vmm::map`].
    pub fn map(
        self,
        vmm: &Vmm,
        properties: &AllocationProperties,
    ) -> Result<RingBuffer, BufferError> {
        let Self { size, times } = self;
        if times < 2 {
            return Err(BufferError::NoRing { times });
        }
        let size = round_up(size, vmm.reservation_granule())?;
        let whole = size.checked_mul(times).ok_or(wrong_size(Problem::Overflow))?;
        let reservation = Reservation::of(whole).reserve(vmm)?;
        let memory = Allocation::create(vmm, size, properties)?;
        let mappings = (0..times)
            .map(|turn| reservation.map(turn * size, &memory))
            .collect::<Result<_, _>>()?;
        Ok(RingBuffer { mappings, size, reservation, vmm: vmm.clone() })
    }
}

/// A buffer whose end is followed by its beginning, because its memory is mapped several times in
/// a row: from any position on, `size` bytes lie together, for the CPU and for kernels.
///
/// Positions count bytes from the first that was ever written and may go on for ever; where they
/// are is theirs modulo the size. Whoever writes sees to it that what is still to be read is not
/// overwritten.
///
/// On GPUs whose nearest caches go by address (RDNA), what one turn was written through may not be
/// seen through another before the kernel has ended (ROCm/hip#3728).
#[derive(Debug)]
pub struct RingBuffer {
    mappings: Vec<Mapping>,
    size: usize,
    reservation: Reservation,
    vmm: Vmm,
}

impl RingBuffer {
    /// Begins a ring of `size` bytes.
    pub fn of(size: usize) -> RingOptions {
        RingOptions { size, times: 2 }
    }

    /// Where it begins for the first time.
    #[must_use]
    pub fn address(&self) -> Address {
        self.reservation.address()
    }

    /// The size of its memory in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// How many times its memory follows itself.
    #[must_use]
    pub fn times(&self) -> usize {
        self.mappings.len()
    }

    /// Where a position is; at least [`size`](Self::size) bytes follow without a seam.
    #[must_use]
    pub fn address_of(&self, position: u64) -> Address {
        Address::new(self.address().get() + self.offset(position))
    }

    /// Gives agents access to all of it (`hipMemSetAccess`); agents not named keep what they have.
    ///
    /// # Errors
    /// As for [`Vmm::set_access`].
    pub fn grant(&self, agents: &[AgentId], access: Access) -> Result<(), BufferError> {
        let descriptors = AccessDescriptor::of_each(agents, access);
        let (size, serials) = (self.reservation.size(), self.serials(0, self.reservation.size()));
        Ok(self.vmm.only(&serials).set_access(self.address(), size, &descriptors)?)
    }

    /// Really takes it away from agents, GPUs too; the others lose it for a moment.
    ///
    /// # Errors
    /// As for [`Vmm::revoke`].
    pub fn revoke(&self, agents: &[AgentId]) -> Result<(), BufferError> {
        let (size, serials) = (self.reservation.size(), self.serials(0, self.reservation.size()));
        Ok(self.vmm.only(&serials).revoke(self.address(), size, agents)?)
    }

    /// What an agent may do with all of it.
    ///
    /// # Errors
    /// As for [`Vmm::get_access`].
    pub fn access(&self, agent: AgentId) -> Result<Access, BufferError> {
        let (size, serials) = (self.reservation.size(), self.serials(0, self.reservation.size()));
        let mappings = self.vmm.only(&serials);
        mappings.check(Operation::GetAccess, self.address(), size)?;
        Ok(mappings.access(agent, self.address())?)
    }

    /// Copies what begins at a position; a CPU must have been granted to read.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`BufferError::BeyondEnd`] for more bytes than it has; else as for [`Vmm::read`].
    pub fn read(&self, position: u64, bytes: &mut [u8]) -> Result<(), BufferError> {
        self.check(position, bytes.len())?;
        let serials = self.serials(self.offset(position), bytes.len());
        Ok(self.vmm.only(&serials).read(self.address_of(position), bytes)?)
    }

    /// Copies to a position; a CPU must have been granted to write.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`BufferError::BeyondEnd`] for more bytes than it has; else as for [`Vmm::write`].
    pub fn write(&self, position: u64, bytes: &[u8]) -> Result<(), BufferError> {
        self.check(position, bytes.len())?;
        let serials = self.serials(self.offset(position), bytes.len());
        Ok(self.vmm.only(&serials).write(self.address_of(position), bytes)?)
    }

    /// Has the GPU that owns the memory fill what begins at a position with a 32-bit value. Position
    /// and `size` are in bytes, multiples of four.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`BufferError::BeyondEnd`] for more bytes than it has; else as for [`Vmm::fill`].
    pub fn fill(&self, position: u64, value: u32, size: usize) -> Result<(), BufferError> {
        self.check(position, size)?;
        let serials = self.serials(self.offset(position), size);
        Ok(self.vmm.only(&serials).fill(self.address_of(position), value, size)?)
    }

    /// Which mappings hold these bytes, whatever is mapped at their addresses by now.
    fn serials(&self, offset: usize, size: usize) -> SmallVec<[Serial; 2]> {
        let turns = offset / self.size..(offset + size).div_ceil(self.size);
        self.mappings.get(turns).unwrap_or_default().iter().map(Mapping::serial).collect()
    }

    fn offset(&self, position: u64) -> usize {
        (position % self.size as u64) as usize
    }

    fn check(&self, position: u64, size: usize) -> Result<(), BufferError> {
        if size <= self.size {
            return Ok(());
        }
        Err(BufferError::BeyondEnd { offset: self.offset(position), size, end: self.size })
    }
}
