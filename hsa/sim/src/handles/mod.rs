//! The handles of physical memory, and the values by which callers know them.

mod aperture;
mod calls;

pub(crate) use calls::{create, properties, release, retain};

use crate::physical::Memory;
use aperture::Aperture;
use hsa_sys::hsa_amd_memory_type_t;
use std::collections::HashMap;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

/// What a handle's memory is, or will turn out to be.
#[derive(Debug)]
pub(crate) enum Content {
    /// It is known.
    Memory(Arc<Memory>),
    /// An import that nobody has looked at yet, through a descriptor of the runtime's own.
    Unseen(OwnedFd),
    /// There is none: it was not to be had, and the release said nothing of it.
    Missing,
    /// The same as unseen through the caller's descriptor, which the caller may close at any time.
    Borrowed(RawFd),
}

/// One handle of physical memory.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) content: Content,
    /// The pool's value as properties answer it.
    pub(crate) pool: u64,
    pub(crate) memory_type: hsa_amd_memory_type_t,
    pub(crate) imported: bool,
    /// References of the caller: created or imported, and retained.
    pub(crate) references: u64,
    /// How many mappings there are.
    pub(crate) uses: u64,
    /// The one descriptor that era C answers to every export, and the caller may have closed.
    pub(crate) exported: Option<RawFd>,
}

impl Handle {
    pub(crate) fn memory(&self) -> Option<&Arc<Memory>> {
        match &self.content {
            Content::Memory(memory) => Some(memory),
            Content::Unseen(_) | Content::Borrowed(_) | Content::Missing => None,
        }
    }
}

/// All handles of an instance.
#[derive(Debug)]
pub(crate) struct Handles {
    // Boxed, because later eras answer the address as the handle.
    handles: HashMap<u64, Box<Handle>>,
    aperture: Option<Aperture>,
}

impl Handles {
    /// With values in a fake aperture, or else on the heap.
    pub(crate) fn new(fake_addresses: bool) -> Self {
        Self { handles: HashMap::new(), aperture: fake_addresses.then(Aperture::default) }
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

    /// Keeps a handle and answers its value. `size` is what it takes in the aperture.
    pub(crate) fn insert(&mut self, handle: Handle, size: u64) -> u64 {
        let handle = Box::new(handle);
        let value = match &mut self.aperture {
            Some(aperture) => aperture.take(size),
            None => core::ptr::from_ref(&*handle).addr() as u64,
        };
        self.handles.insert(value, handle);
        value
    }

    /// Keeps a handle of memory that there is none of, and answers its value, which is 0 for all
    /// of them: the first is the one that is kept.
    pub(crate) fn insert_nothing(&mut self, handle: Handle) -> u64 {
        self.handles.entry(0).or_insert_with(|| Box::new(handle));
        0
    }

    /// Forgets a handle that is neither referenced nor mapped.
    pub(crate) fn remove_unused(&mut self, value: u64) -> Option<Box<Handle>> {
        let unused = self.get(value).is_some_and(|h| h.references == 0 && h.uses == 0);
        let handle = if unused { self.handles.remove(&value) } else { None };
        if let (Some(aperture), Some(_)) = (&mut self.aperture, &handle) {
            aperture.give_back(value);
        }
        handle
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) -> Vec<Handle> {
        if let Some(aperture) = &mut self.aperture {
            *aperture = Aperture::default();
        }
        self.handles.drain().map(|(_, handle)| *handle).collect()
    }
}
