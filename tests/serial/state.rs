//! A model of a round: the state, and the effect of each operation as HIP documents it.

use super::{AGENTS, HANDLES, Operation, Outcome, RESERVATIONS, Reason, SLOTS, Slot, SlotRange};
use hsa_vmm::Access;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub reserved: [bool; RESERVATIONS],
    pub slots: [[Option<SlotMapping>; SLOTS]; RESERVATIONS],
    pub references: [u32; HANDLES],
    /// The first byte of each allocation.
    pub contents: [u8; HANDLES],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotMapping {
    pub handle: usize,
    pub access: [Access; AGENTS],
}

impl Default for State {
    /// Returns the state of a new round: everything is reserved and allocated, and nothing is mapped.
    fn default() -> Self {
        Self {
            reserved: [true; RESERVATIONS],
            slots: [[None; SLOTS]; RESERVATIONS],
            references: [1; HANDLES],
            contents: core::array::from_fn(|handle| handle as u8),
        }
    }
}

impl State {
    /// Applies an operation. Returns whether this outcome is possible. After `false`, the caller must drop the state.
    pub fn try_apply(&mut self, operation: Operation, outcome: Outcome) -> bool {
        if let Outcome::Rejected(reason) = outcome {
            return self.can_be_rejected(operation, reason);
        }
        let impossible = [
            Reason::NotReserved,
            Reason::NotMapped,
            Reason::AlreadyMapped,
            Reason::StillMapped,
            Reason::NotGranted,
            Reason::Released,
        ]
        .into_iter()
        .any(|reason| self.can_be_rejected(operation, reason));
        // `AddressTaken` is always possible, because threads outside the round can take the addresses. Success is
        // impossible if the addresses are still reserved.
        let still_reserved =
            matches!(operation, Operation::Reserve { reservation } if self.reserved[reservation]);
        !impossible && !still_reserved && self.apply(operation) == outcome
    }

    /// Returns whether an operation can be rejected for this reason.
    fn can_be_rejected(&self, operation: Operation, reason: Reason) -> bool {
        let range = match operation {
            Operation::Map { slot, .. }
            | Operation::FinishMap { slot, .. }
            | Operation::GetAccess { slot, .. }
            | Operation::Write { slot, .. }
            | Operation::Read { slot }
            | Operation::Retain { slot } => SlotRange { first: slot, count: 1 },
            Operation::Unmap { range }
            | Operation::Grant { range, .. }
            | Operation::Revoke { range, .. } => range,
            Operation::Free { reservation } | Operation::Reserve { reservation } => {
                SlotRange { first: Slot { reservation, number: 0 }, count: SLOTS }
            }
            Operation::Release { handle }
            | Operation::Share { handle }
            | Operation::BeginMap { handle } => {
                return reason == Reason::Released && self.references[handle] == 0;
            }
        };
        let maps = matches!(operation, Operation::Map { .. } | Operation::FinishMap { .. });
        let mut slots = self.slots_in(range).iter();
        match reason {
            Reason::AddressTaken => matches!(operation, Operation::Reserve { .. }),
            _ if matches!(operation, Operation::Reserve { .. }) => false,
            Reason::NotReserved => !self.reserved[range.first.reservation],
            Reason::StillMapped => {
                matches!(operation, Operation::Free { .. }) && slots.any(Option::is_some)
            }
            _ if matches!(operation, Operation::Free { .. }) => false,
            Reason::AlreadyMapped => maps && slots.any(Option::is_some),
            Reason::Released => {
                matches!(operation, Operation::Map { handle, .. } if self.references[handle] == 0)
            }
            Reason::NotMapped => !maps && slots.any(Option::is_none),
            Reason::NotGranted => {
                let needed = match operation {
                    Operation::Write { .. } => Access::ReadWrite,
                    Operation::Read { .. } => Access::Read,
                    _ => Access::None,
                };
                slots.flatten().any(|mapping| mapping.access[0] < needed)
            }
        }
    }

    /// Applies an operation that succeeds, and returns its result.
    fn apply(&mut self, operation: Operation) -> Outcome {
        let access = [Access::None; AGENTS];
        match operation {
            Operation::Map { slot, handle } | Operation::FinishMap { slot, handle } => {
                *self.slot(slot) = Some(SlotMapping { handle, access });
            }
            Operation::Unmap { range } => self.slots_in_mut(range).fill(None),
            Operation::Grant { range, agent, access } => self.grant(range, agent, access),
            Operation::Revoke { range, agent } => self.grant(range, agent, Access::None),
            Operation::GetAccess { slot, agent } => {
                return Outcome::Access(
                    self.slot(slot).map_or(Access::None, |mapping| mapping.access[agent]),
                );
            }
            Operation::Write { slot, value } => {
                if let Some(mapping) = *self.slot(slot) {
                    self.contents[mapping.handle] = value;
                }
            }
            Operation::Read { slot } => {
                let handle = self.slot(slot).map_or(0, |mapping| mapping.handle);
                return Outcome::Byte(self.contents[handle]);
            }
            Operation::Retain { slot } => {
                let handle = self.slot(slot).map_or(0, |mapping| mapping.handle);
                self.references[handle] += 1;
                return Outcome::Handle(handle);
            }
            Operation::Release { handle } => self.references[handle] -= 1,
            Operation::Share { .. } | Operation::BeginMap { .. } => {}
            Operation::Free { reservation } => self.reserved[reservation] = false,
            Operation::Reserve { reservation } => self.reserved[reservation] = true,
        }
        Outcome::Done
    }

    fn grant(&mut self, range: SlotRange, agent: usize, access: Access) {
        for mapping in self.slots_in_mut(range).iter_mut().flatten() {
            mapping.access[agent] = access;
        }
    }

    fn slot(&mut self, slot: Slot) -> &mut Option<SlotMapping> {
        &mut self.slots[slot.reservation][slot.number]
    }

    fn slots_in(&self, range: SlotRange) -> &[Option<SlotMapping>] {
        let Slot { reservation, number } = range.first;
        &self.slots[reservation][number..number + range.count]
    }

    fn slots_in_mut(&mut self, range: SlotRange) -> &mut [Option<SlotMapping>] {
        let Slot { reservation, number } = range.first;
        &mut self.slots[reservation][number..number + range.count]
    }

    /// Returns the part of the state that a test can observe: sets the contents of each unmapped allocation to zero,
    /// because a test can read only mapped memory.
    pub fn into_visible(mut self) -> Self {
        for handle in 0..HANDLES {
            let has_handle =
                |slot: &Option<SlotMapping>| slot.is_some_and(|mapping| mapping.handle == handle);
            if !self.slots.as_flattened().iter().any(has_handle) {
                self.contents[handle] = 0;
            }
        }
        self
    }
}
