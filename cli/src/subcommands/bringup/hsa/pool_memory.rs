//! The functions that allocate and free pool memory, and grant access to this memory.

use super::{Address, Agent, Hsa, Named, Pool, Result, hex, output};
use core::ffi::c_void;
use core::ptr::{null, null_mut};

impl Hsa<'_> {
    /// Allocates memory of a pool. `c_variable` names the variable of the address in the C program that repeats the
    /// calls (`bringup --program`).
    pub fn allocate(&self, pool: &Pool, size: usize, c_variable: &str) -> Result<Address> {
        let mut address = null_mut();
        let variable = format!("(void **)&{c_variable}");
        let arguments = [
            (pool.c_expression.as_str(), hex(pool.value.handle)),
            ("size", hex(size)),
            ("0", "flags".to_owned()),
            (variable.as_str(), "out".into()),
        ];
        self.call_optional(
            self.table.core.hsa_amd_memory_pool_allocate,
            "hsa_amd_memory_pool_allocate",
            &arguments,
            true,
            |allocate| {
                // SAFETY: the runtime returned the pool; `address` is writable.
                let status = unsafe { allocate(pool.value, size, 0, &mut address) };
                (status, output(c_variable, hex(address as usize)))
            },
        )?;
        Ok(Named::new(c_variable, address as usize))
    }

    pub fn pool_free(&self, address: &Address) -> Result<()> {
        let arguments = [(address.c_expression.as_str(), hex(address.value))];
        self.call_optional(
            self.table.core.hsa_amd_memory_pool_free,
            "hsa_amd_memory_pool_free",
            &arguments,
            true,
            |free| {
                // SAFETY: the memory was allocated from a pool and is no longer used.
                (unsafe { free(address.value as *mut c_void) }, vec![])
            },
        )
    }

    /// Grants agents access to memory of a pool.
    pub fn allow_access(&self, address: &Address, agents: &[&Agent]) -> Result<()> {
        let list: Vec<_> = agents.iter().map(|agent| agent.c_expression.as_str()).collect();
        let names = list.join(", ");
        let list = format!("(hsa_agent_t[]){{{names}}}");
        let values: Vec<_> = agents.iter().map(|agent| agent.value).collect();
        let count = values.len().to_string();
        let arguments = [
            (count.as_str(), "agents".to_owned()),
            (list.as_str(), names),
            ("NULL", "flags".into()),
            (address.c_expression.as_str(), hex(address.value)),
        ];
        self.call_optional(
            self.table.core.hsa_amd_agents_allow_access,
            "hsa_amd_agents_allow_access",
            &arguments,
            true,
            |allow| {
                let count = u32::try_from(values.len()).unwrap_or(u32::MAX);
                // SAFETY: the runtime returned the agents; the memory was allocated from a pool.
                let status = unsafe {
                    allow(count, values.as_ptr(), null(), address.value as *const c_void)
                };
                (status, vec![])
            },
        )
    }
}
