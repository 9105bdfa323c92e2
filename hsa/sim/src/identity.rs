//! The handle values of agents, pools, instruction sets, caches and wavefronts. Each value contains the identity of
//! its runtime, so that values of another runtime are detected and never dereferenced.

use crate::physical;

/// The kind of object that a handle value refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Agent = 1,
    Pool = 2,
    Isa = 3,
    #[cfg(feature = "export")]
    Cache = 4,
    #[cfg(feature = "export")]
    Wavefront = 5,
}

/// The common part of all values of one instance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    /// The upper 32 bits are a random number, new for each start. The bits below contain the slot number.
    base: u64,
}

/// The lowest bit of the slot number.
const SLOT_SHIFT: u32 = 24;
/// The lowest bit of the kind. The bits below it contain the index.
const KIND_SHIFT: u32 = 20;
const INDEX_MASK: u64 = (1 << KIND_SHIFT) - 1;

impl Identity {
    pub(crate) fn new(slot: usize) -> Self {
        let nonce = (physical::random() >> 32).max(1);
        Self { base: nonce << 32 | (slot as u64) << SLOT_SHIFT }
    }

    /// Returns the handle value of the object with this kind and index.
    pub(crate) fn value(self, kind: Kind, index: usize) -> u64 {
        self.base | (kind as u64) << KIND_SHIFT | (index as u64 & INDEX_MASK)
    }

    /// Returns the index in a value, if the value is of this instance and kind.
    pub(crate) fn index(self, kind: Kind, value: u64) -> Option<usize> {
        (value & !INDEX_MASK == self.value(kind, 0)).then_some((value & INDEX_MASK) as usize)
    }
}
