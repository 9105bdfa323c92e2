//! Putting down all that a `Vmm` holds, at one moment.

use super::ledger::{Ledger, MappingRecord, ReservationRecord};
use super::properties::Location;
use super::{Access, Address, Gate, Physical, Shared, Vmm};
use crate::agent::{Agent, Enforcement};
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
            let agents = self.runtime().agents();
            let reservation = |(base, record)| reservation_entry(agents, &ledger, base, record);
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
    agents: &[Agent],
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
            .filter_map(|(start, record)| mapping_entry(agents, ledger, start, &record))
            .collect(),
    }
}

fn mapping_entry(
    agents: &[Agent],
    ledger: &Ledger<Gate, Physical>,
    start: usize,
    record: &MappingRecord,
) -> Option<MappingEntry> {
    let (handle, memory) = ledger.handle_of_slot(record.slot)?;
    let name = ledger.mapping_name(record.serial).or(memory.name.as_ref());
    let access = agents.iter().enumerate().filter_map(|(index, agent)| {
        let access = record.access.get(index);
        let is_only_remembered = agent.enforcement() == Enforcement::Remembered;
        let can_do_more =
            is_only_remembered && record.granted.contains(index) && access != Access::ReadWrite;
        let is_there = access != Access::None || can_do_more;
        is_there.then_some(AccessEntry { agent: index, access, can_do_more })
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
