//! `hsa_amd_ipc_memory_*`, one function a call.

use super::{Failure, Native, NativeAgent, call_optional};
use core::ffi::c_void;
use hsa_sys as sys;

/// The runtime's part of an IPC handle.
pub(crate) type NativeIpc = [u32; 8];

impl Native {
    /// Makes an IPC handle of a whole allocation.
    pub fn ipc_create(&self, address: usize, size: usize) -> Result<NativeIpc, Failure> {
        let mut handle = sys::hsa_amd_ipc_memory_t { handle: [0; 8] };
        // SAFETY: the runtime finds out itself whether the address is one of its own; `handle` is
        // writable.
        unsafe {
            call_optional!(
                self.table.core,
                hsa_amd_ipc_memory_create(address as *mut c_void, size, &mut handle)
            )
        }?;
        Ok(handle.handle)
    }

    /// Maps another process's allocation for agents, of which there is at least one: AMD's runtime
    /// looks at the first without asking whether there is any.
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
        // SAFETY: the agents are ones the runtime told us of, pointer and count are those of one
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

    /// Whether memory of another process reaches from `start` over at least `size` bytes.
    ///
    /// AMD's runtime repeats the size that it was given to attach. It looks an address up in what the
    /// driver has really mapped, though: the last byte is known only if it is there.
    pub fn ipc_is_attached(&self, start: usize, size: usize) -> Result<bool, Failure> {
        let Some(last) = size.checked_sub(1).and_then(|most| start.checked_add(most)) else {
            return Ok(false);
        };
        let info = self.pointer_info(last)?;
        let is_foreign = matches!(
            info.type_,
            // By dma-buf it is imported as graphics memory is.
            sys::HSA_EXT_POINTER_TYPE_IPC | sys::HSA_EXT_POINTER_TYPE_GRAPHICS
        );
        Ok(is_foreign && info.agentBaseAddress as usize == start)
    }

    /// Undoes an attach.
    pub fn ipc_detach(&self, address: usize) -> Result<(), Failure> {
        // SAFETY: `ipc_attach` answered this address and it was not detached since; that nobody
        // uses the memory any more is what closing means.
        unsafe {
            call_optional!(self.table.core, hsa_amd_ipc_memory_detach(address as *mut c_void))
        }
    }
}
