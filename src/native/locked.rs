//! This process's own memory, locked for access by agents.

use super::{Failure, Native, NativeAgent, call_optional};
use core::ffi::{c_int, c_void};

impl Native {
    /// Lets agents access memory of this process, and returns the address at which they do.
    ///
    /// # Safety
    /// The memory stays allocated, and is freed or remapped only after it was unlocked. No memory that
    /// is locked overlaps it.
    pub unsafe fn lock(
        &self,
        start: usize,
        size: usize,
        agents: &[NativeAgent],
    ) -> Result<usize, Failure> {
        let mut address: *mut c_void = core::ptr::null_mut();
        let mut agents: Vec<_> = agents.iter().map(|agent| agent.raw()).collect();
        // SAFETY: the agents are ones the runtime told us of, pointer and count are those of one
        // vector, and `address` is writable. The caller vouches for the memory.
        unsafe {
            call_optional!(
                self.table.core,
                hsa_amd_memory_lock(
                    start as *mut c_void,
                    size,
                    agents.as_mut_ptr(),
                    agents.len() as c_int,
                    &mut address
                )
            )
        }?;
        Ok(address as usize)
    }

    /// Ends the access of agents to memory that was locked.
    ///
    /// # Safety
    /// `start` was passed to [`lock`](Self::lock), and no agent accesses the memory any more.
    pub unsafe fn unlock(&self, start: usize) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { call_optional!(self.table.core, hsa_amd_memory_unlock(start as *mut c_void)) }
    }
}
