//! Physical memory at an address, unmapped when dropped.

use super::{Allocation, Reservation};
use crate::Kept;
use crate::agent::AgentId;
use crate::native::NativeAgent;
use crate::vmm::ledger::Range;
use crate::vmm::mapping::{Expected, Serial};
use crate::vmm::{
    Access, AccessDescriptor, Address, Argument, Operation, Problem, Refusal, Vmm, VmmError,
};

/// Physical memory mapped at reserved addresses; dropping it unmaps it.
///
/// Reading and writing check what may be touched and can therefore not fault
/// ([memory model](crate::vmm#memory-model)). For everything else there is
/// [`address`](Mapping::address), which dangles once the mapping is gone, as the address of any
/// allocation does.
///
/// A call by address can unmap the range ([`Vmm::unmap`]), and another can map it again. Every
/// method then returns [`Problem::NotMapped`]: it never acts on the new mapping.
#[derive(Debug)]
pub struct Mapping {
    reservation: Reservation,
    allocation: Allocation,
    address: Address,
    size: usize,
    serial: Serial,
    mapped: bool,
}

impl Mapping {
    pub(super) fn new(
        reservation: Reservation,
        allocation: Allocation,
        address: Address,
        size: usize,
        serial: Serial,
    ) -> Self {
        Self { reservation, allocation, address, size, serial, mapped: true }
    }

    /// Names it in reports and logs. One that has been unmapped by its address meanwhile stays as it
    /// is.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let _ = self.vmm().shared.name_mapping(self.address, Some(self.serial.0), name);
        self
    }

    /// Where it begins.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// The addresses it is in.
    #[must_use]
    pub fn reservation(&self) -> &Reservation {
        &self.reservation
    }

    /// The physical memory.
    #[must_use]
    pub fn allocation(&self) -> &Allocation {
        &self.allocation
    }

    /// Says who may do what with it (`hipMemSetAccess`); agents not named keep what they have.
    ///
    /// # Errors
    /// As for [`Vmm::set_access`].
    pub fn set_access(&self, descriptors: &[AccessDescriptor]) -> Result<(), VmmError> {
        self.vmm().only(&[self.serial]).set_access(self.address, self.size, descriptors)
    }

    /// Gives several agents the same access (`hipMemSetAccess`).
    ///
    /// # Errors
    /// As for [`Vmm::set_access`].
    pub fn grant(&self, agents: &[AgentId], access: Access) -> Result<(), VmmError> {
        let descriptors = AccessDescriptor::of_each(agents, access);
        self.set_access(&descriptors)
    }

    /// Really takes it away from agents, GPUs too; the others lose it for a moment.
    ///
    /// # Errors
    /// As for [`Vmm::revoke`].
    pub fn revoke(&self, agents: &[AgentId]) -> Result<(), VmmError> {
        self.vmm().only(&[self.serial]).revoke(self.address, self.size, agents)
    }

    /// Asks what an agent may do with it (`hipMemGetAccess`).
    ///
    /// # Errors
    /// As for [`Vmm::get_access`].
    pub fn access(&self, agent: AgentId) -> Result<Access, VmmError> {
        self.vmm().only(&[self.serial]).access(agent, self.address)
    }

    /// Copies from it, `offset` bytes from its start; a CPU must have been granted to read.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// As for [`Vmm::read`]; also if the bytes reach beyond the mapping.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), VmmError> {
        let address = self.at(Operation::Read, offset, bytes.len())?;
        let read = self.vmm().only(&[self.serial]).read(address, bytes);
        read.map_err(|error| error.about_offset(self.address))
    }

    /// Copies to it, `offset` bytes from its start; a CPU must have been granted to write.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// As for [`Vmm::write`]; also if the bytes reach beyond the mapping.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), VmmError> {
        let address = self.at(Operation::Write, offset, bytes.len())?;
        let written = self.vmm().only(&[self.serial]).write(address, bytes);
        written.map_err(|error| error.about_offset(self.address))
    }

    /// Has the GPU that owns the memory fill a part of it with a 32-bit value. `offset` and `size`
    /// are in bytes, multiples of four.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// As for [`Vmm::fill`]; also if the bytes reach beyond the mapping.
    pub fn fill(&self, offset: usize, value: u32, size: usize) -> Result<(), VmmError> {
        let address = self.at(Operation::Fill, offset, size)?;
        let filled = self.vmm().only(&[self.serial]).fill(address, value, size);
        filled.map_err(|error| error.about_offset(self.address))
    }

    /// Exchanges the memory with another mapping's of the same size, without copying it. Each keeps
    /// its address, and who may use it there.
    ///
    /// # Errors
    /// As for [`Vmm::exchange`]; [`Problem::ForeignHandle`] if the other is another `Vmm`'s.
    pub fn exchange(&mut self, other: &mut Self) -> Result<(), VmmError> {
        let operation = Operation::Exchange;
        other.allocation.handle_of(operation, self.vmm())?;
        let shared = &self.vmm().shared;
        shared.alive(operation)?;
        if self.size != other.size {
            let refusal = Refusal::new(Argument::Source, Problem::CutDifferently);
            return Err(refusal.during(operation));
        }
        let serials = [self.serial, other.serial];
        let expected = (Expected::Only(&serials[..1]), Expected::Only(&serials[1..]));
        shared.exchange(self.range(), other.range(), expected)?;
        core::mem::swap(&mut self.allocation, &mut other.allocation);
        Ok(())
    }

    /// Moves it to other addresses without copying the memory, `offset` bytes from the start of a
    /// reservation. Who may use it does not change.
    ///
    /// # Errors
    /// As for [`Vmm::relocate`], and if the reservation is another `Vmm`'s; the mapping comes back
    /// with the error.
    pub fn relocate(
        mut self,
        reservation: &Reservation,
        offset: usize,
    ) -> Result<Self, Kept<Self, VmmError>> {
        match self.move_to(reservation, offset) {
            Ok(address) => {
                self.address = address;
                self.reservation = reservation.clone();
                Ok(self)
            }
            Err(error) => Err(Kept::new(self, error)),
        }
    }

    fn move_to(&self, reservation: &Reservation, offset: usize) -> Result<Address, VmmError> {
        let operation = Operation::Relocate;
        self.allocation.handle_of(operation, reservation.vmm())?;
        let shared = &self.vmm().shared;
        shared.alive(operation)?;
        let to = reservation.part(operation, offset, self.size)?;
        shared
            .relocate(to, self.range(), Some((reservation.serial(), self.serial)))
            .map_err(|error| error.of_destination().about_offset(reservation.address()))?;
        Ok(Address::new(to.start))
    }

    /// Has an agent that may read and write all of it use it, while nobody can change what is here.
    pub(crate) fn lend<T>(
        &self,
        operation: Operation,
        agent: AgentId,
        act: impl FnOnce(NativeAgent) -> T,
    ) -> Result<T, VmmError> {
        let serials = [self.serial];
        self.vmm().lend(operation, self.range(), agent, Expected::Only(&serials), act)
    }

    /// Unmaps it now, and says whether that worked (`hipMemUnmap`).
    ///
    /// # Errors
    /// As for [`Vmm::unmap`]; the mapping comes back with the error.
    pub fn unmap(mut self) -> Result<(), Kept<Self, VmmError>> {
        match self.take_down() {
            Ok(()) => {
                self.mapped = false;
                Ok(())
            }
            Err(error) => Err(Kept::new(self, error)),
        }
    }

    /// Unmaps mappings that follow each other in one reservation: all of them, or none
    /// (`hipMemUnmap`). They may be listed in any order; none at all is no error.
    ///
    /// # Errors
    /// As for [`Vmm::unmap`], also if there is a gap between them; they come back with the error,
    /// by address.
    pub fn unmap_run(mut run: Vec<Self>) -> Result<(), Kept<Vec<Self>, VmmError>> {
        run.sort_unstable_by_key(Self::address);
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(()) };
        let operation = Operation::Unmap;
        let shared = &first.vmm().shared;
        let start = first.address.get();
        let range = Range { start, size: last.address.get() - start + last.size };
        let serials: Vec<Serial> = run.iter().map(|mapping| mapping.serial).collect();
        let unmapped = shared
            .alive(operation)
            .and_then(|()| shared.unmap(operation, range, Expected::Only(&serials)));
        if let Err(error) = unmapped {
            return Err(Kept::new(run, error));
        }
        run.iter_mut().for_each(|mapping| mapping.mapped = false);
        Ok(())
    }

    /// Which mapping it is, whatever is mapped at its address by now.
    pub(crate) fn serial(&self) -> Serial {
        self.serial
    }

    pub(crate) fn vmm(&self) -> &Vmm {
        self.reservation.vmm()
    }

    fn range(&self) -> Range {
        Range { start: self.address.get(), size: self.size }
    }

    /// The address at an offset, if `size` bytes from there are inside.
    fn at(&self, operation: Operation, offset: usize, size: usize) -> Result<Address, VmmError> {
        let problem = Problem::BeyondEnd { offset, size, end: self.size };
        let beyond = || Refusal::new(Argument::Offset, problem).during(operation);
        match offset.checked_add(size) {
            Some(end) if end <= self.size => self.address.checked_add(offset).ok_or_else(beyond),
            _ => Err(beyond()),
        }
    }

    fn take_down(&self) -> Result<(), VmmError> {
        let operation = Operation::Unmap;
        let shared = &self.vmm().shared;
        shared.alive(operation)?;
        shared.unmap(operation, self.range(), Expected::Only(&[self.serial]))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.mapped
            && !self.vmm().runtime().has_forked()
            && let Err(error) = self.take_down()
        {
            crate::log::warning!(%error, address = %self.address, "a mapping was not unmapped");
        }
    }
}
