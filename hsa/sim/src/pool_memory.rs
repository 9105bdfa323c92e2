//! Memory from pools: allocation, release, access of agents. The map of allocations also contains
//! attached and locked memory, because the same queries apply to all three kinds.

use crate::address_space::{self, PAGE, Protection};
use crate::agents::Agent;
use crate::instance::{Instance, State};
use crate::physical::Memory;
use crate::reservation::HUGE_PAGE;
use crate::status::{HsaResult, file_error_status, non_null};
use core::ffi::c_void;
use hsa_faults::FaultKind;
use hsa_sys::*;
use std::os::fd::AsFd;
use std::sync::Arc;

/// How an allocation was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllocationKind {
    Pool,
    Attached,
    /// Host memory of the caller that is locked, with the number of locks.
    Locked(u32),
}

/// Memory at an address. The address is the key in [`State::allocations`].
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) kind: AllocationKind,
    /// The requested size.
    pub(crate) size: usize,
    pub(crate) owner: Agent,
    /// The pool's flags.
    pub(crate) flags: u32,
    /// `None` for locked memory, because the caller owns it.
    pub(crate) memory: Option<Arc<Memory>>,
    /// The agents with access besides the owner.
    pub(crate) agents: Vec<Agent>,
    /// The data and callbacks that the program has registered for the allocation.
    pub(crate) caller_data: CallerData,
}

/// A program's data and callbacks for an allocation.
#[derive(Debug, Default)]
pub(crate) struct CallerData {
    /// The address of the program's data, which `pointer_info` returns.
    pub(crate) user_data: usize,
    pub(crate) deallocation_callbacks: Vec<DeallocationCallback>,
}

/// A callback that runs when an allocation is freed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeallocationCallback {
    pub(crate) function: unsafe extern "C" fn(*mut c_void, *mut c_void),
    /// The registered address.
    pub(crate) address: usize,
    /// The address of the program's data.
    pub(crate) data: usize,
}

impl Allocation {
    /// Returns the size of the allocation in the address space.
    pub(crate) fn extent(&self) -> usize {
        self.memory.as_ref().map_or(self.size, |memory| memory.size as usize)
    }

    pub(crate) fn allows(&self, agent: Agent) -> bool {
        self.owner == agent || self.agents.contains(&agent)
    }
}

impl State {
    /// Finds the allocation that contains an address. Returns its start and the allocation.
    pub(crate) fn allocation_at(&self, address: usize) -> Option<(usize, &Allocation)> {
        let (start, allocation) = self.allocations.range(..=address).next_back()?;
        (address - start < allocation.extent()).then_some((*start, allocation))
    }
}

impl Instance {
    /// Maps memory at new addresses. The mapping is accessible to the CPU if the CPU can access the
    /// owner's memory.
    pub(crate) fn map_memory(&self, memory: &Memory) -> HsaResult<usize> {
        let size = memory.size as usize;
        let alignment = if size >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        let address = address_space::reserve(size, alignment, Protection::None)
            .map_err(|_| HSA_STATUS_ERROR_OUT_OF_RESOURCES)?;
        if !self.cpu_can_access(memory.owner) {
            return Ok(address);
        }
        let mapped = memory.file().and_then(|file| {
            // SAFETY: this call has just reserved the range; no other code knows its address.
            unsafe {
                address_space::map_file(address, size, Protection::ReadWrite, file.as_fd(), 0)
            }
        });
        if let Err(error) = mapped {
            // SAFETY: this call has just reserved the range; no other code knows its address.
            unsafe { address_space::release(address, size) };
            return Err(file_error_status(&error));
        }
        address_space::exclude_from_children(address, size);
        Ok(address)
    }
}

/// Unmaps an allocation. Does nothing for locked memory, because the caller owns it.
pub(crate) fn unmap(address: usize, allocation: &Allocation) {
    if allocation.memory.is_some() {
        // SAFETY: this instance has mapped the range. After a free, a detach or the shutdown, nothing uses it.
        unsafe { address_space::release(address, allocation.extent()) };
    }
}

/// `hsa_amd_memory_pool_allocate`
///
/// # Safety
/// `address` must be null or writable.
pub(crate) unsafe fn allocate(
    instance: &Instance,
    pool: hsa_amd_memory_pool_t,
    size: usize,
    _flags: u32,
    address: *mut *mut c_void,
) -> HsaResult {
    let address = non_null(address)?;
    if size == 0 {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    let pool = instance.pool(pool).ok_or(HSA_STATUS_ERROR_INVALID_MEMORY_POOL)?;
    if !pool.allocates() || size as u64 > instance.pool_size(pool) {
        return Err(HSA_STATUS_ERROR_INVALID_ALLOCATION);
    }
    let rounded = (size as u64).next_multiple_of(instance.granule(pool));
    let claim = instance.claim(pool.owner, rounded);
    let claim = claim.ok_or(HSA_STATUS_ERROR_OUT_OF_RESOURCES)?;
    let memory = Memory::new(rounded, pool.owner, claim);
    let start = instance.map_memory(&memory)?;
    let allocation = Allocation {
        kind: AllocationKind::Pool,
        size,
        owner: pool.owner,
        flags: pool.flags,
        memory: Some(memory),
        agents: Vec::new(),
        caller_data: CallerData::default(),
    };
    instance.lock().allocations.insert(start, allocation);
    // SAFETY: not null, therefore writable (`# Safety`).
    unsafe { address.write(core::ptr::without_provenance_mut(start)) };
    Ok(())
}

/// `hsa_amd_memory_pool_free`
///
/// # Safety
/// The memory must no longer be in use.
pub(crate) unsafe fn free(instance: &Instance, address: *mut c_void) -> HsaResult {
    if address.is_null() {
        return Ok(());
    }
    let mut state = instance.lock();
    let allocation = state.allocations.get(&address.addr());
    if allocation.is_none_or(|allocation| allocation.kind != AllocationKind::Pool) {
        return Err(HSA_STATUS_ERROR_INVALID_ALLOCATION);
    }
    if let Some(allocation) = state.allocations.remove(&address.addr()) {
        if instance.has_fault(FaultKind::Leak) {
            state.leaked_memory.extend(allocation.memory.clone());
        }
        drop(state);
        for callback in &allocation.caller_data.deallocation_callbacks {
            let (address, data) = (callback.address, callback.data);
            let pointer = core::ptr::without_provenance_mut;
            // SAFETY: the program has registered the function for this call; no lock is held.
            unsafe { (callback.function)(pointer(address), pointer(data)) };
        }
        unmap(address.addr(), &allocation);
    }
    Ok(())
}

/// `hsa_amd_agents_allow_access`
///
/// # Safety
/// `agents` must be null or point at `count` agents.
pub(crate) unsafe fn allow_access(
    instance: &Instance,
    count: u32,
    agents: *const hsa_agent_t,
    flags: *const u32,
    address: *const c_void,
) -> HsaResult {
    if count == 0 || agents.is_null() || !flags.is_null() || address.is_null() {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    let address = address.addr();
    let mut state = instance.lock();
    let is_unallocated = state.allocation_at(address).is_none();
    if is_unallocated && !instance.behaviour.allow_access_supports_vmem() {
        return Err(instance.behaviour.not_allocated_status());
    }
    // SAFETY: the caller promises `count` agents.
    let agents = unsafe { instance.agents_of(agents, count as usize)? };
    if state.reservation_at(address).is_some() {
        return grant_vmem_access(instance, &mut state, &agents, address);
    }
    let (start, allocation) =
        state.allocation_at(address).ok_or(HSA_STATUS_ERROR_INVALID_ALLOCATION)?;
    let accessible = |agent: &Agent| match *agent {
        Agent::Cpu(_) => instance.cpu_can_access(allocation.owner),
        Agent::Gpu(gpu) => instance.gpu_can_access(gpu, allocation.owner),
    };
    if !agents.iter().all(accessible) {
        return Err(HSA_STATUS_ERROR);
    }
    // These agents replace the agents of an earlier call.
    if let Some(allocation) = state.allocations.get_mut(&start) {
        allocation.agents = agents;
    }
    Ok(())
}

/// Grants the agents read and write access to the mapping at an address and all adjacent mappings
/// after it.
fn grant_vmem_access(
    instance: &Instance,
    state: &mut State,
    agents: &[Agent],
    address: usize,
) -> HsaResult {
    let (mut start, _) = state.mapping_at(address).ok_or(HSA_STATUS_ERROR_INVALID_ALLOCATION)?;
    let requests: Vec<_> = agents.iter().map(|agent| (*agent, HSA_ACCESS_PERMISSION_RW)).collect();
    while let Some(mapping) = state.mappings.get(&start) {
        let next = start + mapping.size;
        instance.set_access(state, start, usize::MAX, &requests)?;
        start = next;
    }
    Ok(())
}
