//! The reference model: virtual memory management as the documents define it, implemented as simply as
//! possible.
//!
//! Reservations, handles and mappings are lists that are searched linearly; memory is a vector of bytes. A
//! call is checked against all of its rules and changes the state only if none is broken. So the model
//! knows *all* errors of a call, of which the library may return any.
//!
//! It is written from HIP's documentation as given in `hsa_vmm::vmm`, and shares no code with the library
//! except the types of its interface. Where the documents leave a result to the runtime (the address of a
//! reservation, the owner of an import), the model receives the result and checks it against the rules.

mod access;
mod contents;
mod handles;
mod mappings;
mod reservations;
mod transfer;
mod verdict;
mod world;

pub use contents::Contents;
pub use handles::{Held, Shared};
pub use verdict::{Refusal, Verdict, Wrong};
pub use world::{AgentFacts, World};

use hsa_vmm::{Access, Handle};
use std::ops::Range;

/// The state according to the documents.
#[derive(Debug)]
pub struct Model {
    world: World,
    reservations: Vec<Reservation>,
    handles: Vec<Held>,
    mappings: Vec<Mapped>,
}

/// A reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The first address.
    pub base: usize,
    /// The size in bytes.
    pub size: usize,
}

/// A mapping of the start of a handle's memory.
#[derive(Clone, Debug)]
pub struct Mapped {
    /// The first address.
    pub start: usize,
    /// The size in bytes.
    pub size: usize,
    /// The handle.
    pub handle: Handle,
    /// The access of each agent, in the order of the agents.
    pub access: Vec<Access>,
    /// Which agents were granted access since the memory was mapped or revoked. A GPU among them can
    /// access the memory even when its access is [`Access::None`].
    pub granted: Vec<bool>,
}

impl Model {
    /// Creates an empty model of a machine.
    #[must_use]
    pub fn new(world: World) -> Self {
        Self { world, reservations: Vec::new(), handles: Vec::new(), mappings: Vec::new() }
    }

    /// Returns the properties of the machine.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Returns the reservations, by address.
    #[must_use]
    pub fn reservations(&self) -> &[Reservation] {
        &self.reservations
    }

    /// Returns the handles that are referenced or mapped, oldest first.
    #[must_use]
    pub fn handles(&self) -> &[Held] {
        &self.handles
    }

    /// Returns the mappings, by address.
    #[must_use]
    pub fn mappings(&self) -> &[Mapped] {
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

impl Mapped {
    /// Returns the address range.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.size
    }
}

/// Returns the range unless it is empty or exceeds the address space.
fn range(address: usize, size: usize) -> Option<Range<usize>> {
    let end = address.checked_add(size)?;
    (address != 0 && size != 0).then_some(address..end)
}

/// Returns the intersection of two ranges, if it is not empty.
fn common(one: &Range<usize>, other: &Range<usize>) -> Option<Range<usize>> {
    let both = one.start.max(other.start)..one.end.min(other.end);
    (!both.is_empty()).then_some(both)
}

fn lies_in(inner: &Range<usize>, outer: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}
