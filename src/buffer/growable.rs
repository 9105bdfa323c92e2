//! Device memory that grows and shrinks where it is.

use super::addresses::Addresses;
use super::steps::Steps;
use super::stock::Stock;
use super::{BufferError, round_up};
use crate::agent::AgentId;
use crate::vmm::{
    Access, AccessDescriptor, Address, Allocation, AllocationProperties, Granularity, Operation,
    Reservation, Vmm, VmmError,
};
use std::ops::Range;

/// How a [`GrowableBuffer`] is to be made; see [`GrowableBuffer::of`].
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is reserved before `reserve`"]
pub struct GrowableOptions {
    maximum: usize,
    step: Option<usize>,
    stock: usize,
    address: Option<Address>,
}

impl GrowableOptions {
    /// Grows by this many bytes at a time, rounded up to the granule; else by the recommended
    /// granule. A step is one handle and one mapping, so that large steps need fewer of both (and
    /// with ROCm 7.14 fewer file descriptors).
    pub fn in_steps_of(mut self, bytes: usize) -> Self {
        self.step = Some(bytes);
        self
    }

    /// Keeps so many handles ready, made by a thread of the buffer's own, so that growth by no more
    /// steps does not wait for the runtime to make memory. They count as used memory.
    pub fn with_stock(mut self, handles: usize) -> Self {
        self.stock = handles;
        self
    }

    /// Insists on an address, where a buffer of an earlier run was for example.
    pub fn exactly_at(mut self, address: Address) -> Self {
        self.address = Some(address);
        self
    }

    /// Reserves the addresses, and no memory yet (`hipMemAddressReserve`). The maximum is rounded
    /// up to a whole step.
    ///
    /// # Errors
    /// As for [`Vmm::allocation_granularity`] and [`Vmm::address_reserve`];
    /// [`Problem::AddressTaken`](crate::vmm::Problem::AddressTaken) if the address insisted on is
    /// not to be had.
    pub fn reserve(
        self,
        vmm: &Vmm,
        properties: &AllocationProperties,
    ) -> Result<GrowableBuffer, BufferError> {
        let recommended = vmm.allocation_granularity(properties, Granularity::Recommended)?;
        let step = self.step.unwrap_or(recommended).max(1);
        let step = round_up(step, vmm.reservation_granule())?;
        let reservation = Reservation::of(round_up(self.maximum, step)?);
        let reservation = match self.address {
            None => reservation,
            Some(address) => reservation.exactly_at(address),
        };
        let addresses = Addresses::new(reservation.reserve(vmm)?);
        let stock = Stock::new(vmm, properties, step, self.stock);
        let steps = Steps::new(vmm, addresses, step, stock);
        Ok(GrowableBuffer { steps, size: 0, properties: *properties })
    }
}

/// A buffer in device memory that grows and shrinks in place: addresses for the most that it may
/// hold are reserved once, memory is mapped behind them as it is needed. Nothing is ever moved or
/// copied, and pointers into it stay valid.
///
/// ```
/// use hsa_vmm::{Access, AllocationProperties, GrowableBuffer, Runtime, Vmm};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(2))?;
/// let vmm = Vmm::open(&runtime)?;
/// let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
///
/// let mut buffer = GrowableBuffer::of(64 << 30).reserve(&vmm, &AllocationProperties::on(gpu))?;
/// buffer.grant(&[gpu, runtime.host().id()], Access::ReadWrite)?;
/// let address = buffer.address();
/// buffer.grow(5)?;
/// buffer.write(0, b"hello")?;
/// buffer.grow(3 << 30)?;
/// let mut text = [0; 5];
/// buffer.read(0, &mut text)?;
/// assert_eq!((&text, buffer.address()), (b"hello", address));
/// # Ok(())
/// # }
/// ```
///
/// What growth adds holds anything: memory that was never used, or what was in it when the buffer
/// last shrank. What fails leaves the buffer as it was; only if the runtime then fails to take back
/// what it did half-way, memory may stay mapped behind the buffer's end until the next change of
/// size, which tries that again first.
#[derive(Debug)]
pub struct GrowableBuffer {
    steps: Steps,
    /// In bytes, as was asked for: the last step may hold more.
    size: usize,
    properties: AllocationProperties,
}

impl GrowableBuffer {
    /// Begins an empty buffer that may grow to `maximum` bytes.
    pub fn of(maximum: usize) -> GrowableOptions {
        GrowableOptions { maximum, step: None, stock: 0, address: None }
    }

    /// Where it begins, for good.
    #[must_use]
    pub fn address(&self) -> Address {
        self.steps.addresses().at(0)
    }

    /// Its size in bytes, as was asked for.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// How many bytes of memory are behind it: its size in whole steps.
    #[must_use]
    pub fn mapped(&self) -> usize {
        self.steps.bytes()
    }

    /// How many bytes it may grow to.
    #[must_use]
    pub fn maximum(&self) -> usize {
        self.steps.addresses().size()
    }

    /// In what steps it grows, in bytes.
    #[must_use]
    pub fn step(&self) -> usize {
        self.steps.size()
    }

    /// How many handles are ready for it to grow; see [`GrowableOptions::with_stock`].
    #[must_use]
    pub fn stock(&self) -> usize {
        self.steps.stock().ready()
    }

    /// What it lives in.
    #[must_use]
    pub fn vmm(&self) -> &Vmm {
        self.steps.vmm()
    }

    /// The memory behind it, one a step, to be exported for example.
    pub fn allocations(&self) -> impl Iterator<Item = &Allocation> {
        self.steps.allocations()
    }

    /// Adds bytes at its end (`hipMemCreate`, `hipMemMap`, `hipMemSetAccess`).
    ///
    /// # Errors
    /// [`BufferError::BeyondMaximum`]; else as for [`Vmm::create`], [`Vmm::map`] and
    /// [`Vmm::set_access`].
    pub fn grow(&mut self, bytes: usize) -> Result<(), BufferError> {
        self.resize(self.size.saturating_add(bytes))
    }

    /// Takes bytes from its end, and gives back the memory of whole steps (`hipMemUnmap`,
    /// `hipMemRelease`). Work of GPUs that still uses them must have ended.
    ///
    /// # Errors
    /// [`BufferError::BeyondEnd`] if it has fewer; else as for [`Vmm::unmap`]. In a buffer that was
    /// [extended](Self::extend), each reservation is unmapped by itself; if one fails, the ones before are
    /// mapped again, and if that fails too, the buffer ends where memory is left.
    pub fn shrink(&mut self, bytes: usize) -> Result<(), BufferError> {
        let beyond = BufferError::BeyondEnd { offset: 0, size: bytes, end: self.size };
        self.resize(self.size.checked_sub(bytes).ok_or(beyond)?)
    }

    /// Grows or shrinks it to a size in bytes.
    ///
    /// # Errors
    /// As for [`grow`](Self::grow) or [`shrink`](Self::shrink).
    pub fn resize(&mut self, size: usize) -> Result<(), BufferError> {
        let maximum = self.maximum();
        if size > maximum {
            return Err(BufferError::BeyondMaximum { wanted: size, maximum });
        }
        // Before a lock is touched that another thread may have held when the process forked.
        if self.vmm().runtime().has_forked() {
            let operation = if size > self.size { Operation::Create } else { Operation::Unmap };
            return Err(VmmError::Forked { operation }.into());
        }
        let resized = self.steps.set(size.div_ceil(self.step()));
        // Even if that failed there may be fewer.
        self.size = if resized.is_ok() { size } else { self.size.min(self.mapped()) };
        resized
    }

    /// Reserves more addresses exactly at the end, so that it may grow by so many bytes more,
    /// rounded up to whole steps (`hipMemAddressReserve` with an address, as HIP's guide has it
    /// under "increase memory size").
    ///
    /// Copies by other means than this buffer's may not reach over the end of a reservation: HIP
    /// does not promise that two that are adjacent can be used as one.
    ///
    /// # Errors
    /// [`Problem::AddressTaken`](crate::vmm::Problem::AddressTaken) if those addresses are somebody
    /// else's; which is to be reckoned with, so that a maximum reserved at first is better where it
    /// is known.
    pub fn extend(&mut self, bytes: usize) -> Result<(), BufferError> {
        Ok(self.steps.extend(round_up(bytes, self.step())?)?)
    }

    /// Gives agents access to all of it, now and as it grows (`hipMemSetAccess`); agents not named
    /// keep what they have.
    ///
    /// # Errors
    /// As for [`Vmm::set_access`].
    pub fn grant(&mut self, agents: &[AgentId], access: Access) -> Result<(), BufferError> {
        self.check_access(agents, access)?;
        Ok(self.steps.grant(agents, access)?)
    }

    /// Really takes it away from agents, GPUs too; the others lose it for a moment.
    ///
    /// # Errors
    /// As for [`Vmm::revoke`].
    pub fn revoke(&mut self, agents: &[AgentId]) -> Result<(), BufferError> {
        self.check_access(agents, Access::None)?;
        Ok(self.steps.revoke(agents)?)
    }

    /// What an agent may do with all of it.
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] for an agent that is none of the runtime's, or if a part of the
    /// buffer was unmapped by its address.
    pub fn access(&self, agent: AgentId) -> Result<Access, BufferError> {
        self.vmm().check_agent(agent)?;
        Ok(self.steps.access(agent)?)
    }

    /// Copies from it, `offset` bytes from its start; a CPU must have been granted to read.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`BufferError::BeyondEnd`]; else as for [`Vmm::read`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), BufferError> {
        let mut rest = bytes;
        for part in self.parts(offset, rest.len())? {
            let (now, later) = rest.split_at_mut(part.len());
            let read = self.vmm().only(&self.steps.serials(&part)).read(self.at(part.start), now);
            read.map_err(|error| error.about_offset(self.address()))?;
            rest = later;
        }
        Ok(())
    }

    /// Copies to it, `offset` bytes from its start; a CPU must have been granted to write.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`BufferError::BeyondEnd`]; else as for [`Vmm::write`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), BufferError> {
        let mut rest = bytes;
        for part in self.parts(offset, rest.len())? {
            let (now, later) = rest.split_at(part.len());
            let serials = self.steps.serials(&part);
            let written = self.vmm().only(&serials).write(self.at(part.start), now);
            written.map_err(|error| error.about_offset(self.address()))?;
            rest = later;
        }
        Ok(())
    }

    /// Has the GPU that owns the memory fill a part of it with a 32-bit value. `offset` and `size`
    /// are in bytes, multiples of four.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`BufferError::BeyondEnd`]; else as for [`Vmm::fill`].
    pub fn fill(&self, offset: usize, value: u32, size: usize) -> Result<(), BufferError> {
        for part in self.parts(offset, size)? {
            let serials = self.steps.serials(&part);
            let filled = self.vmm().only(&serials).fill(self.at(part.start), value, part.len());
            filled.map_err(|error| error.about_offset(self.address()))?;
        }
        Ok(())
    }

    /// Cuts bytes that it has where one reservation ends.
    fn parts(
        &self,
        offset: usize,
        size: usize,
    ) -> Result<impl Iterator<Item = Range<usize>>, BufferError> {
        match offset.checked_add(size) {
            Some(end) if end <= self.size => Ok(self.steps.addresses().parts(offset..end)),
            _ => Err(BufferError::BeyondEnd { offset, size, end: self.size }),
        }
    }

    fn at(&self, offset: usize) -> Address {
        self.steps.addresses().at(offset)
    }

    /// Also of a buffer that has no memory yet.
    fn check_access(&self, agents: &[AgentId], access: Access) -> Result<(), VmmError> {
        let descriptors = AccessDescriptor::of_each(agents, access);
        self.vmm().check_access(&self.properties, &descriptors)
    }
}
