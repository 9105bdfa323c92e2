//! What is reserved, mapped and held: for people, for programs, and as a picture.
//!
//! [`Vmm::report`](crate::Vmm::report) puts down all that a [`Vmm`](crate::Vmm) holds at one
//! moment. The [`Report`] is plain data that borrows nothing: it prints itself as text, draws itself
//! ([`Report::to_svg`]), and is serialisable with the feature `serde`.
//!
//! ```
//! # use hsa_vmm::{Allocation, AllocationProperties, Reservation, Runtime, Vmm};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
//! # let vmm = Vmm::open(&runtime)?;
//! # let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
//! let cache = Reservation::of(64 << 20).reserve(&vmm)?.named("kv cache");
//! let page = Allocation::create(&vmm, 2 << 20, &AllocationProperties::on(gpu))?.named("page 0");
//! let mapping = cache.map(0, &page)?;
//!
//! let report = vmm.report();
//! assert_eq!(report.reservations[0].name.as_deref(), Some("kv cache"));
//! assert_eq!(report.reservations[0].free().largest, 62 << 20);
//! assert!(report.to_string().contains("62 MiB free"));
//! // Mapped, but nobody has been granted anything yet.
//! assert!(matches!(report.idle()[..], [hsa_vmm::report::Idle::Mapping(_)]));
//! # Ok(())
//! # }
//! ```
//!
//! [Buffers](crate::buffer) are reported as what they are made of, and named by their address:
//! `vmm.name_reservation(buffer.address(), "kv cache")`.
//!
//! What a program has made by HIP's calls and not given back when the last `Vmm` goes is given back
//! then, and each piece is named in the log as leaked (`tracing`, level `WARN`). The owned values
//! ([`Reservation`](crate::Reservation) and so on) keep the `Vmm` alive and cannot leak in this way.

mod idle;
mod run;
#[cfg(feature = "serde")]
mod serialise;
mod size;
mod svg;
mod text;

pub use idle::Idle;
pub(crate) use run::{Run, runs};
pub(crate) use size::Size;

use crate::agent::AgentKind;
use crate::runtime::Runtime;
use crate::vmm::{Access, Address, Handle};

/// All that a [`Vmm`](crate::Vmm) holds, and the pool memory of its runtime. Sizes are in bytes.
///
/// Serialised, addresses and handles are text in hexadecimal, and agents are places in
/// [`agents`](Self::agents).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Report {
    /// The agents, in the runtime's order: others are told by their place here.
    pub agents: Vec<AgentEntry>,
    /// Reservations and the mappings in them, by address.
    pub reservations: Vec<ReservationEntry>,
    /// Physical memory that is referenced or mapped.
    pub memory: Vec<MemoryEntry>,
    /// Pool memory, by address.
    pub pool_memory: Vec<PoolMemoryEntry>,
    /// What could not be cleaned up and is not used any more.
    pub quarantine: Vec<QuarantineEntry>,
}

/// An agent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct AgentEntry {
    /// Its kind, and its place among those of its kind: `GPU 0` is HIP's device 0.
    pub label: String,
    /// What the runtime calls it.
    pub name: String,
    /// Whether it is a GPU.
    pub is_gpu: bool,
}

/// A reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ReservationEntry {
    /// Where it begins.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serialise::display"))]
    pub address: Address,
    /// Its size.
    pub size: usize,
    /// What the caller calls it.
    pub name: Option<String>,
    /// Not to be used any more; [`Report::quarantine`] says why.
    pub quarantined: bool,
    /// What is mapped in it, by address.
    pub mappings: Vec<MappingEntry>,
}

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MappingEntry {
    /// Where it begins.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serialise::display"))]
    pub address: Address,
    /// Its size.
    pub size: usize,
    /// What the caller calls it, or else its memory.
    pub name: Option<String>,
    /// The memory behind it: one of [`Report::memory`].
    #[cfg_attr(feature = "serde", serde(serialize_with = "serialise::display"))]
    pub memory: Handle,
    /// The agent whose memory it is, where known.
    pub agent: Option<usize>,
    /// What agents may do; and those who may do nothing, but can.
    pub access: Vec<AccessEntry>,
}

/// What an agent may do with a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct AccessEntry {
    /// Which agent.
    pub agent: usize,
    /// What it may do.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serialise::access"))]
    pub access: Access,
    /// Whether it can do more than that: a GPU that the runtime has let in can read and write,
    /// whatever it may, until the memory is [revoked](crate::Vmm::revoke) or unmapped.
    pub can_do_more: bool,
}

/// Physical memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemoryEntry {
    /// Its handle.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serialise::display"))]
    pub handle: Handle,
    /// What the caller calls it.
    pub name: Option<String>,
    /// Its size.
    pub size: usize,
    /// The agent whose memory it is, where known.
    pub agent: Option<usize>,
    /// Whether another process, or this one, had exported it.
    pub imported: bool,
    /// How many references the caller has.
    pub references: u32,
    /// In how many places it is mapped.
    pub mappings: u32,
}

/// Pool memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PoolMemoryEntry {
    /// Where it begins.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serialise::display"))]
    pub address: Address,
    /// Its size, as it was asked for.
    pub size: usize,
    /// What the caller calls it.
    pub name: Option<String>,
    /// The agent whose memory it is.
    pub agent: usize,
    /// The agents that may use it, its own among them.
    pub agents: Vec<usize>,
}

/// Something in quarantine ([`Vmm::quarantine`](crate::Vmm::quarantine)).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct QuarantineEntry {
    /// The start of the reservation; null for physical memory.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serialise::display"))]
    pub address: Address,
    /// Its size.
    pub size: usize,
    /// The operation that went wrong.
    pub operation: String,
    /// What the runtime or the system answered.
    pub reason: String,
}

/// The part of a reservation in which nothing is mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Free {
    /// All of it.
    pub size: usize,
    /// The largest piece in one.
    pub largest: usize,
    /// How many pieces there are.
    pub holes: usize,
}

impl Free {
    /// How much of it is not in the largest piece, in percent: 0 if all is in one piece.
    #[must_use]
    pub fn fragmentation(&self) -> u32 {
        // Anybody can make up one whose largest piece is more than all of it.
        let scattered = self.size.saturating_sub(self.largest) as u128;
        // At most 100.
        (scattered * 100).checked_div(self.size as u128).unwrap_or_default() as u32
    }
}

impl ReservationEntry {
    /// How much of it is mapped.
    #[must_use]
    pub fn mapped(&self) -> usize {
        self.mappings.iter().map(|mapping| mapping.size).sum()
    }

    /// What is left of it, and in how many pieces.
    #[must_use]
    pub fn free(&self) -> Free {
        let mut free = Free::default();
        for run in runs(self).iter().filter(|run| run.mapping.is_none()) {
            free.size += run.size;
            free.largest = free.largest.max(run.size);
            free.holes += 1;
        }
        free
    }
}

impl AgentEntry {
    /// The agents of a runtime, each with its place among those of its kind.
    pub(crate) fn all(runtime: &Runtime) -> Vec<Self> {
        let agents = runtime.agents();
        let place = |index: usize| {
            let kind = agents[index].kind();
            agents[..index].iter().filter(|agent| agent.kind() == kind).count()
        };
        agents
            .iter()
            .enumerate()
            .map(|(index, agent)| Self {
                label: format!("{} {}", agent.kind(), place(index)),
                name: agent.product().to_owned(),
                is_gpu: agent.kind() == AgentKind::Gpu,
            })
            .collect()
    }
}

impl Report {
    /// Whether nothing is held at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reservations.is_empty()
            && self.memory.is_empty()
            && self.pool_memory.is_empty()
            && self.quarantine.is_empty()
    }

    /// An agent's label; that of unknown owners for `None`.
    pub(crate) fn label(&self, agent: Option<usize>) -> &str {
        let entry = agent.and_then(|agent| self.agents.get(agent));
        entry.map_or("unknown owner", |entry| &entry.label)
    }
}
