//! Names of physical memory that cannot be mistaken for one another.

use core::fmt;

/// Names physical memory that [`create`](crate::Vmm::create) or an import made.
///
/// Stands for `hipMemGenericAllocationHandle_t`. It is never the runtime's own value, which is
/// reused as soon as the memory is gone: 24 bits say which slot, 24 bits how often the slot had
/// been used before, 16 bits which [`Vmm`](crate::Vmm). A stale, foreign or invented handle is
/// an error wherever it is used, never a crash and never somebody else's memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(u64);

const SLOT_BITS: u32 = 24;
const GENERATION_BITS: u32 = 24;

impl Handle {
    /// The most slots that can be told apart.
    pub(crate) const SLOTS: usize = 1 << SLOT_BITS;
    /// The last generation of a slot; after it the slot is not used again.
    pub(crate) const LAST_GENERATION: u32 = (1 << GENERATION_BITS) - 1;

    pub(crate) fn pack(owner: u16, generation: u32, slot: u32) -> Self {
        Self(
            u64::from(owner) << (SLOT_BITS + GENERATION_BITS)
                | u64::from(generation) << SLOT_BITS
                | u64::from(slot),
        )
    }

    pub(crate) fn owner(self) -> u16 {
        (self.0 >> (SLOT_BITS + GENERATION_BITS)) as u16
    }

    pub(crate) fn generation(self) -> u32 {
        (self.0 >> SLOT_BITS) as u32 & Self::LAST_GENERATION
    }

    pub(crate) fn slot(self) -> usize {
        (self.0 & (Self::SLOTS as u64 - 1)) as usize
    }

    /// The handle as a number, for interfaces that have nothing else (C, traces). Never zero.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The handle of that number. Whether it names anything is found out when it is used.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "handle {}.{} of {}", self.slot(), self.generation(), self.owner())
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_three_numbers_in_one() {
        let last_slot = Handle::SLOTS as u32 - 1;
        for (owner, generation, slot) in
            [(1, 1, 0), (u16::MAX, Handle::LAST_GENERATION, last_slot), (7, 3, 12)]
        {
            let handle = Handle::pack(owner, generation, slot);
            assert_eq!(
                (handle.owner(), handle.generation(), handle.slot()),
                (owner, generation, slot as usize)
            );
            assert_eq!(Handle::from_bits(handle.to_bits()), handle);
        }
    }

    #[test]
    fn handles_can_be_told_apart_in_print() {
        let handle = Handle::pack(7, 3, 12);
        assert_eq!(format!("{handle:?}"), "handle 12.3 of 7");
        assert_eq!(handle.to_string(), "0x000700000300000c");
    }
}
