//! Copies a `Vmm`'s state at one moment: reservations, mappings and physical memory.

use super::ledger::{MappedRange, ReservationSnapshot};
use super::{Access, Address, Handle, Shared, Vmm};
use crate::agent::{Agent, AgentId, Enforcement};
use core::fmt;
use derive_more::Debug;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A reservation.
///
/// ```
/// # use hsa_vmm::{Reservation, Runtime, Vmm};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// # let vmm = Vmm::open(&runtime)?;
/// let cache = Reservation::builder(64 << 20).reserve(&vmm)?.named("cache");
/// let (reservations, _) = vmm.snapshot();
/// assert_eq!(reservations[0].name.as_deref(), Some("cache"));
/// assert!(reservations[0].mappings.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
#[debug("ReservationEntry({address}, {size} bytes, {} mappings)", mappings.len())]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ReservationEntry {
    /// The start address.
    pub address: Address,
    /// The size in bytes.
    pub size: usize,
    /// The name, if the caller has set one.
    pub name: Option<String>,
    /// Whether the reservation is quarantined and never used again; [`Vmm::quarantined_ranges`] lists the reasons.
    pub quarantined: bool,
    /// The mappings in the reservation, by address.
    pub mappings: Vec<MappingEntry>,
}

/// A mapping.
///
/// ```
/// # use hsa_vmm::{Allocation, AllocationProperties, Reservation, Runtime, Vmm};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// # let vmm = Vmm::open(&runtime)?;
/// # let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
/// # let reservation = Reservation::builder(64 << 20).reserve(&vmm)?;
/// # let memory = Allocation::create(&vmm, 2 << 20, &AllocationProperties::on(gpu))?;
/// let mapping = reservation.map(0, &memory)?;
/// let (reservations, _) = vmm.snapshot();
/// assert_eq!(reservations[0].mappings[0].address, mapping.address());
/// assert_eq!(reservations[0].mappings[0].agent, Some(gpu));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MappingEntry {
    /// The start address.
    pub address: Address,
    /// The size in bytes.
    pub size: usize,
    /// Where the mapped part begins in the memory, in bytes.
    pub offset: usize,
    /// The mapping's name, or the memory's name if the mapping has none; `None` if the caller has set neither.
    pub name: Option<String>,
    /// The handle of the mapped memory. [`Vmm::snapshot`] also lists this memory.
    pub memory: Handle,
    /// The agent that owns the memory, if known.
    pub agent: Option<AgentId>,
    /// The agents to which the caller or the runtime has granted access.
    pub access: Vec<AccessEntry>,
}

/// An agent's access to a mapping.
///
/// ```
/// # use hsa_vmm::{Access, Allocation, AllocationProperties, Reservation, Runtime, Vmm};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// # let vmm = Vmm::open(&runtime)?;
/// # let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
/// # let reservation = Reservation::builder(64 << 20).reserve(&vmm)?;
/// # let memory = Allocation::create(&vmm, 2 << 20, &AllocationProperties::on(gpu))?;
/// let mapping = reservation.map(0, &memory)?;
/// mapping.grant(&[gpu], Access::Read)?;
/// let (reservations, _) = vmm.snapshot();
/// let entry = reservations[0].mappings[0].access[0];
/// assert_eq!((entry.agent, entry.access), (gpu, Access::Read));
/// // AMD's runtime maps everything readable and writable for GPUs.
/// assert!(entry.can_do_more);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct AccessEntry {
    /// The agent.
    pub agent: AgentId,
    /// The access that the caller has set.
    pub access: Access,
    /// Whether the agent can read and write although `access` permits less. This is the case if the runtime has
    /// granted a GPU access and the library does not control the GPU's page table. The GPU keeps this ability until
    /// the access is [revoked](Vmm::revoke) or the memory is unmapped.
    pub can_do_more: bool,
}

/// Physical memory.
///
/// ```
/// # use hsa_vmm::{Allocation, AllocationProperties, Runtime, Vmm};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// # let vmm = Vmm::open(&runtime)?;
/// # let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
/// let memory = Allocation::create(&vmm, 2 << 20, &AllocationProperties::on(gpu))?;
/// let (_, entries) = vmm.snapshot();
/// assert_eq!((entries[0].size, entries[0].mappings), (memory.size(), 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemoryEntry {
    /// The handle.
    pub handle: Handle,
    /// The name, if the caller has set one.
    pub name: Option<String>,
    /// The size in bytes.
    pub size: usize,
    /// The agent that owns the memory, if known.
    pub agent: Option<AgentId>,
    /// Whether the memory was imported.
    pub imported: bool,
    /// The number of references that the caller has.
    pub references: u32,
    /// The number of mappings of the memory.
    pub mappings: u32,
}

impl Vmm {
    /// Returns a consistent snapshot of all reservations and mappings, by address, and of all physical memory that is
    /// referenced, mapped or used by an operation in progress.
    ///
    /// Does not wait for the runtime calls of other operations: the snapshot shows the state before an unfinished
    /// operation. Empty in a [forked child](crate::Runtime::has_forked).
    ///
    /// ```
    /// # use hsa_vmm::{Runtime, Vmm};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
    /// # let vmm = Vmm::open(&runtime)?;
    /// let base = vmm.address_reserve(64 << 20, 0, None)?;
    /// let (reservations, memory) = vmm.snapshot();
    /// assert_eq!(reservations[0].address, base);
    /// assert!(memory.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn snapshot(&self) -> (Vec<ReservationEntry>, Vec<MemoryEntry>) {
        let Some(ledger) = self.ledger() else { return Default::default() };
        ledger.reservations.snapshot(|reservations| {
            let to_entry = |it| self.shared.reservation_entry(it);
            let reservations: Vec<ReservationEntry> = reservations.iter().map(to_entry).collect();
            let mut mapped: BTreeMap<Handle, u32> = BTreeMap::new();
            for mapping in reservations.iter().flat_map(|it| &it.mappings) {
                *mapped.entry(mapping.memory).or_default() += 1;
            }
            let memory = ledger.handles.for_each_live(|handle, record| MemoryEntry {
                handle,
                name: record.name.as_deref().map(str::to_owned),
                size: record.size,
                agent: self.shared.owner_id(record.owner),
                imported: record.imported,
                references: record.references,
                mappings: mapped.get(&handle).copied().unwrap_or_default(),
            });
            (reservations, memory)
        })
    }
}

impl Shared {
    /// Logs the reservations and the physical memory that the caller has not freed, except reservations that the caller
    /// cannot free because of a quarantine. Called when the last clone of the `Vmm` is dropped.
    pub(super) fn log_leaks(&self) {
        // Logs after the locks are released: a subscriber may call look-ups of another `Vmm`.
        let mut reservations = Vec::new();
        self.ledger.reservations.snapshot(|all| {
            let usable = all.iter().filter(|it| {
                it.reservation.quarantined().is_none()
                    && it.mappings.check_none_quarantined().is_ok()
            });
            let leaked = usable
                .map(|it| (it.reservation.range(), it.mappings.len(), it.mappings.name.clone()));
            reservations.extend(leaked);
        });
        for (range, mappings, name) in reservations {
            let (address, size, name) = (range.address(), range.size, name.as_deref());
            let name = name.unwrap_or_default();
            crate::log::event!(WARN, %address, size, mappings, name, "a reservation was leaked");
        }
        let mut memory = Vec::new();
        self.ledger.handles.for_each_live(|handle, record| {
            memory.push((handle, record.size, record.references, record.name.clone()));
        });
        for (handle, size, references, name) in memory.into_iter().filter(|it| it.2 > 0) {
            let name = name.as_deref().unwrap_or_default();
            crate::log::event!(WARN, %handle, size, references, name, "physical memory was leaked");
        }
    }

    fn reservation_entry(&self, it: &ReservationSnapshot<'_>) -> ReservationEntry {
        let to_entry = |mapping| self.mapping_entry(&mapping, it.mappings.name_of(mapping.serial));
        ReservationEntry {
            address: it.reservation.range().address(),
            size: it.reservation.size,
            name: it.mappings.name.as_deref().map(str::to_owned),
            quarantined: it.reservation.quarantined().is_some(),
            mappings: it.mappings.iter().map(to_entry).collect(),
        }
    }

    fn mapping_entry(&self, it: &MappedRange, name: Option<&Arc<str>>) -> MappingEntry {
        let name_of_memory =
            || self.ledger.handles.with_live(it.handle, |record| record.name.clone()).flatten();
        let access = self.runtime.agents().iter().enumerate().filter_map(|(index, agent)| {
            let access = it.access.requested.get(index);
            let is_only_recorded = self.enforcement(agent) == Enforcement::Recorded;
            let can_do_more = is_only_recorded
                && it.access.runtime_granted.contains(index)
                && access != Access::ReadWrite;
            let is_listed = access != Access::None || can_do_more;
            is_listed.then_some(AccessEntry { agent: agent.id(), access, can_do_more })
        });
        MappingEntry {
            address: it.range().address(),
            size: it.size,
            offset: it.offset,
            name: name.cloned().or_else(name_of_memory).map(|name| name.to_string()),
            memory: it.handle,
            agent: self.owner_id(it.owner),
            access: access.collect(),
        }
    }

    /// Returns the identifier of the owner with this index.
    pub(super) fn owner_id(&self, index: Option<u8>) -> Option<AgentId> {
        self.runtime.agents().get(usize::from(index?)).map(Agent::id)
    }
}

/// Writes the requested access, followed by any additional access: `rw`, `r (can write)`.
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
