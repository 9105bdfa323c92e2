//! Memory of pools, and what the runtime knows of an address.

use super::{Failure, Native, NativeAgent, NativePool, call_optional};
use core::ffi::c_void;
use hsa_sys as sys;

/// What the runtime says is at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Memory of a pool, or memory that was made known to the runtime in some other way.
    Memory,
    /// A reservation or mapping of virtual memory.
    Virtual,
    /// Nothing that it knows.
    Nothing,
}

impl Native {
    /// Allocates memory of a pool.
    pub fn pool_allocate(&self, pool: NativePool, size: usize) -> Result<usize, Failure> {
        let mut address: *mut c_void = core::ptr::null_mut();
        // SAFETY: the pool is one the runtime told us of, `address` is writable.
        unsafe {
            call_optional!(
                self.table.core,
                hsa_amd_memory_pool_allocate(pool.raw(), size, 0, &mut address)
            )
        }?;
        Ok(address as usize)
    }

    /// Frees memory of a pool.
    ///
    /// # Safety
    /// [`pool_allocate`](Self::pool_allocate) returned the address, it was not freed since, and nothing
    /// accesses the memory any more.
    pub unsafe fn pool_free(&self, address: usize) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { call_optional!(self.table.core, hsa_amd_memory_pool_free(address as *mut c_void)) }
    }

    /// Sets which agents can access memory of a pool: these and no others.
    pub fn allow_access(&self, address: usize, agents: &[NativeAgent]) -> Result<(), Failure> {
        let agents: Vec<_> = agents.iter().map(|agent| agent.raw()).collect();
        // SAFETY: the agents are ones the runtime told us of, pointer and count are those of one
        // vector, and the address is one that `pool_allocate` returned.
        unsafe {
            call_optional!(
                self.table.core,
                hsa_amd_agents_allow_access(
                    agents.len() as u32,
                    agents.as_ptr(),
                    core::ptr::null(),
                    address as *const c_void
                )
            )
        }
    }

    /// Asks what is at an address.
    pub fn known_at(&self, address: usize) -> Result<Known, Failure> {
        let info = self.pointer_info(address)?;
        Ok(match info.type_ {
            // Before ROCm 6.2 the runtime has no word for a reservation, but tells its size.
            sys::HSA_EXT_POINTER_TYPE_UNKNOWN if info.sizeInBytes == 0 => Known::Nothing,
            sys::HSA_EXT_POINTER_TYPE_UNKNOWN
            | sys::HSA_EXT_POINTER_TYPE_RESERVED_ADDR
            | sys::HSA_EXT_POINTER_TYPE_HSA_VMEM => Known::Virtual,
            _ => Known::Memory,
        })
    }

    /// What the runtime knows of an address.
    pub(super) fn pointer_info(
        &self,
        address: usize,
    ) -> Result<sys::hsa_amd_pointer_info_t, Failure> {
        let nobody = core::ptr::null_mut();
        let mut info = sys::hsa_amd_pointer_info_t {
            size: size_of::<sys::hsa_amd_pointer_info_t>() as u32,
            type_: sys::HSA_EXT_POINTER_TYPE_UNKNOWN,
            agentBaseAddress: nobody,
            hostBaseAddress: nobody,
            sizeInBytes: 0,
            userData: nobody,
            agentOwner: sys::hsa_agent_t { handle: 0 },
            global_flags: 0,
        };
        // SAFETY: any address may be asked about; `info` is writable and says its size, and no
        // list of agents is asked for.
        unsafe {
            call_optional!(
                self.table.core,
                hsa_amd_pointer_info(
                    address as *const c_void,
                    &mut info,
                    None,
                    core::ptr::null_mut(),
                    core::ptr::null_mut()
                )
            )
        }?;
        Ok(info)
    }
}
