//! Memory that is released for a while and comes back at the same address.

use super::span::{self, Grants, Span, check_bounds};
use super::{owner, whole_granules};
use crate::agent::AgentId;
use crate::error::{Error, ErrorKind, Operation};
use crate::vmm::{Access, Address, Allocation, AllocationProperties, Mapping, Reservation, Vmm};
use core::fmt;

/// What happens to the contents while a [`PausableBuffer`] is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Contents {
    /// They are copied to this process's memory, and back when the buffer resumes.
    Save,
    /// They are lost. The contents are undefined after the buffer resumes.
    Drop,
}

/// A buffer that can release its physical memory and keep its addresses.
///
/// Inference servers call this sleep: a model's weights make room for another's, and the pointers in
/// a recorded graph are valid again afterwards. Any size from one byte is accepted; memory is a
/// multiple of the granule.
///
/// While it is paused, nothing is mapped at its addresses: no agent may access them.
///
/// # Lost addresses
///
/// ROCm 7.2 releases the memory only when the reservation is freed
/// ([`Quirks::memory_returns_with_addresses`](crate::vmm::Quirks)). There [`pause`](Self::pause)
/// frees it and reserves the same addresses at once. If another thread of the process takes them
/// first, `pause` fails with [`ErrorKind::AddressLost`]; the buffer is paused nevertheless, its memory
/// is released and its contents are saved. [`resume`](Self::resume) tries to reserve the addresses
/// again; [`resume_anywhere`](Self::resume_anywhere) takes others if they are not available.
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
pub struct PausableBuffer {
    vmm: Vmm,
    properties: AllocationProperties,
    owner: AgentId,
    size: usize,
    /// The reserved and mapped bytes: the size in whole granules.
    extent: usize,
    address: Address,
    grants: Grants,
    state: State,
}

#[derive(Debug)]
enum State {
    Resident(Mapping),
    Paused {
        rest: Rest,
        /// The contents for new memory. `None` if they are lost, or in the memory of `rest`.
        saved: Option<Vec<u8>>,
    },
}

/// What a paused buffer still has: its addresses, unless something failed.
#[derive(Debug)]
enum Rest {
    Nothing,
    Addresses(Reservation),
    /// The runtime did not release the memory.
    Memory(Reservation, Allocation),
    /// The runtime did not unmap it.
    Mapping(Mapping),
}

impl PausableBuffer {
    /// Creates a buffer of `size` bytes, of any size. No agent has access before
    /// [`grant`](Self::grant).
    ///
    /// # Errors
    /// As for [`Vmm::address_reserve`], [`Vmm::create`], [`Vmm::map`] and [`Vmm::set_access`].
    pub fn create(
        vmm: &Vmm,
        size: usize,
        properties: &AllocationProperties,
    ) -> Result<Self, Error> {
        let (owner, extent) = (owner(properties)?, whole_granules(vmm, size)?);
        let reservation = Reservation::builder(extent).reserve(vmm)?;
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

    /// Returns its address; while it is paused, the one that it will have.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }

    /// Returns its size in bytes, as requested.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the bytes of addresses, and of memory while it is not paused: the size in whole
    /// granules.
    #[must_use]
    pub fn extent(&self) -> usize {
        self.extent
    }

    /// Returns whether it is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        matches!(self.state, State::Paused { .. })
    }

    /// Returns whether its addresses are reserved: always, except after [`ErrorKind::AddressLost`].
    #[must_use]
    pub fn holds_addresses(&self) -> bool {
        !matches!(self.state, State::Paused { rest: Rest::Nothing, .. })
    }

    /// Returns the bytes of this process's memory that contain the saved contents.
    #[must_use]
    pub fn saved(&self) -> usize {
        match &self.state {
            State::Paused { saved: Some(bytes), .. } => bytes.len(),
            _ => 0,
        }
    }

    /// Grants agents access to all of it (`hipMemSetAccess`); agents not named keep what they have.
    /// While it is paused, the access takes effect when it resumes.
    ///
    /// # Errors
    /// As for [`Vmm::set_access`].
    pub fn grant(&mut self, agents: &[AgentId], access: Access) -> Result<(), Error> {
        let descriptors = span::check_access(&self.vmm, &self.properties, agents, access)?;
        if let State::Resident(mapping) = &self.state {
            mapping.set_access(&descriptors)?;
        }
        self.grants.set(agents, access);
        Ok(())
    }

    /// Revokes all access of agents, GPUs too; the others lose theirs for a moment. While it is
    /// paused, this takes effect when it resumes.
    ///
    /// # Errors
    /// As for [`Vmm::revoke`].
    pub fn revoke(&mut self, agents: &[AgentId]) -> Result<(), Error> {
        span::check_access(&self.vmm, &self.properties, agents, Access::None)?;
        if let State::Resident(mapping) = &self.state {
            mapping.revoke(agents)?;
        }
        self.grants.set(agents, Access::None);
        Ok(())
    }

    /// Returns the access of an agent to all of it; while it is paused, the one that it will have.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an unknown agent, or if the buffer was unmapped by its
    /// address.
    pub fn access(&self, agent: AgentId) -> Result<Access, Error> {
        let mapping = match &self.state {
            State::Resident(mapping) => Some(mapping),
            State::Paused { .. } => None,
        };
        span::access(&self.vmm, &self.grants, agent, mapping)
    }

    /// Copies from it, `offset` bytes from its start; a CPU must have read access.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`Problem::OutOfBounds`](crate::error::Problem::OutOfBounds), [`ErrorKind::Paused`]; else as for [`Vmm::read`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.span(Operation::Read, offset, bytes.len())?.read(bytes)
    }

    /// Copies to it, `offset` bytes from its start; a CPU must have write access.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`Problem::OutOfBounds`](crate::error::Problem::OutOfBounds), [`ErrorKind::Paused`]; else as for [`Vmm::write`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.span(Operation::Write, offset, bytes.len())?.write(bytes)
    }

    /// Has the GPU that owns the memory fill a part of it with a 32-bit value. `offset` and `size`
    /// are in bytes, multiples of four.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`Problem::OutOfBounds`](crate::error::Problem::OutOfBounds), [`ErrorKind::Paused`]; else as for [`Vmm::fill`].
    pub fn fill(&self, offset: usize, value: u32, size: usize) -> Result<(), Error> {
        self.span(Operation::Fill, offset, size)?.fill(value, size)
    }

    fn span(&self, operation: Operation, offset: usize, size: usize) -> Result<Span<'_>, Error> {
        let fail = |kind| Error::new(operation, kind);
        let State::Resident(mapping) = &self.state else { return Err(fail(ErrorKind::Paused)) };
        check_bounds(offset, size, self.size).map_err(fail)?;
        let mappings = core::slice::from_ref(mapping);
        Ok(Span::of_steps(self.address, mappings, self.extent, (offset, size)))
    }

    /// Releases the memory and keeps the addresses. No agent may be using the buffer.
    ///
    /// # Errors
    /// [`ErrorKind::Paused`] if it is paused already; [`ErrorKind::AddressLost`] if it is paused
    /// now, but without its addresses; else as for [`Vmm::copy_to_host`], [`Vmm::unmap`],
    /// [`Vmm::address_free`] and [`Vmm::release`], and the buffer is unchanged. If the runtime fails
    /// again while the buffer is restored, it is paused and keeps its memory and contents until it
    /// resumes.
    pub fn pause(&mut self, contents: Contents) -> Result<(), Error> {
        let paused = || Error::new(Operation::Pause, ErrorKind::Paused);
        let State::Resident(mapping) = &self.state else { return Err(paused()) };
        let saved = match contents {
            Contents::Save => Some(self.save(mapping.allocation())?),
            Contents::Drop => None,
        };
        let nothing = State::Paused { rest: Rest::Nothing, saved: None };
        let State::Resident(mapping) = core::mem::replace(&mut self.state, nothing) else {
            return Err(paused());
        };
        let (rest, answer) = self.release(Rest::Mapping(mapping), Operation::Pause);
        self.state = match rest {
            // The memory still has the contents.
            rest @ (Rest::Mapping(_) | Rest::Memory(..)) => match self.restore(rest, None) {
                Ok(mapping) => State::Resident(mapping),
                Err((rest, error)) => {
                    crate::log::error!(%error, address = %self.address, "a buffer stays paused");
                    State::Paused { rest, saved: None }
                }
            },
            rest => State::Paused { rest, saved },
        };
        answer
    }

    /// Creates memory, maps it at the same address, and restores the saved contents and the access of
    /// agents.
    ///
    /// # Errors
    /// [`ErrorKind::NotPaused`]; [`ErrorKind::AddressLost`] if the addresses were lost and are still
    /// not available; else as for [`Vmm::create`], [`Vmm::map`], [`Vmm::set_access`] and
    /// [`Vmm::copy_from_host`]. The buffer stays paused, and can resume later.
    pub fn resume(&mut self) -> Result<(), Error> {
        let nothing = State::Paused { rest: Rest::Nothing, saved: None };
        let (rest, saved) = match core::mem::replace(&mut self.state, nothing) {
            State::Paused { rest, saved } => (rest, saved),
            resident => {
                self.state = resident;
                return Err(Error::new(Operation::Resume, ErrorKind::NotPaused));
            }
        };
        // Memory that could not be released is kept, with its contents.
        let had_memory = matches!(rest, Rest::Mapping(_) | Rest::Memory(..));
        let (rest, error) = match self.restore(rest, saved.as_deref()) {
            Ok(mapping) => {
                self.state = State::Resident(mapping);
                return Ok(());
            }
            Err((rest, error)) if had_memory => (rest, error),
            Err((rest, error)) => (self.release(rest, Operation::Resume).0, error),
        };
        self.state = State::Paused { rest, saved };
        Err(error)
    }

    /// Resumes, at another address if its own was lost and is not available. Returns its address.
    ///
    /// # Errors
    /// As for [`resume`](Self::resume), except [`ErrorKind::AddressLost`].
    pub fn resume_anywhere(&mut self) -> Result<Address, Error> {
        match self.resume() {
            Err(error)
                if matches!(error.kind(), ErrorKind::AddressLost { .. })
                    && !self.holds_addresses() => {}
            answer => return answer.map(|()| self.address),
        }
        let reservation = Reservation::builder(self.extent).reserve(&self.vmm)?;
        let before = core::mem::replace(&mut self.address, reservation.address());
        if let State::Paused { rest, .. } = &mut self.state {
            *rest = Rest::Addresses(reservation);
        }
        self.resume().map(|()| self.address).inspect_err(|_| {
            self.address = before;
            if let State::Paused { rest, .. } = &mut self.state {
                *rest = Rest::Nothing;
            }
        })
    }

    /// Releases what it still has, except the addresses, as far as the runtime allows.
    fn release(&self, rest: Rest, operation: Operation) -> (Rest, Result<(), Error>) {
        let (reservation, memory) = match rest {
            Rest::Nothing | Rest::Addresses(_) => return (rest, Ok(())),
            Rest::Memory(reservation, memory) => (reservation, memory),
            Rest::Mapping(mapping) => {
                let both = (mapping.reservation().clone(), mapping.allocation().clone());
                match mapping.unmap() {
                    Ok(()) => both,
                    Err(kept) => return (Rest::Mapping(kept.value), Err(kept.error.into())),
                }
            }
        };
        let (addresses, answer) = if self.vmm.quirks().memory_returns_with_addresses {
            let name = reservation.name().unwrap_or_default();
            match reservation.free() {
                Err(kept) => return (Rest::Memory(kept.value, memory), Err(kept.error.into())),
                Ok(()) => match self.reserve(operation) {
                    Ok(reservation) => (Some(reservation.named(&name)), Ok(())),
                    Err(lost) => (None, Err(lost)),
                },
            }
        } else {
            (Some(reservation), Ok(()))
        };
        match (memory.release(), addresses) {
            (Ok(()), Some(reservation)) => (Rest::Addresses(reservation), answer),
            (Ok(()), None) => (Rest::Nothing, answer),
            (Err(kept), Some(reservation)) => {
                (Rest::Memory(reservation, kept.value), Err(kept.error.into()))
            }
            // Without addresses the memory cannot be used again; the `Vmm` releases it in the end.
            (Err(_), None) => (Rest::Nothing, answer),
        }
    }

    /// Maps what it still has, with the access of agents; new memory gets these bytes. Fails with what
    /// it has then.
    fn restore(&self, rest: Rest, bytes: Option<&[u8]>) -> Result<Mapping, (Rest, Error)> {
        let (reservation, memory) = match rest {
            Rest::Mapping(mapping) => return self.set_access(mapping),
            Rest::Memory(reservation, memory) => (reservation, memory),
            rest => {
                let reservation = match rest {
                    Rest::Addresses(reservation) => reservation,
                    rest => self.reserve(Operation::Resume).map_err(|lost| (rest, lost))?,
                };
                let created = Allocation::create(&self.vmm, self.extent, &self.properties);
                let filled = created.map_err(Error::from).and_then(|memory| {
                    bytes.map_or(Ok(()), |bytes| self.fill_from(&memory, bytes)).map(|()| memory)
                });
                match filled {
                    Ok(memory) => (reservation, memory),
                    Err(error) => return Err((Rest::Addresses(reservation), error)),
                }
            }
        };
        match reservation.map(0, &memory) {
            Ok(mapping) => self.set_access(mapping),
            Err(error) => Err((Rest::Memory(reservation, memory), error.into())),
        }
    }

    fn set_access(&self, mapping: Mapping) -> Result<Mapping, (Rest, Error)> {
        let set = match self.grants.list() {
            [] => Ok(()),
            grants => mapping.set_access(grants),
        };
        match set {
            Ok(()) => Ok(mapping),
            Err(error) => Err((Rest::Mapping(mapping), error.into())),
        }
    }

    /// Reserves the addresses again after they were freed.
    fn reserve(&self, operation: Operation) -> Result<Reservation, Error> {
        let Self { address, extent, .. } = *self;
        let reserved = Reservation::builder(extent).exactly_at(address).reserve(&self.vmm);
        reserved.map_err(|cause| {
            let cause = Box::new(Error::from(cause));
            Error::new(operation, ErrorKind::AddressLost { address, size: extent, cause })
        })
    }

    /// Copies the contents of memory.
    fn save(&self, memory: &Allocation) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(self.size).map_err(|_| {
            let kind = ErrorKind::of_system("malloc", rustix::io::Errno::NOMEM);
            Error::new(Operation::CopyToHost, kind)
        })?;
        bytes.resize(self.size, 0);
        self.with_window(memory, Access::Read, |window| {
            window.copy_to_host(self.owner, &mut bytes, 0)
        })?;
        Ok(bytes)
    }

    /// Copies saved contents to memory.
    fn fill_from(&self, memory: &Allocation, bytes: &[u8]) -> Result<(), Error> {
        self.with_window(memory, Access::ReadWrite, |window| {
            window.copy_from_host(self.owner, 0, bytes)
        })
    }

    /// Maps memory for its owner at other addresses: the owner may have no access to the buffer.
    fn with_window(
        &self,
        memory: &Allocation,
        access: Access,
        act: impl FnOnce(&Mapping) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let reservation = Reservation::builder(self.extent).reserve(&self.vmm)?;
        let window = reservation.map(0, memory)?;
        window.grant(&[self.owner], access)?;
        act(&window)?;
        window.unmap().map_err(|kept| kept.error)?;
        Ok(reservation.free().map_err(|kept| kept.error)?)
    }
}

impl fmt::Debug for PausableBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PausableBuffer")
            .field("address", &self.address)
            .field("size", &self.size)
            .field("paused", &self.is_paused())
            .finish_non_exhaustive()
    }
}
