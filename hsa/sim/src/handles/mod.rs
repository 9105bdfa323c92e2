//! Handles of physical memory, and their values.

mod aperture;
mod calls;

pub(crate) use calls::{create, properties, release, retain};

use crate::physical::{self, Memory};
use aperture::Aperture;
use hsa_sys::hsa_amd_memory_type_t;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// The memory of a handle.
#[derive(Debug)]
pub(crate) enum Content {
    /// Memory that a call of `create` has allocated, or whose import is resolved.
    Memory(Arc<Memory>),
    /// An import that is not resolved yet, with the runtime's duplicate of the descriptor.
    Unresolved(OwnedFd),
    /// No memory: the allocation failed, but the simulated ROCm release returned success.
    Missing,
    /// An import that is not resolved yet, with the caller's own descriptor. The caller may close
    /// the descriptor at any time.
    Borrowed(RawFd),
}

/// One handle of physical memory.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) content: Content,
    /// The pool that the properties report.
    pub(crate) pool: u64,
    pub(crate) memory_type: hsa_amd_memory_type_t,
    pub(crate) imported: bool,
    /// The caller's references: one from create or import, one for each retain.
    pub(crate) references: u64,
    /// The number of mappings.
    pub(crate) mapping_count: u64,
    /// The descriptor that generation C returns for every export. The caller may have closed it.
    pub(crate) exported: Option<RawFd>,
}

impl Handle {
    pub(crate) fn memory(&self) -> Option<&Arc<Memory>> {
        match &self.content {
            Content::Memory(memory) => Some(memory),
            Content::Unresolved(_) | Content::Borrowed(_) | Content::Missing => None,
        }
    }

    /// Returns the size of the memory, if known.
    pub(crate) fn size(&self) -> Option<u64> {
        match &self.content {
            Content::Memory(memory) => Some(memory.size),
            Content::Unresolved(descriptor) => physical::size_of(descriptor.as_raw_fd()),
            Content::Borrowed(_) | Content::Missing => None,
        }
    }
}

/// All handles of an instance.
#[derive(Debug)]
pub(crate) struct Handles {
    // Boxed, because later generations return the address of the box as the handle.
    handles: HashMap<u64, Box<Handle>>,
    aperture: Option<Aperture>,
}

impl Handles {
    /// Creates an empty table. If `use_aperture`, handle values are addresses in the aperture.
    /// Otherwise, they are addresses of heap objects.
    pub(crate) fn new(use_aperture: bool) -> Self {
        Self { handles: HashMap::new(), aperture: use_aperture.then(Aperture::default) }
    }

    pub(crate) fn len(&self) -> usize {
        self.handles.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Handle> {
        self.handles.values().map(Box::as_ref)
    }

    pub(crate) fn get(&self, value: u64) -> Option<&Handle> {
        self.handles.get(&value).map(Box::as_ref)
    }

    pub(crate) fn get_mut(&mut self, value: u64) -> Option<&mut Handle> {
        self.handles.get_mut(&value).map(Box::as_mut)
    }

    /// Stores a handle and returns its value. `size` is the size that the handle takes in the
    /// aperture.
    pub(crate) fn insert(&mut self, handle: Handle, size: u64) -> u64 {
        let handle = Box::new(handle);
        let value = match &mut self.aperture {
            Some(aperture) => aperture.allocate(size),
            None => core::ptr::from_ref(&*handle).addr() as u64,
        };
        self.handles.insert(value, handle);
        value
    }

    /// Stores a handle without memory. All such handles have the value 0. Only the first of them is
    /// stored.
    pub(crate) fn insert_without_memory(&mut self, handle: Handle) -> u64 {
        self.handles.entry(0).or_insert_with(|| Box::new(handle));
        0
    }

    /// Removes and returns a handle, if it is neither referenced nor mapped.
    pub(crate) fn remove_unused(&mut self, value: u64) -> Option<Box<Handle>> {
        let unused = self
            .get(value)
            .is_some_and(|handle| handle.references == 0 && handle.mapping_count == 0);
        let handle = if unused { self.handles.remove(&value) } else { None };
        if let (Some(aperture), Some(_)) = (&mut self.aperture, &handle) {
            aperture.free(value);
        }
        handle
    }

    /// Removes and returns all handles.
    pub(crate) fn clear(&mut self) -> Vec<Handle> {
        if let Some(aperture) = &mut self.aperture {
            *aperture = Aperture::default();
        }
        self.handles.drain().map(|(_, handle)| *handle).collect()
    }
}
