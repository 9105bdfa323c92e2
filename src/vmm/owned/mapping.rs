//! Physical memory at an address, unmapped when dropped.

use super::{Allocation, Reservation};
use crate::agent::AgentId;
use crate::error::{Argument, Error, ErrorKind, Operation, Rejected};
use crate::sync::call_closure;
use crate::vmm::ledger::AddressRange;
use crate::vmm::{Access, AccessDescriptor, Address, ExpectedMappings, Shared, Vmm};
use core::slice;
use derive_more::Debug;

/// Physical memory mapped at reserved addresses; dropping the value unmaps it.
///
/// Reading and writing check bounds and access, and therefore cannot fault
/// ([memory model](crate::vmm#memory-model)). For other uses, [`address`](Mapping::address) returns the
/// address, which dangles once the mapping is unmapped.
///
/// A call by address can unmap the range ([`Vmm::unmap`]), and another call can map memory at the same
/// addresses. Every method that uses the memory then returns
/// [`Problem::NotMapped`](crate::error::Problem::NotMapped), and never changes the new mapping.
///
/// ```
/// use hsa_vmm::{Access, Allocation, AllocationProperties, Reservation, Runtime, Vmm};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// let vmm = Vmm::open(&runtime)?;
/// let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
/// let reservation = Reservation::builder(2 << 20).reserve(&vmm)?;
/// let allocation = Allocation::create(&vmm, 2 << 20, &AllocationProperties::on(gpu))?;
/// let mapping = reservation.map(0, &allocation)?;
/// mapping.grant(&[gpu], Access::ReadWrite)?;
/// mapping.fill(0, 7, 4096)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[debug("Mapping({size:#x} bytes at {address})")]
pub struct Mapping {
    pub(in crate::vmm) reservation: Reservation,
    pub(in crate::vmm) allocation: Allocation,
    pub(in crate::vmm) address: Address,
    pub(in crate::vmm) size: usize,
    pub(in crate::vmm) serial: u64,
    /// Whether dropping the value unmaps the memory.
    pub(in crate::vmm) unmaps_on_drop: bool,
}

impl Mapping {
    /// Names the mapping in reports and logs. Has no effect on a mapping that was unmapped by its address.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let (address, serial) = (self.address, self.serial);
        let set_name = |shared: &Shared| shared.name_mapping(address, Some(serial), name);
        let _ = self.vmm().run(Operation::Name, set_name);
        self
    }

    /// Returns the start address.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the reservation of the mapping.
    pub fn reservation(&self) -> &Reservation {
        &self.reservation
    }

    /// Returns the physical memory.
    pub fn allocation(&self) -> &Allocation {
        &self.allocation
    }

    /// Sets the access of agents to the mapping (`hipMemSetAccess`). Other agents keep their access. The call can unmap
    /// the memory for a moment, as [`Vmm::set_access`] describes.
    ///
    /// # Errors
    /// As for [`Vmm::set_access`].
    pub fn set_access(&self, descriptors: &[AccessDescriptor]) -> Result<(), Error> {
        self.run(Operation::SetAccess, |shared, expected| {
            shared.set_access(&[(self.range(), shared.access_change(descriptors)?)], expected)
        })
    }

    /// Grants several agents the same access (`hipMemSetAccess`). The call can unmap the memory for a moment, as
    /// [`Vmm::set_access`] describes.
    ///
    /// # Errors
    /// As for [`Vmm::set_access`].
    pub fn grant(&self, agents: &[AgentId], access: Access) -> Result<(), Error> {
        self.set_access(&AccessDescriptor::of_each(agents, access))
    }

    /// Revokes all access of agents. A GPU loses its access even if access is only
    /// [recorded](crate::agent::Enforcement::Recorded) for it. In that case, the library unmaps the memory and maps it
    /// again; in between, no agent has access.
    ///
    /// # Errors
    /// As for [`Vmm::revoke`].
    pub fn revoke(&self, agents: &[AgentId]) -> Result<(), Error> {
        self.run(Operation::Revoke, |shared, expected| {
            shared.revoke(&[self.range()], agents, expected)
        })
    }

    /// Returns the access of an agent to the mapping (`hipMemGetAccess`).
    ///
    /// # Errors
    /// As for [`Vmm::get_access`].
    pub fn access(&self, agent: AgentId) -> Result<Access, Error> {
        self.run(Operation::GetAccess, |shared, _| {
            shared.get_access(agent, self.address, Some(self.serial))
        })
    }

    /// Copies from the mapping, `offset` bytes from its start; a CPU must have read access.
    ///
    /// # Errors
    /// As for [`Vmm::read`]; also if the bytes extend past the mapping.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let size = bytes.len();
        self.run_at(Operation::Read, offset, size, |shared, address, expected| {
            shared.read(None, address, bytes, expected)
        })
    }

    /// Copies to the mapping, `offset` bytes from its start; a CPU must have write access.
    ///
    /// # Errors
    /// As for [`Vmm::write`]; also if the bytes extend past the mapping.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let size = bytes.len();
        self.run_at(Operation::Write, offset, size, |shared, address, expected| {
            shared.write(None, address, bytes, expected)
        })
    }

    /// Fills a part of the mapping with a 32-bit value, as [`Vmm::fill`] does. `offset` and `size` are
    /// in bytes, multiples of four.
    ///
    /// # Errors
    /// As for [`Vmm::fill`]; also if the bytes extend past the mapping.
    pub fn fill(&self, offset: usize, value: u32, size: usize) -> Result<(), Error> {
        self.run_at(Operation::Fill, offset, size, |shared, address, expected| {
            shared.fill(address, value, size, expected)
        })
    }

    /// Copies from the mapping to the host by an agent, `offset` bytes from the start of the mapping.
    ///
    /// # Errors
    /// As for [`Vmm::copy_to_host`]; also if the bytes extend past the mapping.
    pub fn copy_to_host(
        &self,
        agent: AgentId,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        self.run_at(Operation::CopyToHost, offset, bytes.len(), |shared, source, expected| {
            shared.read(Some(agent), source, bytes, expected)
        })
    }

    /// Copies from the host to the mapping by an agent, `offset` bytes from the start of the mapping.
    ///
    /// # Errors
    /// As for [`Vmm::copy_from_host`]; also if the bytes extend past the mapping.
    pub fn copy_from_host(&self, agent: AgentId, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.run_at(Operation::CopyFromHost, offset, bytes.len(), |shared, address, expected| {
            shared.write(Some(agent), address, bytes, expected)
        })
    }

    /// Calls `act` with the mapping's address while the reservation is locked. Fails if `agent` has less than this
    /// access.
    ///
    /// This method is for HSA calls of the caller, such as a copy on the caller's own queue. `act` must not call an
    /// operation of the library, on any reservation, nor drop a value that unmaps memory or frees addresses. `act` must
    /// also not wait for another thread that calls an operation: both threads could wait forever.
    ///
    /// # Errors
    /// [`Problem::NotGranted`](crate::error::Problem::NotGranted) if the agent has less access; otherwise as for
    /// [`Vmm::read`].
    ///
    /// # Panics
    /// If `act` calls an operation on this reservation or on one at a lower address, or drops a value of one. If `act`
    /// has panicked before, the drop does not panic, but fails as after an error of the runtime: the library logs a
    /// warning, and the memory stays mapped, or the addresses stay reserved.
    pub fn with_access<T>(
        &self,
        agent: AgentId,
        access: Access,
        act: impl FnOnce(Address) -> T,
    ) -> Result<T, Error> {
        self.run(Operation::WithAccess, |shared, expected| {
            shared.agent(agent, Argument::Agent)?;
            let range = self.range();
            shared
                .with_locked(&[range], |guards| {
                    shared.check_granted(guards, range, expected, Some(agent), access)?;
                    Ok(call_closure(self.reservation.address().get(), || act(self.address)))
                })
                .map_err(|error| expected.as_not_mapped(&[range], error))
        })
    }

    /// Exchanges the memory of this mapping with the memory of another mapping of the same size, without copying. Each
    /// mapping keeps its address and its access.
    ///
    /// # Errors
    /// As for [`Vmm::exchange`]; [`Problem::ForeignHandle`](crate::error::Problem::ForeignHandle) if `other` belongs to
    /// another `Vmm`.
    pub fn exchange(&mut self, other: &mut Self) -> Result<(), Error> {
        Self::exchange_many(slice::from_mut(self), slice::from_mut(other))
    }

    /// Moves the mapping to another address, `offset` bytes from the start of `reservation`, without copying the
    /// memory. The access does not change.
    ///
    /// # Errors
    /// As for [`Vmm::relocate`], and if the reservation belongs to another `Vmm`; the error contains the
    /// mapping.
    pub fn relocate(
        mut self,
        reservation: &Reservation,
        offset: usize,
    ) -> Result<Self, Rejected<Self>> {
        let moved = self.run(Operation::Relocate, |shared, expected| {
            self.allocation.handle_of(reservation.vmm())?;
            let destination = reservation.part(offset, self.size)?;
            let serial = Some(reservation.serial());
            let moved = shared.relocate(destination, self.range(), serial, expected);
            // The caller passed an offset, not the destination's address.
            let (argument, base) = (Argument::Destination, reservation.address());
            let serials = moved.map_err(|kind| kind.for_offset(argument, base))?;
            Ok((destination.address(), serials))
        });
        match moved {
            Ok((address, serials)) => {
                self.address = address;
                self.serial = serials.first().copied().unwrap_or(self.serial);
                self.reservation = reservation.clone();
                Ok(self)
            }
            Err(error) => Err(Rejected { value: self, error }),
        }
    }

    /// Unmaps the mapping now (`hipMemUnmap`).
    ///
    /// # Errors
    /// As for [`Vmm::unmap`]; the error contains the mapping. If the addresses were lost, the memory is nevertheless
    /// unmapped ([`check_mapped`](Self::check_mapped) then fails).
    pub fn unmap(mut self) -> Result<(), Rejected<Self>> {
        let unmapped = self.unmap_now();
        // The runtime can have unmapped the memory although the addresses were lost.
        self.unmaps_on_drop = unmapped.is_err() && self.check_mapped().is_ok();
        unmapped.map_err(|error| Rejected { value: self, error })
    }

    /// Checks that the memory is still mapped: a call by address can have unmapped it.
    ///
    /// # Errors
    /// [`Problem::NotMapped`](crate::error::Problem::NotMapped) if it was unmapped; [`ErrorKind::Quarantined`] if the
    /// addresses are quarantined, even if the memory is mapped.
    pub fn check_mapped(&self) -> Result<(), Error> {
        self.run(Operation::CheckMapped, |shared, expected| {
            shared.check_mapped(self.range(), expected)
        })
    }

    pub(crate) fn vmm(&self) -> &Vmm {
        self.reservation.vmm()
    }

    /// Returns the serial, which is unique in the process, unlike the address.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// Fails if the whole reservation is quarantined.
    pub(in crate::vmm) fn check_addresses_usable(&self) -> Result<(), ErrorKind> {
        self.reservation.check_usable()
    }

    pub(in crate::vmm) fn range(&self) -> AddressRange {
        AddressRange { start: self.address.get(), size: self.size }
    }

    /// Runs an operation that expects exactly this mapping.
    fn run<T>(
        &self,
        operation: Operation,
        act: impl FnOnce(&Shared, ExpectedMappings<'_>) -> Result<T, ErrorKind>,
    ) -> Result<T, Error> {
        self.vmm().run(operation, |shared| act(shared, ExpectedMappings::Only(&[self.serial])))
    }

    /// Runs an operation on a part of the mapping. Errors name the offset instead of the address.
    fn run_at<T>(
        &self,
        operation: Operation,
        offset: usize,
        size: usize,
        act: impl FnOnce(&Shared, Address, ExpectedMappings<'_>) -> Result<T, ErrorKind>,
    ) -> Result<T, Error> {
        self.run(operation, |shared, expected| {
            Argument::Offset.check_bounds(offset, size, self.size)?;
            let address = Address::new(self.address.get() + offset);
            act(shared, address, expected)
                .map_err(|kind| kind.for_offset(Argument::Address, self.address))
        })
    }

    fn unmap_now(&self) -> Result<(), Error> {
        self.run(Operation::Unmap, |shared, expected| {
            shared.unmap_and_map(Operation::Unmap, &[self.range()], expected, &mut [])
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.unmaps_on_drop
            && !self.vmm().runtime().has_forked()
            // Tries twice: after a failure that was rolled back, the second call can succeed.
            && let Err(error) = self.unmap_now().or_else(|_| self.unmap_now())
        {
            crate::log::event!(WARN, %error, address = %self.address, "unmapping a dropped mapping failed");
        }
    }
}
