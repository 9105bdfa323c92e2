//! A buffer that releases its memory while it is paused, and resumes at the same address.

use super::{DeviceBuffer, current_access, is_quarantine, whole_granules};
use crate::agent::AgentId;
use crate::error::{Error, ErrorKind, Operation, Problem, Rejected};
use crate::sync::lock;
use crate::vmm::{Access, Address, Allocation, AllocationProperties, Mapping, Reservation, Vmm};
use core::ops::Deref;
use derive_more::Debug;

/// What happens to the contents while a [`PausableBuffer`] is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PauseMode {
    /// The contents are copied to this process's memory, and copied back when the buffer resumes. A debug build of this
    /// crate copies about 20 times more slowly than a release build.
    Save,
    /// The contents are lost. They are undefined after the buffer resumes.
    Discard,
}

/// A buffer that can release its physical memory and keep its addresses.
///
/// Inference servers call this feature "sleep": they release one model's weights to load another model's. Pointers in a
/// recorded graph are valid again after the buffer resumes. The size can be any number of bytes from one; the size of
/// the memory is rounded up to the granule. The buffer dereferences to a [`DeviceBuffer`], whose methods read and write
/// the memory.
///
/// While the buffer is paused, nothing is mapped at its addresses: no agent may access them, and calls by address
/// return [`Problem::NotMapped`](crate::error::Problem::NotMapped). Changes of access take effect when the buffer
/// resumes. The exception is a buffer whose [`pause`](Self::pause) failed and could not be undone: its memory can still
/// be mapped, for some or all of the agents.
///
/// The GPU that owns the memory saves and restores the contents. Without
/// [`VmmOptions::with_barrier`](crate::vmm::VmmOptions::with_barrier), these copies can fault, because they directly
/// follow a map ([`Vmm::copy`]).
///
/// # Sharing with other processes
///
/// To export the buffer's allocation, get the allocation with `Allocation::at(&vmm, buffer.address())`. The memory can
/// have other users: another [`Allocation`], another mapping, or a process that has imported the memory.
/// [`pause`](Self::pause) succeeds while there are other users, but only the last user releases the memory.
/// [`resume`](Self::resume) creates new memory. Importers keep the old memory, so export the buffer again.
///
/// # Freed addresses
///
/// The program can free the addresses of a paused buffer with [`Vmm::address_free`]. [`resume`](Self::resume) then
/// reserves the same addresses again. If they are not available, `resume` fails with [`ErrorKind::AddressLost`], and
/// [`resume_anywhere`](Self::resume_anywhere) uses other addresses.
///
/// ```
/// use hsa_vmm::buffer::{PauseMode, PausableBuffer};
/// use hsa_vmm::{Access, AllocationProperties, Runtime, Vmm};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// let vmm = Vmm::open(&runtime)?;
/// let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
///
/// let mut weights = PausableBuffer::create(&vmm, 5 << 20, &AllocationProperties::on(gpu))?;
/// weights.grant(&[gpu, runtime.host().id()], Access::ReadWrite)?;
/// let address = weights.address();
/// weights.write(100, b"kept")?;
///
/// weights.pause(PauseMode::Save)?;
/// assert_eq!(vmm.usage().handles, 0);
/// weights.resume()?;
///
/// let mut text = [0; 4];
/// weights.read(100, &mut text)?;
/// assert_eq!((&text, weights.address()), (b"kept", address));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[debug("PausableBuffer({buffer:?}, paused: {}, holds addresses: {})", self.is_paused(), self.holds_addresses())]
pub struct PausableBuffer {
    /// Contains at most one mapping, of `extent` bytes. A paused buffer has a mapping only if the runtime failed to
    /// unmap, or failed to grant access after `restore` had mapped the memory again. A paused buffer has `memory` only
    /// if the runtime failed to unmap or to release the memory.
    buffer: DeviceBuffer,
    owner: AgentId,
    /// The saved contents of a paused buffer. `None` if the contents are lost, or still in `memory`.
    saved: Option<Vec<u8>>,
    memory: Option<Allocation>,
    /// The program may have freed the reservation of a paused buffer by its address.
    reservation: Reservation,
    second: SecondMapping,
}

/// A second mapping of the memory at addresses of its own, through which a buffer saves and restores its contents.
/// Exists during a call. If the runtime failed to remove the mapping, it exists until a later call removes it.
#[derive(Default)]
struct SecondMapping {
    mapping: Option<Mapping>,
    reservation: Option<Reservation>,
}

impl PausableBuffer {
    /// Creates a buffer of `size` bytes, at least one. No agent has access before [`grant`](DeviceBuffer::grant).
    ///
    /// # Errors
    /// As for [`Vmm::address_reserve`], [`Vmm::create`], [`Vmm::map`] and [`Vmm::set_access`].
    pub fn create(
        vmm: &Vmm,
        size: usize,
        properties: &AllocationProperties,
    ) -> Result<Self, Error> {
        let (owner, extent) = (vmm.owner(properties)?, whole_granules(vmm, size)?);
        let reservation = Reservation::builder(extent).reserve(vmm)?;
        let memory = Allocation::create(vmm, extent, properties)?;
        let mappings = vec![reservation.map(0, &memory)?];
        let mut buffer = DeviceBuffer::new(&reservation, properties, extent, mappings);
        buffer.size = size;
        let second = SecondMapping::default();
        Ok(Self { buffer, owner, saved: None, memory: Some(memory), reservation, second })
    }

    /// Returns the size of the reservation and of the memory in bytes: the buffer's size, rounded up to whole granules.
    pub fn extent(&self) -> usize {
        self.buffer.step
    }

    /// Returns whether the buffer is paused.
    pub fn is_paused(&self) -> bool {
        self.buffer.paused
    }

    /// Returns whether the buffer's addresses are reserved. They are not reserved after the program has freed the
    /// addresses of a paused buffer with [`Vmm::address_free`].
    pub fn holds_addresses(&self) -> bool {
        !self.reservation.is_freed()
    }

    /// Returns the number of bytes of this process's memory that the saved contents use.
    pub fn saved_size(&self) -> usize {
        self.saved.as_ref().map_or(0, Vec::len)
    }

    /// Releases the memory, unless it has [other users](Self#sharing-with-other-processes), and keeps the addresses.
    /// No agent may be using the buffer.
    ///
    /// # Errors
    /// [`ErrorKind::Paused`] if the buffer was paused before; otherwise as for [`Vmm::copy_to_host`], [`Vmm::unmap`] and
    /// [`Vmm::release`]. After these other errors, the call restores the buffer. If the runtime fails again while the
    /// call restores the buffer, the buffer is paused, and keeps its memory and contents until it resumes. If its
    /// addresses were quarantined ([`ErrorKind::Quarantined`]), the buffer can only resume at another address
    /// ([`resume_anywhere`](Self::resume_anywhere)).
    ///
    /// The contents are copied through a second mapping of the memory. If the runtime fails to remove this mapping, the
    /// call fails, and the mapping and its addresses stay until the next call, or until the buffer is dropped.
    pub fn pause(&mut self, mode: PauseMode) -> Result<(), Error> {
        let Some(memory) = self.memory.as_ref().filter(|_| !self.buffer.paused) else {
            return Err(Error::new(Operation::Pause, ErrorKind::Paused));
        };
        if let Some(mapping) = self.buffer.mappings.first() {
            match mapping.check_mapped() {
                // A call by address may have changed the access since the last grant.
                Ok(()) => {
                    // `None` if another thread has just unmapped the memory by its address.
                    if let Some(access) = current_access(mapping) {
                        lock(&self.buffer.grants).0 = access;
                    }
                }
                // The memory is still mapped. Pausing makes it possible to resume with this memory at another address.
                Err(error) if is_quarantine(&error) => {}
                Err(error) => return Err(error.with_operation(Operation::Pause)),
            }
        }
        let saved = match mode {
            PauseMode::Save => self.second.save(memory, self.owner, self.buffer.size).map(Some),
            PauseMode::Discard => self.second.remove().map(|()| None),
        };
        let saved = saved.map_err(|error| error.with_operation(Operation::Pause))?;
        self.buffer.paused = true;
        let result = self.release();
        if self.memory.is_none() {
            self.saved = saved;
        } else if let Err(error) = self.restore() {
            // The memory still has the contents.
            crate::log::event!(ERROR, %error, address = %self.address(), "a buffer stays paused");
        } else {
            self.buffer.paused = false;
        }
        result.map_err(|error| error.with_operation(Operation::Pause))
    }

    /// Creates memory, maps it at the same address, and restores the saved contents. Restores the access
    /// that each agent had when the buffer was paused, including access that [`Vmm::set_access`] had set, and then applies
    /// later grants and revocations.
    ///
    /// # Errors
    /// [`ErrorKind::NotPaused`]; [`ErrorKind::AddressLost`] if the program has freed the addresses, and they are not
    /// available any more; [`ErrorKind::Quarantined`] if they are quarantined; otherwise as for [`Vmm::create`],
    /// [`Vmm::map`], [`Vmm::set_access`] and [`Vmm::copy_from_host`]. After an error, a paused buffer stays paused, and
    /// can resume later.
    pub fn resume(&mut self) -> Result<(), Error> {
        if !self.buffer.paused {
            return Err(Error::new(Operation::Resume, ErrorKind::NotPaused));
        }
        // If `pause` failed to release the memory, it is still allocated, with its contents.
        let had_memory = self.memory.is_some();
        match self.restore() {
            Ok(()) => {
                (self.buffer.paused, self.saved) = (false, None);
                Ok(())
            }
            Err(error) => {
                if !had_memory && let Err(error) = self.release() {
                    crate::log::event!(WARN, %error, "a paused buffer keeps memory");
                }
                Err(error.with_operation(Operation::Resume))
            }
        }
    }

    /// Resumes the buffer. If its own address is quarantined or not available, resumes at another address. Returns the
    /// address.
    ///
    /// # Errors
    /// As for [`resume`](Self::resume), without [`ErrorKind::AddressLost`], and without [`ErrorKind::Quarantined`] for
    /// the buffer's own address. After an error, the buffer stays paused, at its own address.
    pub fn resume_anywhere(&mut self) -> Result<Address, Error> {
        match self.resume() {
            Err(error) if self.addresses_are_unusable(&error) => {}
            result => return result.map(|()| self.address()),
        }
        let reservation = Reservation::builder(self.extent())
            .reserve(&self.buffer.vmm)
            .map_err(|error| error.with_operation(Operation::Resume))?;
        // Drops the mapping in the quarantined reservation, if there is one. The memory stays mapped there.
        self.buffer.mappings.clear();
        let had_memory = self.memory.is_some();
        let old_address = core::mem::replace(&mut self.buffer.address, reservation.address());
        let old_reservation = core::mem::replace(&mut self.reservation, reservation);
        self.resume().map(|()| self.address()).inspect_err(|_| {
            self.buffer.address = old_address;
            self.buffer.mappings.clear();
            // Memory that existed before may have the only copy of the contents.
            self.memory = self.memory.take().filter(|_| had_memory);
            self.reservation = old_reservation;
        })
    }

    /// Returns whether an error means that the buffer cannot resume at its own address.
    fn addresses_are_unusable(&self, error: &Error) -> bool {
        match error.kind() {
            ErrorKind::AddressLost { .. } => !self.holds_addresses(),
            ErrorKind::Quarantined { range, .. } => range.address == self.address(),
            _ => false,
        }
    }

    /// Unmaps and releases the memory.
    fn release(&mut self) -> Result<(), Error> {
        if let Err(rejected) = Mapping::unmap_many(core::mem::take(&mut self.buffer.mappings)) {
            self.buffer.mappings = rejected.value;
            return Err(rejected.error);
        }
        let Some(memory) = self.memory.take() else { return Ok(()) };
        memory.release().map_err(|rejected| {
            self.memory = Some(rejected.value);
            rejected.error
        })
    }

    /// Reserves the addresses, creates the memory, copies the saved contents to the memory, maps it, and grants agents
    /// their access. Omits steps that are not needed, because their result still exists.
    fn restore(&mut self) -> Result<(), Error> {
        // The program may have unmapped the memory, or freed the reservation, by its address.
        self.buffer.mappings.retain(|mapping| {
            let checked = mapping.check_mapped();
            !checked.is_err_and(|it| matches!(it.problem(), Some(Problem::NotMapped(..))))
        });
        if !self.holds_addresses() {
            self.reservation = self.reserve_again()?;
        }
        if self.memory.is_none() {
            // The second mapping of an earlier call keeps memory that the GPU may lack.
            self.second.remove()?;
            let memory =
                Allocation::create(&self.buffer.vmm, self.extent(), &self.buffer.properties)?;
            if let Some(bytes) = &self.saved {
                self.second.with(&memory, self.owner, Access::ReadWrite, |mapping| {
                    mapping.copy_from_host(self.owner, 0, bytes)
                })?;
            }
            self.memory = Some(memory);
        }
        if let Some(memory) = self.memory.as_ref().filter(|_| self.buffer.mappings.is_empty()) {
            self.buffer.mappings.push(self.reservation.map(0, memory)?);
        }
        // Without grants, no call of the `Vmm` would report that the addresses are quarantined.
        self.buffer.mappings.iter().try_for_each(Mapping::check_mapped)?;
        let grants = lock(&self.buffer.grants);
        if grants.0.is_empty() { Ok(()) } else { self.buffer.set_access(&grants.0) }
    }

    /// Reserves the addresses again after the program has freed them.
    fn reserve_again(&self) -> Result<Reservation, Error> {
        let (address, size) = (self.address(), self.extent());
        let reserved = Reservation::builder(size).exactly_at(address).reserve(&self.buffer.vmm);
        reserved.map_err(|cause| {
            let kind = ErrorKind::AddressLost { address, size, cause: Box::new(cause) };
            Error::new(Operation::Resume, kind)
        })
    }
}

impl SecondMapping {
    /// Copies the first `size` bytes of the memory to this process.
    fn save(&mut self, memory: &Allocation, owner: AgentId, size: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(size).map_err(|_| {
            let kind = ErrorKind::of_system("malloc", rustix::io::Errno::NOMEM);
            Error::new(Operation::CopyToHost, kind)
        })?;
        bytes.resize(size, 0);
        self.with(memory, owner, Access::Read, |mapping| {
            mapping.copy_to_host(owner, 0, &mut bytes)
        })?;
        Ok(bytes)
    }

    /// Maps the memory, calls `act` with the mapping, and removes the mapping. Grants the owner access to this mapping,
    /// because the owner may have no access to the buffer.
    fn with(
        &mut self,
        memory: &Allocation,
        owner: AgentId,
        access: Access,
        act: impl FnOnce(&Mapping) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.remove()?;
        let reservation = Reservation::builder(memory.size()).reserve(memory.vmm())?;
        let reservation = self.reservation.insert(reservation);
        let result = reservation.map(0, memory).and_then(|mapping| {
            let mapping = self.mapping.insert(mapping);
            mapping.grant(&[owner], access)?;
            act(mapping)
        });
        let mut removed = self.remove();
        // Tries again if something is left, so that one failed call of the runtime does not fail the operation.
        if self.reservation.is_some() {
            removed = self.remove();
        }
        result.and(removed)
    }

    /// Removes the mapping and its addresses, if they exist. After a failure, keeps them for the next call, unless they
    /// are quarantined, or the program has unmapped or freed them itself.
    fn remove(&mut self) -> Result<(), Error> {
        if let Some(mapping) = self.mapping.take()
            && let Err(Rejected { value, error }) = mapping.unmap()
        {
            match value.check_mapped() {
                Ok(()) => self.mapping = Some(value),
                Err(_) => self.reservation = None,
            }
            return Err(error);
        }
        if let Some(reservation) = self.reservation.take()
            && let Err(Rejected { value, error }) = reservation.free()
        {
            let can_be_freed = !is_quarantine(&error) && !value.is_freed();
            self.reservation = can_be_freed.then_some(value);
            return Err(error);
        }
        Ok(())
    }
}

impl Deref for PausableBuffer {
    type Target = DeviceBuffer;

    fn deref(&self) -> &DeviceBuffer {
        &self.buffer
    }
}
