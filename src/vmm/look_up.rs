//! What is at an address.

use super::{Access, Address, Location, MappingInfo, Vmm};

impl Vmm {
    /// The mapping that holds an address, if one does (`hipPointerGetAttributes`,
    /// `hipMemGetAddressRange`).
    #[must_use]
    pub fn mapping_at(&self, address: Address) -> Option<MappingInfo> {
        let ledger = self.shared.ledger();
        let (start, record) = ledger.mapping_at(address.get())?;
        Some(self.describe(start, &record))
    }

    /// Whose memory is mapped at an address, if any is.
    #[must_use]
    pub fn location_at(&self, address: Address) -> Option<Location> {
        let ledger = self.shared.ledger();
        let (_, record) = ledger.mapping_at(address.get())?;
        let owner = ledger.handle_in(record.slot)?.payload.owner;
        let agent = owner.and_then(|owner| self.runtime().agents().get(owner));
        Some(agent.map_or(Location::Unknown, |agent| Location::Agent(agent.id())))
    }

    /// Start and size in bytes of the reservation that holds an address, if one does.
    #[must_use]
    pub fn reservation_at(&self, address: Address) -> Option<(Address, usize)> {
        let ledger = self.shared.ledger();
        let (base, record) = ledger.reservation_at(address.get())?;
        Some((Address::new(base), record.size))
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
