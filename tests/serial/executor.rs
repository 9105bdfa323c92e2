//! Executes the operations of a round with the library.

use super::state::SlotMapping;
use super::{
    AGENTS, HANDLES, Operation, Outcome, RESERVATIONS, Reason, SLOTS, Slot, SlotRange, State,
};
use crate::machine::{Library, access, at};
use hsa_vmm::error::Problem;
use hsa_vmm::{Access, Address, AgentId, Error, Handle, HandleType, Reservation};
use std::sync::Mutex;

const DESCRIPTOR: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;

/// The reservations and allocations of a round, in the library.
pub struct Executor<'a> {
    library: &'a Library,
    granule: usize,
    agents: [AgentId; AGENTS],
    bases: [Address; RESERVATIONS],
    handles: [Handle; HANDLES],
    /// The reservations that `Operation::Reserve` has made. Dropping them before the end would free the addresses.
    reserved_again: Mutex<Vec<Reservation>>,
}

impl<'a> Executor<'a> {
    /// Makes the reservations and allocations. The first byte of each allocation is its number.
    #[track_caller]
    pub fn new(library: &'a Library) -> Self {
        let granule = library.granule();
        let bases = core::array::from_fn(|_| library.reserve(SLOTS * granule));
        let handles = core::array::from_fn(|number| library.create(number % 2, granule));
        for (number, &handle) in handles.iter().enumerate() {
            library.map(bases[0], granule, handle);
            library.grant(bases[0], granule, library.cpu(0), Access::ReadWrite);
            library.vmm.write(bases[0], &[number as u8]).expect("granted");
            library.vmm.unmap(bases[0], granule).expect("mapped");
        }
        let agents = [library.cpu(0), library.gpu(0), library.gpu(1)];
        let reserved_again = Mutex::default();
        Self { library, granule, agents, bases, handles, reserved_again }
    }

    fn address(&self, slot: Slot) -> Address {
        at(self.bases[slot.reservation], slot.number * self.granule)
    }

    fn range(&self, range: SlotRange) -> (Address, usize) {
        (self.address(range.first), range.count * self.granule)
    }

    #[track_caller]
    pub fn execute(&self, operation: Operation) -> Outcome {
        let outcome = self.try_execute(operation);
        outcome.unwrap_or_else(|error| Outcome::Rejected(reason(operation, error)))
    }

    fn try_execute(&self, operation: Operation) -> Result<Outcome, Error> {
        let vmm = &self.library.vmm;
        let done = |()| Outcome::Done;
        match operation {
            Operation::BeginMap { .. } => Ok(Outcome::Done),
            Operation::Map { slot, handle } | Operation::FinishMap { slot, handle } => {
                vmm.map(self.address(slot), self.granule, 0, self.handles[handle]).map(done)
            }
            Operation::Unmap { range } => {
                let (address, size) = self.range(range);
                vmm.unmap(address, size).map(done)
            }
            Operation::Grant { range, agent, access: requested } => {
                let (address, size) = self.range(range);
                vmm.set_access(address, size, &[access(self.agents[agent], requested)]).map(done)
            }
            Operation::Revoke { range, agent } => {
                let (address, size) = self.range(range);
                vmm.revoke(address, size, &[self.agents[agent]]).map(done)
            }
            Operation::GetAccess { slot, agent } => {
                vmm.get_access(self.agents[agent], self.address(slot)).map(Outcome::Access)
            }
            Operation::Write { slot, value } => vmm.write(self.address(slot), &[value]).map(done),
            Operation::Read { slot } => {
                let mut byte = [0];
                vmm.read(self.address(slot), &mut byte).map(|()| Outcome::Byte(byte[0]))
            }
            Operation::Retain { slot } => {
                let retained = vmm.retain_allocation_handle(self.address(slot))?;
                let number = self.handles.iter().position(|&handle| handle == retained);
                Ok(Outcome::Handle(number.expect("a handle of this round")))
            }
            Operation::Release { handle } => vmm.release(self.handles[handle]).map(done),
            Operation::Share { handle } => {
                let shared = vmm.export_to_shareable_handle(self.handles[handle], DESCRIPTOR)?;
                let imported = vmm.import_from_shareable_handle(shared, DESCRIPTOR)?;
                vmm.release(imported).expect("no other thread uses it");
                Ok(Outcome::Done)
            }
            Operation::Free { reservation } => {
                vmm.address_free(self.bases[reservation], SLOTS * self.granule).map(done)
            }
            Operation::Reserve { reservation } => {
                let builder = Reservation::builder(SLOTS * self.granule);
                let reserved = builder.exactly_at(self.bases[reservation]).reserve(vmm)?;
                self.reserved_again.lock().unwrap().push(reserved);
                Ok(Outcome::Done)
            }
        }
    }

    /// Returns the state after all threads have ended. To count the references of the handles, releases all of them.
    pub fn observe_and_release(&self) -> State {
        let vmm = &self.library.vmm;
        let mut state = State { contents: [0; HANDLES], ..State::default() };
        let reserved = vmm.reservations();
        let mappings = vmm.mappings();
        let mut retained = [0; HANDLES];
        for reservation in 0..RESERVATIONS {
            let size = SLOTS * self.granule;
            state.reserved[reservation] = reserved.contains(&(self.bases[reservation], size));
            for number in 0..SLOTS {
                let address = self.address(Slot { reservation, number });
                let Some(mapping) = mappings.iter().find(|mapping| mapping.address == address)
                else {
                    continue;
                };
                let retained_handle = vmm.retain_allocation_handle(address).expect("it is mapped");
                let handle = self
                    .handles
                    .iter()
                    .position(|&handle| handle == retained_handle)
                    .expect("a handle of this round");
                retained[handle] += 1;
                let access_of =
                    |agent| mapping.access.iter().find(|(id, _)| *id == agent).map(|entry| entry.1);
                let access = self.agents.map(|agent| access_of(agent).unwrap_or_default());
                state.slots[reservation][number] = Some(SlotMapping { handle, access });
                state.contents[handle] = self.first_byte(address);
            }
        }
        for (number, &handle) in self.handles.iter().enumerate() {
            let references = (0..).take_while(|_| vmm.release(handle).is_ok()).count() as u32;
            state.references[number] = references - retained[number];
        }
        state
    }

    /// Reads the first byte of a mapping. Grants the CPU access for the read, and then restores the CPU's access.
    fn first_byte(&self, address: Address) -> u8 {
        let cpu = self.agents[0];
        let before = self.library.vmm.get_access(cpu, address).expect("it is mapped");
        self.library.grant(address, self.granule, cpu, Access::Read);
        let mut byte = [0];
        self.library.vmm.read(address, &mut byte).expect("access was granted");
        self.library.grant(address, self.granule, cpu, before);
        byte[0]
    }

    /// Unmaps all mappings and frees all reservations, after
    /// [`observe_and_release`](Self::observe_and_release) has released the memory.
    #[track_caller]
    pub fn free_all(self) {
        let vmm = &self.library.vmm;
        for mapping in vmm.mappings() {
            vmm.unmap(mapping.address, mapping.size).expect("it is mapped");
        }
        drop(self.reserved_again);
        for (address, size) in vmm.reservations() {
            vmm.address_free(address, size).expect("nothing is mapped");
        }
        self.library.assert_everything_freed();
    }
}

/// Returns why an operation was rejected. Undocumented errors fail the test.
#[track_caller]
fn reason(operation: Operation, error: Error) -> Reason {
    match error.problem() {
        Some(Problem::NotReserved | Problem::NotAReservation) => Reason::NotReserved,
        Some(Problem::NotMapped(_)) => Reason::NotMapped,
        Some(Problem::AlreadyMapped(_)) => Reason::AlreadyMapped,
        Some(Problem::StillMapped(_)) => Reason::StillMapped,
        Some(Problem::NotGranted { .. }) => Reason::NotGranted,
        Some(Problem::Released) => Reason::Released,
        Some(Problem::AddressTaken) => Reason::AddressTaken,
        _ => panic!("{operation:?}: {error}"),
    }
}
