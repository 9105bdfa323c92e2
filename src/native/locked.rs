//! This process's own memory, locked so that agents reach it.

use super::{Failure, Native, NativeAgent, call_optional};
use core::ffi::{c_int, c_void};

impl Native {
    /// Lets agents reach memory of this process, and returns the address at which they do.
    ///
    /// The memory stays the process's own, and must stay where it is until it is unlocked; the
    /// caller sees to that.
    pub fn lock(
        &self,
        start: usize,
        size: usize,
        agents: &[NativeAgent],
    ) -> Result<usize, Failure> {
        let mut address: *mut c_void = core::ptr::null_mut();
        let mut agents: Vec<_> = agents.iter().map(|agent| agent.raw()).collect();
        // SAFETY: the agents are ones the runtime told us of, pointer and count are those of one
        // vector, and `address` is writable. Where there is no such memory the runtime says so.
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

    /// Takes memory of this process away from the agents that it was locked for.
    pub fn unlock(&self, start: usize) -> Result<(), Failure> {
        // SAFETY: a number to the runtime, which looks it up in its list.
        unsafe { call_optional!(self.table.core, hsa_amd_memory_unlock(start as *mut c_void)) }
    }
}
