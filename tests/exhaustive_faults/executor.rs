//! A simulated machine on which a sequence of operations is executed.

use crate::machine::{Machine, access, at};
use crate::model::{Model, Operation, SLOTS, SlotRange};
use hsa_vmm::simulation::{Config, FaultPlan};
use hsa_vmm::{Address, AgentId, Error, Handle, HandleType};
use std::os::fd::OwnedFd;

pub struct Executor {
    pub machine: Machine,
    pub reservations: Vec<Address>,
    pub handles: Vec<Handle>,
    pub agents: Vec<AgentId>,
    /// The descriptor that was exported last.
    pub file: Option<OwnedFd>,
    granule: usize,
}

const FILE: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;

impl Executor {
    /// Returns a machine on which these operations were executed.
    pub fn after(config: &Config, sequence: &[Operation]) -> (Self, Model) {
        let machine = Machine::new(config.clone());
        let agents = machine.runtime.agents().iter().map(|agent| agent.id()).collect();
        let granule = machine.granule();
        let (reservations, handles) = (Vec::new(), Vec::new());
        let mut executor = Self { machine, reservations, handles, agents, file: None, granule };
        let mut model = Model::default();
        for &operation in sequence {
            let done = executor.execute(operation);
            done.unwrap_or_else(|error| panic!("{sequence:?} works: {operation:?}: {error}"));
            model = model.after(operation);
            executor.tag(&model);
        }
        (executor, model)
    }

    pub fn reservation_size(&self) -> usize {
        SLOTS * self.granule
    }

    pub fn address(&self, reservation: usize, slot: usize) -> Address {
        at(self.reservations[reservation], slot * self.granule)
    }

    fn range(&self, place: SlotRange) -> (Address, usize) {
        (self.address(place.reservation, place.slot), place.slots * self.granule)
    }

    /// Executes an operation by the library.
    pub fn execute(&mut self, operation: Operation) -> Result<(), Error> {
        let vmm = &self.machine.vmm;
        match operation {
            Operation::Reserve | Operation::ReserveAligned => {
                let alignment = if operation == Operation::Reserve { 0 } else { 16 << 20 };
                let made = vmm.address_reserve(self.reservation_size(), alignment, None)?;
                assert_eq!(made.get() % alignment.max(1), 0, "it is aligned");
                self.reservations.push(made);
            }
            Operation::Free(reservation) => {
                let base = self.reservations[reservation];
                vmm.address_free(base, self.reservation_size())?;
            }
            Operation::Create(agent) => {
                self.handles.push(vmm.create(self.granule, &self.machine.on(agent - 1))?);
            }
            Operation::Release(handle) => vmm.release(self.handles[handle])?,
            Operation::Map(handle, place) => {
                let (address, size) = self.range(place);
                vmm.map(address, size, 0, self.handles[handle])?;
            }
            Operation::Unmap(place) => {
                let (address, size) = self.range(place);
                vmm.unmap(address, size)?;
            }
            Operation::SetAccess(place, list) => {
                let (address, size) = self.range(place);
                let grant = |&(agent, what): &(usize, _)| access(self.agents[agent], what);
                let list: Vec<_> = list.iter().map(grant).collect();
                vmm.set_access(address, size, &list)?;
            }
            Operation::Revoke(place, agents) => {
                let (address, size) = self.range(place);
                let agents: Vec<_> = agents.iter().map(|&agent| self.agents[agent]).collect();
                vmm.revoke(address, size, &agents)?;
            }
            Operation::Retain(place) => {
                let handle = vmm.retain_allocation_handle(self.range(place).0)?;
                assert!(self.handles.contains(&handle), "the handle that was mapped");
            }
            Operation::Export(handle) => {
                self.file = Some(vmm.export_to_shareable_handle(self.handles[handle], FILE)?);
            }
            Operation::Import => {
                let file = self.file.as_ref().expect("something was exported");
                self.handles.push(vmm.import_from_shareable_handle(file, FILE)?);
            }
            // Next to the tags.
            Operation::Fill(place) => {
                let (address, size) = self.range(place);
                let (address, size) = (at(address, 64), size - 64);
                vmm.fill(address, 0x0101_0101, size.min(128))?;
            }
            Operation::Copy(place) => {
                let (address, _) = self.range(place);
                let agent = self.copier(address);
                vmm.copy(agent, at(address, 128), at(address, 64), 16)?;
            }
        }
        Ok(())
    }

    fn copier(&self, address: Address) -> AgentId {
        let writes = |agent: &&AgentId| {
            let access = self.machine.vmm.get_access(**agent, address);
            access == Ok(hsa_vmm::Access::ReadWrite)
        };
        *self.agents[1..].iter().find(writes).expect("a GPU may write")
    }

    /// Has the CPU write the number of the memory to it, where it has access.
    pub fn tag(&self, model: &Model) {
        for mapping in &model.mappings {
            if mapping.access[crate::model::CPU] == hsa_vmm::Access::ReadWrite {
                let address = self.address(mapping.reservation, mapping.slot);
                let tag = tag_of(model.handles[mapping.handle].memory);
                self.machine.vmm.write(address, &[tag; 4]).expect("the CPU may write");
            }
        }
    }

    /// Unmaps, releases and frees everything by the library's calls. Fails if anything is left.
    pub fn release_all(&self, model: &Model) -> Result<(), String> {
        let vmm = &self.machine.vmm;
        let failed = |error: Error| format!("taking it apart: {error}");
        for mapping in vmm.mappings() {
            vmm.unmap(mapping.address, mapping.size).map_err(failed)?;
        }
        for (handle, state) in self.handles.iter().zip(&model.handles) {
            for _ in 0..state.references {
                vmm.release(*handle).map_err(failed)?;
            }
        }
        for (base, size) in vmm.reservations() {
            vmm.address_free(base, size).map_err(failed)?;
        }
        let left = vmm.usage();
        if (left.reservations, left.handles, left.mappings) == (0, 0, 0) {
            Ok(())
        } else {
            Err(format!("taken apart, and still there: {left:?}"))
        }
    }

    /// Executes an operation while calls fail. Returns its result and the failed calls.
    pub fn perform_with(
        &mut self,
        operation: Operation,
        plan: FaultPlan,
    ) -> (Result<(), Error>, Vec<(&'static str, u64)>) {
        self.machine.simulation.set_faults(plan);
        let answer = self.execute(operation);
        let failed = self.machine.simulation.failed_calls();
        self.machine.simulation.set_faults(FaultPlan::none());
        (answer, failed)
    }
}

/// Returns the tag that the CPU writes to memory of this number.
pub fn tag_of(memory: usize) -> u8 {
    memory as u8 + 1
}
