//! Which addresses are pool memory that this library allocated on a runtime.

use crate::agent::AgentId;
use crate::ipc::Export;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An allocation, as others find it by an address.
#[derive(Debug)]
pub(crate) struct Record {
    pub start: usize,
    pub size: usize,
    pub on_gpu: bool,
    /// The agents that may use it besides its own.
    allowed: Mutex<Vec<AgentId>>,
    /// What is held while the memory is exported or freed.
    state: Mutex<State>,
}

#[derive(Debug)]
pub(crate) enum State {
    /// Allocated; and what other processes were given, if anything.
    Live(Option<Export>),
    Freed,
}

impl Record {
    pub fn new(start: usize, size: usize, on_gpu: bool) -> Arc<Self> {
        let state = Mutex::new(State::Live(None));
        Arc::new(Self { start, size, on_gpu, allowed: Mutex::default(), state })
    }

    pub fn allowed(&self) -> MutexGuard<'_, Vec<AgentId>> {
        self.allowed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All live allocations, by address.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    records: Mutex<BTreeMap<usize, Arc<Record>>>,
}

impl Registry {
    fn records(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<Record>>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn insert(&self, record: &Arc<Record>) {
        self.records().insert(record.start, record.clone());
    }

    pub fn remove(&self, start: usize) {
        self.records().remove(&start);
    }

    /// The allocation that an address is in.
    pub fn around(&self, address: usize) -> Option<Arc<Record>> {
        let records = self.records();
        let (start, record) = records.range(..=address).next_back()?;
        (address - start < record.size).then(|| record.clone())
    }
}
