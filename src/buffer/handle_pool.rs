//! Physical memory that is created before it is needed.

use crate::error::{Error, ErrorKind};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex, MutexGuard, lock};
use crate::vmm::{Allocation, AllocationProperties, Vmm};
use std::sync::{Arc, PoisonError};

/// A pool of handles of one size, which a thread refills. Without a thread if its capacity is 0.
#[derive(Debug)]
pub(super) struct HandlePool {
    shared: Arc<Shared>,
    refill_thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    vmm: Vmm,
    properties: AllocationProperties,
    /// Of one handle, in bytes.
    size: usize,
    /// The number of handles that the thread keeps ready.
    capacity: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    ready: Vec<Allocation>,
    /// The thread is creating a handle.
    creating: bool,
    /// The thread could not create one, and waits until a handle is taken.
    paused: bool,
    ended: bool,
}

impl HandlePool {
    pub fn new(vmm: &Vmm, properties: &AllocationProperties, size: usize, capacity: usize) -> Self {
        let shared = Arc::new(Shared {
            vmm: vmm.clone(),
            properties: *properties,
            size,
            capacity,
            state: Mutex::default(),
            changed: Condvar::default(),
        });
        let refill_thread = (capacity > 0).then(|| {
            let shared = shared.clone();
            thread::Builder::new().name("hsa-vmm pool".to_owned()).spawn(move || shared.refill())
        });
        let refill_thread = refill_thread.and_then(|spawned| {
            let failed =
                |error: &_| crate::log::warning!(%error, "no thread refills a handle pool");
            spawned.inspect_err(failed).ok()
        });
        Self { shared, refill_thread }
    }

    /// The number of handles that are ready.
    pub fn ready(&self) -> usize {
        // In a forked child there are none, and another thread may have held the lock.
        if self.shared.vmm.runtime().has_forked() { 0 } else { self.shared.state().ready.len() }
    }

    /// Takes `count` handles: those that are ready, and new ones for the rest. All of them or none.
    pub fn take(&self, count: usize) -> Result<Vec<Allocation>, Error> {
        let mut taken = Vec::new();
        loop {
            let mut state = self.shared.state();
            let left = state.ready.len().saturating_sub(count - taken.len());
            taken.extend(state.ready.drain(left..));
            state.paused = false;
            self.shared.changed.notify_all();
            drop(state);
            let created = loop {
                if taken.len() == count {
                    return Ok(taken);
                }
                match self.shared.create() {
                    Ok(memory) => taken.push(memory),
                    Err(error) => break error,
                }
            };
            // The thread may be creating the memory that is missing.
            if !self.shared.wait_for_thread() {
                taken.into_iter().for_each(|memory| self.put(memory));
                return Err(created);
            }
        }
    }

    /// Takes memory back: keeps it if there is room, and else releases it.
    pub fn put(&self, memory: Allocation) {
        self.shared.put(memory);
    }

    /// Takes memory back that could not be mapped. Memory that is mapped in a quarantined range is not
    /// used again.
    pub fn put_unmapped(&self, memory: Vec<Allocation>, error: &Error) {
        if !is_quarantine(error) {
            memory.into_iter().for_each(|memory| self.put(memory));
        }
    }
}

/// Whether a range was quarantined.
pub(super) fn is_quarantine(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::PagesLost { cause, .. } => is_quarantine(cause),
        kind => matches!(kind, ErrorKind::Quarantined { .. }),
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn create(&self) -> Result<Allocation, Error> {
        Ok(Allocation::create(&self.vmm, self.size, &self.properties)?)
    }

    fn put(&self, memory: Allocation) {
        let mut state = self.state();
        if state.ready.len() < self.capacity {
            state.ready.push(memory);
            return;
        }
        drop(state);
        if let Err(rejected) = memory.release() {
            let (memory, error) = (rejected.value, rejected.error);
            crate::log::warning!(%error, "memory was not released and is used again");
            self.state().ready.push(memory);
        }
    }

    /// Waits until the thread has created what it is creating. Returns whether a handle is ready then.
    fn wait_for_thread(&self) -> bool {
        let mut state = self.state();
        while state.creating {
            state = self.wait(state);
        }
        !state.ready.is_empty()
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread: refills the pool until it is dropped.
    fn refill(&self) {
        let mut state = self.state();
        while !state.ended {
            if state.paused || state.ready.len() >= self.capacity {
                state = self.wait(state);
                continue;
            }
            state.creating = true;
            drop(state);
            let created = self.create().map(|memory| self.put(memory));
            state = self.state();
            state.creating = false;
            if let Err(error) = created {
                crate::log::debug!(%error, "a handle pool is not refilled");
                state.paused = true;
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
        self.shared.state().ended = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.refill_thread.take()
            && thread.join().is_err()
        {
            crate::log::warning!("the thread that refills a handle pool has panicked");
        }
    }
}
