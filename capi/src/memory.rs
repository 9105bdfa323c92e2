//! `hipMalloc` and related functions.

use crate::devices::{current_device, memory_size};
use crate::errors;
use crate::objects::lock;
use crate::pointers::{address, write_out, write_unless_null};
use crate::process::process;
use crate::status::{Failure, run};
use crate::streams::find;
use crate::types::{hipError_t, hipStream_t};
use core::ffi::{c_int, c_uint, c_void};
use hsa_vmm::error::Rejected;
use hsa_vmm::ipc::OpenedMemory;
use hsa_vmm::pool::PoolFlags;
use hsa_vmm::{Address, Agent, AgentId, PoolMemory};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// An allocation of the program.
#[derive(Debug)]
pub struct Allocation {
    pub memory: PoolMemory,
    pub kind: Kind,
    pub flags: c_uint,
    pub device: c_int,
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
    /// The device that opened the memory first.
    pub device: c_int,
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
    /// Peer access: pairs of (owner, user).
    peers: Mutex<Vec<(AgentId, AgentId)>>,
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

    /// Finds the opened memory that contains an address. Also returns the device that opened the memory first.
    pub fn opened_at(&self, at: Address) -> Option<(c_int, Arc<OpenedMemory>)> {
        let (_, opened) = entry_at(&lock(&self.opened), at.get(), OpenedEntry::size)?;
        Some((opened.device, opened.memory.first()?.clone()))
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

    fn insert(&self, allocation: Allocation) -> Result<*mut c_void, Failure> {
        let peers = lock(&self.peers);
        if allocation.kind == Kind::Device {
            let users = users(&peers, allocation.memory.agent());
            if !users.is_empty() {
                allocation.memory.allow(&users)?;
            }
        }
        let address = allocation.memory.address();
        lock(&self.allocated).insert(address.get(), Arc::new(allocation));
        Ok(address.as_ptr())
    }

    /// Frees the allocation that starts at an address, if `accepts` returns true for its kind.
    fn free(&self, at: Address, accepts: impl FnOnce(Kind) -> bool) -> Result<(), Failure> {
        let mut map = lock(&self.allocated);
        let allocation = match map.get(&at.get()) {
            Some(allocation) if accepts(allocation.kind) => allocation.clone(),
            Some(_) => {
                return Err(Failure::invalid_argument(
                    "ptr",
                    "is memory of another kind; free it with the function that matches the allocation",
                ));
            }
            None => {
                let problem = "is not the start of an allocation: not allocated, or freed already";
                return Err(Failure::invalid_argument("ptr", problem));
            }
        };
        map.remove(&at.get());
        drop(map);
        self.free_removed(allocation)
    }

    /// Frees an allocation that was removed from the map. Inserts it again if the runtime fails. If another thread is
    /// transferring to or from this memory, the memory is freed when the transfer ends.
    fn free_removed(&self, allocation: Arc<Allocation>) -> Result<(), Failure> {
        let Ok(Allocation { memory, kind, flags, device }) = Arc::try_unwrap(allocation) else {
            return Ok(());
        };
        memory.free().map_err(|Rejected { value: memory, error }| {
            let start = memory.address().get();
            let allocation = Allocation { memory, kind, flags, device };
            lock(&self.allocated).insert(start, Arc::new(allocation));
            Failure::from(error)
        })
    }

    /// Frees a device's memory, and the host memory allocated while the device was current. Returns the first error.
    pub fn free_all_of(&self, device: c_int) -> Result<(), Failure> {
        // All are removed while the map is locked, so that no other thread frees one of these allocations meanwhile.
        let mut map = lock(&self.allocated);
        let (removed, kept): (BTreeMap<_, _>, _) = std::mem::take(&mut *map)
            .into_iter()
            .partition(|(_, allocation)| allocation.device == device);
        *map = kept;
        drop(map);
        let results = removed.into_values().map(|allocation| self.free_removed(allocation));
        results.fold(Ok(()), Result::and)
    }
}

impl Allocation {
    fn belongs_to(&self, owner: AgentId) -> bool {
        self.kind == Kind::Device && self.memory.agent() == owner
    }
}

/// Allocates memory of a device, from a pool with `pool_flags`. Writes null for 0 bytes. `flags` are the flags that
/// `hipPointerGetAttributes` returns for the memory.
fn allocate_on_device(
    ptr: *mut *mut c_void,
    size: usize,
    device: impl FnOnce() -> Result<c_int, Failure>,
    (flags, pool_flags): (c_uint, PoolFlags),
) -> Result<(), Failure> {
    // SAFETY: the C caller passes null or a writable pointer (lib.rs).
    unsafe { write_out("ptr", ptr, core::ptr::null_mut()) }?;
    let process = process()?;
    let device = device()?;
    let agent = process.devices.agent(device)?;
    if size == 0 {
        return Ok(());
    }
    let has_pool = |agent: &Agent| agent.pools.iter().any(|pool| pool.flags.contains(pool_flags));
    // On a device without fine-grained memory, allocates coarse-grained memory, as HIP does.
    let pool_flags = match process.runtime.agent(agent).is_some_and(has_pool) {
        true => pool_flags,
        false => PoolFlags::COARSE_GRAINED,
    };
    let memory = PoolMemory::allocate_with(&process.runtime, agent, size, pool_flags)?;
    let allocation = Allocation { memory, kind: Kind::Device, flags, device };
    // SAFETY: the C caller passes null or a writable pointer (lib.rs).
    unsafe { write_out("ptr", ptr, process.allocations.insert(allocation)?) }
}

/// The flags for functions that take no flags: 0, which `hipPointerGetAttributes` returns, and the flags of the pool.
const COARSE: (c_uint, PoolFlags) = (0, PoolFlags::COARSE_GRAINED);

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMalloc(ptr: *mut *mut c_void, size: usize) -> hipError_t {
    run("hipMalloc", || allocate_on_device(ptr, size, || Ok(current_device()), COARSE))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMallocAsync(
    ptr: *mut *mut c_void,
    size: usize,
    raw: hipStream_t,
) -> hipError_t {
    run("hipMallocAsync", || allocate_on_device(ptr, size, || Ok(find(raw)?.device), COARSE))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipExtMallocWithFlags(
    ptr: *mut *mut c_void,
    size: usize,
    flags: c_uint,
) -> hipError_t {
    run("hipExtMallocWithFlags", || {
        let pool_flags = match flags {
            0 => PoolFlags::COARSE_GRAINED,
            1 => PoolFlags::FINE_GRAINED,
            2 => return Err(Failure::not_supported("signal memory")),
            3 => return Err(Failure::not_supported("uncached memory")),
            4 => return Err(Failure::not_supported("contiguous memory")),
            _ => {
                return Err(Failure::invalid_argument(
                    "flags",
                    format_args!("({flags:#x}) are invalid"),
                ));
            }
        };
        allocate_on_device(ptr, size, || Ok(current_device()), (flags, pool_flags))
    })
}

/// Allocates host memory that all devices can access.
fn allocate_on_host(
    ptr: *mut *mut c_void,
    size: usize,
    kind: Kind,
    flags: c_uint,
) -> Result<(), Failure> {
    // SAFETY: the C caller passes null or a writable pointer (lib.rs).
    unsafe { write_out("ptr", ptr, core::ptr::null_mut()) }?;
    let process = process()?;
    process.devices.require()?;
    if size == 0 {
        return Ok(());
    }
    let memory = PoolMemory::allocate(&process.runtime, process.runtime.host().id(), size)?;
    let devices: Vec<AgentId> = process.devices.iter().collect();
    memory.allow(&devices)?;
    let allocation = Allocation { memory, kind, flags, device: current_device() };
    // SAFETY: the C caller passes null or a writable pointer (lib.rs).
    unsafe { write_out("ptr", ptr, process.allocations.insert(allocation)?) }
}

/// The valid flags of `hipHostMalloc`: portable, mapped, write-combined, NUMA of the user, coherent and non-coherent.
/// They have no effect in this library.
const HOST_FLAGS: c_uint = 0x7 | 0x2000_0000 | 0x4000_0000 | 0x8000_0000;

fn host_malloc(ptr: *mut *mut c_void, size: usize, flags: c_uint) -> Result<(), Failure> {
    let both_coherencies = 0x4000_0000 | 0x8000_0000;
    if flags & !HOST_FLAGS != 0 || flags & both_coherencies == both_coherencies {
        return Err(Failure::invalid_argument("flags", format_args!("({flags:#x}) are invalid")));
    }
    allocate_on_host(ptr, size, Kind::Host, flags)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipHostMalloc(
    ptr: *mut *mut c_void,
    size: usize,
    flags: c_uint,
) -> hipError_t {
    run("hipHostMalloc", || host_malloc(ptr, size, flags))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipHostAlloc(ptr: *mut *mut c_void, size: usize, flags: c_uint) -> hipError_t {
    run("hipHostAlloc", || host_malloc(ptr, size, flags))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMallocHost(ptr: *mut *mut c_void, size: usize) -> hipError_t {
    run("hipMallocHost", || host_malloc(ptr, size, 0))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMallocManaged(
    ptr: *mut *mut c_void,
    size: usize,
    flags: c_uint,
) -> hipError_t {
    run("hipMallocManaged", || {
        if flags != 1 && flags != 2 {
            let problem = format!("({flags:#x}) must be hipMemAttachGlobal or hipMemAttachHost");
            return Err(Failure::invalid_argument("flags", problem));
        }
        if size == 0 {
            return Err(Failure::invalid_argument("size", "is 0"));
        }
        allocate_on_host(ptr, size, Kind::Managed, flags)
    })
}

/// Frees memory if `accepts` returns true for its kind. Does nothing for null.
fn free(ptr: *mut c_void, accepts: impl FnOnce(Kind) -> bool) -> Result<(), Failure> {
    let process = process()?;
    process.devices.require()?;
    if ptr.is_null() {
        return Ok(());
    }
    process.allocations.free(address(ptr), accepts)
}

#[unsafe(no_mangle)]
extern "C" fn hipFree(ptr: *mut c_void) -> hipError_t {
    // As in HIP, frees host memory, too: rocSHMEM relies on this.
    run("hipFree", || free(ptr, |_| true))
}

#[unsafe(no_mangle)]
extern "C" fn hipFreeAsync(ptr: *mut c_void, raw: hipStream_t) -> hipError_t {
    run("hipFreeAsync", || {
        find(raw)?;
        free(ptr, |kind| kind == Kind::Device)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipHostFree(ptr: *mut c_void) -> hipError_t {
    run("hipHostFree", || free(ptr, |kind| kind == Kind::Host))
}

#[unsafe(no_mangle)]
extern "C" fn hipFreeHost(ptr: *mut c_void) -> hipError_t {
    run("hipFreeHost", || free(ptr, |kind| kind == Kind::Host))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemGetInfo(free: *mut usize, total: *mut usize) -> hipError_t {
    run("hipMemGetInfo", || {
        let process = process()?;
        let agent = process.devices.agent(current_device())?;
        // As in HIP, each pointer may be null. Without pointers, the call succeeds without a query.
        if free.is_null() && total.is_null() {
            return Ok(());
        }
        let Some(available) = process.runtime.available_memory(agent) else {
            let message = "this runtime does not report the amount of free memory";
            return Err(Failure::new(errors::NOT_SUPPORTED, message));
        };
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe {
            write_unless_null(total, process.runtime.agent(agent).map_or(0, memory_size));
            write_unless_null(free, available);
        }
        Ok(())
    })
}

#[cfg(all(test, feature = "simulation"))]
mod tests {
    //! Tests of peer access, which C programs cannot query, and of frees in several threads.
    use super::{Allocation, Allocations, Kind};
    use crate::errors;
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
        let allocation = Allocation { memory, kind: Kind::Device, flags: 0, device: 0 };
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
        allocations.free(first, |_| true).unwrap();
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
                            let _ = allocations.free(address, |_| true);
                        }
                    });
                }
                start.wait();
                allocations.free_all_of(0).unwrap();
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
}
