//! Buffer objects, and their offsets in a device's file.

use crate::errno::{EINVAL, ENOMEM, Result};
use crate::faults::Faults;
use crate::memory_file::{self, Label, MemoryFile};
use crate::metadata::Metadata;
use crate::page_table::PAGE;
use crate::real;
use crate::vram::Claim;
use hsa_faults::FaultKind;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// The offset of the first buffer object (`DRM_FILE_PAGE_OFFSET`). Lower offsets have other uses.
const FIRST_OFFSET: u64 = 1 << 32;

/// The memory of a buffer object, shared by all of its handles and mappings.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub(crate) label: Label,
    pub(crate) size: u64,
    /// The buffer's offset for `mmap` of a device's file.
    pub(crate) offset: u64,
    /// The memory, created on first use.
    file: OnceLock<MemoryFile>,
    /// The metadata that this process has attached.
    metadata: Mutex<Option<(Metadata, MemoryFile)>>,
    buffers: Weak<Buffers>,
    /// Counts the memory as used until the buffer is dropped. `None` for imported memory.
    _claim: Option<Claim>,
}

impl Buffer {
    /// Returns the memory file. Creates it on first use.
    pub(crate) fn file(&self) -> Result<&MemoryFile> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let file = MemoryFile::labelled(self.label, self.size)?;
        Ok(self.file.get_or_init(|| file))
    }

    /// Attaches metadata for importers.
    pub(crate) fn set_metadata(&self, metadata: Metadata) -> Result<()> {
        let file = metadata.publish(self.label)?;
        *self.metadata.lock().unwrap_or_else(PoisonError::into_inner) = Some((metadata, file));
        Ok(())
    }

    /// Returns the metadata that this process has attached, or else the creator's.
    pub(crate) fn metadata(&self) -> Metadata {
        let own = self.metadata.lock().unwrap_or_else(PoisonError::into_inner);
        own.as_ref().map_or_else(|| Metadata::from_creator(self.label), |(metadata, _)| *metadata)
    }

    /// Creates a new descriptor of the memory.
    pub(crate) fn export(&self, close_on_exec: bool, faults: &Faults) -> Result<libc::c_int> {
        let file = self.file()?;
        if faults.has_fault(FaultKind::Leak) {
            real::duplicate(file.descriptor(), close_on_exec)?;
        }
        if faults.has_fault(FaultKind::WrongMemory) {
            let other = MemoryFile::labelled(self.label, self.size)?;
            return real::duplicate(other.descriptor(), close_on_exec);
        }
        real::duplicate(file.descriptor(), close_on_exec)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(buffers) = self.buffers.upgrade() {
            buffers.unregister(self.label.token, self.offset);
        }
    }
}

/// Every live buffer object of the process.
#[derive(Debug)]
pub(crate) struct Buffers {
    index: Mutex<Index>,
}

#[derive(Debug)]
struct Index {
    next_offset: u64,
    by_offset: BTreeMap<u64, Weak<Buffer>>,
    by_token: HashMap<u64, Weak<Buffer>>,
}

impl Buffers {
    pub(crate) fn new() -> Arc<Self> {
        let index = Index {
            next_offset: FIRST_OFFSET,
            by_offset: BTreeMap::new(),
            by_token: HashMap::new(),
        };
        Arc::new(Self { index: Mutex::new(index) })
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self) -> usize {
        self.index().by_offset.len()
    }

    /// Creates a buffer object. Returns `ENOMEM` if no offset is left for it.
    pub(crate) fn create(
        self: &Arc<Self>,
        gpu: usize,
        flags: u32,
        size: u64,
        claim: Claim,
    ) -> Result<Arc<Buffer>> {
        let (token, process) = (memory_file::random_token(), std::process::id());
        let label = Label { gpu, flags, token, process };
        self.insert(&mut self.index(), label, size, OnceLock::new(), Some(claim))
    }

    /// Imports a dma-buf. Returns the existing buffer object if the process has one for this memory.
    pub(crate) fn import(self: &Arc<Self>, descriptor: libc::c_int) -> Result<Arc<Buffer>> {
        let (label, size) = memory_file::recognise(descriptor)?;
        if size == 0 {
            return Err(EINVAL);
        }
        let find = |index: &Index| index.by_token.get(&label.token).and_then(Weak::upgrade);
        let found = find(&self.index());
        if let Some(found) = found {
            return Ok(found);
        }
        let file = OnceLock::from(MemoryFile::duplicate(descriptor)?);
        let mut index = self.index();
        // Another thread may have imported the dma-buf meanwhile.
        match find(&index) {
            Some(found) => Ok(found),
            None => self.insert(&mut index, label, size, file, None),
        }
    }

    /// Imports new memory of the same size instead of a dma-buf's memory: the planned fault `other`.
    pub(crate) fn import_wrong_memory(
        self: &Arc<Self>,
        descriptor: libc::c_int,
    ) -> Result<Arc<Buffer>> {
        let (label, size) = memory_file::recognise(descriptor)?;
        let other = Label { token: memory_file::random_token(), ..label };
        self.import(MemoryFile::labelled(other, size)?.descriptor())
    }

    /// Finds the buffer object of a label in this process.
    pub(crate) fn find(&self, label: Label) -> Option<Arc<Buffer>> {
        self.index().by_token.get(&label.token).and_then(Weak::upgrade)
    }

    fn insert(
        self: &Arc<Self>,
        index: &mut Index,
        label: Label,
        size: u64,
        file: OnceLock<MemoryFile>,
        claim: Option<Claim>,
    ) -> Result<Arc<Buffer>> {
        let offset = index.next_offset;
        let pages = size.checked_next_multiple_of(PAGE).ok_or(ENOMEM)?;
        index.next_offset = offset.checked_add(pages).ok_or(ENOMEM)?;
        let buffers = Arc::downgrade(self);
        let buffer = Arc::new(Buffer {
            label,
            size,
            offset,
            file,
            metadata: Mutex::default(),
            buffers,
            _claim: claim,
        });
        index.by_offset.insert(offset, Arc::downgrade(&buffer));
        index.by_token.insert(label.token, Arc::downgrade(&buffer));
        Ok(buffer)
    }

    /// Returns the buffer object that starts at an offset.
    pub(crate) fn at(&self, offset: u64) -> Option<Arc<Buffer>> {
        self.index().by_offset.get(&offset).and_then(Weak::upgrade)
    }

    fn unregister(&self, token: u64, offset: u64) {
        let mut index = self.index();
        index.by_offset.remove(&offset);
        // A later import of the same memory may have registered the token again.
        if index.by_token.get(&token).is_some_and(|buffer| buffer.strong_count() == 0) {
            index.by_token.remove(&token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kfd::abi::flags;
    use crate::vram::{LimitedMemory, MemoryUsage};
    use std::sync::Barrier;

    #[test]
    fn memory_is_freed_with_the_last_reference() {
        let (vram, buffers) =
            (LimitedMemory::new(MemoryUsage::unshared(), 0, 1 << 20), Buffers::new());
        let claim = vram.claim(1 << 20).unwrap();
        assert_eq!(vram.claim(1).map(drop), Err(ENOMEM));
        let buffer = buffers.create(0, flags::VRAM, 1 << 20, claim).unwrap();
        let file = MemoryFile::duplicate(buffer.file().unwrap().descriptor()).unwrap();
        let imported = buffers.import(file.descriptor()).unwrap();
        assert!(Arc::ptr_eq(&buffer, &imported));
        drop(buffer);
        assert!(buffers.at(imported.offset).is_some());
        let offset = imported.offset;
        drop(imported);
        assert!(buffers.at(offset).is_none());
        assert_eq!((vram.used(), buffers.count()), (0, 0));
        let imported = buffers.import(file.descriptor()).unwrap();
        assert_eq!(imported.size, 1 << 20);
    }

    #[test]
    fn import_fails_without_free_offsets() {
        let label = |token| Label { gpu: 0, flags: flags::VRAM, token, process: 1 };
        // Another process may have created a fake dma-buf of the maximum file size.
        let [first, second, third] =
            [1, 2, 3].map(|token| MemoryFile::labelled(label(token), i64::MAX as u64).unwrap());
        let buffers = Buffers::new();
        let _held = buffers.import(first.descriptor()).unwrap();
        assert_eq!(buffers.import(second.descriptor()).map(drop), Err(ENOMEM));
        assert_eq!(buffers.import(third.descriptor()).map(drop), Err(ENOMEM));
        assert_eq!(buffers.count(), 1);
    }

    #[test]
    fn concurrent_imports_share_one_buffer() {
        let exporter = Buffers::new();
        let claim = LimitedMemory::new(MemoryUsage::unshared(), 0, 4096).claim(4096).unwrap();
        let buffer = exporter.create(0, flags::VRAM, 4096, claim).unwrap();
        let descriptor = buffer.file().unwrap().descriptor();
        for _ in 0..500 {
            let (importer, start) = (Buffers::new(), Barrier::new(2));
            let import = || {
                start.wait();
                importer.import(descriptor).unwrap()
            };
            let [first, second] = std::thread::scope(|scope| {
                [scope.spawn(import), scope.spawn(import)].map(|thread| thread.join().unwrap())
            });
            assert!(Arc::ptr_eq(&first, &second));
        }
    }
}
