//! What there is in the world of a round, by HIP's documents.

use super::{AGENTS, Answer, HANDLES, Operation, PLACES, Place, RESERVATIONS, Reason, Run};
use hsa_vmm::Access;

/// What there is. Two that are equal are not told apart by any operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub reserved: [bool; RESERVATIONS],
    pub places: [[Option<Mapped>; PLACES]; RESERVATIONS],
    pub references: [u32; HANDLES],
    /// The byte that every allocation begins with.
    pub contents: [u8; HANDLES],
}

/// What is mapped at a place.
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
            places: [[None; PLACES]; RESERVATIONS],
            references: [1; HANDLES],
            contents: core::array::from_fn(|handle| handle as u8),
        }
    }
}

impl State {
    /// Whether an operation may answer this now; if so, it has been done.
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
        // Reserving what is reserved already is the one thing that a stranger can cause too.
        let taken =
            matches!(operation, Operation::Reserve { reservation } if self.reserved[reservation]);
        !impossible && !taken && self.answers(operation) == answer
    }

    /// Whether an operation can be refused for this reason.
    fn is_reason(&self, operation: Operation, reason: Reason) -> bool {
        let run = match operation {
            Operation::Map { place, .. }
            | Operation::Appear { place, .. }
            | Operation::Ask { place, .. }
            | Operation::Write { place, .. }
            | Operation::Read { place }
            | Operation::Retain { place } => Run { first: place, count: 1 },
            Operation::Unmap { run }
            | Operation::Grant { run, .. }
            | Operation::Revoke { run, .. } => run,
            Operation::Free { reservation } | Operation::Reserve { reservation } => {
                Run { first: Place { reservation, number: 0 }, count: PLACES }
            }
            Operation::Release { handle }
            | Operation::Share { handle }
            | Operation::Hold { handle } => {
                return reason == Reason::Released && self.references[handle] == 0;
            }
        };
        let maps = matches!(operation, Operation::Map { .. } | Operation::Appear { .. });
        let mut mapped = self.run(run).iter();
        match reason {
            Reason::AddressTaken => matches!(operation, Operation::Reserve { .. }),
            _ if matches!(operation, Operation::Reserve { .. }) => false,
            Reason::NotReserved => !self.reserved[run.first.reservation],
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

    /// Does what is possible.
    fn answers(&mut self, operation: Operation) -> Answer {
        let access = [Access::None; AGENTS];
        match operation {
            Operation::Map { place, handle } | Operation::Appear { place, handle } => {
                *self.place(place) = Some(Mapped { handle, access });
            }
            Operation::Unmap { run } => self.run_mut(run).fill(None),
            Operation::Grant { run, agent, access } => self.grant(run, agent, access),
            Operation::Revoke { run, agent } => self.grant(run, agent, Access::None),
            Operation::Ask { place, agent } => {
                return Answer::Access(
                    self.place(place).map_or(Access::None, |it| it.access[agent]),
                );
            }
            Operation::Write { place, value } => {
                if let Some(mapped) = *self.place(place) {
                    self.contents[mapped.handle] = value;
                }
            }
            Operation::Read { place } => {
                let handle = self.place(place).map_or(0, |mapped| mapped.handle);
                return Answer::Byte(self.contents[handle]);
            }
            Operation::Retain { place } => {
                let handle = self.place(place).map_or(0, |mapped| mapped.handle);
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

    fn grant(&mut self, run: Run, agent: usize, access: Access) {
        for mapped in self.run_mut(run).iter_mut().flatten() {
            mapped.access[agent] = access;
        }
    }

    fn place(&mut self, place: Place) -> &mut Option<Mapped> {
        &mut self.places[place.reservation][place.number]
    }

    fn run(&self, run: Run) -> &[Option<Mapped>] {
        let Place { reservation, number } = run.first;
        &self.places[reservation][number..number + run.count]
    }

    fn run_mut(&mut self, run: Run) -> &mut [Option<Mapped>] {
        let Place { reservation, number } = run.first;
        &mut self.places[reservation][number..number + run.count]
    }

    /// What can be seen when all is over: no allocation that is neither referenced nor mapped.
    pub fn visible(mut self) -> Self {
        for handle in 0..HANDLES {
            let mapped = |place: &Option<Mapped>| place.is_some_and(|it| it.handle == handle);
            if !self.places.as_flattened().iter().any(mapped) {
                self.contents[handle] = 0;
            }
        }
        self
    }
}
