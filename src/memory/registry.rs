//! Which addresses are pool memory that this library allocated on a runtime.

use crate::agent::AgentId;
use crate::ipc::Export;
use crate::native::Native;
use crate::report::PoolMemoryEntry;
use crate::runtime::Attachment;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::vmm::Address;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An allocation, as others find it by an address.
#[derive(Debug)]
pub(crate) struct Record {
    pub start: usize,
    pub size: usize,
    /// Whose memory it is.
    pub agent: AgentId,
    pub on_gpu: bool,
    name: Mutex<Option<Arc<str>>>,
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
    pub fn new(start: usize, size: usize, agent: AgentId, on_gpu: bool) -> Arc<Self> {
        let state = Mutex::new(State::Live(None));
        let (name, allowed) = (Mutex::default(), Mutex::default());
        Arc::new(Self { start, size, agent, on_gpu, name, allowed, state })
    }

    pub fn set_name(&self, name: &str) {
        let name = (!name.is_empty()).then(|| name.into());
        *lock(&self.name) = name;
    }

    fn entry(&self) -> PoolMemoryEntry {
        let name = lock(&self.name);
        let mut agents: Vec<_> = self.allowed().clone();
        agents.push(self.agent);
        agents.sort_unstable();
        agents.dedup();
        PoolMemoryEntry {
            address: Address::new(self.start),
            size: self.size,
            name: name.as_deref().map(str::to_owned),
            agent: self.agent,
            agents,
        }
    }

    pub fn allowed(&self) -> MutexGuard<'_, Vec<AgentId>> {
        lock(&self.allowed)
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// All live allocations, by address.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    records: Mutex<BTreeMap<usize, Arc<Record>>>,
}

impl Attachment for Registry {
    fn close(&self, _: &Native) {
        for entry in self.entries() {
            let (address, size, name) = (entry.address, entry.size, entry.name);
            let name = name.unwrap_or_default();
            crate::log::warning!(%address, size, name, "pool memory was leaked");
        }
    }
}

impl Registry {
    fn records(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<Record>>> {
        lock(&self.records)
    }

    pub fn insert(&self, record: &Arc<Record>) {
        self.records().insert(record.start, record.clone());
    }

    pub fn remove(&self, start: usize) {
        self.records().remove(&start);
    }

    /// All of them, for a report.
    pub fn entries(&self) -> Vec<PoolMemoryEntry> {
        // Not while the list is locked: some may be changed this very moment.
        let records: Vec<_> = self.records().values().cloned().collect();
        records.iter().map(|record| record.entry()).collect()
    }

    /// The allocation that an address is in.
    pub fn around(&self, address: usize) -> Option<Arc<Record>> {
        let records = self.records();
        let (start, record) = records.range(..=address).next_back()?;
        (address - start < record.size).then(|| record.clone())
    }
}
