//! Queues, and the threads that emulate a GPU's packet processors.

mod address_space;
mod aql;
mod blit;
mod engine;
mod reserved_page;
mod sdma;
mod signal;
mod worker;

use crate::drm::DrmFile;
use crate::errno::{EAGAIN, EINVAL, ENOMEM, Result};
use crate::id_table::IdTable;
use address_space::GpuAddressSpace;
use reserved_page::ReservedPage;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use worker::Commands;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketFormat {
    /// HSA packets of 64 bytes.
    Aql,
    /// Packets for a DMA engine, which consist of words of 32 bits.
    Sdma,
}

/// A queue's ring, and the addresses of its pointers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    pub(crate) format: PacketFormat,
    pub(crate) gpu: usize,
    pub(crate) base: u64,
    pub(crate) size: u64,
    pub(crate) write_pointer: u64,
    pub(crate) read_pointer: u64,
}

/// The maximum number of queues of a process (`KFD_MAX_NUM_OF_QUEUES_PER_PROCESS`).
const MAX_QUEUES: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Queues {
    queues: Mutex<IdTable<RunningQueue>>,
}

/// A queue, and the thread that reads it.
#[derive(Debug)]
struct RunningQueue {
    ring: Ring,
    commands: Arc<Commands>,
    thread: JoinHandle<()>,
}

impl Queues {
    fn queues(&self) -> MutexGuard<'_, IdTable<RunningQueue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a queue. Returns its number and the offset of its doorbell.
    pub(crate) fn start(
        &self,
        ring: Ring,
        drm_file: Arc<DrmFile>,
        doorbells_size: u64,
    ) -> Result<(u32, u64)> {
        if self.queues().len() >= MAX_QUEUES {
            return Err(ENOMEM);
        }
        let commands = Arc::new(Commands::default());
        let reserved_page = Arc::new(ReservedPage::new()?);
        let (memory, shared) = (GpuAddressSpace { drm_file, reserved_page }, commands.clone());
        let thread = with_signals_blocked(|| {
            let name = format!("kfd-queue{}", ring.gpu);
            thread::Builder::new().name(name).spawn(move || worker::run(ring, &memory, &shared))
        });
        let thread = thread.map_err(|_| EAGAIN)?;
        let number = self.queues().insert(RunningQueue { ring, commands, thread });
        // The queue's thread polls the write pointer, and never reads the doorbell. The runtime
        // still writes to the doorbell.
        Ok((number, u64::from(number) * 8 % doorbells_size))
    }

    /// Stops a queue and waits for its thread.
    pub(crate) fn stop(&self, id: u32) -> Result<()> {
        let queue = self.queues().remove(id).ok_or(EINVAL)?;
        queue.commands.stop.store(true, Ordering::Release);
        // A thread that panicked has ended as well.
        let _ = queue.thread.join();
        Ok(())
    }

    pub(crate) fn ring(&self, id: u32) -> Result<Ring> {
        self.queues().get(id).map(|queue| queue.ring).ok_or(EINVAL)
    }

    /// Suspends or resumes a queue.
    pub(crate) fn set_suspended(&self, id: u32, suspended: bool) -> Result<()> {
        let queues = self.queues();
        queues.get(id).ok_or(EINVAL)?.commands.suspend.store(suspended, Ordering::Release);
        Ok(())
    }
}

/// Runs a function with all signals blocked. Threads that the function starts inherit the signal
/// mask, so that the program's signals only interrupt the program's threads.
pub(crate) fn with_signals_blocked<T>(run: impl FnOnce() -> T) -> T {
    // SAFETY: all zeros is a valid set of signals.
    let (mut all, mut previous): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: the calls fill the sets, which live until the calls return.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut previous);
    }
    let result = run();
    // SAFETY: the call only reads the set, which is filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const previous, std::ptr::null_mut()) };
    result
}
