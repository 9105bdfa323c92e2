//! Physical memory and handles.

use super::verdict::{
    ADDRESS, DESCRIPTOR, DEVICE, FLAGS, HANDLE, HANDLE_TYPE, LOCATION, Refusal, Rules, SIZE,
    Verdict, Wrong,
};
use super::{Contents, Model};
use hsa_vmm::vmm::{AllocationKind, Location};
use hsa_vmm::{AgentId, AllocationProperties, Handle, HandleType};
use std::cell::RefCell;
use std::rc::Rc;

/// A handle and its memory.
#[derive(Clone, Debug)]
pub struct Held {
    /// The handle.
    pub handle: Handle,
    /// The number of references.
    pub references: usize,
    /// The properties.
    pub properties: AllocationProperties,
    /// The memory, which imports share.
    pub memory: Shared,
}

/// Physical memory, shared by handles and descriptors.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The size in bytes.
    pub size: usize,
    /// The owner.
    pub owner: AgentId,
    /// The contents.
    pub contents: Rc<RefCell<Contents>>,
}

impl Model {
    /// Checks a call that creates memory. [`enter_memory`](Self::enter_memory) follows if it succeeded.
    ///
    /// # Errors
    /// Returns everything that is wrong with the call.
    pub fn check_create(
        &self,
        size: usize,
        properties: &AllocationProperties,
        flags: u64,
    ) -> Verdict {
        let agent = match properties.location {
            Location::Agent(id) => self.world.agent(id),
            _ => None,
        };
        let facts = agent.map(|place| &self.world.agents[place]);
        let memory = facts.and_then(|facts| facts.memory);
        let types = properties.handle_types;
        let uncached = properties.kind == AllocationKind::Uncached;
        Rules::default()
            .refuse(FLAGS, flags != 0)
            .refuse(SIZE, size == 0 || !size.is_multiple_of(self.world.granule))
            .refuse(LOCATION, properties.location == Location::Unknown)
            .refuse(DEVICE, properties.location != Location::Unknown && agent.is_none())
            .refuse(Wrong::NotSupported, facts.is_some_and(|facts| facts.is_cpu))
            .refuse(Wrong::NotSupported, !HandleType::POSIX_FILE_DESCRIPTOR.contains(types))
            .refuse(Wrong::NotSupported, uncached && !self.world.uncached)
            .refuse(Wrong::OutOfMemory, memory.is_some_and(|memory| size > memory))
            .verdict()
    }

    /// Enters memory that was created.
    ///
    /// # Errors
    /// Returns the rule that the handle breaks.
    pub fn enter_memory(
        &mut self,
        handle: Handle,
        size: usize,
        properties: &AllocationProperties,
    ) -> Result<(), String> {
        let Location::Agent(owner) = properties.location else {
            return Err("memory was created without a location".to_owned());
        };
        let contents = Rc::new(RefCell::new(Contents::unknown(size)));
        self.enter_handle(handle, *properties, Shared { size, owner, contents })
    }

    fn enter_handle(
        &mut self,
        handle: Handle,
        properties: AllocationProperties,
        memory: Shared,
    ) -> Result<(), String> {
        if self.handles.iter().any(|held| held.handle == handle) {
            return Err(format!("{handle:?} is in use already"));
        }
        self.handles.push(Held { handle, references: 1, properties, memory });
        Ok(())
    }

    /// Drops a reference.
    ///
    /// # Errors
    /// Returns everything that is wrong with the call.
    pub fn release(&mut self, handle: Handle) -> Verdict {
        self.named(handle)?;
        for held in self.handles.iter_mut().filter(|held| held.handle == handle) {
            held.references -= 1;
        }
        self.forget_unused();
        Ok(())
    }

    /// Adds a reference to the handle of a mapping.
    ///
    /// # Errors
    /// Returns everything that is wrong with the call.
    pub fn retain(&mut self, address: usize) -> Verdict<Handle> {
        let mapping = self.mappings.iter().find(|it| it.range().contains(&address));
        let found = mapping.ok_or(Refusal::of(ADDRESS))?.handle;
        for held in self.handles.iter_mut().filter(|held| held.handle == found) {
            held.references += 1;
        }
        Ok(found)
    }

    /// Returns the properties and size of a handle's memory.
    ///
    /// # Errors
    /// Returns everything that is wrong with the call.
    pub fn properties(&self, handle: Handle) -> Verdict<(AllocationProperties, usize)> {
        let held = self.named(handle)?;
        Ok((held.properties, held.memory.size))
    }

    /// Returns the memory that a descriptor exports.
    ///
    /// # Errors
    /// Returns everything that is wrong with the call.
    pub fn export(&self, handle: Handle, kind: HandleType, flags: u64) -> Verdict<Shared> {
        let held = self.handles.iter().find(|it| it.handle == handle && it.references > 0);
        let requested = |held: &Held| held.properties.handle_types.contains(kind);
        Rules::default()
            .refuse(FLAGS, flags != 0)
            .refuse(HANDLE, held.is_none())
            .refuse(HANDLE_TYPE, held.is_some_and(|held| !requested(held)))
            .refuse(Wrong::NotSupported, kind != HandleType::POSIX_FILE_DESCRIPTOR)
            .verdict()?;
        Ok(held.ok_or(Refusal::of(HANDLE))?.memory.clone())
    }

    /// Checks the import of a descriptor. [`enter_import`](Self::enter_import) follows if it succeeded.
    /// `memory` is `None` if the descriptor is not memory.
    ///
    /// # Errors
    /// Returns everything that is wrong with the call.
    pub fn check_import(&self, memory: Option<&Shared>, kind: HandleType) -> Verdict {
        Rules::default()
            .refuse(DESCRIPTOR, memory.is_none())
            .refuse(Wrong::NotSupported, kind != HandleType::POSIX_FILE_DESCRIPTOR)
            .verdict()
    }

    /// Enters imported memory with the location that the library reports.
    ///
    /// # Errors
    /// Returns the rule that handle or location break.
    pub fn enter_import(
        &mut self,
        handle: Handle,
        memory: &Shared,
        location: Location,
    ) -> Result<(), String> {
        if location != Location::Unknown && location != Location::Agent(memory.owner) {
            return Err(format!("memory of {} is said to be at {location:?}", memory.owner));
        }
        let properties =
            AllocationProperties::at(location).shareable_as(HandleType::POSIX_FILE_DESCRIPTOR);
        self.enter_handle(handle, properties, memory.clone())
    }

    /// Returns the state of a valid handle. A released handle is invalid even if its memory is mapped.
    pub(super) fn named(&self, handle: Handle) -> Verdict<&Held> {
        let held = self.handles.iter().find(|it| it.handle == handle && it.references > 0);
        held.ok_or(Refusal::of(HANDLE))
    }

    /// Removes handles without references and mappings.
    pub(super) fn forget_unused(&mut self) {
        let mappings = &self.mappings;
        let mapped = |handle| mappings.iter().any(|mapping| mapping.handle == handle);
        self.handles.retain(|held| held.references > 0 || mapped(held.handle));
    }
}
