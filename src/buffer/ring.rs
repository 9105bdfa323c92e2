//! A ring buffer: the same memory, mapped several times at adjacent addresses.

use super::{BufferPart, DeviceBuffer, can_list_mappings, round_up};
use crate::error::{Argument, Error, ErrorKind, Operation, Problem, Value};
use crate::vmm::{
    Address, Allocation, AllocationProperties, MapRequest, Mapping, Reservation, Vmm,
};
use core::ops::Deref;
use derive_more::Debug;

/// A ring buffer. Its memory is mapped several times in a row, so that the first byte also follows the last.
///
/// From any position, `size` bytes are contiguous, for the CPU and for kernels. A position is the index of a byte in
/// the stream of all written bytes, and can be larger than the size. The byte's offset in the memory is the position
/// modulo the size. The program must ensure that a writer does not overwrite bytes that a reader still needs. A ring
/// buffer dereferences to the [`DeviceBuffer`] of all its mappings, whose methods change the access of agents.
/// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
///
/// RDNA GPUs index their first-level caches by virtual address. On these GPUs, a store through one mapping can be
/// invisible through another mapping until the kernel has ended (ROCm/hip#3728).
///
/// ```
/// use hsa_vmm::buffer::RingBuffer;
/// use hsa_vmm::{Access, AllocationProperties, Runtime, Vmm};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// # let vmm = Vmm::open(&runtime)?;
/// # let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
/// let ring = RingBuffer::create(&vmm, 2 << 20, 2, &AllocationProperties::on(gpu))?;
/// ring.grant(&[gpu, runtime.host().id()], Access::ReadWrite)?;
/// let position = ring.size() as u64 - 3;
/// ring.write(position, b"around")?;
/// let mut text = [0; 3];
/// ring.read(0, &mut text)?;
/// assert_eq!(&text, b"und");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[debug("RingBuffer({:#x} bytes at {}, {} times)", self.size(), self.address(), self.times())]
pub struct RingBuffer {
    /// The size of the memory in bytes. All mappings of `buffer` map this memory.
    size: usize,
    /// All mappings.
    buffer: DeviceBuffer,
}

impl RingBuffer {
    /// Creates `size` bytes of memory and maps it `times` times in a row; `times` is at least 2
    /// (`hipMemAddressReserve`, `hipMemCreate`, `hipMemMap`). The size is rounded up to the granule.
    ///
    /// # Errors
    /// [`Problem::TooFewTimes`]; [`Problem::OutOfMemory`] if the process cannot allocate the list of the mappings;
    /// otherwise as for [`Vmm::address_reserve`], [`Vmm::create`] and
    /// [`Vmm::map_many`].
    pub fn create(
        vmm: &Vmm,
        size: usize,
        times: usize,
        properties: &AllocationProperties,
    ) -> Result<Self, Error> {
        let value = Value::Number(times as u64);
        let invalid = |operation, problem| {
            Error::new(operation, ErrorKind::invalid(Argument::Times, value, problem))
        };
        if times < 2 {
            return Err(invalid(Operation::Map, Problem::TooFewTimes));
        }
        let size = round_up(size, vmm.reservation_granule())?;
        let overflow = || invalid(Operation::AddressReserve, Problem::Overflow);
        let total = size.checked_mul(times).ok_or_else(overflow)?;
        if !can_list_mappings(times) {
            return Err(invalid(Operation::Map, Problem::OutOfMemory));
        }
        let reservation = Reservation::builder(total).reserve(vmm)?;
        let allocation = Allocation::create(vmm, size, properties)?;
        let request = |index: usize| MapRequest {
            reservation: &reservation,
            offset: index * size,
            allocation: &allocation,
            part: 0..size,
            access: &[],
        };
        let mappings = Mapping::map_many(&(0..times).map(request).collect::<Vec<_>>())?;
        let buffer = DeviceBuffer::new(&reservation, properties, size, mappings);
        Ok(Self { size, buffer })
    }

    /// Returns the size of the memory in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the number of times that the memory is mapped.
    pub fn times(&self) -> usize {
        self.buffer.mappings.len()
    }

    /// Returns the address of a position. At least [`size`](Self::size) contiguous bytes begin there.
    pub fn address_of(&self, position: u64) -> Address {
        Address::new(self.address().get() + self.offset(position))
    }

    /// Copies from a position; a CPU must have read access.
    ///
    /// # Errors
    /// [`Problem::TooLarge`]; otherwise as for [`Vmm::read`].
    pub fn read(&self, position: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.part(Operation::Read, position, bytes.len())?.read(bytes)
    }

    /// Copies to a position; a CPU must have write access.
    ///
    /// # Errors
    /// [`Problem::TooLarge`]; otherwise as for [`Vmm::write`].
    pub fn write(&self, position: u64, bytes: &[u8]) -> Result<(), Error> {
        self.part(Operation::Write, position, bytes.len())?.write(bytes)
    }

    /// Fills `size` bytes from a position on with a 32-bit value, as [`Vmm::fill`] does.
    /// `position` and `size` are in bytes, multiples of four.
    ///
    /// # Errors
    /// [`Problem::TooLarge`]; otherwise as for [`Vmm::fill`].
    pub fn fill(&self, position: u64, value: u32, size: usize) -> Result<(), Error> {
        self.part(Operation::Fill, position, size)?.fill(value, size)
    }

    fn offset(&self, position: u64) -> usize {
        (position % self.size() as u64) as usize
    }

    fn part(
        &self,
        operation: Operation,
        position: u64,
        size: usize,
    ) -> Result<BufferPart<'_>, Error> {
        if size > self.size() {
            let problem = Problem::TooLarge { maximum: self.size(), whole: Argument::Buffer };
            let kind = ErrorKind::invalid(Argument::Size, size, problem);
            return Err(Error::new(operation, kind));
        }
        self.buffer.part(operation, self.offset(position), size)
    }
}

impl Deref for RingBuffer {
    type Target = DeviceBuffer;

    fn deref(&self) -> &DeviceBuffer {
        &self.buffer
    }
}
