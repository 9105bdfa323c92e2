//! The reference model: virtual memory management as the documents define it, implemented as simply as
//! possible.
//!
//! Reservations, handles and mappings are lists that the model searches linearly. Memory is a vector of bytes. The
//! model checks each call against all of the call's rules. A call that breaks a rule does not change the state. The
//! model therefore knows *all* errors of a call. The library may return any of these errors.
//!
//! The model is written from HIP's documentation as given in `hsa_vmm::vmm`, and shares no code with the library except
//! the types of its interface. The documents leave some results to the runtime, such as the address of a reservation.
//! The model receives such a result and checks it against the rules.

mod access;
mod contents;
mod handles;
mod machine;
mod mappings;
mod reservations;
mod transfer;
mod verdict;

pub use contents::Contents;
pub use handles::{HandleState, Memory};
pub use machine::{AgentProperties, Machine};
pub use verdict::{Reason, Rejection, Verdict};

use hsa_vmm::{Access, Handle};
use std::ops::Range;

/// The state of the library according to the documents.
#[derive(Debug)]
pub struct Model {
    machine: Machine,
    reservations: Vec<Reservation>,
    handles: Vec<HandleState>,
    mappings: Vec<Mapping>,
}

/// A reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The first address.
    pub base: usize,
    /// The size in bytes.
    pub size: usize,
}

/// A mapping of a part of a handle's memory.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// The first address.
    pub start: usize,
    /// The size in bytes.
    pub size: usize,
    /// The handle.
    pub handle: Handle,
    /// The offset of the first byte in the handle's memory.
    pub offset: usize,
    /// The access of each agent, in the order of the agents.
    pub access: Vec<Access>,
    /// For each agent, whether the runtime has granted access since the memory was mapped, and since the agent's last
    /// [`revoke`](Model::revoke). Setting the access to [`Access::None`] does not change this value: where permissions
    /// are not enforced, the GPU's page table still maps the memory.
    pub granted: Vec<bool>,
}

impl Model {
    /// Creates an empty model of a machine.
    #[must_use]
    pub fn new(machine: Machine) -> Self {
        Self { machine, reservations: Vec::new(), handles: Vec::new(), mappings: Vec::new() }
    }

    /// Returns the properties of the machine.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Returns the reservations, by address.
    #[must_use]
    pub fn reservations(&self) -> &[Reservation] {
        &self.reservations
    }

    /// Returns the handles that are referenced or mapped, oldest first.
    #[must_use]
    pub fn handles(&self) -> &[HandleState] {
        &self.handles
    }

    /// Returns the mappings, by address.
    #[must_use]
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }
}

impl Reservation {
    /// Returns the address range.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.base..self.base + self.size
    }
}

impl Mapping {
    /// Returns the address range.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.size
    }
}

/// Returns the range. Returns `None` if the range starts at null, is empty or exceeds the address space.
fn range(address: usize, size: usize) -> Option<Range<usize>> {
    let end = address.checked_add(size)?;
    (address != 0 && size != 0).then_some(address..end)
}

/// Returns the intersection of two ranges, if it is not empty.
fn intersection(a: &Range<usize>, b: &Range<usize>) -> Option<Range<usize>> {
    let shared = a.start.max(b.start)..a.end.min(b.end);
    (!shared.is_empty()).then_some(shared)
}

fn is_inside(inner: &Range<usize>, outer: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}
