//! Buffer objects, and where in a device's file each can be mapped.

use crate::arena::{Arena, Spot};
use crate::errno::{EINVAL, ENOMEM, Result};
use crate::memory_file::{self, Label, MemoryFile};
use crate::real;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// Where the first buffer object can be mapped; below lies what is not one (`DRM_FILE_PAGE_OFFSET`).
const FIRST_OFFSET: u64 = 1 << 32;

/// The memory of one GPU, and how much of it is taken.
#[derive(Debug)]
pub(crate) struct Vram {
    pub(crate) size: u64,
    used: AtomicU64,
}

impl Vram {
    pub(crate) fn new(size: u64) -> Arc<Self> {
        Arc::new(Self { size, used: AtomicU64::new(0) })
    }

    pub(crate) fn available(&self) -> u64 {
        self.size.saturating_sub(self.used.load(Ordering::Relaxed))
    }

    /// Takes some, which is given back when the claim is dropped.
    pub(crate) fn claim(self: &Arc<Self>, size: u64) -> Result<Claim> {
        let grown = |used: u64| used.checked_add(size).filter(|used| *used <= self.size);
        let order = Ordering::Relaxed;
        self.used.fetch_update(order, order, grown).map_err(|_| ENOMEM)?;
        Ok(Claim { vram: self.clone(), size })
    }
}

/// A part of a GPU's memory that is taken.
#[derive(Debug)]
pub(crate) struct Claim {
    vram: Arc<Vram>,
    size: u64,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.vram.used.fetch_sub(self.size, Ordering::Relaxed);
    }
}

/// Where a buffer's memory is.
#[derive(Debug)]
enum Place {
    /// In a file of its own, which can be exported, made when it is first needed.
    Own(OnceLock<MemoryFile>),
    /// In the process's file, at the buffer's offset.
    Shared(Arc<Arena>),
}

/// One piece of memory, however many handles and mappings name it.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub(crate) label: Label,
    pub(crate) size: u64,
    /// What `mmap` of a device's file takes.
    pub(crate) offset: u64,
    place: Place,
    home: Weak<Buffers>,
    _claim: Option<Claim>,
}

impl Buffer {
    /// Where the memory is.
    pub(crate) fn spot(&self) -> Result<Spot<'_>> {
        let place = match &self.place {
            Place::Own(place) => place,
            Place::Shared(arena) => return arena.spot(self.offset),
        };
        let file = match place.get() {
            Some(file) => file,
            None => {
                let made = MemoryFile::labelled(self.label, self.size)?;
                place.get_or_init(|| made)
            }
        };
        Ok(Spot { file, offset: 0 })
    }

    /// A new descriptor of the memory; `EINVAL` if it has no file of its own.
    pub(crate) fn export(&self, close_on_exec: bool) -> Result<libc::c_int> {
        match &self.place {
            Place::Own(_) => real::duplicate(self.spot()?.file.descriptor(), close_on_exec),
            Place::Shared(_) => Err(EINVAL),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Place::Shared(arena) = &self.place {
            arena.free(self.offset, self.size);
        }
        if let Some(home) = self.home.upgrade() {
            home.forget(self.label.token, self.offset);
        }
    }
}

/// Every live buffer object of the process.
#[derive(Debug)]
pub(crate) struct Buffers {
    index: Mutex<Index>,
    arena: Arc<Arena>,
}

#[derive(Debug)]
struct Index {
    next_offset: u64,
    by_offset: BTreeMap<u64, Weak<Buffer>>,
    by_token: HashMap<u64, Weak<Buffer>>,
}

impl Buffers {
    pub(crate) fn new(arena: Arc<Arena>) -> Arc<Self> {
        let index = Index {
            next_offset: FIRST_OFFSET,
            by_offset: BTreeMap::new(),
            by_token: HashMap::new(),
        };
        Arc::new(Self { index: Mutex::new(index), arena })
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// New memory: that of a GPU if it comes with a claim, else the machine's.
    pub(crate) fn create(
        self: &Arc<Self>,
        gpu: usize,
        flags: u32,
        size: u64,
        claim: Option<Claim>,
    ) -> Arc<Buffer> {
        let label = Label { gpu, flags, token: memory_file::token() };
        let place = match claim {
            Some(_) => Place::Own(OnceLock::new()),
            None => Place::Shared(self.arena.clone()),
        };
        self.insert(label, size, place, claim)
    }

    /// The memory a dma-buf names: the process's own if it has it, else another process's.
    pub(crate) fn import(self: &Arc<Self>, descriptor: libc::c_int) -> Result<Arc<Buffer>> {
        let (label, size) = memory_file::recognise(descriptor)?;
        if size == 0 {
            return Err(EINVAL);
        }
        let known = self.index().by_token.get(&label.token).and_then(Weak::upgrade);
        if let Some(known) = known {
            return Ok(known);
        }
        let file = MemoryFile::duplicate(descriptor)?;
        Ok(self.insert(label, size, Place::Own(OnceLock::from(file)), None))
    }

    fn insert(
        self: &Arc<Self>,
        label: Label,
        size: u64,
        place: Place,
        claim: Option<Claim>,
    ) -> Arc<Buffer> {
        let mut index = self.index();
        let offset = index.next_offset;
        index.next_offset += size.next_multiple_of(4096);
        let home = Arc::downgrade(self);
        let buffer = Arc::new(Buffer { label, size, offset, place, home, _claim: claim });
        index.by_offset.insert(offset, Arc::downgrade(&buffer));
        index.by_token.insert(label.token, Arc::downgrade(&buffer));
        buffer
    }

    /// What can be mapped at an offset, which must be where an object starts.
    pub(crate) fn at(&self, offset: u64) -> Option<Arc<Buffer>> {
        self.index().by_offset.get(&offset).and_then(Weak::upgrade)
    }

    fn forget(&self, token: u64, offset: u64) {
        let mut index = self.index();
        index.by_offset.remove(&offset);
        // Another import of the same memory may have taken the token since.
        if index.by_token.get(&token).is_some_and(|known| known.strong_count() == 0) {
            index.by_token.remove(&token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_with_the_last_reference() {
        let (vram, buffers) = (Vram::new(1 << 20), Buffers::new(Arc::default()));
        let claim = vram.claim(1 << 20).unwrap();
        assert_eq!(vram.claim(1).map(drop), Err(ENOMEM));
        let buffer = buffers.create(0, 1, 1 << 20, Some(claim));
        let file = MemoryFile::duplicate(buffer.spot().unwrap().file.descriptor()).unwrap();
        let again = buffers.import(file.descriptor()).unwrap();
        assert!(Arc::ptr_eq(&buffer, &again));
        drop(buffer);
        assert!(buffers.at(again.offset).is_some());
        let offset = again.offset;
        drop(again);
        assert!(buffers.at(offset).is_none());
        assert_eq!(vram.available(), 1 << 20);
        let foreign = buffers.import(file.descriptor()).unwrap();
        assert_eq!(foreign.size, 1 << 20);
    }
}
