//! The memory that the program allocated or opened, and the peers that can access it.

use crate::errors;
use crate::objects::lock;
use crate::status::Failure;
use core::ffi::{c_int, c_uint, c_void};
use core::fmt::Display;
use core::ops::Range;
use hsa_vmm::error::Rejected;
use hsa_vmm::ipc::OpenedMemory;
use hsa_vmm::{Address, AgentId, Error, Handle, PoolMemory};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The number of the next buffer. A shut-down does not reset the counter.
static NEXT_BUFFER_ID: AtomicU32 = AtomicU32::new(1);

/// Returns a number that identifies memory in this process (`HIP_POINTER_ATTRIBUTE_BUFFER_ID`).
pub fn next_buffer_id() -> u32 {
    NEXT_BUFFER_ID.fetch_add(1, Ordering::Relaxed)
}

/// An allocation of the program.
#[derive(Debug)]
pub struct Allocation {
    pub memory: PoolMemory,
    pub kind: Kind,
    pub flags: c_uint,
    pub device: c_int,
    pub buffer_id: u32,
    /// The value of `HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS`. Has no effect, because every copy is synchronous.
    pub sync_memops: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Device,
    Host,
    /// Memory of the host from `hipMallocManaged`.
    Managed,
}

/// Memory of another process, which this process has opened.
#[derive(Clone, Debug)]
pub struct OpenedEntry {
    /// The device that opened the memory last, as HIP reports it.
    pub device: c_int,
    pub buffer_id: u32,
    /// One value for each call that opened the memory. The list is never empty.
    pub memory: Vec<Arc<OpenedMemory>>,
}

impl OpenedEntry {
    /// Returns the size in bytes, to the end of the allocation.
    pub fn size(&self) -> usize {
        self.memory.first().map_or(0, |memory| memory.size())
    }
}

/// All allocated and opened memory, by address.
#[derive(Debug, Default)]
pub struct Allocations {
    allocated: Mutex<BTreeMap<usize, Arc<Allocation>>>,
    opened: Mutex<BTreeMap<usize, OpenedEntry>>,
    /// The buffer IDs of handles whose ID the program has queried. Entries are never removed: the number of a handle
    /// is never reused.
    ids_of_handles: Mutex<BTreeMap<u64, u32>>,
    /// Peer access: pairs of (owner, user).
    peers: Mutex<Vec<(AgentId, AgentId)>>,
}

/// Converts the error of a step of an allocation: as in HIP, every failed allocation is `hipErrorOutOfMemory`.
pub fn out_of_memory(error: Error) -> Failure {
    Failure { code: errors::OUT_OF_MEMORY, ..Failure::from(error) }
}

/// Finds the entry of a map that contains an address. Also returns the entry's start.
fn entry_at<T: Clone>(
    map: &BTreeMap<usize, T>,
    at: usize,
    size: impl Fn(&T) -> usize,
) -> Option<(usize, T)> {
    let (&start, entry) = map.range(..=at).next_back()?;
    (at - start < size(entry)).then(|| (start, entry.clone()))
}

/// Returns whether a range overlaps an entry of a map, whose entries do not overlap each other.
fn overlaps_entry<T>(
    map: &BTreeMap<usize, T>,
    range: &Range<usize>,
    size: impl Fn(&T) -> usize,
) -> bool {
    let last = map.range(..range.end).next_back();
    last.is_some_and(|(&start, entry)| start + size(entry) > range.start)
}

/// Returns the peers with access to an owner's memory.
fn users(peers: &[(AgentId, AgentId)], owner: AgentId) -> Vec<AgentId> {
    peers.iter().filter(|pair| pair.0 == owner).map(|pair| pair.1).collect()
}

impl Allocations {
    /// Finds the allocation that contains an address.
    pub fn at(&self, at: Address) -> Option<Arc<Allocation>> {
        entry_at(&lock(&self.allocated), at.get(), |allocation| allocation.memory.size())
            .map(|(_, allocation)| allocation)
    }

    /// Returns whether a range overlaps allocated or opened memory.
    pub fn overlap(&self, range: &Range<usize>) -> bool {
        overlaps_entry(&lock(&self.allocated), range, |allocation| allocation.memory.size())
            || overlaps_entry(&lock(&self.opened), range, OpenedEntry::size)
    }

    /// Finds the opened memory that contains an address. Also returns its entry.
    pub fn opened_at(&self, at: Address) -> Option<(OpenedEntry, Arc<OpenedMemory>)> {
        let (_, opened) = entry_at(&lock(&self.opened), at.get(), OpenedEntry::size)?;
        let memory = opened.memory.first()?.clone();
        Some((opened, memory))
    }

    /// Returns the buffer ID of a handle's memory.
    pub fn buffer_id_of(&self, handle: Handle) -> u32 {
        *lock(&self.ids_of_handles).entry(handle.to_bits()).or_insert_with(next_buffer_id)
    }

    /// Locks the opened memory.
    pub fn opened(&self) -> MutexGuard<'_, BTreeMap<usize, OpenedEntry>> {
        lock(&self.opened)
    }

    /// Grants `user` access to all present and future memory of `owner`.
    pub fn enable_peer(&self, owner: AgentId, user: AgentId) -> Result<(), Failure> {
        let mut peers = lock(&self.peers);
        if peers.contains(&(owner, user)) {
            let message = "peer access is already enabled";
            return Err(Failure::new(errors::PEER_ACCESS_ALREADY_ENABLED, message));
        }
        let before = peers.clone();
        peers.push((owner, user));
        self.send_peers(owner, &mut peers, before)
    }

    /// Revokes access that `enable_peer` has granted.
    pub fn disable_peer(&self, owner: AgentId, user: AgentId) -> Result<(), Failure> {
        let mut peers = lock(&self.peers);
        let Some(index) = peers.iter().position(|pair| *pair == (owner, user)) else {
            let message = "peer access is not enabled";
            return Err(Failure::new(errors::PEER_ACCESS_NOT_ENABLED, message));
        };
        let before = peers.clone();
        peers.swap_remove(index);
        self.send_peers(owner, &mut peers, before)
    }

    /// Sends the list of peers to the runtime for each allocation of `owner`. Rolls back on
    /// failure. Each call sends all peers, because the runtime revokes access of agents that are
    /// not in the list.
    fn send_peers(
        &self,
        owner: AgentId,
        peers: &mut Vec<(AgentId, AgentId)>,
        before: Vec<(AgentId, AgentId)>,
    ) -> Result<(), Failure> {
        let allocated = lock(&self.allocated);
        let allow = |peers: &[(AgentId, AgentId)]| {
            let users = users(peers, owner);
            let mut owned = allocated.values().filter(|allocation| allocation.belongs_to(owner));
            owned.try_for_each(|allocation| allocation.memory.allow(&users))
        };
        allow(peers).map_err(|error| {
            *peers = before;
            // If the rollback fails, one agent has too much or too little access. No memory is lost.
            let _ = allow(peers);
            Failure::from(error)
        })
    }

    pub fn insert(&self, allocation: Allocation) -> Result<*mut c_void, Failure> {
        let peers = lock(&self.peers);
        if allocation.kind == Kind::Device {
            let users = users(&peers, allocation.memory.agent());
            if !users.is_empty() {
                allocation.memory.allow(&users).map_err(out_of_memory)?;
            }
        }
        let address = allocation.memory.address();
        lock(&self.allocated).insert(address.get(), Arc::new(allocation));
        Ok(address.as_ptr())
    }

    /// Frees the allocation that starts at an address. If there is none, `problem` says why.
    pub fn free<D: Display>(
        &self,
        at: Address,
        problem: impl FnOnce() -> D,
    ) -> Result<(), Failure> {
        let removed = lock(&self.allocated).remove(&at.get());
        let allocation = removed.ok_or_else(|| Failure::invalid_argument("ptr", problem()))?;
        self.free_removed(allocation)
    }

    /// Frees an allocation that was removed from the map. Inserts it again if the runtime fails. If another thread is
    /// transferring to or from this memory, the memory is freed when the transfer ends.
    fn free_removed(&self, allocation: Arc<Allocation>) -> Result<(), Failure> {
        let Ok(Allocation { memory, kind, flags, device, buffer_id, sync_memops }) =
            Arc::try_unwrap(allocation)
        else {
            return Ok(());
        };
        memory.free().map_err(|Rejected { value: memory, error }| {
            let start = memory.address().get();
            // A peer that was added or removed meanwhile did not affect this memory. If the runtime fails again, one
            // agent has too much or too little access.
            let peers = lock(&self.peers);
            if kind == Kind::Device {
                let _ = memory.allow(&users(&peers, memory.agent()));
            }
            let allocation = Allocation { memory, kind, flags, device, buffer_id, sync_memops };
            lock(&self.allocated).insert(start, Arc::new(allocation));
            Failure::from(error)
        })
    }

    /// Frees a device's memory and, if it is the only device, the memory of the host. As in HIP, memory of the host
    /// otherwise belongs to all devices. Returns the first error.
    pub fn free_all_of(&self, device: c_int, is_only_device: bool) -> Result<(), Failure> {
        // All are removed while the map is locked, so that no other thread frees one of these allocations meanwhile.
        let mut map = lock(&self.allocated);
        let (removed, kept): (BTreeMap<_, _>, _) =
            std::mem::take(&mut *map).into_iter().partition(|(_, allocation)| {
                match allocation.kind {
                    Kind::Device => allocation.device == device,
                    Kind::Host | Kind::Managed => is_only_device,
                }
            });
        *map = kept;
        drop(map);
        let results = removed.into_values().map(|allocation| self.free_removed(allocation));
        results.fold(Ok(()), Result::and)
    }
}

impl Allocation {
    pub fn new(memory: PoolMemory, kind: Kind, flags: c_uint, device: c_int) -> Self {
        let (buffer_id, sync_memops) = (next_buffer_id(), AtomicBool::new(false));
        Self { memory, kind, flags, device, buffer_id, sync_memops }
    }

    fn belongs_to(&self, owner: AgentId) -> bool {
        self.kind == Kind::Device && self.memory.agent() == owner
    }
}

#[cfg(all(test, feature = "simulation"))]
mod tests {
    //! Tests of peer access, which C programs cannot query, and of frees in several threads.
    use super::{Allocation, Allocations, Kind};
    use crate::errors;
    use crate::objects::lock;
    use hsa_vmm::simulation::{Config, FaultPlan};
    use hsa_vmm::{Address, AgentId, PoolMemory, Runtime};
    use std::sync::Barrier;

    /// Returns a runtime with three GPUs, and the address of an allocation on the first.
    fn fixture(faults: FaultPlan) -> (Runtime, Vec<AgentId>, Allocations, Address) {
        let runtime = Runtime::simulated(Config::mi300x(3).with_faults(faults)).unwrap();
        let gpus: Vec<_> = runtime.gpus().map(hsa_vmm::Agent::id).collect();
        let allocations = Allocations::default();
        let address = allocate(&runtime, &allocations, gpus[0]);
        (runtime, gpus, allocations, address)
    }

    fn allocate(runtime: &Runtime, allocations: &Allocations, owner: AgentId) -> Address {
        let memory = PoolMemory::allocate(runtime, owner, 4096).unwrap();
        let allocation = Allocation::new(memory, Kind::Device, 0, 0);
        Address::new(allocations.insert(allocation).unwrap() as usize)
    }

    /// Returns for each GPU whether it can access the allocation at an address.
    fn accessibility(allocations: &Allocations, at: Address, gpus: &[AgentId]) -> Vec<bool> {
        let allocation = allocations.at(at).unwrap();
        gpus.iter().map(|&gpu| allocation.memory.is_accessible_by(gpu)).collect()
    }

    #[test]
    fn granting_a_peer_keeps_other_grants() {
        let (runtime, gpus, allocations, before) = fixture(FaultPlan::default());
        let other_owner = allocate(&runtime, &allocations, gpus[1]);
        let accessible = |at| accessibility(&allocations, at, &gpus);
        assert_eq!(accessible(before), [true, false, false]);
        allocations.enable_peer(gpus[0], gpus[1]).unwrap();
        allocations.enable_peer(gpus[0], gpus[2]).unwrap();
        let after = allocate(&runtime, &allocations, gpus[0]);
        for at in [before, after] {
            assert_eq!(accessible(at), [true, true, true]);
        }
        allocations.disable_peer(gpus[0], gpus[1]).unwrap();
        let last = allocate(&runtime, &allocations, gpus[0]);
        for at in [before, after, last] {
            assert_eq!(accessible(at), [true, false, true]);
        }
        assert_eq!(
            accessible(other_owner),
            [false, true, false],
            "memory of another owner is not affected"
        );
        let second_disable_error = allocations.disable_peer(gpus[0], gpus[1]).unwrap_err();
        assert_eq!(second_disable_error.code, errors::PEER_ACCESS_NOT_ENABLED);
        let second_enable_error = allocations.enable_peer(gpus[0], gpus[2]).unwrap_err();
        assert_eq!(second_enable_error.code, errors::PEER_ACCESS_ALREADY_ENABLED);
    }

    /// Frees all memory of a device while other threads free the same allocations.
    #[test]
    fn reset_frees_all_during_other_frees() {
        let (runtime, gpus, allocations, first) = fixture(FaultPlan::default());
        allocations.free(first, || "").unwrap();
        for _ in 0..200 {
            let addresses =
                std::array::from_fn::<_, 16, _>(|_| allocate(&runtime, &allocations, gpus[0]));
            let start = Barrier::new(3);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        start.wait();
                        // Fails for allocations that another thread has freed.
                        for &address in &addresses {
                            let _ = allocations.free(address, || "");
                        }
                    });
                }
                start.wait();
                allocations.free_all_of(0, false).unwrap();
            });
            assert!(addresses.iter().all(|&address| allocations.at(address).is_none()));
        }
    }

    #[test]
    fn failed_peer_grant_changes_nothing() {
        // The runtime's second call, which grants access to both peers, fails.
        let faults = FaultPlan::default().fail("hsa_amd_agents_allow_access", 2, 0x1000);
        let (_runtime, gpus, allocations, at) = fixture(faults);
        allocations.enable_peer(gpus[0], gpus[1]).unwrap();
        allocations.enable_peer(gpus[0], gpus[2]).unwrap_err();
        assert_eq!(accessibility(&allocations, at, &gpus), [true, true, false]);
        allocations.enable_peer(gpus[0], gpus[2]).unwrap();
        assert_eq!(accessibility(&allocations, at, &gpus), [true, true, true]);
    }

    #[test]
    fn peers_reach_memory_whose_free_failed() {
        let faults = FaultPlan::default().fail("hsa_amd_memory_pool_free", 1, 0x1000);
        let (_runtime, gpus, allocations, at) = fixture(faults);
        // Another thread enables a peer after `free` has removed the memory, and before the runtime fails.
        let removed = lock(&allocations.allocated).remove(&at.get()).unwrap();
        allocations.enable_peer(gpus[0], gpus[1]).unwrap();
        allocations.free_removed(removed).unwrap_err();
        assert_eq!(accessibility(&allocations, at, &gpus), [true, true, false]);
        allocations.free(at, || "").unwrap();
    }
}
