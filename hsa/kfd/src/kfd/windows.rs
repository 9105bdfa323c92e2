//! One file for what `/dev/kfd` maps: doorbells, registers and the page of events.

use crate::errno::Result;
use crate::memory_file::MemoryFile;
use std::sync::OnceLock;

/// How many bytes of doorbells a process has on a GPU.
pub(super) const DOORBELLS: u64 = 8192;

/// What a GPU has of doorbells and registers.
const GPU: u64 = 1 << 16;
const REGISTERS: u64 = 1 << 15;
const EVENTS: u64 = 1 << 20;
const SIZE: u64 = 1 << 21;

/// The file, made when it is first mapped.
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

/// Where in the file a GPU's doorbells are.
pub(super) fn doorbells(gpu: usize) -> u64 {
    gpu as u64 * GPU
}

/// Where in the file a GPU's registers are.
pub(super) fn registers(gpu: usize) -> u64 {
    gpu as u64 * GPU + REGISTERS
}

/// Where in the file the page of events is.
pub(super) fn events() -> u64 {
    EVENTS
}
