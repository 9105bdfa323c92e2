//! What is held and serves nobody: where to look first for a leak.

use super::{MappingEntry, MemoryEntry, Report, ReservationEntry};
use crate::vmm::Access;

/// Something that is held and serves nobody. It may be about to, or it was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Idle<'a> {
    /// A reservation in which nothing is mapped.
    Reservation(&'a ReservationEntry),
    /// A mapping that no agent may use.
    Mapping(&'a MappingEntry),
    /// Memory that is mapped nowhere.
    Memory(&'a MemoryEntry),
}

impl Report {
    /// Lists what is held and serves nobody.
    #[must_use]
    pub fn idle(&self) -> Vec<Idle<'_>> {
        let in_use = self.reservations.iter().filter(|it| !it.quarantined);
        let empty = in_use.clone().filter(|it| it.mappings.is_empty()).map(Idle::Reservation);
        let nobodys = |it: &&MappingEntry| it.access.iter().all(|it| it.access == Access::None);
        let mappings = in_use.flat_map(|it| &it.mappings).filter(nobodys).map(Idle::Mapping);
        let unmapped = self.memory.iter().filter(|it| it.mappings == 0).map(Idle::Memory);
        empty.chain(mappings).chain(unmapped).collect()
    }
}
