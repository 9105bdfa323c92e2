//! Putting down all that a `Vmm` holds, at one moment.

use super::ledger::{Frozen, HandleRecord, Ledger, MappingRecord};
use super::properties::Location;
use super::{Access, Address, Handle, Physical, Shared, Vmm};
use crate::agent::{Agent, Enforcement};
use crate::memory::Registry;
use crate::report::{
    AccessEntry, AgentEntry, MappingEntry, MemoryEntry, QuarantineEntry, Report, ReservationEntry,
};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Vmm {
    /// Reports all that this `Vmm` holds, and the pool memory of its runtime.
    ///
    /// Reservations, mappings and memory are of one moment. Nothing waits for an operation that is
    /// under way in the runtime; what such an operation changes is reported as it was before. In a
    /// [child of a fork](crate::Runtime::has_forked) it lists agents and nothing else.
    #[must_use]
    pub fn report(&self) -> Report {
        let agents = self.runtime().agents();
        let Some(ledger) = self.ledger() else {
            let (reservations, memory) = Default::default();
            let (pool_memory, quarantine) = Default::default();
            let agents = AgentEntry::all(self.runtime());
            return Report { agents, reservations, memory, pool_memory, quarantine };
        };
        let (reservations, memory) = ledger.at_one_moment(|reservations| {
            let entry = |it| reservation_entry(agents, ledger, it);
            let reservations: Vec<ReservationEntry> = reservations.iter().map(entry).collect();
            let mut mapped: BTreeMap<Handle, u32> = BTreeMap::new();
            for mapping in reservations.iter().flat_map(|it| &it.mappings) {
                *mapped.entry(mapping.memory).or_default() += 1;
            }
            let memory = ledger.handles.each(|handle, record| MemoryEntry {
                handle,
                name: record.name.as_deref().map(str::to_owned),
                size: record.size,
                agent: match record.properties.location {
                    Location::Agent(id) => Some(id.index()),
                    Location::Unknown => None,
                },
                imported: record.payload.imported,
                references: record.references(),
                mappings: mapped.get(&handle).copied().unwrap_or_default(),
            });
            (reservations, memory)
        });
        Report {
            agents: AgentEntry::all(self.runtime()),
            reservations,
            memory,
            pool_memory: self.runtime().attachment::<Registry>().entries(),
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
        self.ledger.at_one_moment(|reservations| {
            for it in reservations.iter().filter(|it| !it.reserved.is_quarantined()) {
                let (address, size) = (Address::new(it.reserved.base), it.reserved.size);
                let (mappings, name) = (it.mappings.len(), it.reserved.name());
                let name = name.as_deref().unwrap_or_default();
                crate::log::warning!(%address, size, mappings, name, "a reservation was leaked");
            }
        });
        self.ledger.handles.each(|handle, record| {
            let (size, references) = (record.size, record.references());
            let name = record.name.as_deref().unwrap_or_default();
            if references > 0 {
                crate::log::warning!(%handle, size, references, name, "physical memory was leaked");
            }
        });
    }
}

fn reservation_entry(
    agents: &[Agent],
    ledger: &Ledger<Physical>,
    it: &Frozen<'_>,
) -> ReservationEntry {
    let mappings = it.mappings.iter();
    ReservationEntry {
        address: Address::new(it.reserved.base),
        size: it.reserved.size,
        name: it.reserved.name().as_deref().map(str::to_owned),
        quarantined: it.reserved.is_quarantined(),
        mappings: mappings
            .filter_map(|(start, record)| {
                let name = it.mappings.name(record.serial);
                mapping_entry(agents, ledger, start, &record, name)
            })
            .collect(),
    }
}

fn mapping_entry(
    agents: &[Agent],
    ledger: &Ledger<Physical>,
    start: usize,
    record: &MappingRecord,
    name: Option<&Arc<str>>,
) -> Option<MappingEntry> {
    let memory = |handle, memory: &HandleRecord<Physical>| {
        let name = name.or(memory.name.as_ref()).map(|name| name.to_string());
        (handle, name, memory.properties.location)
    };
    let (handle, name, location) = ledger.handles.named_in_slot(record.slot, memory)?;
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
        name,
        memory: handle,
        agent: match location {
            Location::Agent(id) => Some(id.index()),
            Location::Unknown => None,
        },
        access: access.collect(),
    })
}
