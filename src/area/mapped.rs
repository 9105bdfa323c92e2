//! Physical memory of a GPU, mapped at reserved addresses.

use crate::agent::{Agent, AgentId};
use crate::error::{Argument, Error, ErrorKind, Problem};
use crate::vmm::{
    Access, Address, Allocation, AllocationProperties, Granularity, Mapping, Reservation, Vmm,
};

/// Mapped memory. The fields are dropped in this order: unmapped, released, freed.
pub(super) struct MappedMemory {
    /// None if it was unmapped, but not all of it could be freed.
    mapping: Option<Mapping>,
    /// None if it was freed.
    allocation: Option<Allocation>,
    /// None if the addresses were freed, but not the memory.
    reservation: Option<Reservation>,
}

impl MappedMemory {
    /// Reserves, creates, maps and grants. Returns the address, too.
    pub fn new(
        vmm: &Vmm,
        device: AgentId,
        agents: &[AgentId],
        size: usize,
    ) -> Result<(Self, Address), ErrorKind> {
        // A size that cannot be rounded up is more memory than there is, which the reservation says.
        let granule = granule(vmm);
        let size = size.checked_next_multiple_of(granule).unwrap_or(usize::MAX / granule * granule);
        let properties = AllocationProperties::on(device);
        let best = vmm
            .allocation_granularity(&properties, Granularity::Recommended)
            .map_err(Error::into_kind)?;
        // Sizes are not rounded up to the recommended granularity, 2 MiB, because areas hold small
        // objects, too. Large ones start where a large page can.
        let alignment = if size >= best { best } else { 0 };
        let reservation = Reservation::builder(size)
            .aligned_to(alignment)
            .reserve(vmm)
            .map_err(Error::into_kind)?;
        let allocation = Allocation::create(vmm, size, &properties).map_err(Error::into_kind)?;
        let mapping = reservation.map(0, &allocation).map_err(Error::into_kind)?;
        mapping.grant(agents, Access::ReadWrite).map_err(Error::into_kind)?;
        let address = reservation.address();
        let (mapping, reservation) = (Some(mapping), Some(reservation));
        Ok((Self { mapping, allocation: Some(allocation), reservation }, address))
    }

    /// The size in whole granules.
    pub fn allocated_size(&self) -> usize {
        self.allocation.as_ref().map_or(0, Allocation::size)
    }

    /// Calls `act` if the agent can read and write all of it, and keeps it so meanwhile. `at` is the
    /// address.
    pub fn while_mapped<T>(
        &self,
        at: Address,
        agent: AgentId,
        act: impl FnOnce() -> T,
    ) -> Result<T, ErrorKind> {
        let not_mapped = ErrorKind::invalid(Argument::Address, at, Problem::NotMapped { at });
        let mapping = self.mapping.as_ref().ok_or(not_mapped)?;
        // The area's operation replaces this one.
        mapping.with_access(agent, Access::ReadWrite, |_| act()).map_err(Error::into_kind)
    }

    /// Unmaps it and frees addresses and memory. A failure leaves it mapped for these agents, or partly
    /// freed.
    pub fn free(&mut self, agents: &[AgentId]) -> Result<(), ErrorKind> {
        if let Some(Err(rejected)) = self.mapping.take().map(Mapping::unmap) {
            self.mapping = Some(rejected.value);
            return Err(rejected.error.into_kind());
        }
        if let Some(Err(rejected)) = self.reservation.take().map(Reservation::free) {
            let reservation = self.reservation.insert(rejected.value);
            // The memory is still allocated, with its contents: it is mapped again where it was.
            let restored = self.allocation.as_ref().map_or(Ok(()), |allocation| {
                let mapping = self.mapping.insert(reservation.map(0, allocation)?);
                mapping.grant(agents, Access::ReadWrite)
            });
            return Err(match restored {
                Ok(()) => rejected.error.into_kind(),
                Err(error) => {
                    let address = reservation.address();
                    crate::log::warning!(%error, %address, "an area was not restored");
                    ErrorKind::PartlyFreed(Box::new(rejected.error))
                }
            });
        }
        if let Some(Err(rejected)) = self.allocation.take().map(Allocation::release) {
            self.allocation = Some(rejected.value);
            return Err(ErrorKind::PartlyFreed(Box::new(rejected.error)));
        }
        Ok(())
    }
}

/// The granule of reservations that all GPUs' memory can be mapped in.
fn granule(vmm: &Vmm) -> usize {
    let pools = vmm.runtime().gpus().filter_map(Agent::handle_pool);
    pools.map(|pool| pool.granule()).max().unwrap_or(1)
}
