//! What the documents say virtual-memory management does, said as simply as it can be.
//!
//! Reservations, handles and mappings are three lists that are searched from the start; memory is
//! a vector of bytes. A call is first held against every rule there is for it, and only if none is
//! broken is anything changed. So the model knows *everything* that is wrong with a call, while
//! the library may name any one of it.
//!
//! Written from HIP's documentation as `hsa_vmm::vmm` gives it, to judge the library by: it shares
//! no code with it but the vocabulary of its interface. What the documents leave to the runtime
//! (where a reservation lies, whose an import is) the model is told, and holds against the rules.

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

/// What there is, by the documents.
#[derive(Debug)]
pub struct Model {
    world: World,
    reservations: Vec<Reservation>,
    handles: Vec<Held>,
    mappings: Vec<Mapped>,
}

/// Addresses that are reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Where they begin.
    pub base: usize,
    /// How many they are.
    pub size: usize,
}

/// The start of a handle's memory behind reserved addresses.
#[derive(Clone, Debug)]
pub struct Mapped {
    /// Where it begins.
    pub start: usize,
    /// How much of the handle it shows.
    pub size: usize,
    /// Which handle.
    pub handle: Handle,
    /// What each agent may do, in the order of the agents.
    pub access: Vec<Access>,
    /// Which agents have been granted something since the memory was mapped or taken from them.
    /// A GPU among them can go on using it when its access is [`Access::None`]; no other can.
    pub granted: Vec<bool>,
}

impl Model {
    /// Nothing yet, in this world.
    #[must_use]
    pub fn new(world: World) -> Self {
        Self { world, reservations: Vec::new(), handles: Vec::new(), mappings: Vec::new() }
    }

    /// What the documents make depend on the machine.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The reservations, by address.
    #[must_use]
    pub fn reservations(&self) -> &[Reservation] {
        &self.reservations
    }

    /// The handles that are referenced or mapped, oldest first.
    #[must_use]
    pub fn handles(&self) -> &[Held] {
        &self.handles
    }

    /// The mappings, by address.
    #[must_use]
    pub fn mappings(&self) -> &[Mapped] {
        &self.mappings
    }
}

impl Reservation {
    /// The addresses.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.base..self.base + self.size
    }
}

impl Mapped {
    /// The addresses.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.size
    }
}

/// The addresses of a range that has some and does not leave the address space.
fn range(address: usize, size: usize) -> Option<Range<usize>> {
    let end = address.checked_add(size)?;
    (address != 0 && size != 0).then_some(address..end)
}

/// What two ranges have in common, if anything.
fn common(one: &Range<usize>, other: &Range<usize>) -> Option<Range<usize>> {
    let both = one.start.max(other.start)..one.end.min(other.end);
    (!both.is_empty()).then_some(both)
}

fn lies_in(inner: &Range<usize>, outer: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}
