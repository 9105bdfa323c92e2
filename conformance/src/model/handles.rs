//! Physical memory and handles.

use super::verdict::{
    ADDRESS, DESCRIPTOR, DEVICE, FLAGS, HANDLE, HANDLE_TYPE, LOCATION, Reason, Rejection, Rules,
    SIZE, Verdict,
};
use super::{Contents, Model};
use hsa_vmm::vmm::{AllocationKind, Location};
use hsa_vmm::{AgentId, AllocationProperties, Handle, HandleType};
use std::cell::RefCell;
use std::rc::Rc;

/// A handle and its memory.
#[derive(Clone, Debug)]
pub struct HandleState {
    /// The handle.
    pub handle: Handle,
    /// The number of references.
    pub references: usize,
    /// The properties that the memory was created with.
    pub properties: AllocationProperties,
    /// The memory, which imports share.
    pub memory: Memory,
    /// Whether the memory was imported.
    pub is_imported: bool,
}

/// Physical memory, shared by handles and descriptors.
#[derive(Clone, Debug)]
pub struct Memory {
    /// The size in bytes.
    pub size: usize,
    /// The agent that owns the memory.
    pub owner: AgentId,
    /// The contents.
    pub contents: Rc<RefCell<Contents>>,
}

impl Model {
    /// Checks a call that creates memory. If the library succeeds, call
    /// [`record_memory`](Self::record_memory).
    ///
    /// # Errors
    /// Returns all reasons for rejecting the call.
    pub fn check_create(
        &self,
        size: usize,
        properties: &AllocationProperties,
        flags: u64,
    ) -> Verdict {
        let agent = match properties.location {
            Location::Agent(id) => self.machine.agent(id),
            _ => None,
        };
        let agent_properties = agent.map(|index| &self.machine.agents[index]);
        let pool_size = agent_properties.and_then(|agent| agent.pool_size);
        let types = properties.handle_types;
        let uncached = properties.kind == AllocationKind::Uncached;
        Rules::default()
            .reject_if(FLAGS, flags != 0)
            .reject_if(SIZE, size == 0 || !size.is_multiple_of(self.machine.granule))
            .reject_if(LOCATION, properties.location == Location::Unknown)
            .reject_if(DEVICE, properties.location != Location::Unknown && agent.is_none())
            .reject_if(Reason::NotSupported, agent_properties.is_some_and(|agent| agent.is_cpu))
            .reject_if(Reason::NotSupported, !HandleType::POSIX_FILE_DESCRIPTOR.contains(types))
            .reject_if(Reason::NotSupported, uncached && !self.machine.uncached)
            .reject_if(Reason::OutOfMemory, pool_size.is_some_and(|available| size > available))
            .verdict()
    }

    /// Records memory that was created.
    ///
    /// # Errors
    /// Returns the rule that the handle breaks.
    pub fn record_memory(
        &mut self,
        handle: Handle,
        size: usize,
        properties: &AllocationProperties,
    ) -> Result<(), String> {
        let Location::Agent(owner) = properties.location else {
            return Err("memory was created without a location".to_owned());
        };
        let contents = Rc::new(RefCell::new(Contents::unknown(size)));
        self.record_handle(handle, *properties, Memory { size, owner, contents }, false)
    }

    fn record_handle(
        &mut self,
        handle: Handle,
        properties: AllocationProperties,
        memory: Memory,
        is_imported: bool,
    ) -> Result<(), String> {
        if self.handles.iter().any(|state| state.handle == handle) {
            return Err(format!("{handle:?} is in use already"));
        }
        self.handles.push(HandleState { handle, references: 1, properties, memory, is_imported });
        Ok(())
    }

    /// Drops a reference to a handle.
    ///
    /// # Errors
    /// Returns all reasons for rejecting the call.
    pub fn release(&mut self, handle: Handle) -> Verdict {
        self.valid_handle(handle)?;
        for state in self.handles.iter_mut().filter(|state| state.handle == handle) {
            state.references -= 1;
        }
        self.forget_unused();
        Ok(())
    }

    /// Adds a reference to the handle of a mapping.
    ///
    /// # Errors
    /// Returns all reasons for rejecting the call.
    pub fn retain(&mut self, address: usize) -> Verdict<Handle> {
        let mapping = self.mappings.iter().find(|it| it.range().contains(&address));
        let handle = mapping.ok_or(Rejection::of(ADDRESS))?.handle;
        for state in self.handles.iter_mut().filter(|state| state.handle == handle) {
            state.references += 1;
        }
        Ok(handle)
    }

    /// Returns the properties and size of a handle's memory.
    ///
    /// # Errors
    /// Returns all reasons for rejecting the call.
    pub fn properties(&self, handle: Handle) -> Verdict<(AllocationProperties, usize)> {
        let state = self.valid_handle(handle)?;
        Ok((state.properties, state.memory.size))
    }

    /// Returns the memory that an export of a handle shares.
    ///
    /// # Errors
    /// Returns all reasons for rejecting the call.
    pub fn export(&self, handle: Handle, handle_type: HandleType, flags: u64) -> Verdict<Memory> {
        let state = self.handles.iter().find(|it| it.handle == handle && it.references > 0);
        let is_exportable =
            |state: &HandleState| state.properties.handle_types.contains(handle_type);
        Rules::default()
            .reject_if(FLAGS, flags != 0)
            .reject_if(HANDLE, state.is_none())
            .reject_if(HANDLE_TYPE, state.is_some_and(|state| !is_exportable(state)))
            .reject_if(Reason::NotSupported, handle_type != HandleType::POSIX_FILE_DESCRIPTOR)
            .verdict()?;
        Ok(state.ok_or(Rejection::of(HANDLE))?.memory.clone())
    }

    /// Checks the import of a descriptor. If the library succeeds, call
    /// [`record_import`](Self::record_import). `memory` is `None` if the descriptor is not memory.
    ///
    /// # Errors
    /// Returns all reasons for rejecting the call.
    pub fn check_import(&self, memory: Option<&Memory>, handle_type: HandleType) -> Verdict {
        Rules::default()
            .reject_if(DESCRIPTOR, memory.is_none())
            .reject_if(Reason::NotSupported, handle_type != HandleType::POSIX_FILE_DESCRIPTOR)
            .verdict()
    }

    /// Records imported memory with the location that the library reports.
    ///
    /// # Errors
    /// Returns the rule that the handle or the location breaks.
    pub fn record_import(
        &mut self,
        handle: Handle,
        memory: &Memory,
        location: Location,
    ) -> Result<(), String> {
        if location != Location::Unknown && location != Location::Agent(memory.owner) {
            return Err(format!("the library locates memory of {} at {location:?}", memory.owner));
        }
        let properties =
            AllocationProperties::at(location).shareable_as(HandleType::POSIX_FILE_DESCRIPTOR);
        self.record_handle(handle, properties, memory.clone(), true)
    }

    /// Returns the state of a valid handle. A released handle is invalid even if its memory is mapped.
    pub(super) fn valid_handle(&self, handle: Handle) -> Verdict<&HandleState> {
        let state = self.handles.iter().find(|it| it.handle == handle && it.references > 0);
        state.ok_or(Rejection::of(HANDLE))
    }

    /// Removes handles that have neither references nor mappings.
    pub(super) fn forget_unused(&mut self) {
        let mappings = &self.mappings;
        let is_mapped = |handle| mappings.iter().any(|mapping| mapping.handle == handle);
        self.handles.retain(|state| state.references > 0 || is_mapped(state.handle));
    }
}
