//! Queues, and the threads that emulate a GPU's packet processors.

mod aql;
mod blit;
mod engine;
mod frame;
mod gpu_memory;
mod sdma;
mod signal;
mod worker;

use crate::drm::DrmFile;
use crate::errno::{EAGAIN, EINVAL, ENOMEM, Result};
use crate::slots::Slots;
use frame::Frame;
use gpu_memory::GpuMemory;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use worker::Orders;

/// The packet format of a queue.
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

/// The maximum number of queues of a process (`KFD_MAX_NUM_OF_QUEUES_PER_PROCESS`).
const MOST: usize = 1024;

/// The queues of the process.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    running: Mutex<Slots<Running>>,
}

/// A queue that a thread reads.
#[derive(Debug)]
struct Running {
    ring: Ring,
    orders: Arc<Orders>,
    thread: JoinHandle<()>,
}

impl Queues {
    fn running(&self) -> MutexGuard<'_, Slots<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a queue; returns its number and the offset of its doorbell.
    pub(crate) fn start(
        &self,
        ring: Ring,
        space: Arc<DrmFile>,
        doorbells: u64,
    ) -> Result<(u32, u64)> {
        if self.running().len() >= MOST {
            return Err(ENOMEM);
        }
        let orders = Arc::new(Orders::default());
        let frame = Arc::new(Frame::new()?);
        let (memory, received) = (GpuMemory { space, frame }, orders.clone());
        let thread = without_signals(|| {
            let name = format!("kfd-queue{}", ring.gpu);
            thread::Builder::new().name(name).spawn(move || worker::run(ring, &memory, &received))
        });
        let thread = thread.map_err(|_| EAGAIN)?;
        let number = self.running().insert(Running { ring, orders, thread });
        // No thread reads the doorbell: the write pointer is polled. Each queue still has a doorbell.
        Ok((number, u64::from(number) * 8 % doorbells))
    }

    /// Stops a queue and waits for its thread.
    pub(crate) fn stop(&self, id: u32) -> Result<()> {
        let running = self.running().remove(id).ok_or(EINVAL)?;
        running.orders.stop.store(true, Ordering::Release);
        // A thread that panicked is gone as well.
        let _ = running.thread.join();
        Ok(())
    }

    /// The memory of a queue.
    pub(crate) fn ring(&self, id: u32) -> Result<Ring> {
        self.running().get(id).map(|running| running.ring).ok_or(EINVAL)
    }

    /// Suspends or resumes a queue.
    pub(crate) fn hold(&self, id: u32, held: bool) -> Result<()> {
        let running = self.running();
        running.get(id).ok_or(EINVAL)?.orders.hold.store(held, Ordering::Release);
        Ok(())
    }
}

/// Runs with all signals blocked, also for threads started meanwhile: the program's signals are for
/// its own threads.
pub(crate) fn without_signals<T>(run: impl FnOnce() -> T) -> T {
    // SAFETY: all zeros is a value of a set of signals.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: fills the sets, which live until the calls return.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    let result = run();
    // SAFETY: reads the set that was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    result
}
