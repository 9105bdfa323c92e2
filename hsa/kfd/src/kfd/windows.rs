//! The file behind all mappings of `/dev/kfd`: doorbells, registers and the event page.

use crate::errno::Result;
use crate::memory_file::MemoryFile;
use std::sync::OnceLock;

/// The size of a process's doorbells on a GPU.
pub(super) const DOORBELLS_SIZE: u64 = 8192;

/// The size of a GPU's part of the file: its doorbells and its registers.
const GPU_SIZE: u64 = 1 << 16;
/// The offset of a GPU's registers from its doorbells.
const REGISTERS_OFFSET: u64 = 1 << 15;
const EVENTS_OFFSET: u64 = 1 << 20;
const FILE_SIZE: u64 = 1 << 21;

/// The memory file, created on first use.
#[derive(Debug, Default)]
pub(crate) struct DeviceFile {
    file: OnceLock<MemoryFile>,
}

impl DeviceFile {
    pub(crate) fn file(&self) -> Result<&MemoryFile> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let file = MemoryFile::plain("hsa-kfd windows", FILE_SIZE)?;
        Ok(self.file.get_or_init(|| file))
    }
}

pub(super) fn doorbells_offset(gpu: usize) -> u64 {
    gpu as u64 * GPU_SIZE
}

pub(super) fn registers_offset(gpu: usize) -> u64 {
    gpu as u64 * GPU_SIZE + REGISTERS_OFFSET
}

pub(super) fn events_offset() -> u64 {
    EVENTS_OFFSET
}
