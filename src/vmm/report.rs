//! Putting down all that a `Vmm` holds, at one moment.

use super::ledger::{Ledger, MappingRecord, ReservationRecord};
use super::properties::Location;
use super::{Access, Address, Gate, Physical, Shared, Vmm};
use crate::report::{
    AccessEntry, AgentEntry, MappingEntry, MemoryEntry, QuarantineEntry, Report, ReservationEntry,
};

impl Vmm {
    /// Reports all that this `Vmm` holds, and the pool memory of its runtime.
    ///
    /// Reservations, mappings and memory are of one moment. Nothing waits for an operation that is
    /// under way in the runtime; what such an operation changes is reported as it was before. In the
    /// child of a fork it is what the parent held.
    #[must_use]
    pub fn report(&self) -> Report {
        let (reservations, memory) = {
            let ledger = self.shared.ledger();
            let reservation = |(base, record)| reservation_entry(&ledger, base, record);
            let memory = ledger.handles().map(|(handle, record)| MemoryEntry {
                handle,
                name: record.name.as_deref().map(str::to_owned),
                size: record.size,
                agent: match record.properties.location {
                    Location::Agent(id) => Some(id.index()),
                    Location::Unknown => None,
                },
                imported: record.payload.imported,
                references: record.references(),
                mappings: record.mappings(),
            });
            (ledger.reservations().map(reservation).collect(), memory.collect())
        };
        Report {
            agents: AgentEntry::all(self.runtime()),
            reservations,
            memory,
            pool_memory: self.runtime().memory().entries(),
            quarantine: self
                .quarantine()
                .into_iter()
                .map(|entry| QuarantineEntry {
                    address: entry.address,
                    size: entry.size,
                    operation: entry.operation.to_string(),
                    reason: entry.reason,
                })
                .collect(),
        }
    }
}

impl Shared {
    /// Names in the log what the caller has not given back by the end.
    pub(super) fn tell_leaks(&self) {
        let ledger = self.ledger();
        for (base, record) in ledger.reservations().filter(|(_, record)| !record.quarantined) {
            let (address, size, mappings) = (Address::new(base), record.size, record.mappings);
            let name = record.name.as_deref().unwrap_or_default();
            tracing::warn!(%address, size, mappings, name, "a reservation was leaked");
        }
        for (handle, record) in ledger.handles().filter(|(_, record)| record.references() > 0) {
            let (size, references) = (record.size, record.references());
            let name = record.name.as_deref().unwrap_or_default();
            tracing::warn!(%handle, size, references, name, "physical memory was leaked");
        }
    }
}

fn reservation_entry(
    ledger: &Ledger<Gate, Physical>,
    base: usize,
    record: &ReservationRecord<Gate>,
) -> ReservationEntry {
    let range = super::Range { start: base, size: record.size };
    ReservationEntry {
        address: Address::new(base),
        size: record.size,
        name: record.name.as_deref().map(str::to_owned),
        quarantined: record.quarantined,
        mappings: ledger
            .mappings_in(range)
            .filter_map(|(start, record)| mapping_entry(ledger, start, record))
            .collect(),
    }
}

fn mapping_entry(
    ledger: &Ledger<Gate, Physical>,
    start: usize,
    record: &MappingRecord,
) -> Option<MappingEntry> {
    let (handle, memory) = ledger.handle_of_slot(record.slot)?;
    let name = ledger.mapping_name(record.serial).or(memory.name.as_ref());
    let access = (0..super::MOST_AGENTS).filter_map(|agent| {
        let (access, reaches) = (record.access.get(agent), record.granted.contains(agent));
        (access != Access::None || reaches).then_some(AccessEntry { agent, access, reaches })
    });
    Some(MappingEntry {
        address: Address::new(start),
        size: record.size,
        name: name.map(|name| name.to_string()),
        memory: handle,
        agent: match memory.properties.location {
            Location::Agent(id) => Some(id.index()),
            Location::Unknown => None,
        },
        access: access.collect(),
    })
}
