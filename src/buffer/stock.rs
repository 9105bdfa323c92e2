//! Physical memory that is made before it is needed.

use crate::Kept;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex, MutexGuard, lock};
use crate::vmm::{Allocation, AllocationProperties, Vmm, VmmError};
use std::sync::{Arc, PoisonError};

/// A few handles of one size, kept ready by a thread. Without a thread if there are to be none.
#[derive(Debug)]
pub(super) struct Stock {
    shelf: Arc<Shelf>,
    keeper: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shelf {
    vmm: Vmm,
    properties: AllocationProperties,
    /// Of one handle, in bytes.
    size: usize,
    /// How many are to be ready.
    full: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    ready: Vec<Allocation>,
    /// The keeper is making one.
    making: bool,
    /// The keeper could make none, and waits until something is taken.
    resting: bool,
    ended: bool,
}

impl Stock {
    pub fn new(vmm: &Vmm, properties: &AllocationProperties, size: usize, full: usize) -> Self {
        let shelf = Arc::new(Shelf {
            vmm: vmm.clone(),
            properties: *properties,
            size,
            full,
            state: Mutex::default(),
            changed: Condvar::default(),
        });
        let keeper = (full > 0).then(|| {
            let shelf = shelf.clone();
            thread::Builder::new().name("hsa-vmm stock".to_owned()).spawn(move || shelf.keep_full())
        });
        let keeper = keeper.and_then(|spawned| {
            let failed =
                |error: &_| crate::log::warning!(%error, "no thread for a stock of handles");
            spawned.inspect_err(failed).ok()
        });
        Self { shelf, keeper }
    }

    /// How many handles are ready.
    pub fn ready(&self) -> usize {
        // In a forked child there are none, and another thread may have held the lock.
        if self.shelf.vmm.runtime().has_forked() { 0 } else { self.shelf.state().ready.len() }
    }

    /// So many handles: those that are ready, and new ones for the rest. All of them or none.
    pub fn take(&self, count: usize) -> Result<Vec<Allocation>, VmmError> {
        let mut taken = Vec::new();
        loop {
            let mut state = self.shelf.state();
            let left = state.ready.len().saturating_sub(count - taken.len());
            taken.extend(state.ready.drain(left..));
            state.resting = false;
            self.shelf.changed.notify_all();
            drop(state);
            let made = loop {
                if taken.len() == count {
                    return Ok(taken);
                }
                match self.shelf.make() {
                    Ok(memory) => taken.push(memory),
                    Err(error) => break error,
                }
            };
            // What is lacking may be just what the keeper is making.
            if !self.shelf.wait_for_keeper() {
                taken.into_iter().for_each(|memory| self.give(memory));
                return Err(made);
            }
        }
    }

    /// Takes memory back: to keep it, if there is room, else to release it.
    pub fn give(&self, memory: Allocation) {
        self.shelf.put(memory);
    }
}

impl Shelf {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn make(&self) -> Result<Allocation, VmmError> {
        Allocation::create(&self.vmm, self.size, &self.properties)
    }

    fn put(&self, memory: Allocation) {
        let mut state = self.state();
        if state.ready.len() < self.full {
            state.ready.push(memory);
            return;
        }
        drop(state);
        if let Err(Kept { value: memory, error }) = memory.release() {
            crate::log::warning!(%error, "memory is kept for later because it was not released");
            self.state().ready.push(memory);
        }
    }

    /// Waits until the keeper has made what it is making; whether something is ready then.
    fn wait_for_keeper(&self) -> bool {
        let mut state = self.state();
        while state.making {
            state = self.wait(state);
        }
        !state.ready.is_empty()
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// What the keeper does until the stock's end.
    fn keep_full(&self) {
        let mut state = self.state();
        while !state.ended {
            if state.resting || state.ready.len() >= self.full {
                state = self.wait(state);
                continue;
            }
            state.making = true;
            drop(state);
            let made = self.make().map(|memory| self.put(memory));
            state = self.state();
            state.making = false;
            if let Err(error) = made {
                crate::log::debug!(%error, "a stock of handles is not filled");
                state.resting = true;
            }
            self.changed.notify_all();
        }
    }
}

impl Drop for Stock {
    fn drop(&mut self) {
        // In a forked child there is no keeper, and it may have held the lock.
        if self.shelf.vmm.runtime().has_forked() {
            return std::mem::forget(self.keeper.take());
        }
        self.shelf.state().ended = true;
        self.shelf.changed.notify_all();
        if let Some(keeper) = self.keeper.take()
            && keeper.join().is_err()
        {
            crate::log::warning!("the thread of a stock of handles has panicked");
        }
    }
}
