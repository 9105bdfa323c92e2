//! One file for what `/dev/kfd` maps: doorbells, registers and the page of events.

use crate::errno::Result;
use crate::memory_file::MemoryFile;
use std::sync::OnceLock;

/// The size of a process's doorbells on a GPU.
pub(super) const DOORBELLS: u64 = 8192;

/// The size of a GPU's doorbells and registers.
const GPU: u64 = 1 << 16;
const REGISTERS: u64 = 1 << 15;
const EVENTS: u64 = 1 << 20;
const SIZE: u64 = 1 << 21;

/// The file, created on first use.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    file: OnceLock<MemoryFile>,
}

impl Windows {
    pub(crate) fn file(&self) -> Result<&MemoryFile> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let made = MemoryFile::plain("hsa-kfd windows", SIZE)?;
        Ok(self.file.get_or_init(|| made))
    }
}

/// Returns the file offset of a GPU's doorbells.
pub(super) fn doorbells(gpu: usize) -> u64 {
    gpu as u64 * GPU
}

/// Returns the file offset of a GPU's registers.
pub(super) fn registers(gpu: usize) -> u64 {
    gpu as u64 * GPU + REGISTERS
}

/// Returns the file offset of the event page.
pub(super) fn events() -> u64 {
    EVENTS
}
