//! One function for each `hsa_amd_ipc_memory_*` call.

use super::{Failure, Native, NativeAgent, call_optional};
use core::ffi::c_void;
use hsa_sys as sys;

/// The runtime's part of an IPC handle.
pub(crate) type NativeIpc = [u32; 8];

impl Native {
    /// Creates an IPC handle of a whole allocation. The runtime rejects other addresses and sizes.
    pub fn ipc_create(&self, address: usize, size: usize) -> Result<NativeIpc, Failure> {
        let mut handle = sys::hsa_amd_ipc_memory_t { handle: [0; 8] };
        // SAFETY: the runtime looks the address up in its own allocations; `handle` is writable.
        unsafe {
            call_optional!(
                self.table.core,
                hsa_amd_ipc_memory_create(address as *mut c_void, size, &mut handle)
            )
        }?;
        Ok(handle.handle)
    }

    /// Maps another process's allocation for at least one agent: AMD's runtime reads the first without
    /// checking the count.
    ///
    /// AMD's runtime accepts any size, and returns a start from where less memory can be mapped: check it
    /// with [`ipc_is_attached`](Self::ipc_is_attached).
    pub fn ipc_attach(
        &self,
        handle: NativeIpc,
        size: usize,
        first: NativeAgent,
        others: &[NativeAgent],
    ) -> Result<usize, Failure> {
        let handle = sys::hsa_amd_ipc_memory_t { handle };
        let agents: Vec<_> =
            core::iter::once(first).chain(others.iter().copied()).map(NativeAgent::raw).collect();
        let mut address: *mut c_void = core::ptr::null_mut();
        // SAFETY: the agents are those that this runtime enumerated; pointer and count are those of one
        // vector; `handle` is readable and `address` writable.
        unsafe {
            call_optional!(
                self.table.core,
                hsa_amd_ipc_memory_attach(
                    &handle,
                    size,
                    agents.len() as u32,
                    agents.as_ptr(),
                    &mut address
                )
            )
        }?;
        Ok(address as usize)
    }

    /// Returns whether memory of another process is mapped at `start` for at least `size` bytes.
    ///
    /// AMD's runtime reports the size that was passed to attach, but looks an address up in what the
    /// driver has mapped: the last byte is found only if it is mapped.
    pub fn ipc_is_attached(&self, start: usize, size: usize) -> Result<bool, Failure> {
        let Some(last) = size.checked_sub(1).and_then(|most| start.checked_add(most)) else {
            return Ok(false);
        };
        let info = self.pointer_info(last)?;
        let is_foreign = matches!(
            info.type_,
            // A dma-buf is imported as graphics memory.
            sys::HSA_EXT_POINTER_TYPE_IPC | sys::HSA_EXT_POINTER_TYPE_GRAPHICS
        );
        Ok(is_foreign && info.agentBaseAddress as usize == start)
    }

    /// Unmaps memory of another process.
    ///
    /// # Safety
    /// [`ipc_attach`](Self::ipc_attach) must have returned this address, the memory must not have been
    /// unmapped since, and nothing may access it any more.
    pub unsafe fn ipc_detach(&self, address: usize) -> Result<(), Failure> {
        // SAFETY: the caller guarantees that the address is attached and not in use.
        unsafe {
            call_optional!(self.table.core, hsa_amd_ipc_memory_detach(address as *mut c_void))
        }
    }
}
