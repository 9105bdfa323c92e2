//! The values by which callers know agents, pools and instruction sets. They say whose they are,
//! so that those of another runtime are recognised as such and never dereferenced.

use crate::physical;

/// What a value names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Agent = 1,
    Pool = 2,
    Isa = 3,
}

/// What the values of one instance have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    /// Upper half: random for every start. Below it: the slot.
    base: u64,
}

const SLOT: u32 = 24;
const KIND: u32 = 20;
const INDEX: u64 = (1 << KIND) - 1;

impl Identity {
    pub(crate) fn new(slot: usize) -> Self {
        let nonce = (physical::random() >> 32).max(1);
        Self { base: nonce << 32 | (slot as u64) << SLOT }
    }

    pub(crate) fn value(self, kind: Kind, index: usize) -> u64 {
        self.base | (kind as u64) << KIND | (index as u64 & INDEX)
    }

    /// The index in a value of this instance and kind.
    pub(crate) fn index(self, kind: Kind, value: u64) -> Option<usize> {
        (value & !INDEX == self.value(kind, 0)).then_some((value & INDEX) as usize)
    }
}
