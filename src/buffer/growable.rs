//! Device memory that grows and shrinks in place.

use super::handle_pool::HandlePool;
use super::{DeviceBuffer, is_quarantine, round_up};
use crate::error::{Argument, Error, ErrorKind, Operation, Problem, Rejected};
use crate::sync::lock;
use crate::vmm::{
    Address, Allocation, AllocationProperties, MapRequest, Mapping, Reservation, Vmm,
};
use core::ops::Deref;
use derive_more::Debug;

/// The builder of a [`GrowableBuffer`]; see [`GrowableBuffer::builder`].
///
/// ```
/// use hsa_vmm::{AllocationProperties, Error, GrowableBuffer, Vmm};
///
/// fn reserve(vmm: &Vmm, properties: &AllocationProperties) -> Result<GrowableBuffer, Error> {
///     let builder = GrowableBuffer::builder(64 << 30).with_step(32 << 20).with_handle_pool(2);
///     builder.reserve(vmm, properties)
/// }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is reserved before `reserve`"]
pub struct GrowableBuilder {
    maximum: usize,
    step: Option<usize>,
    requested_handles: usize,
    address: Option<Address>,
}

impl GrowableBuilder {
    /// Sets the step, the unit in which the buffer maps memory, in bytes. The step must not be zero, and is rounded up
    /// to the granule; the default is the recommended granule.
    ///
    /// Each step has one handle and one mapping. Larger steps need fewer handles and mappings, and with ROCm 7.14 also
    /// fewer file descriptors.
    pub fn with_step(mut self, bytes: usize) -> Self {
        self.step = Some(bytes);
        self
    }

    /// Makes a thread of the buffer create handles in advance, so that `handles` handles are ready. If enough handles
    /// are ready, growing does not wait for the runtime to create memory. The memory of ready handles counts as used.
    /// The thread never keeps more handles ready than the buffer has steps at its maximum.
    pub fn with_handle_pool(mut self, handles: usize) -> Self {
        self.requested_handles = handles;
        self
    }

    /// Requires a start address, for example the address that the buffer had in an earlier process.
    pub fn exactly_at(mut self, address: Address) -> Self {
        self.address = Some(address);
        self
    }

    /// Reserves the addresses, without memory (`hipMemAddressReserve`). The maximum is rounded
    /// up to a whole step.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the step is zero or larger than the address space. As for
    /// [`Vmm::allocation_granularity`] and [`Vmm::address_reserve`]; [`Problem::AddressTaken`] if the required address is
    /// not available.
    pub fn reserve(
        self,
        vmm: &Vmm,
        properties: &AllocationProperties,
    ) -> Result<GrowableBuffer, Error> {
        let step = super::step_size(vmm, properties, Argument::Step, self.step)?;
        let builder = Reservation::builder(round_up(self.maximum, step)?);
        let builder = match self.address {
            None => builder,
            Some(address) => builder.exactly_at(address),
        };
        let reservation = builder.reserve(vmm)?;
        // The buffer could never use more handles than it has steps, and other code would lack their memory.
        let capacity = self.requested_handles.min(reservation.size() / step);
        let pool = HandlePool::new(vmm, properties, step, capacity);
        let buffer = DeviceBuffer::new(&reservation, properties, step, Vec::new());
        let (requested_handles, reservations) = (self.requested_handles, vec![reservation]);
        Ok(GrowableBuffer { buffer, pool, requested_handles, reservations })
    }
}

/// A buffer in device memory that grows and shrinks in place.
///
/// The buffer reserves addresses for its maximum once, and maps memory as it grows. Growing never moves or copies the
/// contents, and pointers into the buffer stay valid. If growing or shrinking fails, the buffer is unchanged. There is
/// one exception: if shrinking fails and addresses were quarantined ([`ErrorKind::Quarantined`]), the buffer can be
/// shorter. The buffer dereferences to a [`DeviceBuffer`] of the requested size, whose methods read and write the
/// memory.
///
/// ```
/// use hsa_vmm::{Access, AllocationProperties, GrowableBuffer, Runtime, Vmm};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(2))?;
/// let vmm = Vmm::open(&runtime)?;
/// let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
///
/// let properties = AllocationProperties::on(gpu);
/// let mut buffer = GrowableBuffer::builder(64 << 30).reserve(&vmm, &properties)?;
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
/// The contents of added memory are undefined. They may be bytes that an earlier call of
/// [`shrink`](GrowableBuffer::shrink) removed.
#[derive(Debug)]
#[debug("GrowableBuffer({:#x} of {:#x} bytes at {})", self.size(), self.maximum(), self.address())]
pub struct GrowableBuffer {
    buffer: DeviceBuffer,
    pool: HandlePool,
    /// The number of handles to keep ready, as the caller requested it.
    requested_handles: usize,
    /// Adjacent reservations by address.
    reservations: Vec<Reservation>,
}

impl GrowableBuffer {
    /// Returns a builder for an empty buffer that can grow to `maximum` bytes.
    pub fn builder(maximum: usize) -> GrowableBuilder {
        GrowableBuilder { maximum, step: None, requested_handles: 0, address: None }
    }

    /// Returns the number of mapped bytes: the buffer's size, rounded up to whole steps. After a failed
    /// [`GrowableVec::extend`](super::GrowableVec::extend), it can be larger.
    pub fn mapped_size(&self) -> usize {
        self.buffer.mappings.len() * self.buffer.step
    }

    /// Returns the size in bytes to which the buffer can grow.
    pub fn maximum(&self) -> usize {
        self.reservations.iter().map(Reservation::size).sum()
    }

    /// Returns the size of a step in bytes.
    pub fn step(&self) -> usize {
        self.buffer.step
    }

    /// Returns the number of handles that are ready; see [`GrowableBuilder::with_handle_pool`].
    pub fn pooled_handles(&self) -> usize {
        self.pool.ready()
    }

    /// Iterates over the allocations, one for each step, for example to export them.
    pub fn allocations(&self) -> impl Iterator<Item = &Allocation> {
        self.buffer.mappings.iter().map(Mapping::allocation)
    }

    /// Adds `bytes` bytes at the end (`hipMemCreate`, `hipMemMap`, `hipMemSetAccess`).
    ///
    /// # Errors
    /// [`Problem::TooLarge`]; otherwise as for [`Vmm::create`] and [`Vmm::map_many`].
    pub fn grow(&mut self, bytes: usize) -> Result<(), Error> {
        self.resize(self.buffer.size.saturating_add(bytes))
    }

    /// Removes `bytes` bytes from the end, and releases the memory of steps that are no longer used (`hipMemUnmap`,
    /// `hipMemRelease`). No GPU may still use the removed bytes.
    ///
    /// # Errors
    /// [`Problem::TooLarge`] if the buffer has fewer bytes; otherwise as for [`Vmm::unmap_many`]. After a quarantine, the
    /// buffer ends before the first step that is not mapped any more.
    pub fn shrink(&mut self, bytes: usize) -> Result<(), Error> {
        let problem = Problem::TooLarge { maximum: self.buffer.size, whole: Argument::Buffer };
        let too_large = || {
            let kind = ErrorKind::invalid(Argument::Size, bytes, problem);
            Error::new(Operation::Resize, kind)
        };
        self.resize(self.buffer.size.checked_sub(bytes).ok_or_else(too_large)?)
    }

    /// Grows or shrinks the buffer to a size in bytes.
    ///
    /// # Errors
    /// As for [`grow`](Self::grow) or [`shrink`](Self::shrink).
    pub fn resize(&mut self, size: usize) -> Result<(), Error> {
        let to_error = |kind| Error::new(Operation::Resize, kind);
        let maximum = self.maximum();
        if size > maximum {
            let problem = Problem::TooLarge { maximum, whole: Argument::Reservation };
            return Err(to_error(ErrorKind::invalid(Argument::Size, size, problem)));
        }
        self.buffer.vmm.runtime().check_not_forked().map_err(to_error)?;
        let steps = size.div_ceil(self.buffer.step);
        if steps < self.buffer.mappings.len() {
            self.unmap_after(steps)?;
        } else {
            self.map_up_to(steps)?;
        }
        self.buffer.size = size;
        Ok(())
    }

    /// Reduces the size without unmapping. The next [`resize`](Self::resize) unmaps or uses the steps after the end.
    pub(super) fn forget_end(&mut self, size: usize) {
        self.buffer.size = self.buffer.size.min(size);
    }

    /// Maps memory at the end until `steps` steps are mapped, and grants the buffer's access to this memory.
    fn map_up_to(&mut self, steps: usize) -> Result<(), Error> {
        let access = lock(&self.buffer.grants).0.clone();
        let memory = self.pool.take(steps - self.buffer.mappings.len())?;
        let offsets = (self.buffer.mappings.len()..steps).map(|step| step * self.buffer.step);
        let requests = memory.iter().zip(offsets).filter_map(|(allocation, offset)| {
            let (reservation, offset) = self.reservation_at(offset)?;
            let (part, access) = (0..allocation.size(), &*access);
            Some(MapRequest { reservation, offset, allocation, part, access })
        });
        match Mapping::map_many(&requests.collect::<Vec<_>>()) {
            Ok(mappings) => {
                self.buffer.mappings.extend(mappings);
                Ok(())
            }
            Err(error) => {
                if !is_quarantine(&error) {
                    self.pool.store(memory);
                }
                Err(error)
            }
        }
    }

    /// Unmaps the memory after the first `steps` steps.
    fn unmap_after(&mut self, steps: usize) -> Result<(), Error> {
        let removed = self.buffer.mappings.split_off(steps);
        let memory: Vec<_> = removed.iter().map(|mapping| mapping.allocation().clone()).collect();
        if let Err(Rejected { value: still_mapped, error }) = Mapping::unmap_many(removed) {
            // After a quarantine, some mappings may be missing. Keeps only the mappings before the first gap.
            for mapping in still_mapped {
                if mapping.address().get() == self.buffer.address.get() + self.mapped_size() {
                    self.buffer.mappings.push(mapping);
                }
            }
            self.buffer.size = self.buffer.size.min(self.mapped_size());
            return Err(error);
        }
        self.pool.store(memory);
        Ok(())
    }

    /// Returns the reservation that contains the byte at an offset of the buffer, and the byte's offset in that
    /// reservation.
    fn reservation_at(&self, offset: usize) -> Option<(&Reservation, usize)> {
        let address = self.buffer.address.get() + offset;
        let next = self.reservations.partition_point(|it| it.address().get() <= address);
        let reservation = self.reservations.get(next.checked_sub(1)?)?;
        Some((reservation, address - reservation.address().get()))
    }

    /// Increases the maximum by `bytes`, rounded up to whole steps: reserves the addresses directly after the
    /// buffer's addresses (`hipMemAddressReserve` with an address, as HIP's guide shows under "increase memory
    /// size").
    ///
    /// Only this buffer's methods may copy across the boundary between two reservations: HIP does not guarantee
    /// that two adjacent reservations can be used as one.
    ///
    /// # Errors
    /// [`Problem::AddressTaken`] if the addresses are in use, which is likely. If the maximum is known,
    /// pass it to [`builder`](Self::builder).
    pub fn extend(&mut self, bytes: usize) -> Result<(), Error> {
        let size = round_up(bytes, self.buffer.step)?;
        let end = Address::new(self.buffer.address.get() + self.maximum());
        self.reservations
            .push(Reservation::builder(size).exactly_at(end).reserve(&self.buffer.vmm)?);
        self.pool.set_capacity(self.requested_handles.min(self.maximum() / self.buffer.step));
        Ok(())
    }
}

impl Deref for GrowableBuffer {
    type Target = DeviceBuffer;

    fn deref(&self) -> &DeviceBuffer {
        &self.buffer
    }
}
