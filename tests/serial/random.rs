//! Generates random operations from a seed.

use super::{AGENTS, HANDLES, Operation, RESERVATIONS, SLOTS, Slot, SlotRange};
use hsa_vmm::Access;

/// A random number generator (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number below a limit, which must not be zero.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn slot(&mut self) -> Slot {
        Slot { reservation: self.below(RESERVATIONS), number: self.below(SLOTS) }
    }

    fn range(&mut self) -> SlotRange {
        let first = self.slot();
        // Half of the ranges have one granule, because longer ranges are rarely mapped completely.
        let count = if self.below(2) == 0 { 1 } else { 1 + self.below(SLOTS - first.number) };
        SlotRange { first, count }
    }

    /// Returns a random operation. Maps and grants are frequent, because most other operations fail without them.
    pub fn operation(&mut self) -> Operation {
        let (slot, range) = (self.slot(), self.range());
        let (handle, agent) = (self.below(HANDLES), self.below(AGENTS));
        match self.below(20) {
            0..5 => Operation::Map { slot, handle },
            5..7 => Operation::Unmap { range },
            7..10 => {
                let access = [Access::ReadWrite, Access::ReadWrite, Access::Read, Access::None];
                Operation::Grant { range, agent, access: access[self.below(access.len())] }
            }
            10 => Operation::Revoke { range, agent },
            11..13 => Operation::GetAccess { slot, agent },
            13 => Operation::Write { slot, value: self.below(256) as u8 },
            14 => Operation::Read { slot },
            15 => Operation::Retain { slot },
            16 => Operation::Release { handle },
            17 => Operation::Share { handle },
            18 => Operation::Free { reservation: slot.reservation },
            _ => Operation::Reserve { reservation: slot.reservation },
        }
    }
}
