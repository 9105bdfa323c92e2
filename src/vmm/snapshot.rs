//! Copies a `Vmm`'s state at one moment: reservations, mappings and physical memory.

use super::ledger::{Frozen, HandleRecord, Ledger, MappingRecord};
use super::properties::Location;
use super::{Access, Address, Handle, Physical, Shared, Vmm};
use crate::agent::{Agent, AgentId, Enforcement};
use core::fmt;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The reservations, mappings and physical memory of a [`Vmm`] at one moment.
///
/// Plain data that borrows nothing. Sizes are in bytes.
///
/// ```
/// # use hsa_vmm::{Runtime, Vmm};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// # let vmm = Vmm::open(&runtime)?;
/// let base = vmm.address_reserve(64 << 20, 0, None)?;
/// let snapshot = vmm.snapshot();
/// assert_eq!(snapshot.reservations[0].address, base);
/// assert!(snapshot.memory.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Reservations and the mappings in them, by address.
    pub reservations: Vec<ReservationEntry>,
    /// Physical memory that is referenced or mapped.
    pub memory: Vec<MemoryEntry>,
}

/// A reservation.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ReservationEntry {
    /// Where it begins.
    pub address: Address,
    /// Its size.
    pub size: usize,
    /// Its name, if the caller has set one.
    pub name: Option<String>,
    /// Whether it is never used again; [`Vmm::quarantine`] says why.
    pub quarantined: bool,
    /// The mappings in it, by address.
    pub mappings: Vec<MappingEntry>,
}

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MappingEntry {
    /// Where it begins.
    pub address: Address,
    /// Its size.
    pub size: usize,
    /// Its name, or else that of its memory, if the caller has set one.
    pub name: Option<String>,
    /// The handle of its memory: one of [`Snapshot::memory`].
    pub memory: Handle,
    /// The agent whose memory it is, if known.
    pub agent: Option<AgentId>,
    /// The agents that may access it, and those that may not although the runtime has granted them
    /// access.
    pub access: Vec<AccessEntry>,
}

/// An agent's access to a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct AccessEntry {
    /// The agent.
    pub agent: AgentId,
    /// The access that the caller has set.
    pub access: Access,
    /// Whether the agent can do more than that: the runtime has granted this GPU access, which
    /// includes reading and writing until the memory is [revoked](Vmm::revoke) or unmapped.
    pub can_do_more: bool,
}

/// Physical memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemoryEntry {
    /// Its handle.
    pub handle: Handle,
    /// Its name, if the caller has set one.
    pub name: Option<String>,
    /// Its size.
    pub size: usize,
    /// The agent whose memory it is, if known.
    pub agent: Option<AgentId>,
    /// Whether it was imported.
    pub imported: bool,
    /// The number of references that the caller has.
    pub references: u32,
    /// The number of mappings of it.
    pub mappings: u32,
}

impl Vmm {
    /// Returns all reservations, mappings and physical memory of this `Vmm` at one moment.
    ///
    /// Does not wait for operations that are in progress in the runtime; what they change is
    /// returned as it was before. Empty in a [child of a fork](crate::Runtime::has_forked).
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let agents = self.runtime().agents();
        let Some(ledger) = self.ledger() else { return Snapshot::default() };
        ledger.reservations.snapshot(|reservations| {
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
                agent: owner(record.properties.location),
                imported: record.payload.imported,
                references: record.references,
                mappings: mapped.get(&handle).copied().unwrap_or_default(),
            });
            Snapshot { reservations, memory }
        })
    }
}

impl Shared {
    /// Logs what the caller has not freed when the last clone of the `Vmm` is dropped.
    pub(super) fn log_leaks(&self) {
        self.ledger.reservations.snapshot(|reservations| {
            for it in reservations.iter().filter(|it| it.reservation.quarantined().is_none()) {
                let (address, size) = (Address::new(it.reservation.base), it.reservation.size);
                let (mappings, name) = (it.mappings.len(), &it.mappings.name);
                let name = name.as_deref().unwrap_or_default();
                crate::log::warning!(%address, size, mappings, name, "a reservation was leaked");
            }
        });
        self.ledger.handles.each(|handle, record| {
            let (size, references) = (record.size, record.references);
            let name = record.name.as_deref().unwrap_or_default();
            if references > 0 {
                crate::log::warning!(%handle, size, references, name, "physical memory was leaked");
            }
        });
    }
}

fn owner(location: Location) -> Option<AgentId> {
    match location {
        Location::Agent(id) => Some(id),
        Location::Unknown => None,
    }
}

fn reservation_entry(
    agents: &[Agent],
    ledger: &Ledger<Physical>,
    it: &Frozen<'_>,
) -> ReservationEntry {
    let mappings = it.mappings.iter();
    ReservationEntry {
        address: Address::new(it.reservation.base),
        size: it.reservation.size,
        name: it.mappings.name.as_deref().map(str::to_owned),
        quarantined: it.reservation.quarantined().is_some(),
        mappings: mappings
            .filter_map(|(start, record)| {
                let name = it.mappings.name_of(record.serial);
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
    let handle = record.handle;
    let memory = |memory: &mut HandleRecord<Physical>| {
        let name = name.or(memory.name.as_ref()).map(|name| name.to_string());
        (name, memory.properties.location)
    };
    let (name, location) = ledger.handles.with_live(handle, memory)?;
    let access = agents.iter().enumerate().filter_map(|(index, agent)| {
        let access = record.access.requested.get(index);
        let is_only_remembered = agent.enforcement() == Enforcement::Remembered;
        let can_do_more = is_only_remembered
            && record.access.runtime_granted.contains(index)
            && access != Access::ReadWrite;
        let is_listed = access != Access::None || can_do_more;
        is_listed.then_some(AccessEntry { agent: agent.id(), access, can_do_more })
    });
    Some(MappingEntry {
        address: Address::new(start),
        size: record.size,
        name,
        memory: handle,
        agent: owner(location),
        access: access.collect(),
    })
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reservations, memory } = self;
        f.debug_struct("Snapshot")
            .field("reservations", &reservations.len())
            .field("memory", &memory.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ReservationEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, size, name, quarantined, mappings } = self;
        f.debug_struct("ReservationEntry")
            .field("address", address)
            .field("size", size)
            .field("name", name)
            .field("quarantined", quarantined)
            .field("mappings", &mappings.len())
            .finish()
    }
}

/// What the agent may do, and what it can do beyond that: `rw`, `r (can write)`.
impl fmt::Display for AccessEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.access, self.can_do_more) {
            (Access::ReadWrite, _) => "rw",
            (Access::Read, false) => "r",
            (Access::Read, true) => "r (can write)",
            (Access::None, true) => "none (can read and write)",
            (Access::None, false) => "none",
        })
    }
}
