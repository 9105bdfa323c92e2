//! The model of a round, by HIP's documents.

use super::{AGENTS, Answer, HANDLES, Operation, RESERVATIONS, Reason, SLOTS, Slot, SlotRange};
use hsa_vmm::Access;

/// The state of the model. Equal states behave alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub reserved: [bool; RESERVATIONS],
    pub slots: [[Option<Mapped>; SLOTS]; RESERVATIONS],
    pub references: [u32; HANDLES],
    /// The byte that every allocation begins with.
    pub contents: [u8; HANDLES],
}

/// The mapping at a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mapped {
    pub handle: usize,
    pub access: [Access; AGENTS],
}

impl Default for State {
    /// Everything reserved and allocated, nothing mapped.
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
    /// Executes an operation. Returns whether this result is possible.
    pub fn admits(&mut self, operation: Operation, answer: Answer) -> bool {
        if let Answer::Refused(reason) = answer {
            return self.is_reason(operation, reason);
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
        .any(|reason| self.is_reason(operation, reason));
        // Other threads of the process can cause this error, too.
        let taken =
            matches!(operation, Operation::Reserve { reservation } if self.reserved[reservation]);
        !impossible && !taken && self.answers(operation) == answer
    }

    /// Returns whether an operation can be rejected for this reason.
    fn is_reason(&self, operation: Operation, reason: Reason) -> bool {
        let range = match operation {
            Operation::Map { slot, .. }
            | Operation::Appear { slot, .. }
            | Operation::Ask { slot, .. }
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
            | Operation::Hold { handle } => {
                return reason == Reason::Released && self.references[handle] == 0;
            }
        };
        let maps = matches!(operation, Operation::Map { .. } | Operation::Appear { .. });
        let mut mapped = self.slots_in(range).iter();
        match reason {
            Reason::AddressTaken => matches!(operation, Operation::Reserve { .. }),
            _ if matches!(operation, Operation::Reserve { .. }) => false,
            Reason::NotReserved => !self.reserved[range.first.reservation],
            Reason::StillMapped => {
                matches!(operation, Operation::Free { .. }) && mapped.any(Option::is_some)
            }
            _ if matches!(operation, Operation::Free { .. }) => false,
            Reason::AlreadyMapped => maps && mapped.any(Option::is_some),
            Reason::Released => {
                matches!(operation, Operation::Map { handle, .. } if self.references[handle] == 0)
            }
            Reason::NotMapped => !maps && mapped.any(Option::is_none),
            Reason::NotGranted => {
                let needed = match operation {
                    Operation::Write { .. } => Access::ReadWrite,
                    Operation::Read { .. } => Access::Read,
                    _ => Access::None,
                };
                mapped.flatten().any(|mapped| mapped.access[0] < needed)
            }
        }
    }

    /// Executes an operation, and returns its result.
    fn answers(&mut self, operation: Operation) -> Answer {
        let access = [Access::None; AGENTS];
        match operation {
            Operation::Map { slot, handle } | Operation::Appear { slot, handle } => {
                *self.slot(slot) = Some(Mapped { handle, access });
            }
            Operation::Unmap { range } => self.slots_in_mut(range).fill(None),
            Operation::Grant { range, agent, access } => self.grant(range, agent, access),
            Operation::Revoke { range, agent } => self.grant(range, agent, Access::None),
            Operation::Ask { slot, agent } => {
                return Answer::Access(self.slot(slot).map_or(Access::None, |it| it.access[agent]));
            }
            Operation::Write { slot, value } => {
                if let Some(mapped) = *self.slot(slot) {
                    self.contents[mapped.handle] = value;
                }
            }
            Operation::Read { slot } => {
                let handle = self.slot(slot).map_or(0, |mapped| mapped.handle);
                return Answer::Byte(self.contents[handle]);
            }
            Operation::Retain { slot } => {
                let handle = self.slot(slot).map_or(0, |mapped| mapped.handle);
                self.references[handle] += 1;
                return Answer::Handle(handle);
            }
            Operation::Release { handle } => self.references[handle] -= 1,
            Operation::Share { .. } | Operation::Hold { .. } => {}
            Operation::Free { reservation } => self.reserved[reservation] = false,
            Operation::Reserve { reservation } => self.reserved[reservation] = true,
        }
        Answer::Done
    }

    fn grant(&mut self, range: SlotRange, agent: usize, access: Access) {
        for mapped in self.slots_in_mut(range).iter_mut().flatten() {
            mapped.access[agent] = access;
        }
    }

    fn slot(&mut self, slot: Slot) -> &mut Option<Mapped> {
        &mut self.slots[slot.reservation][slot.number]
    }

    fn slots_in(&self, range: SlotRange) -> &[Option<Mapped>] {
        let Slot { reservation, number } = range.first;
        &self.slots[reservation][number..number + range.count]
    }

    fn slots_in_mut(&mut self, range: SlotRange) -> &mut [Option<Mapped>] {
        let Slot { reservation, number } = range.first;
        &mut self.slots[reservation][number..number + range.count]
    }

    /// Returns the observable state, without allocations that are neither referenced nor mapped.
    pub fn visible(mut self) -> Self {
        for handle in 0..HANDLES {
            let mapped = |slot: &Option<Mapped>| slot.is_some_and(|it| it.handle == handle);
            if !self.slots.as_flattened().iter().any(mapped) {
                self.contents[handle] = 0;
            }
        }
        self
    }
}
