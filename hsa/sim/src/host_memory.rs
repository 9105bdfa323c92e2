//! The caller's own memory, locked for agents. Shared virtual memory (SVM) is not simulated, because it needs a kernel
//! that migrates pages.

use crate::agents::Agent;
use crate::copy::host_is_readable;
use crate::instance::{Instance, State};
use crate::page_table::PageTable;
use crate::pool_memory::{Allocation, AllocationKind, CallerData};
use crate::status::{HsaResult, non_null};
use core::ffi::{c_int, c_void};
use hsa_sys::*;

/// `hsa_amd_memory_lock`
///
/// # Safety
/// `agents` must be null or point at `count` agents. `agent_address` must be null or writable.
pub(crate) unsafe fn lock(
    instance: &Instance,
    address: *mut c_void,
    size: usize,
    agents: *mut hsa_agent_t,
    count: c_int,
    agent_address: *mut *mut c_void,
) -> HsaResult {
    let agent_address = non_null(agent_address)?;
    // SAFETY: not null, therefore writable (`# Safety`).
    unsafe { agent_address.write(core::ptr::null_mut()) };
    if address.is_null() || size == 0 || agents.is_null() != (count == 0) {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    if !agents.is_null() {
        let count = usize::try_from(count).map_err(|_| HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
        // SAFETY: the caller promises `count` agents.
        unsafe { instance.agents_of(agents, count)? };
    }
    let start = address.addr();
    let mut state = instance.lock();
    let last = start.checked_add(size - 1).ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
    if let Some(Allocation { kind: AllocationKind::Locked(locks), size: locked_size, .. }) =
        state.allocations.get_mut(&start)
        && *locked_size == size
    {
        // Locking the same range again counts another lock (seen in 6.1.2, 6.4.3 and 7.2.4).
        *locks = locks.checked_add(1).ok_or(HSA_STATUS_ERROR_OUT_OF_RESOURCES)?;
        // AMD's runtime makes no driver call here, so no page table is flushed.
        // SAFETY: not null, therefore writable (`# Safety`).
        unsafe { agent_address.write(address) };
        return Ok(());
    }
    let in_use = |at| state.reservation_at(at).is_some() || state.allocation_at(at).is_some();
    if in_use(start) || in_use(last) || !host_is_writable(start, size) {
        return Err(HSA_STATUS_ERROR);
    }
    let locked = Allocation {
        kind: AllocationKind::Locked(1),
        size,
        owner: Agent::Cpu(0),
        flags: HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED,
        memory: None,
        // AMD's runtimes ignore `agents` and map the memory on every GPU (seen in 6.1.2, 6.4.3 and
        // 7.2.4).
        agents: instance.agents().collect(),
        caller_data: CallerData::default(),
    };
    state.allocations.insert(start, locked);
    state.flush_page_tables();
    // SAFETY: not null, therefore writable (`# Safety`).
    unsafe { agent_address.write(address) };
    Ok(())
}

/// Returns whether the process can read and write every page of a range, as the driver requires for memory that it pins.
/// Does not change the memory. The range must not wrap around.
fn host_is_writable(address: usize, size: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    // A line begins like `7f0000000000-7f0000200000 r--p`.
    let is_read_only = maps.lines().any(|line| {
        let mut words = line.split([' ', '-']);
        let mut number = || usize::from_str_radix(words.next()?, 16).ok();
        let (Some(start), Some(end)) = (number(), number()) else { return false };
        start < address + size && address < end && words.next().is_some_and(|it| !it.contains('w'))
    });
    !is_read_only && host_is_readable(address, size)
}

impl State {
    /// Makes earlier changes of all page tables take effect, as the driver does when it maps memory of the
    /// host for GPUs or unmaps it.
    fn flush_page_tables(&mut self) {
        self.page_tables.iter_mut().for_each(PageTable::flush);
    }
}

/// `hsa_amd_memory_unlock`: removes one lock. Removing the last lock unlocks the memory.
pub(crate) fn unlock(instance: &Instance, address: *mut c_void) -> HsaResult {
    let address = non_null(address)?.addr().get();
    let mut state = instance.lock();
    match state.allocations.get_mut(&address).map(|allocation| &mut allocation.kind) {
        Some(AllocationKind::Locked(1)) => {
            state.allocations.remove(&address);
            state.flush_page_tables();
        }
        Some(AllocationKind::Locked(locks)) => *locks -= 1,
        _ if instance.behaviour.unlock_accepts_unlocked_memory() => {}
        _ => return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT),
    }
    Ok(())
}

/// `hsa_amd_svm_attributes_set` and `hsa_amd_svm_attributes_get`: fail, as on a kernel without
/// support.
pub(crate) fn svm(
    _: &Instance,
    _address: *mut c_void,
    _size: usize,
    _attributes: *mut hsa_amd_svm_attribute_pair_t,
    _count: usize,
) -> HsaResult {
    Err(HSA_STATUS_ERROR)
}
