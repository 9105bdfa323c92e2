//! Physical memory that is created before it is needed.

use crate::error::Error;
use crate::sync::thread::JoinHandle;
use crate::sync::{Condvar, Mutex, MutexGuard, lock, spawn};
use crate::vmm::{Allocation, AllocationProperties, Vmm};
use std::sync::{Arc, PoisonError};

/// A pool of handles of one size, which a thread refills. A pool that was created with capacity 0 has no thread.
#[derive(Debug)]
pub(super) struct HandlePool {
    shared: Arc<Shared>,
    refill_thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    vmm: Vmm,
    properties: AllocationProperties,
    /// The size of a handle in bytes.
    size: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Handles without other users, in the order in which they were stored.
    ready: Vec<Allocation>,
    /// The number of handles that the thread keeps ready.
    capacity: usize,
    /// Whether the thread is creating a handle.
    creating: bool,
    /// Whether the thread failed to create a handle, and waits until a handle is taken.
    paused: bool,
    /// Whether the thread must end.
    stopped: bool,
}

impl HandlePool {
    /// Creates a pool of handles of `size` bytes. If `capacity` is not 0, starts the pool's thread. Without this
    /// thread, the pool stays usable, but creates no handles in advance. Therefore, this function only logs a failure
    /// to start the thread.
    pub fn new(vmm: &Vmm, properties: &AllocationProperties, size: usize, capacity: usize) -> Self {
        let (vmm, properties) = (vmm.clone(), *properties);
        let state = Mutex::new(State { capacity, ..State::default() });
        let changed = Condvar::default();
        let shared = Shared { vmm, properties, size, state, changed };
        let shared = Arc::new(shared);
        let mut refill_thread = None;
        if capacity > 0 {
            let shared = shared.clone();
            match spawn("hsa-vmm pool", move || shared.refill()) {
                Ok(thread) => refill_thread = Some(thread),
                Err(error) => crate::log::event!(WARN, %error, "no thread refills a handle pool"),
            }
        }
        Self { shared, refill_thread }
    }

    /// Changes the capacity. A pool that was created with capacity 0 has no thread: it keeps the handles that are
    /// stored, and creates none in advance.
    pub fn set_capacity(&self, capacity: usize) {
        lock(&self.shared.state).capacity = capacity;
        self.shared.changed.notify_all();
    }

    /// Returns the number of handles that are ready.
    pub fn ready(&self) -> usize {
        // A forked child has no handles, and another thread may have held the lock during the fork.
        if self.shared.vmm.runtime().has_forked() {
            0
        } else {
            lock(&self.shared.state).ready.len()
        }
    }

    /// Takes `count` handles: first ready handles, then new handles. If a handle cannot be created, returns the
    /// error and leaves the ready handles in the pool.
    pub fn take(&self, count: usize) -> Result<Vec<Allocation>, Error> {
        let (mut taken, mut created) = (Vec::new(), Vec::new());
        loop {
            let mut state = lock(&self.shared.state);
            let remaining = state.ready.len().saturating_sub(count - taken.len() - created.len());
            taken.extend(state.ready.drain(remaining..));
            state.paused = false;
            self.shared.changed.notify_all();
            drop(state);
            let error = loop {
                if taken.len() + created.len() == count {
                    taken.extend(created);
                    return Ok(taken);
                }
                match self.shared.create() {
                    Ok(memory) => created.push(memory),
                    Err(error) => break error,
                }
            };
            // The thread may be creating the missing memory.
            let mut state = lock(&self.shared.state);
            while state.creating {
                state = self.shared.wait(state);
            }
            if state.ready.is_empty() {
                drop(state);
                // `store` releases the handles that come first.
                self.store(created.into_iter().chain(taken));
                return Err(error);
            }
        }
    }

    /// Stores memory. If the pool then has more handles than its capacity, releases the oldest handles.
    ///
    /// Memory that is still used, for example by a retire queue, is not stored: its last user releases it.
    pub fn store(&self, memory: impl IntoIterator<Item = Allocation>) {
        self.shared.store(memory);
    }
}

impl Shared {
    fn create(&self) -> Result<Allocation, Error> {
        Allocation::create(&self.vmm, self.size, &self.properties)
    }

    fn store(&self, memory: impl IntoIterator<Item = Allocation>) {
        let unused: Vec<_> = memory.into_iter().filter_map(Allocation::into_unused).collect();
        let mut state = lock(&self.state);
        state.ready.extend(unused);
        let excess = state.ready.len().saturating_sub(state.capacity);
        let excess: Vec<_> = state.ready.drain(..excess).collect();
        drop(state);
        for memory in excess {
            if let Err(rejected) = memory.release() {
                let error = rejected.error;
                crate::log::event!(WARN, %error, "memory was not released, so the pool keeps it");
                lock(&self.state).ready.push(rejected.value);
            }
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Refills the pool until the pool is dropped. The thread runs this function.
    fn refill(&self) {
        let mut state = lock(&self.state);
        while !state.stopped {
            if state.paused || state.ready.len() >= state.capacity {
                state = self.wait(state);
                continue;
            }
            state.creating = true;
            // If the call fails, the thread pauses, unless another thread has taken a handle meanwhile.
            state.paused = true;
            drop(state);
            let created = self.create().map(|memory| self.store([memory]));
            state = lock(&self.state);
            state.creating = false;
            match created {
                Ok(()) => state.paused = false,
                Err(error) => {
                    crate::log::event!(DEBUG, %error, "a handle pool is not refilled");
                }
            }
            self.changed.notify_all();
        }
    }
}

impl Drop for HandlePool {
    fn drop(&mut self) {
        // The thread does not exist in a forked child, and may have held the lock.
        if self.shared.vmm.runtime().has_forked() {
            return std::mem::forget(self.refill_thread.take());
        }
        lock(&self.shared.state).stopped = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.refill_thread.take()
            && thread.join().is_err()
        {
            crate::log::event!(WARN, "the thread that refills a handle pool has panicked");
        }
    }
}
