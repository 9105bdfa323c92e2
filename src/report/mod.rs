//! Reports reservations, mappings and memory, as text and as data.
//!
//! [`Vmm::report`] lists all reservations, mappings and memory of a [`Vmm`]. The [`Report`] is plain data without
//! references. It can be displayed as text and, with the feature `serde`, serialised. The function `picture::draw` of
//! the crate `hsa-vmm-conformance` draws a report as SVG. The command `hsa-vmm map` reports on recorded traces, not on
//! a running program.
//!
//! ```
//! # use hsa_vmm::{Allocation, AllocationProperties, Reservation, Runtime, Vmm};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
//! # let vmm = Vmm::open(&runtime)?;
//! # let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
//! let cache = Reservation::builder(64 << 20).reserve(&vmm)?.named("kv cache");
//! let page = Allocation::create(&vmm, 2 << 20, &AllocationProperties::on(gpu))?.named("page 0");
//! let mapping = cache.map(0, &page)?;
//!
//! let report = vmm.report();
//! assert_eq!(report.reservations[0].name.as_deref(), Some("kv cache"));
//! assert_eq!(report.reservations[0].free_space().largest, 62 << 20);
//! assert!(report.to_string().contains("62 MiB free"));
//! // Mapped, but no agent has access yet.
//! assert!(matches!(report.idle()[..], [hsa_vmm::report::IdleItem::Mapping(_)]));
//! # Ok(())
//! # }
//! ```
//!
//! The report lists the reservations and mappings of [buffers](crate::buffer). To name a buffer, name its reservation:
//! `vmm.name_reservation(buffer.address(), "kv cache")`.
//!
//! Dropping the last clone of the `Vmm` frees all remaining reservations and handles, and logs each of them as leaked
//! (`tracing`, level `WARN`). Owned values, such as [`Reservation`](crate::Reservation), keep the `Vmm` alive, so their
//! reservations and handles are never logged as leaked.

mod text;

pub use crate::vmm::{AccessEntry, MappingEntry, MemoryEntry, ReservationEntry};
pub use text::Size;

use crate::agent::AgentKind;
use crate::error::Quarantined;
use crate::memory::PoolMemoryInfo;
use crate::vmm::{Access, Vmm};
use derive_more::Debug;

/// The reservations, mappings and memory of a [`Vmm`], and the pool memory of its runtime. Sizes are in bytes.
///
/// In serialised form, addresses and handles are hexadecimal text, and agents are indices in [`agents`](Self::agents).
#[derive(Clone, Debug, Eq, PartialEq)]
#[debug("Report({} reservations, {} memory, {} pool memory, {} quarantined)", reservations.len(), memory.len(), pool_memory.len(), quarantine.len())]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Report {
    /// The agents, in the runtime's order.
    pub agents: Vec<AgentEntry>,
    /// Reservations and the mappings in them, by address.
    pub reservations: Vec<ReservationEntry>,
    /// Physical memory that is referenced or mapped.
    pub memory: Vec<MemoryEntry>,
    /// Pool memory, by address.
    pub pool_memory: Vec<PoolMemoryInfo>,
    /// Quarantined ranges and memory. The library never uses them again.
    pub quarantine: Vec<Quarantined>,
}

/// An agent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct AgentEntry {
    /// The agent's kind and number, as [`AgentId`](crate::AgentId) displays them: `GPU 0` is HIP's device 0.
    pub label: String,
    /// The marketing name.
    pub name: String,
    /// Whether the agent is a GPU.
    pub is_gpu: bool,
}

/// The free space of a reservation. A gap is a part in which nothing is mapped. It stays reserved, unlike an
/// address-space hole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct FreeSpace {
    /// The size of all gaps together.
    pub size: usize,
    /// The size of the largest gap.
    pub largest: usize,
    /// The number of gaps.
    pub gaps: usize,
}

/// A part of a reservation: a gap, or adjacent mappings with equal sizes, owners, names and access.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ReservationPart<'a> {
    /// The offset from the start of the reservation.
    pub offset: usize,
    /// The size of the whole part.
    pub size: usize,
    /// The number of mappings; 1 for a gap.
    pub count: usize,
    /// The first mapping; `None` for a gap.
    pub mapping: Option<&'a MappingEntry>,
}

/// A reservation, mapping or memory that is not in use: it was leaked, or is not used yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IdleItem<'a> {
    /// A reservation in which nothing is mapped.
    Reservation(&'a ReservationEntry),
    /// A mapping for which the caller requested no access. A GPU can still have access ([`AccessEntry::can_do_more`]).
    Mapping(&'a MappingEntry),
    /// Memory that is not mapped.
    Memory(&'a MemoryEntry),
}

impl Vmm {
    /// Reports the reservations, mappings and memory of this `Vmm`, and the pool memory of its runtime.
    ///
    /// Reservations, mappings and memory show the state at one moment ([`Vmm::snapshot`]). In a
    /// [forked child](crate::Runtime::has_forked) the report contains only agents.
    pub fn report(&self) -> Report {
        let runtime = self.runtime();
        let (reservations, memory) = self.snapshot();
        let agents = runtime.agents().iter().map(|agent| AgentEntry {
            label: agent.id().to_string(),
            name: agent.product.clone(),
            is_gpu: agent.kind() == AgentKind::Gpu,
        });
        Report {
            agents: agents.collect(),
            reservations,
            memory,
            pool_memory: runtime.pool_memory(),
            quarantine: self.quarantined_ranges(),
        }
    }
}

impl Report {
    /// Returns whether nothing is reserved, allocated or quarantined.
    pub fn is_empty(&self) -> bool {
        self.reservations.is_empty()
            && self.memory.is_empty()
            && self.pool_memory.is_empty()
            && self.quarantine.is_empty()
    }

    /// Lists the reservations, mappings and memory that are not in use. Omits quarantined reservations and mappings.
    pub fn idle(&self) -> Vec<IdleItem<'_>> {
        let usable = self.reservations.iter().filter(|it| !it.quarantined);
        let empty = usable.clone().filter(|it| it.mappings.is_empty()).map(IdleItem::Reservation);
        let is_idle = |it: &&MappingEntry| {
            it.access.iter().all(|it| it.access == Access::None)
                // A retire queue quarantines single mappings.
                && !self.quarantine.iter().any(|quarantined| quarantined.address == it.address)
        };
        let mappings = usable.flat_map(|it| &it.mappings).filter(is_idle).map(IdleItem::Mapping);
        let unmapped = self.memory.iter().filter(|it| it.mappings == 0).map(IdleItem::Memory);
        empty.chain(mappings).chain(unmapped).collect()
    }
}

impl ReservationEntry {
    /// Returns the number of mapped bytes.
    pub fn mapped_size(&self) -> usize {
        self.mappings.iter().map(|mapping| mapping.size).sum()
    }

    /// Returns the number and sizes of the gaps.
    pub fn free_space(&self) -> FreeSpace {
        let mut free = FreeSpace::default();
        for part in self.parts().iter().filter(|part| part.mapping.is_none()) {
            free.size += part.size;
            free.largest = free.largest.max(part.size);
            free.gaps += 1;
        }
        free
    }

    /// Returns the parts of the reservation, by address. Similar adjacent mappings are one part.
    pub fn parts(&self) -> Vec<ReservationPart<'_>> {
        let mut parts: Vec<ReservationPart<'_>> = Vec::new();
        let mut end = 0;
        let gap = |start, end: usize| ReservationPart {
            offset: start,
            size: end - start,
            count: 1,
            mapping: None,
        };
        for mapping in &self.mappings {
            let offset = mapping.address.get().saturating_sub(self.address.get());
            if offset > end {
                parts.push(gap(end, offset));
            }
            match parts.last_mut() {
                Some(last) if last.mapping.is_some_and(|first| is_similar(first, mapping)) => {
                    last.size += mapping.size;
                    last.count += 1;
                }
                _ => parts.push(ReservationPart {
                    offset,
                    size: mapping.size,
                    count: 1,
                    mapping: Some(mapping),
                }),
            }
            end = offset + mapping.size;
        }
        if end < self.size {
            parts.push(gap(end, self.size));
        }
        parts
    }
}

fn is_similar(first: &MappingEntry, second: &MappingEntry) -> bool {
    (first.size, first.agent) == (second.size, second.agent)
        && first.name == second.name
        && first.access == second.access
}

impl FreeSpace {
    /// Returns the share of the free bytes outside the largest gap, in percent; 0 if there is only one gap.
    pub fn fragmentation(&self) -> u32 {
        // The fields are public, so a caller can set `largest` to more than `size`.
        let scattered = self.size.saturating_sub(self.largest) as u128;
        // At most 100.
        (scattered * 100).checked_div(self.size as u128).unwrap_or_default() as u32
    }
}

#[cfg(feature = "serde")]
mod serialised {
    use crate::agent::AgentId;
    use crate::error::Operation;
    use crate::vmm::{Address, Handle};
    use serde::{Serialize, Serializer};

    macro_rules! as_text {
        ($($type:ty),+) => {$(
            impl Serialize for $type {
                fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                    to.collect_str(self)
                }
            }
        )+};
    }

    as_text!(Address, Handle, Operation);

    /// Serialises an agent as its index in [`Report::agents`](super::Report::agents).
    impl Serialize for AgentId {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            to.serialize_u64(self.index() as u64)
        }
    }
}
