//! The process's state in amdkfd.

use super::Events;
use crate::buffer::Buffer;
use crate::drm::DrmFile;
use crate::errno::{EINVAL, ENODEV, Result};
use crate::id_table::IdTable;
use crate::queue::Queues;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory with a handle of amdkfd.
#[derive(Debug)]
pub(crate) struct KfdMemory {
    /// `None` for user memory, doorbells and registers.
    pub(crate) buffer: Option<Arc<Buffer>>,
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// The address of user memory in the process. It can differ from `address`, the address on the GPUs.
    pub(crate) user_address: u64,
    pub(crate) flags: u32,
    pub(crate) gpu: usize,
    /// The GPUs that map the memory at `address`.
    pub(crate) mapped: BTreeSet<usize>,
    /// The GPUs that have ever mapped the memory. Until the memory is freed, `GEM_CLOSE` leaves the buffer's entries in
    /// their page tables.
    pub(crate) attached: BTreeSet<usize>,
}

impl KfdMemory {
    /// Creates the record of an imported buffer that no GPU has mapped yet.
    pub(crate) fn imported(buffer: Arc<Buffer>, address: u64, flags: u32, gpu: usize) -> Self {
        let (mapped, attached) = (BTreeSet::new(), BTreeSet::new());
        let size = buffer.size;
        Self { buffer: Some(buffer), address, size, user_address: 0, flags, gpu, mapped, attached }
    }
}

/// The state under the process's lock.
#[derive(Debug)]
pub(crate) struct State {
    /// For each GPU, the render node's file whose page table the process uses.
    pub(crate) drm_files: Vec<Option<Arc<DrmFile>>>,
    /// For each GPU, its memory by the lower half of the handle.
    pub(crate) memories: Vec<IdTable<KfdMemory>>,
}

/// The process as amdkfd sees it.
#[derive(Debug)]
pub(crate) struct Process {
    state: Mutex<State>,
    pub(crate) events: Events,
    pub(crate) queues: Queues,
}

impl Process {
    pub(crate) fn new(gpus: usize) -> Self {
        let drm_files = (0..gpus).map(|_| None).collect();
        let memories = (0..gpus).map(|_| IdTable::default()).collect();
        Self {
            state: Mutex::new(State { drm_files, memories }),
            events: Events::default(),
            queues: Queues::default(),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the render node's file whose page table the process uses on a GPU.
    pub(crate) fn drm_file(&self, gpu: usize) -> Result<Arc<DrmFile>> {
        self.drm_files.get(gpu).and_then(Clone::clone).ok_or(ENODEV)
    }

    pub(crate) fn memory(&mut self, gpu: usize, number: u32) -> Result<&mut KfdMemory> {
        self.memories.get_mut(gpu).and_then(|memories| memories.get_mut(number)).ok_or(EINVAL)
    }
}
