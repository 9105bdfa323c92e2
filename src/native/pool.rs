//! Calls of the runtime for memory of pools, for locked memory of this process, for memory of other processes, and
//! for queries about an address.

use super::{Failure, Native, NativeAgent, NativePool, call_optional, hex};
use crate::log::with_expected_failures;
use core::ffi::{c_int, c_void};
use core::ptr::{null, null_mut};
use hsa_sys as sys;
use std::os::fd::{FromRawFd, OwnedFd};

/// The runtime's part of an IPC handle.
pub(crate) type NativeIpc = [u32; 8];

impl Native {
    /// Allocates memory of a pool.
    pub fn pool_allocate(&self, pool: NativePool, size: usize) -> Result<usize, Failure> {
        let (pool, mut address) = (pool.raw(), null_mut());
        // SAFETY: the pool comes from the runtime, `address` is writable.
        unsafe {
            call_optional!(
                self.hsa_amd_memory_pool_allocate(pool, size, 0, &mut address),
                { pool = %hex(pool.handle), size, flags = 0 },
                { address = %hex(address as usize) }
            )
        }?;
        Failure::check_result("hsa_amd_memory_pool_allocate", address as usize)
    }

    /// Frees memory of a pool.
    ///
    /// # Safety
    /// [`pool_allocate`](Self::pool_allocate) returned the address, the memory was not freed since then, and nothing
    /// accesses the memory any more.
    pub unsafe fn pool_free(&self, address: usize) -> Result<(), Failure> {
        // SAFETY: the caller guarantees that the memory is allocated and not in use.
        unsafe {
            call_optional!(
                self.hsa_amd_memory_pool_free(address as *mut c_void),
                { address = %hex(address) }
            )
        }
    }

    /// Sets the agents that can access memory of a pool, and revokes the access of all others.
    ///
    /// # Safety
    /// [`pool_allocate`](Self::pool_allocate) returned the address, and the memory was not freed since then.
    pub unsafe fn allow_access(
        &self,
        address: usize,
        agents: &[NativeAgent],
    ) -> Result<(), Failure> {
        let (count, list) = (agents.len() as u32, agents.as_ptr().cast());
        let pointer = address as *const c_void;
        // SAFETY: the caller guarantees that the memory is allocated. The agents come from the runtime, and pointer
        // and count are those of one slice.
        unsafe {
            call_optional!(
                self.hsa_amd_agents_allow_access(count, list, null(), pointer),
                { agents = %self.show_agents(agents), address = %hex(address) }
            )
        }
    }

    /// Grants agents access to memory of this process (pins it). Returns the address at which the agents access the
    /// memory.
    ///
    /// # Safety
    /// The memory is allocated, and overlaps no locked memory. Agents access it only while it is allocated and not
    /// remapped. The memory may be freed while it is locked, if no agent accesses it any more.
    pub unsafe fn lock(
        &self,
        start: usize,
        size: usize,
        agents: &[NativeAgent],
    ) -> Result<usize, Failure> {
        let (pointer, mut address) = (start as *mut c_void, null_mut());
        let (count, list) = (agents.len() as c_int, agents.as_ptr().cast_mut().cast());
        // SAFETY: the agents come from the runtime, pointer and count are those of one slice, which the runtime only
        // reads, and `address` is writable. The caller guarantees that agents access the memory only while it is
        // allocated.
        unsafe {
            call_optional!(
                self.hsa_amd_memory_lock(pointer, size, list, count, &mut address),
                { address = %hex(start), size, agents = %self.show_agents(agents) },
                { for_agents = %hex(address as usize) }
            )
        }?;
        Failure::check_result("hsa_amd_memory_lock", address as usize)
    }

    /// Ends the access of agents to memory that was locked.
    ///
    /// # Safety
    /// `start` was passed to [`lock`](Self::lock), and no agent accesses the memory any more.
    pub unsafe fn unlock(&self, start: usize) -> Result<(), Failure> {
        // SAFETY: the caller guarantees that the memory is locked, and that no agent accesses it.
        unsafe {
            call_optional!(
                self.hsa_amd_memory_unlock(start as *mut c_void),
                { address = %hex(start) }
            )
        }
    }

    /// Ends the access of agents to memory that was locked. If the call fails, makes it a second time.
    ///
    /// # Safety
    /// As for [`unlock`](Self::unlock).
    pub unsafe fn unlock_or_retry(&self, start: usize) -> Result<(), Failure> {
        // SAFETY: the caller guarantees that the memory is locked, and that no agent accesses it.
        unsafe { self.unlock(start).or_else(|_| self.unlock(start)) }
    }

    /// Exports the allocation that contains a range as a dma-buf. Returns a descriptor, and the offset of the
    /// range in the dma-buf. Close-on-exec is set only if the runtime sets it.
    pub fn export_dmabuf(&self, address: usize, size: usize) -> Result<(OwnedFd, u64), Failure> {
        let (pointer, mut number, mut offset) = (address as *const c_void, -1, 0);
        // SAFETY: the runtime looks the range up in its own allocations; both results are writable.
        unsafe {
            call_optional!(
                self.hsa_amd_portable_export_dmabuf(pointer, size, &raw mut number, &raw mut offset),
                { address = %hex(address), size },
                { descriptor = number, offset }
            )
        }?;
        if number < 0 {
            return Err(Failure::no_result("hsa_amd_portable_export_dmabuf"));
        }
        // SAFETY: the runtime opened the descriptor for the caller, which has to close it (hsa_ext_amd.h).
        Ok((unsafe { OwnedFd::from_raw_fd(number) }, offset))
    }

    /// Returns whether the runtime has mapping types of dma-bufs (`hsa_amd_dma_buf_mapping_type_t`).
    pub fn has_mapping_types(&self) -> bool {
        self.table.core.hsa_amd_portable_export_dmabuf_v2.is_some()
    }

    /// Creates an IPC handle of a whole allocation. The runtime rejects other addresses and sizes.
    ///
    /// # Safety
    /// If the runtime shares through the driver, no other thread frees the allocation during the call. A runtime that
    /// shares by dma-buf may be called meanwhile: it rejects a freed address.
    pub unsafe fn ipc_create(&self, address: usize, size: usize) -> Result<NativeIpc, Failure> {
        let mut handle = sys::hsa_amd_ipc_memory_t { handle: [0; 8] };
        let pointer = address as *mut c_void;
        // SAFETY: the runtime looks the address up in its own allocations, and the caller guarantees that it may use the
        // found allocation; `handle` is writable.
        unsafe {
            call_optional!(
                self.hsa_amd_ipc_memory_create(pointer, size, &mut handle),
                { address = %hex(address), size },
                { handle = ?handle.handle }
            )
        }?;
        Failure::check_result("hsa_amd_ipc_memory_create", handle.handle)
    }

    /// Maps another process's allocation for agents. The parameters require at least one agent, because AMD's runtime
    /// reads the first agent without checking the count.
    ///
    /// AMD's runtime accepts any size, and can map fewer bytes. The caller checks the mapped size with
    /// [`ipc_is_attached`](Self::ipc_is_attached).
    pub fn ipc_attach(
        &self,
        handle: NativeIpc,
        size: usize,
        first: NativeAgent,
        others: &[NativeAgent],
    ) -> Result<usize, Failure> {
        let (handle, mut address) = (sys::hsa_amd_ipc_memory_t { handle }, null_mut());
        let agents = [&[first], others].concat();
        let (count, list) = (agents.len() as u32, agents.as_ptr().cast());
        // SAFETY: the agents come from the runtime; pointer and count are those of one vector; `handle`
        // is readable and `address` writable.
        unsafe {
            call_optional!(
                self.hsa_amd_ipc_memory_attach(&handle, size, count, list, &mut address),
                { handle = ?handle.handle, size, agents = %self.show_agents(&agents) },
                { address = %hex(address as usize) }
            )
        }?;
        Failure::check_result("hsa_amd_ipc_memory_attach", address as usize)
    }

    /// Returns whether memory of another process is mapped at `start` for at least `size` bytes.
    ///
    /// AMD's runtime reports the size that was passed to `ipc_attach`, which can be larger than the mapped size.
    /// Therefore this function looks up the last byte: the runtime finds an address only if the driver has mapped
    /// it.
    pub fn ipc_is_attached(&self, start: usize, size: usize) -> Result<bool, Failure> {
        let Some(last) = size.checked_sub(1).and_then(|offset| start.checked_add(offset)) else {
            return Ok(false);
        };
        let info = self.pointer_info(last)?;
        // If the runtime shares by dma-buf, it reports imported memory as graphics memory.
        let foreign = [sys::HSA_EXT_POINTER_TYPE_IPC, sys::HSA_EXT_POINTER_TYPE_GRAPHICS];
        Ok(foreign.contains(&info.type_) && info.agentBaseAddress as usize == start)
    }

    /// Returns whether `ROCR_VISIBLE_DEVICES` hides the owner of memory of another process: the runtime reports no owner.
    pub fn is_owner_hidden(&self, address: usize) -> Result<bool, Failure> {
        Ok(self.pointer_info(address)?.agentOwner.handle == 0)
    }

    /// Unmaps memory of another process.
    ///
    /// # Safety
    /// [`ipc_attach`](Self::ipc_attach) must have returned this address, the memory must not have been
    /// unmapped since then, and nothing may access the memory any more.
    pub unsafe fn ipc_detach(&self, address: usize) -> Result<(), Failure> {
        // SAFETY: the caller guarantees that the address is attached and not in use.
        unsafe {
            call_optional!(
                self.hsa_amd_ipc_memory_detach(address as *mut c_void),
                { address = %hex(address) }
            )
        }
    }

    /// Returns whether an address is in a reservation or mapping of virtual memory. `gpus` are all GPUs of the runtime.
    pub fn is_virtual(
        &self,
        address: usize,
        mut gpus: impl Iterator<Item = NativeAgent>,
    ) -> Result<bool, Failure> {
        let info = self.pointer_info(address)?;
        Ok(match info.type_ {
            sys::HSA_EXT_POINTER_TYPE_RESERVED_ADDR | sys::HSA_EXT_POINTER_TYPE_HSA_VMEM => true,
            // Before ROCm 6.2, the runtime reports a reservation as `UNKNOWN`, but with a size and a CPU as the owner.
            // All releases report the rest of a block of a GPU's pool in the same way, but with the GPU as the owner.
            sys::HSA_EXT_POINTER_TYPE_UNKNOWN => {
                info.sizeInBytes > 0 && gpus.all(|gpu| gpu.raw().handle != info.agentOwner.handle)
            }
            _ => false,
        })
    }

    fn pointer_info(&self, address: usize) -> Result<sys::hsa_amd_pointer_info_t, Failure> {
        // SAFETY: the type consists of numbers and pointers, for which zero is valid; type 0 is `UNKNOWN`.
        let mut info: sys::hsa_amd_pointer_info_t = unsafe { core::mem::zeroed() };
        info.size = size_of_val(&info) as u32;
        let (pointer, count, list) = (address as *const c_void, null_mut(), null_mut());
        // SAFETY: any address can be queried; `info` is writable and has its size, and no list of agents
        // is requested.
        with_expected_failures(|| unsafe {
            call_optional!(
                self.hsa_amd_pointer_info(pointer, &mut info, None, count, list),
                { address = %hex(address) },
                {
                    kind = info.type_,
                    start = %hex(info.agentBaseAddress as usize),
                    size = info.sizeInBytes
                }
            )
        })?;
        Ok(info)
    }
}
