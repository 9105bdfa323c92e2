//! The handles of physical memory, and the values by which callers know them.

use crate::physical::Memory;
use hsa_sys::hsa_amd_memory_type_t;
use std::collections::{BTreeMap, BTreeSet, HashMap};
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

const APERTURE: u64 = 0x0002_8000_0000_0000;
const GUARD: u64 = 0x1000;
const LARGE: u64 = 2 << 20;

/// Hands out addresses that nobody can reach: the lowest that was given back of the same size, or
/// else the next. AMD's list is searched from its beginning for every call; this one is not.
#[derive(Debug)]
struct Aperture {
    next: u64,
    free: HashMap<u64, BTreeSet<u64>>,
    /// What each address takes, from where it began (before alignment) to its size.
    taken: BTreeMap<u64, (u64, u64)>,
}

impl Default for Aperture {
    fn default() -> Self {
        Self { next: APERTURE + GUARD, free: HashMap::new(), taken: BTreeMap::new() }
    }
}

impl Aperture {
    fn take(&mut self, size: u64) -> u64 {
        let freed = self.free.get_mut(&size).and_then(BTreeSet::pop_first);
        let (start, value) = match freed {
            Some(value) => (value, value),
            None => {
                let start = self.next;
                let alignment = if size >= LARGE { LARGE } else { GUARD };
                let value = start.next_multiple_of(alignment);
                self.next = value + size.next_multiple_of(GUARD) + GUARD;
                (start, value)
            }
        };
        self.taken.insert(value, (start, size));
        value
    }

    fn give_back(&mut self, value: u64) {
        let Some((start, size)) = self.taken.remove(&value) else { return };
        if self.taken.is_empty() {
            *self = Self::default();
        } else if value + size.next_multiple_of(GUARD) + GUARD == self.next {
            self.next = start;
        } else {
            self.free.entry(size).or_default().insert(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Aperture, LARGE};

    #[test]
    fn values_are_those_that_were_seen() {
        let mut aperture = Aperture::default();
        assert_eq!(aperture.take(4096), 0x0002_8000_0000_1000);
        aperture.give_back(0x0002_8000_0000_1000);
        for value in [0x0002_8000_0020_0000, 0x0002_8000_0080_0000, 0x0002_8000_00e0_0000] {
            assert_eq!(aperture.take(2 * LARGE), value);
        }
        aperture.give_back(0x0002_8000_0080_0000);
        assert_eq!(aperture.take(2 * LARGE), 0x0002_8000_0080_0000, "the lowest free comes first");
    }
}
