//! The pool memory that this library has allocated on a runtime.

use crate::address::Address;
use crate::agent::AgentId;
use crate::error::ErrorKind;
use crate::native::Native;
use crate::pool::PoolFlags;
use crate::runtime::{Attachment, Runtime};
use crate::sync::{Mutex, MutexGuard, RwLock, lock};
use core::any::Any;
use core::fmt;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An allocation of pool memory, as [`Runtime::pool_memory`] lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PoolMemoryInfo {
    /// The start address.
    pub address: Address,
    /// The size in bytes that was requested.
    pub size: usize,
    /// The name ([`PoolMemory::named`](crate::PoolMemory::named)).
    pub name: Option<String>,
    /// The agent that owns the memory.
    pub agent: AgentId,
    /// The agents that can access the memory, including its owner, sorted and without duplicates.
    pub agents: Vec<AgentId>,
}

impl Runtime {
    /// Lists this runtime's allocations of [`PoolMemory`](crate::PoolMemory), by address. The list is empty
    /// in a [forked child](Self::has_forked).
    ///
    /// ```
    /// # use hsa_vmm::{PoolMemory, Runtime};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
    /// # let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
    /// let memory = PoolMemory::allocate(&runtime, gpu, 1000)?.named("weights");
    /// let [info] = &runtime.pool_memory()[..] else { panic!() };
    /// assert_eq!((info.address, info.name.as_deref()), (memory.address(), Some("weights")));
    /// # Ok(())
    /// # }
    /// ```
    pub fn pool_memory(&self) -> Vec<PoolMemoryInfo> {
        // In a forked child, locks may be held by threads of the parent.
        if self.has_forked() { Vec::new() } else { self.attachment::<Registry>().list() }
    }
}

/// The export of memory to other processes. The module `ipc` implements this trait.
pub(crate) trait Exported: Any + fmt::Debug + Send + Sync {
    /// Ends the export, and calls `free` to free the memory. During this call, no other process can open the memory.
    /// If `free` fails, the export continues.
    fn end(&self, free: &mut dyn FnMut() -> Result<(), ErrorKind>) -> Result<(), ErrorKind>;
}

/// An allocation of pool memory.
#[derive(Debug)]
pub(crate) struct Record {
    pub start: usize,
    pub size: usize,
    pub agent: AgentId,
    pub on_gpu: bool,
    pub flags: PoolFlags,
    /// The size in bytes, rounded up to whole granules of the pool.
    pub allocated_size: usize,
    pub name: Mutex<Option<Arc<str>>>,
    /// The agents that can access the memory in addition to its owner.
    pub allowed: Mutex<Vec<AgentId>>,
    pub state: Mutex<State>,
}

/// Whether the memory is allocated. Allocated memory can have an export, so that other processes can open it. Adding
/// or ending the export, and freeing the memory, requires the lock of [`Record::state`].
#[derive(Debug)]
pub(crate) enum State {
    Allocated(Option<Box<dyn Exported>>),
    Freed,
}

impl Record {
    /// Calls `act`; no other thread can free the memory during the call. Returns `None` if the memory was freed
    /// before.
    pub fn while_allocated<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        match &*lock(&self.state) {
            State::Allocated(_) => Some(act()),
            State::Freed => None,
        }
    }

    fn info(&self) -> PoolMemoryInfo {
        let mut agents = lock(&self.allowed).clone();
        agents.push(self.agent);
        agents.sort_unstable_by_key(|agent| agent.index());
        agents.dedup();
        let (address, name) = (Address::new(self.start), lock(&self.name));
        let name = name.as_deref().map(str::to_owned);
        PoolMemoryInfo { address, size: self.size, name, agent: self.agent, agents }
    }
}

/// All allocations of a runtime, by address.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    records: Mutex<BTreeMap<usize, Arc<Record>>>,
    /// Locked for reading while an agent copies, and for writing while the access of agents changes.
    pub access: RwLock<()>,
}

impl Attachment for Registry {
    fn close(&self, _: &Native) {
        for PoolMemoryInfo { address, size, name, .. } in self.list() {
            let name = name.unwrap_or_default();
            crate::log::event!(WARN, %address, size, name, "pool memory was leaked");
        }
    }
}

impl Registry {
    /// Locks and returns the allocations by start address.
    pub fn records(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<Record>>> {
        lock(&self.records)
    }

    fn list(&self) -> Vec<PoolMemoryInfo> {
        let records: Vec<_> = self.records().values().cloned().collect();
        records.iter().map(|record| record.info()).collect()
    }

    /// Returns the allocation that contains an address.
    pub fn containing(&self, address: usize) -> Option<Arc<Record>> {
        let records = self.records();
        let (start, record) = records.range(..=address).next_back()?;
        (address - start < record.size).then(|| record.clone())
    }
}
