//! What stands for the processors of a GPU that read queues.

use crate::errno::{EINVAL, Result};
use crate::kfd::Pages;
use crate::memory_file::MemoryFile;

/// What a queue's packets are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Packets of 64 bytes, of the HSA.
    Aql,
    /// Words for a DMA engine.
    Sdma,
}

/// A queue's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    pub(crate) kind: Kind,
    pub(crate) gpu: usize,
    pub(crate) base: u64,
    pub(crate) size: u64,
    pub(crate) write_pointer: u64,
    pub(crate) read_pointer: u64,
}

/// The queues of the process, and the doorbells of each GPU.
#[derive(Debug)]
pub(crate) struct Queues {
    doorbells: Vec<Pages>,
    registers: Vec<Pages>,
}

impl Queues {
    pub(crate) fn new(gpus: usize) -> Self {
        let pages = || (0..gpus).map(|_| Pages::default()).collect();
        Self { doorbells: pages(), registers: pages() }
    }

    pub(crate) fn doorbells(&self, gpu: usize) -> Result<&MemoryFile> {
        self.doorbells.get(gpu).ok_or(EINVAL)?.file("hsa-kfd doorbells", 8192)
    }

    pub(crate) fn registers(&self, gpu: usize) -> Result<&MemoryFile> {
        self.registers.get(gpu).ok_or(EINVAL)?.file("hsa-kfd registers", 4096)
    }

    pub(crate) fn start(&self, _ring: Ring, _doorbells: u64) -> Result<(u32, u64)> {
        Err(EINVAL)
    }

    pub(crate) fn stop(&self, _id: u32) -> Result<()> {
        Err(EINVAL)
    }

    pub(crate) fn hold(&self, _id: u32, _held: bool) -> Result<()> {
        Err(EINVAL)
    }
}
