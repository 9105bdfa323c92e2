//! Executes a sequence of operations on a simulated machine.

use crate::machine::{Machine, access, at};
use crate::model::{Model, Operation, SLOTS, SlotRange};
use crate::search::PageTables;
use hsa_vmm::simulation::{Config, FaultPlan};
use hsa_vmm::vmm::Location;
use hsa_vmm::{Address, AgentId, AllocationProperties, Error, Handle, HandleType};
use std::os::fd::OwnedFd;

/// A simulated machine, and the reservations and handles that were created on it.
pub struct Executor {
    pub machine: Machine,
    pub reservations: Vec<Address>,
    pub handles: Vec<Handle>,
    pub agents: Vec<AgentId>,
    /// The descriptor that was exported last.
    pub descriptor: Option<OwnedFd>,
    granule: usize,
    /// The number of granules of each memory.
    parts: usize,
}

const DESCRIPTOR: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;

impl Executor {
    /// Executes a sequence of operations on a new machine. Returns the machine, and the model's state after the
    /// sequence.
    pub fn run_sequence(
        config: &Config,
        page_tables: PageTables,
        sequence: &[Operation],
    ) -> (Self, Model) {
        let machine = Machine::with_options(config.clone(), page_tables.options());
        let agents = machine.runtime.agents().iter().map(|agent| agent.id()).collect();
        let granule = machine.granule();
        let (reservations, handles) = (Vec::new(), Vec::new());
        let (descriptor, parts) = (None, page_tables.parts());
        let mut executor =
            Self { machine, reservations, handles, agents, descriptor, granule, parts };
        let mut model = Model { parts, ..Model::default() };
        for &operation in sequence {
            let result = executor.execute(operation);
            result.unwrap_or_else(|error| {
                panic!("{operation:?} of {sequence:?} failed although no call failed: {error}")
            });
            model = model.after(operation);
            executor.write_tags(&model);
        }
        (executor, model)
    }

    pub fn reservation_size(&self) -> usize {
        SLOTS * self.granule
    }

    pub fn address(&self, reservation: usize, slot: usize) -> Address {
        at(self.reservations[reservation], slot * self.granule)
    }

    fn range(&self, range: SlotRange) -> (Address, usize) {
        (self.address(range.reservation, range.slot), range.slots * self.granule)
    }

    pub fn execute(&mut self, operation: Operation) -> Result<(), Error> {
        let vmm = &self.machine.vmm;
        match operation {
            Operation::Reserve | Operation::ReserveAligned => {
                let alignment = if operation == Operation::Reserve { 0 } else { 16 << 20 };
                let base = vmm.address_reserve(self.reservation_size(), alignment, None)?;
                assert_eq!(base.get() % alignment.max(1), 0, "the reservation is aligned");
                self.reservations.push(base);
            }
            Operation::Free(reservation) => {
                let base = self.reservations[reservation];
                vmm.address_free(base, self.reservation_size())?;
            }
            // Agent 0 is the CPU, so GPUs are numbered from agent 1.
            Operation::Create(agent) => {
                let size = self.parts * self.granule;
                self.handles.push(vmm.create(size, &self.machine.shareable_on(agent - 1))?);
            }
            Operation::Release(handle) => vmm.release(self.handles[handle])?,
            Operation::Map(handle, part, range) => {
                let (address, size) = self.range(range);
                vmm.map(address, size, part * self.granule, self.handles[handle])?;
            }
            Operation::Unmap(range) => {
                let (address, size) = self.range(range);
                vmm.unmap(address, size)?;
            }
            Operation::SetAccess(range, list) => {
                let (address, size) = self.range(range);
                let grant =
                    |&(agent, permission): &(usize, _)| access(self.agents[agent], permission);
                let list: Vec<_> = list.iter().map(grant).collect();
                vmm.set_access(address, size, &list)?;
            }
            Operation::Revoke(range, agents) => {
                let (address, size) = self.range(range);
                let agents: Vec<_> = agents.iter().map(|&agent| self.agents[agent]).collect();
                vmm.revoke(address, size, &agents)?;
            }
            Operation::Retain(range) => {
                let handle = vmm.retain_allocation_handle(self.range(range).0)?;
                assert!(self.handles.contains(&handle), "the handle that was mapped");
            }
            Operation::Export(handle) => {
                self.descriptor =
                    Some(vmm.export_to_shareable_handle(self.handles[handle], DESCRIPTOR)?);
            }
            Operation::ExportRange(range) => {
                let (address, size) = self.range(range);
                let segments = vmm.export_address_range(address, size)?;
                let length: usize = segments.iter().map(|segment| segment.length).sum();
                assert_eq!(length, size, "the segments cover the range");
            }
            Operation::CreateOnHost => {
                let size = self.parts * self.granule;
                self.handles.push(vmm.create(size, &AllocationProperties::at(Location::Host))?);
            }
            Operation::Import => {
                let descriptor = self.descriptor.as_ref().expect("something was exported");
                self.handles.push(vmm.import_from_shareable_handle(descriptor, DESCRIPTOR)?);
            }
            // Leaves out the first 64 bytes of the range, because the memory's tag is there.
            Operation::Fill(range) => {
                let (address, size) = self.range(range);
                let (address, size) = (at(address, 64), size - 64);
                vmm.fill(address, 0x0101_0101, size.min(128))?;
            }
            Operation::Copy(range) => {
                let (address, _) = self.range(range);
                let agent = self.writing_gpu(address);
                vmm.copy(agent, at(address, 128), at(address, 64), 16)?;
            }
        }
        Ok(())
    }

    fn writing_gpu(&self, address: Address) -> AgentId {
        let can_write = |agent: &&AgentId| {
            let access = self.machine.vmm.get_access(**agent, address);
            access == Ok(hsa_vmm::Access::ReadWrite)
        };
        *self.agents[1..].iter().find(can_write).expect("a GPU has write access")
    }

    /// Writes each memory's tag with the CPU, where the CPU has write access.
    pub fn write_tags(&self, model: &Model) {
        for mapping in &model.mappings {
            if mapping.access[crate::model::CPU] == hsa_vmm::Access::ReadWrite {
                let address = self.address(mapping.reservation, mapping.slot);
                let tag = tag_of(model.handles[mapping.handle].memory, mapping.part);
                self.machine.vmm.write(address, &[tag; 4]).expect("the CPU has write access");
            }
        }
    }

    /// Unmaps, releases and frees everything with the library's calls. Fails if the library still lists something.
    pub fn release_all(&self, model: &Model) -> Result<(), String> {
        let vmm = &self.machine.vmm;
        let failed = |error: Error| format!("releasing everything: {error}");
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
        let usage = vmm.usage();
        if (usage.reservations, usage.handles, usage.mappings) == (0, 0, 0) {
            Ok(())
        } else {
            Err(format!("not released: {usage:?}"))
        }
    }

    /// Executes an operation while the runtime calls of `plan` fail. Returns the operation's result and the failed
    /// calls.
    pub fn execute_with_faults(
        &mut self,
        operation: Operation,
        plan: FaultPlan,
    ) -> (Result<(), Error>, Vec<(&'static str, u64)>) {
        self.machine.simulation.set_faults(plan);
        let result = self.execute(operation);
        let failed = self.machine.simulation.failed_calls();
        self.machine.simulation.set_faults(FaultPlan::none());
        (result, failed)
    }
}

/// Returns the tag that the CPU writes to a part of a memory: a byte that identifies the memory and the part.
pub fn tag_of(memory: usize, part: usize) -> u8 {
    (2 * memory + part) as u8 + 1
}
