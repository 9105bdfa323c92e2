//! What is at an address. Nothing is in a child of a fork, whose parent may hold the locks.

use super::ledger::{Ledger, Reserved};
use super::{Access, Address, Location, MappingInfo, Physical, Vmm};

impl Vmm {
    /// The mapping that holds an address, if one does (`hipPointerGetAttributes`,
    /// `hipMemGetAddressRange`).
    #[must_use]
    pub fn mapping_at(&self, address: Address) -> Option<MappingInfo> {
        let (start, record) = self.ledger()?.mapping_at(address.get())?;
        Some(self.describe(start, &record))
    }

    /// Start and size in bytes of the mapping that holds an address, if one does
    /// (`hipMemGetAddressRange`): [`mapping_at`](Self::mapping_at) without who may use it, and without
    /// allocating.
    #[must_use]
    pub fn mapped_range_at(&self, address: Address) -> Option<(Address, usize)> {
        let (start, record) = self.ledger()?.mapping_at(address.get())?;
        Some((Address::new(start), record.size))
    }

    /// Whose memory is mapped at an address, if any is.
    #[must_use]
    pub fn location_at(&self, address: Address) -> Option<Location> {
        let ledger = self.ledger()?;
        let owner = ledger.at(address.get(), |reserved| {
            let mappings = reserved.mappings();
            let slot = mappings.slot_at(address.get())?;
            ledger.handles.in_slot(slot, |record| record.payload.owner)
        })??;
        let agent = owner.and_then(|owner| self.runtime().agents().get(owner));
        Some(agent.map_or(Location::Unknown, |agent| Location::Agent(agent.id())))
    }

    /// Start and size in bytes of the reservation that holds an address, if one does.
    #[must_use]
    pub fn reservation_at(&self, address: Address) -> Option<(Address, usize)> {
        let place = |reserved: &Reserved| (Address::new(reserved.base), reserved.size);
        self.ledger()?.at(address.get(), place)
    }

    /// The ledger; `None` in a child of a fork.
    pub(super) fn ledger(&self) -> Option<&Ledger<Physical>> {
        (!self.runtime().has_forked()).then_some(&self.shared.ledger)
    }

    pub(super) fn describe(
        &self,
        start: usize,
        record: &super::ledger::MappingRecord,
    ) -> MappingInfo {
        let agents = self.runtime().agents().iter().enumerate();
        let access = agents
            .map(|(index, agent)| (agent.id(), record.access.get(index)))
            .filter(|&(_, access)| access != Access::None)
            .collect();
        MappingInfo { address: Address::new(start), size: record.size, access }
    }
}
