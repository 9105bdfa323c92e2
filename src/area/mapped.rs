//! Physical memory of a GPU, mapped at addresses of its own.

use super::error::Cause;
use super::{AreaError, Operation};
use crate::Kept;
use crate::agent::{Agent, AgentId};
use crate::native::NativeAgent;
use crate::vmm::{
    self, Access, Address, Allocation, AllocationProperties, Granularity, Mapping, Reservation,
    Vmm, VmmError,
};

/// The parts are dropped in this order: unmapped, released, freed.
#[derive(Debug)]
pub(super) struct MappedMemory {
    address: Address,
    /// None after an unmap that could neither be completed nor undone.
    mapping: Option<Mapping>,
    allocation: Allocation,
    /// None if the addresses were given back and the memory could not be.
    reservation: Option<Reservation>,
}

impl MappedMemory {
    /// Reserves, creates, maps and grants. What a failure leaves behind takes itself down.
    pub fn new(
        vmm: &Vmm,
        device: AgentId,
        agents: &[AgentId],
        size: usize,
    ) -> Result<Self, AreaError> {
        let operation = Operation::Mmap;
        let failed = |error| AreaError::of_vmm(operation, error, size);
        let too_large = AreaError::OutOfMemory { operation, size, cause: Cause::TooLarge };
        let whole = size.checked_next_multiple_of(granule(vmm)).ok_or(too_large)?;
        let properties = AllocationProperties::on(device);
        let best =
            vmm.allocation_granularity(&properties, Granularity::Recommended).map_err(failed)?;
        // Not in whole recommended granules, which are 2 MiB: areas hold small things too. But
        // what is large should begin where a large page can.
        let alignment = if whole >= best { best } else { 0 };
        let reservation =
            Reservation::of(whole).aligned_to(alignment).reserve(vmm).map_err(failed)?;
        let allocation = Allocation::create(vmm, whole, &properties).map_err(failed)?;
        let mapping = reservation.map(0, &allocation).map_err(failed)?;
        mapping.grant(agents, Access::ReadWrite).map_err(failed)?;
        let (mapping, address) = (Some(mapping), reservation.address());
        Ok(Self { address, mapping, allocation, reservation: Some(reservation) })
    }

    pub fn address(&self) -> Address {
        self.address
    }

    /// The size in whole granules.
    pub fn whole(&self) -> usize {
        self.allocation.size()
    }

    /// Has an agent use it, while nobody can unmap it.
    pub fn lend<T>(
        &self,
        operation: Operation,
        agent: AgentId,
        act: impl FnOnce(NativeAgent) -> Result<T, AreaError>,
    ) -> Result<T, AreaError> {
        let during = match operation {
            Operation::Read => vmm::Operation::Read,
            Operation::Write => vmm::Operation::Write,
            Operation::Fill => vmm::Operation::Fill,
            _ => vmm::Operation::Copy,
        };
        let cause = Cause::Unmapped;
        let mapping = self.mapping.as_ref().ok_or(AreaError::Failure { operation, cause })?;
        let lent = mapping.lend(during, agent, act);
        lent.unwrap_or_else(|error| Err(AreaError::of_vmm(operation, error, self.whole())))
    }

    /// Unmaps it and gives addresses and memory back. What fails leaves all as it was, for these
    /// agents, as long as the addresses are there.
    pub fn free(mut self, agents: &[AgentId]) -> Result<(), (Self, VmmError)> {
        if let Some(Err(Kept { value: mapping, error })) = self.mapping.take().map(Mapping::unmap) {
            return Err((Self { mapping: Some(mapping), ..self }, error));
        }
        if let Some(Err(Kept { value: reservation, error })) =
            self.reservation.take().map(Reservation::free)
        {
            // The memory is still held, with all that is in it: back to where it was.
            let mapping = reservation.map(0, &self.allocation);
            let granted = match &mapping {
                Ok(mapping) => mapping.grant(agents, Access::ReadWrite),
                Err(error) => Err(*error),
            };
            if let Err(error) = granted {
                crate::log::warning!(%error, address = %self.address, "an area's memory is lost");
            }
            let reservation = Some(reservation);
            return Err((Self { mapping: mapping.ok(), reservation, ..self }, error));
        }
        let Self { address, allocation, .. } = self;
        allocation.release().map_err(|Kept { value: allocation, error }| {
            (Self { address, mapping: None, allocation, reservation: None }, error)
        })
    }
}

/// What reservations of all GPUs' memory are multiples of.
fn granule(vmm: &Vmm) -> usize {
    let pools = vmm.runtime().gpus().filter_map(Agent::handle_pool);
    pools.map(|pool| pool.granule()).max().unwrap_or(1)
}
