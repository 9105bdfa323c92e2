//! One file for all of the process's memory that no other process gets: what a GPU reads of the
//! machine's memory, doorbells, registers and the page of events. A file for each would take a
//! descriptor for each, which the real driver does not.

use crate::errno::Result;
use crate::memory_file::MemoryFile;
use std::sync::{Arc, OnceLock};

/// Nothing is taken of it before it is touched.
const SIZE: u64 = 1 << 46;
/// What a GPU has of doorbells and registers.
const GPU: u64 = 1 << 16;
const REGISTERS: u64 = 1 << 15;
/// Where the page of events is. Buffers follow, at the offset they are mapped at.
const EVENTS: u64 = 1 << 30;

/// The file.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    file: OnceLock<MemoryFile>,
}

/// A place in a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot<'a> {
    pub(crate) file: &'a MemoryFile,
    pub(crate) offset: u64,
}

impl Arena {
    /// Makes the file at once if that can be done, so that no later call is seen to open one.
    pub(crate) fn new() -> Arc<Self> {
        let arena = Arc::new(Self::default());
        // Whoever needs it is told if it cannot be made.
        let _ = arena.spot(0);
        arena
    }

    pub(crate) fn spot(&self, offset: u64) -> Result<Spot<'_>> {
        let file = match self.file.get() {
            Some(file) => file,
            None => {
                let made = MemoryFile::plain("hsa-kfd host memory", SIZE)?;
                self.file.get_or_init(|| made)
            }
        };
        Ok(Spot { file, offset })
    }

    pub(crate) fn doorbells(&self, gpu: usize) -> Result<Spot<'_>> {
        self.spot(gpu as u64 * GPU)
    }

    pub(crate) fn registers(&self, gpu: usize) -> Result<Spot<'_>> {
        self.spot(gpu as u64 * GPU + REGISTERS)
    }

    pub(crate) fn events(&self) -> Result<Spot<'_>> {
        self.spot(EVENTS)
    }

    /// Gives memory back to the machine.
    pub(crate) fn free(&self, offset: u64, size: u64) {
        if let Some(file) = self.file.get() {
            file.discard(offset, size);
        }
    }
}
