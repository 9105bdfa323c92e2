//! Memory that goes away for a while and comes back at the same address.

mod contents;
mod ladder;

use super::grants::Grants;
use super::{BufferError, owner, whole_granules};
use crate::agent::AgentId;
use crate::vmm::{
    Access, AccessDescriptor, Address, Allocation, AllocationProperties, Mapping, Reservation, Vmm,
};
use ladder::Held;

#[cfg(doc)]
use crate::vmm::VmmError;

/// What becomes of the contents while a [`PausableBuffer`] is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Contents {
    /// They are copied to this process's own memory, and back when the buffer resumes.
    Save,
    /// They are lost. What is in the buffer after it resumes is not defined.
    Drop,
}

/// A buffer whose physical memory can be given back while its addresses stay.
///
/// What inference servers call sleep: a model's weights make room for another's, and pointers to
/// them that a recorded graph holds are right again afterwards. Any size from one byte is taken;
/// memory is a multiple of the granule.
///
/// While it is paused, nothing is behind its addresses: no agent may use them.
///
/// # Addresses that get lost
///
/// ROCm 7.2 gives the memory back only when the reservation is freed
/// ([`Quirks::memory_returns_with_addresses`](crate::vmm::Quirks)). There [`pause`](Self::pause)
/// frees it and reserves the same addresses at once. Another thread of the process can be faster:
/// then `pause` ends with [`BufferError::AddressLost`], and the buffer is paused all the same, its
/// memory given back and its contents saved. [`resume`](Self::resume) tries to get the addresses
/// once more; [`resume_anywhere`](Self::resume_anywhere) takes others if they are not to be had.
///
/// ```
/// use hsa_vmm::buffer::{Contents, PausableBuffer};
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
/// weights.pause(Contents::Save)?;
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
pub struct PausableBuffer {
    vmm: Vmm,
    properties: AllocationProperties,
    owner: AgentId,
    size: usize,
    /// What is reserved and mapped: the size in whole granules.
    extent: usize,
    address: Address,
    grants: Grants,
    state: State,
}

#[derive(Debug)]
enum State {
    Resident(Mapping),
    Paused {
        held: Held,
        /// To be put into new memory. If there are none, they are lost, or in the memory that is held.
        saved: Option<Vec<u8>>,
    },
}

impl PausableBuffer {
    /// Makes a buffer of `size` bytes, which need not be a multiple of anything. Nobody may use it
    /// before [`grant`](Self::grant).
    ///
    /// # Errors
    /// As for [`Vmm::address_reserve`], [`Vmm::create`], [`Vmm::map`] and [`Vmm::set_access`].
    pub fn create(
        vmm: &Vmm,
        size: usize,
        properties: &AllocationProperties,
    ) -> Result<Self, BufferError> {
        let (owner, extent) = (owner(properties)?, whole_granules(vmm, size)?);
        let reservation = Reservation::of(extent).reserve(vmm)?;
        let memory = Allocation::create(vmm, extent, properties)?;
        let mapping = reservation.map(0, &memory)?;
        Ok(Self {
            vmm: vmm.clone(),
            properties: *properties,
            owner,
            size,
            extent,
            address: mapping.address(),
            grants: Grants::default(),
            state: State::Resident(mapping),
        })
    }

    /// Where it begins; while it is paused, where it will begin.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }

    /// Its size in bytes, as it was asked for.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// The bytes of addresses, and of memory while it is not paused: the size in whole granules.
    #[must_use]
    pub fn extent(&self) -> usize {
        self.extent
    }

    /// Whether it is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        matches!(self.state, State::Paused { .. })
    }

    /// Whether its addresses are reserved for it: always, but after
    /// [`BufferError::AddressLost`].
    #[must_use]
    pub fn holds_addresses(&self) -> bool {
        !matches!(self.state, State::Paused { held: Held::Nothing, .. })
    }

    /// The bytes of this process's own memory that keep the contents.
    #[must_use]
    pub fn saved(&self) -> usize {
        match &self.state {
            State::Paused { saved: Some(bytes), .. } => bytes.len(),
            _ => 0,
        }
    }

    /// Gives agents access to all of it (`hipMemSetAccess`); agents not named keep what they have.
    /// While it is paused, that is remembered for the time when it resumes.
    ///
    /// # Errors
    /// As for [`Vmm::set_access`].
    pub fn grant(&mut self, agents: &[AgentId], access: Access) -> Result<(), BufferError> {
        let descriptors = AccessDescriptor::of_each(agents, access);
        self.vmm.check_access(&self.properties, &descriptors)?;
        if let State::Resident(mapping) = &self.state {
            mapping.set_access(&descriptors)?;
        }
        self.grants = self.grants.with(agents, access);
        Ok(())
    }

    /// Really takes it away from agents, GPUs too; the others lose it for a moment. While it is
    /// paused, nobody has it, and these will not when it resumes.
    ///
    /// # Errors
    /// As for [`Vmm::revoke`].
    pub fn revoke(&mut self, agents: &[AgentId]) -> Result<(), BufferError> {
        let descriptors = AccessDescriptor::of_each(agents, Access::None);
        self.vmm.check_access(&self.properties, &descriptors)?;
        if let State::Resident(mapping) = &self.state {
            mapping.revoke(agents)?;
        }
        self.grants = self.grants.with(agents, Access::None);
        Ok(())
    }

    /// What an agent may do with all of it; while it is paused, what it will when it resumes.
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] for an agent that is none of the runtime's, or if the buffer was
    /// unmapped by its address.
    pub fn access(&self, agent: AgentId) -> Result<Access, BufferError> {
        self.vmm.check_agent(agent)?;
        if let State::Resident(mapping) = &self.state {
            mapping.access(agent)?;
        }
        Ok(self.grants.of(agent))
    }

    /// Copies from it, `offset` bytes from its start; a CPU must have been granted to read.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`BufferError::BeyondEnd`], [`BufferError::Paused`]; else as for [`Vmm::read`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), BufferError> {
        Ok(self.mapping(offset, bytes.len())?.read(offset, bytes)?)
    }

    /// Copies to it, `offset` bytes from its start; a CPU must have been granted to write.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`BufferError::BeyondEnd`], [`BufferError::Paused`]; else as for [`Vmm::write`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), BufferError> {
        Ok(self.mapping(offset, bytes.len())?.write(offset, bytes)?)
    }

    /// Has the GPU that owns the memory fill a part of it with a 32-bit value. `offset` and `size`
    /// are in bytes, multiples of four.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`BufferError::BeyondEnd`], [`BufferError::Paused`]; else as for [`Vmm::fill`].
    pub fn fill(&self, offset: usize, value: u32, size: usize) -> Result<(), BufferError> {
        Ok(self.mapping(offset, size)?.fill(offset, value, size)?)
    }

    /// What is mapped, if `size` bytes from the offset are the buffer's.
    fn mapping(&self, offset: usize, size: usize) -> Result<&Mapping, BufferError> {
        let State::Resident(mapping) = &self.state else { return Err(BufferError::Paused) };
        let beyond = BufferError::BeyondEnd { offset, size, end: self.size };
        let inside = offset.checked_add(size).is_some_and(|end| end <= self.size);
        inside.then_some(mapping).ok_or(beyond)
    }

    /// Gives the memory back and keeps the addresses. Nobody may be using the buffer.
    ///
    /// # Errors
    /// [`BufferError::Paused`] if it is paused already; [`BufferError::AddressLost`] if it is
    /// paused now, but without its addresses; else as for [`Vmm::copy_to_host`], [`Vmm::unmap`],
    /// [`Vmm::address_free`] and [`Vmm::release`], and the buffer is as it was. If the runtime then
    /// does not let it be made as it was, it is paused and keeps the memory with the contents in
    /// it, until it resumes.
    pub fn pause(&mut self, contents: Contents) -> Result<(), BufferError> {
        let State::Resident(mapping) = &self.state else { return Err(BufferError::Paused) };
        let saved = match contents {
            Contents::Save => Some(self.save(mapping.allocation())?),
            Contents::Drop => None,
        };
        let nothing = State::Paused { held: Held::Nothing, saved: None };
        let State::Resident(mapping) = core::mem::replace(&mut self.state, nothing) else {
            return Err(BufferError::Paused);
        };
        let (held, answer) = self.let_go(Held::Mapping(mapping));
        self.state = match held {
            // The contents are where they were.
            held @ (Held::Mapping(_) | Held::Memory(..)) => match self.take_up(held, None) {
                Ok(mapping) => State::Resident(mapping),
                Err((held, error)) => {
                    crate::log::error!(%error, address = %self.address, "a buffer stays paused");
                    State::Paused { held, saved: None }
                }
            },
            held => State::Paused { held, saved },
        };
        answer
    }

    /// Makes memory, maps it at the same address, and puts back the contents that were saved and the
    /// access that agents had.
    ///
    /// # Errors
    /// [`BufferError::NotPaused`]; [`BufferError::AddressLost`] if the addresses had got lost and
    /// are still not to be had; else as for [`Vmm::create`], [`Vmm::map`], [`Vmm::set_access`] and
    /// [`Vmm::copy_from_host`]. The buffer is paused as it was, and may resume later.
    pub fn resume(&mut self) -> Result<(), BufferError> {
        let nothing = State::Paused { held: Held::Nothing, saved: None };
        let (held, saved) = match core::mem::replace(&mut self.state, nothing) {
            State::Paused { held, saved } => (held, saved),
            resident => {
                self.state = resident;
                return Err(BufferError::NotPaused);
            }
        };
        // Memory that could not be given back is kept, with what is in it.
        let had_memory = matches!(held, Held::Mapping(_) | Held::Memory(..));
        let (held, error) = match self.take_up(held, saved.as_deref()) {
            Ok(mapping) => {
                self.state = State::Resident(mapping);
                return Ok(());
            }
            Err((held, error)) if had_memory => (held, error),
            Err((held, error)) => (self.let_go(held).0, error),
        };
        self.state = State::Paused { held, saved };
        Err(error)
    }

    /// The same, but at other addresses if its own got lost and are not to be had. Says where it
    /// begins now.
    ///
    /// # Errors
    /// As for [`resume`](Self::resume), but for [`BufferError::AddressLost`].
    pub fn resume_anywhere(&mut self) -> Result<Address, BufferError> {
        match self.resume() {
            Err(BufferError::AddressLost { .. }) if !self.holds_addresses() => {}
            answer => return answer.map(|()| self.address),
        }
        let reservation = Reservation::of(self.extent).reserve(&self.vmm)?;
        let before = core::mem::replace(&mut self.address, reservation.address());
        if let State::Paused { held, .. } = &mut self.state {
            *held = Held::Addresses(reservation);
        }
        self.resume().map(|()| self.address).inspect_err(|_| {
            self.address = before;
            if let State::Paused { held, .. } = &mut self.state {
                *held = Held::Nothing;
            }
        })
    }
}
