//! The caller's own memory, locked for agents. Shared virtual memory (SVM) is not simulated, because it needs a kernel
//! that migrates pages.

use crate::address_space::PAGE;
use crate::agents::Agent;
use crate::copy::host_is_readable;
use crate::instance::{Instance, State};
use crate::page_table::PageTable;
use crate::pool_memory::{Allocation, AllocationKind, CallerData};
use crate::status::{HsaResult, non_null};
use core::ffi::{c_int, c_void};
use hsa_sys::*;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;

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
    let Ok(maps) = File::open("/proc/self/maps") else {
        // No descriptor is free. AMD's runtime needs none.
        return can_populate(address, size);
    };
    let has_writable_mappings = query_writable(&maps, address, size);
    let is_writable =
        has_writable_mappings.unwrap_or_else(|| !lists_read_only(maps, address, size));
    is_writable && host_is_readable(address, size)
}

/// Returns whether the kernel can make every page of a range present and writable, as for memory that a driver pins.
/// Returns `false` if the kernel is older than Linux 5.14.
fn can_populate(address: usize, size: usize) -> bool {
    let start = address & !(PAGE - 1);
    let size = (address + size).next_multiple_of(PAGE) - start;
    let pointer = core::ptr::null_mut::<u8>().with_addr(start).cast();
    // SAFETY: the call changes no contents and removes no page. It fails if a page is not mapped.
    unsafe { libc::madvise(pointer, size, libc::MADV_POPULATE_WRITE) == 0 }
}

/// The argument of `PROCMAP_QUERY` (`struct procmap_query`).
#[repr(C)]
#[derive(Default)]
struct MappingQuery {
    size: u64,
    flags: u64,
    address: u64,
    mapping_start: u64,
    mapping_end: u64,
    /// Results that this module does not use.
    rest: [u64; 8],
}

/// Queries the mapping that contains the address, and only if it is writable (`PROCMAP_QUERY_VMA_WRITABLE`).
const WRITABLE: u64 = 2;
/// `PROCMAP_QUERY`: reads and writes the argument, and has the number 17 of the type `f`.
const QUERY: u64 = 3 << 30 | (size_of::<MappingQuery>() as u64) << 16 | (b'f' as u64) << 8 | 17;

/// Returns whether a range consists of writable mappings. The kernel looks each mapping up in its tree, which is fast
/// even if the process has many mappings. Returns `None` if the kernel is older than Linux 6.11.
fn query_writable(maps: &File, address: usize, size: usize) -> Option<bool> {
    let mut next = address as u64;
    while next < (address + size) as u64 {
        let mut query = MappingQuery {
            size: size_of::<MappingQuery>() as u64,
            flags: WRITABLE,
            address: next,
            ..MappingQuery::default()
        };
        // SAFETY: this is the argument of PROCMAP_QUERY, which the kernel reads and writes.
        let status = unsafe { libc::ioctl(maps.as_raw_fd(), QUERY as _, &raw mut query) };
        if status != 0 {
            let error = std::io::Error::last_os_error().raw_os_error();
            return (error == Some(libc::ENOENT)).then_some(false);
        }
        next = query.mapping_end;
    }
    Some(true)
}

/// Returns whether the list of mappings has a mapping in a range that is not writable.
fn lists_read_only(mut maps: File, address: usize, size: usize) -> bool {
    let mut text = String::new();
    // A path in the list need not be UTF-8. Then no memory is writable.
    if maps.read_to_string(&mut text).is_err() {
        return true;
    }
    // A line begins like `7f0000000000-7f0000200000 r--p`.
    text.lines().any(|line| {
        let mut words = line.split([' ', '-']);
        let mut number = || usize::from_str_radix(words.next()?, 16).ok();
        let (Some(start), Some(end)) = (number(), number()) else { return false };
        start < address + size && address < end && words.next().is_some_and(|it| !it.contains('w'))
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address_space::PAGE;

    /// Maps pages with these permissions, followed by a page without permissions.
    fn map(permissions: &[c_int]) -> usize {
        let (size, none) = ((permissions.len() + 1) * PAGE, core::ptr::null_mut());
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory, at an address that the kernel chooses.
        let start = unsafe { libc::mmap(none, size, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        for (page, &permission) in permissions.iter().enumerate() {
            // SAFETY: the page is part of the new memory.
            assert_eq!(unsafe { libc::mprotect(start.byte_add(page * PAGE), PAGE, permission) }, 0);
        }
        start.addr()
    }

    #[test]
    fn only_writable_memory_can_be_locked() {
        let (write, read) = (libc::PROT_READ | libc::PROT_WRITE, libc::PROT_READ);
        let start = map(&[write, write | libc::PROT_EXEC, read, write]);
        for (first, count, expected) in [
            (0, 1, true),
            (0, 2, true),
            (0, 3, false),
            (1, 3, false),
            (2, 1, false),
            (3, 1, true),
            (3, 2, false),
            (4, 1, false),
        ] {
            let (address, size) = (start + first * PAGE, count * PAGE);
            assert_eq!(host_is_writable(address, size), expected, "{first} {count}");
            let maps = || File::open("/proc/self/maps").unwrap();
            let is_listed = !lists_read_only(maps(), address, size);
            assert_eq!(is_listed, expected, "{first} {count}");
            // The range begins and ends inside a page.
            assert_eq!(host_is_writable(address + 1, size - 2), expected, "{first} {count}");
            if let Some(is_writable) = query_writable(&maps(), address, size) {
                assert_eq!(is_writable, expected, "{first} {count}");
                // A kernel that has this query also populates memory.
                assert_eq!(can_populate(address + 1, size - 2), expected, "{first} {count}");
            }
        }
        // SAFETY: nothing else uses the memory.
        assert_eq!(unsafe { libc::munmap(start as *mut c_void, 5 * PAGE) }, 0);
    }
}
