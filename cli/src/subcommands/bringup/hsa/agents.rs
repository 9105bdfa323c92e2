//! Starts and stops the runtime, and queries agents and pools.

use super::super::record::{CallId, Record};
use super::{Agent, AlreadyReported, Hsa, Pool, PoolInfo, Result, hex, output};
use core::ffi::c_void;
use hsa_sys as sys;
use std::fmt;

/// The function that returns attributes of an agent.
pub const AGENT_INFO: &str = "hsa_agent_get_info";

/// The function that returns attributes of a pool.
pub const POOL_INFO: &str = "hsa_amd_memory_pool_get_info";

impl Hsa<'_> {
    pub fn init(&self) -> Result<()> {
        // SAFETY: `hsa_init` takes no arguments and may be called at any time.
        self.call("hsa_init", &[], true, || (unsafe { (self.table.core.hsa_init)() }, vec![]))
    }

    pub fn shut_down(&self) -> Result<()> {
        let stop = self.table.core.hsa_shut_down;
        // SAFETY: `hsa_shut_down` takes no arguments and may be called at any time.
        self.call("hsa_shut_down", &[], true, || (unsafe { stop() }, vec![]))
    }

    /// Returns a system attribute of at most eight bytes.
    pub fn system_attribute(&self, attribute: u32, name: &str) -> Result<u64> {
        let mut value = 0_u64;
        let arguments = [(name, attribute.to_string()), ("&value", "out".into())];
        self.call("hsa_system_get_info", &arguments, true, || {
            // SAFETY: `value` is writable, and as large as any attribute that callers query.
            let status = unsafe {
                (self.table.core.hsa_system_get_info)(attribute, (&raw mut value).cast())
            };
            (status, output("value", value.to_string()))
        })?;
        Ok(value)
    }

    pub fn agents(&self) -> Result<Vec<sys::hsa_agent_t>> {
        unsafe extern "C" fn add(agent: sys::hsa_agent_t, data: *mut c_void) -> sys::hsa_status_t {
            // SAFETY: `data` is the pointer to `agents` below; only this callback uses the vector during the call.
            unsafe { &mut *data.cast::<Vec<sys::hsa_agent_t>>() }.push(agent);
            sys::HSA_STATUS_SUCCESS
        }
        let mut agents: Vec<sys::hsa_agent_t> = Vec::new();
        let arguments = [("add_agent", "callback".into()), ("NULL", "0".to_owned())];
        self.call("hsa_iterate_agents", &arguments, true, || {
            // SAFETY: `add` expects a pointer to a vector of agents; `agents` outlives the call.
            let status = unsafe {
                (self.table.core.hsa_iterate_agents)(Some(add), (&raw mut agents).cast())
            };
            (status, output("agents", agents.len().to_string()))
        })?;
        Ok(agents)
    }

    /// Returns an agent's attribute of four bytes.
    pub fn agent_attribute(&self, agent: &Agent, attribute: u32, name: &str) -> Result<u32> {
        let mut value = 0_u32;
        let arguments = [
            (agent.c_expression.as_str(), hex(agent.value.handle)),
            (name, hex(attribute)),
            ("&value", "out".into()),
        ];
        self.call("hsa_agent_get_info", &arguments, false, || {
            // SAFETY: `value` is writable, and as large as the attributes that callers query.
            let status = unsafe {
                let get = self.table.core.hsa_agent_get_info;
                get(agent.value, attribute, (&raw mut value).cast())
            };
            (status, output("value", value.to_string()))
        })?;
        Ok(value)
    }

    /// Returns the number of available bytes of an agent's memory. Returns `None` if the runtime does not report this
    /// number.
    pub fn try_available_memory(&self, agent: &Agent) -> Option<u64> {
        self.query_available_memory(agent).ok()
    }

    /// Returns the number of available bytes of an agent's memory. Fails if the runtime does not report this number.
    pub fn available_memory(&self, agent: &Agent) -> Result<u64> {
        self.query_available_memory(agent).map_err(|id| {
            self.recorder.send(&Record::Failed(id));
            AlreadyReported
        })
    }

    /// Returns the number of available bytes of an agent's memory, or the call that failed.
    fn query_available_memory(&self, agent: &Agent) -> std::result::Result<u64, CallId> {
        let mut value = 0_u64;
        let arguments = [
            (agent.c_expression.as_str(), hex(agent.value.handle)),
            ("HSA_AMD_AGENT_INFO_MEMORY_AVAIL", "0".to_owned()),
            ("&available", "out".into()),
        ];
        let c_statement = format!("print_available({});", agent.c_expression);
        let (id, status) = self.recorder.record(AGENT_INFO, &arguments, Some(c_statement), || {
            // SAFETY: `value` is writable, and as large as the attribute: eight bytes.
            let status = unsafe {
                let get = self.table.core.hsa_agent_get_info;
                get(agent.value, sys::HSA_AMD_AGENT_INFO_MEMORY_AVAIL, (&raw mut value).cast())
            };
            (status, Some(status), output("available", value.to_string()))
        });
        if status == sys::HSA_STATUS_SUCCESS { Ok(value) } else { Err(id) }
    }

    /// Returns an agent's name: `gfx942`.
    pub fn agent_name(&self, agent: &Agent) -> Result<String> {
        let mut text = [0_u8; 64];
        let mut name = String::new();
        let arguments = [
            (agent.c_expression.as_str(), hex(agent.value.handle)),
            ("HSA_AGENT_INFO_NAME", "0".to_owned()),
            ("name", "out".into()),
        ];
        self.call("hsa_agent_get_info", &arguments, true, || {
            // SAFETY: `text` is writable, and as large as a name: 64 bytes.
            let status = unsafe {
                let get = self.table.core.hsa_agent_get_info;
                get(agent.value, sys::HSA_AGENT_INFO_NAME, text.as_mut_ptr().cast())
            };
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
            name = String::from_utf8_lossy(&text[..end]).into_owned();
            (status, output("name", name.clone()))
        })?;
        Ok(name)
    }

    /// Returns all pools of an agent. `c_variable` is the variable in the C program for the selected pool.
    pub fn pools(
        &self,
        agent: &Agent,
        c_variable: &str,
    ) -> Result<Vec<sys::hsa_amd_memory_pool_t>> {
        unsafe extern "C" fn add(
            pool: sys::hsa_amd_memory_pool_t,
            data: *mut c_void,
        ) -> sys::hsa_status_t {
            // SAFETY: `data` is the pointer to `pools` below; only this callback uses the vector during the call.
            unsafe { &mut *data.cast::<Vec<sys::hsa_amd_memory_pool_t>>() }.push(pool);
            sys::HSA_STATUS_SUCCESS
        }
        let mut pools: Vec<sys::hsa_amd_memory_pool_t> = Vec::new();
        let variable = format!("&{c_variable}");
        let arguments = [
            (agent.c_expression.as_str(), hex(agent.value.handle)),
            ("select_pool", "callback".into()),
            (variable.as_str(), "out".into()),
        ];
        self.call("hsa_amd_agent_iterate_memory_pools", &arguments, true, || {
            // SAFETY: `add` expects a pointer to a vector of pools; `pools` outlives the call.
            let status = unsafe {
                let iterate = self.table.core.hsa_amd_agent_iterate_memory_pools;
                iterate(agent.value, Some(add), (&raw mut pools).cast())
            };
            (status, output("pools", pools.len().to_string()))
        })?;
        Ok(pools)
    }

    pub fn pool_info(&self, pool: &Pool) -> Result<PoolInfo> {
        let segment = "HSA_AMD_MEMORY_POOL_INFO_SEGMENT";
        let segment =
            self.pool_attribute::<u32>(pool, sys::HSA_AMD_MEMORY_POOL_INFO_SEGMENT, segment)?;
        if segment != sys::HSA_AMD_SEGMENT_GLOBAL {
            return Ok(PoolInfo { segment, ..PoolInfo::default() });
        }
        let name = "HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED";
        let attribute = sys::HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED;
        let allocatable = self.pool_attribute::<u8>(pool, attribute, name)? != 0;
        let name = "HSA_AMD_MEMORY_POOL_INFO_SIZE";
        let size = self.pool_attribute(pool, sys::HSA_AMD_MEMORY_POOL_INFO_SIZE, name)?;
        let name = "HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_GRANULE";
        let attribute = sys::HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_GRANULE;
        let granule = self.pool_attribute(pool, attribute, name)?;
        Ok(PoolInfo { segment, allocatable, size, granule })
    }

    fn pool_attribute<T: Copy + Default + fmt::Display>(
        &self,
        pool: &Pool,
        attribute: u32,
        name: &str,
    ) -> Result<T> {
        // The array is large enough for any attribute of a pool.
        let mut value = [T::default(); 8];
        let arguments = [
            (pool.c_expression.as_str(), hex(pool.value.handle)),
            (name, attribute.to_string()),
            ("&value", "out".into()),
        ];
        self.call(POOL_INFO, &arguments, false, || {
            // SAFETY: callers choose `T` as the integer type of the attribute; `value` is writable and larger.
            let status = unsafe {
                let get = self.table.core.hsa_amd_memory_pool_get_info;
                get(pool.value, attribute, value.as_mut_ptr().cast())
            };
            (status, output("value", value[0].to_string()))
        })?;
        Ok(value[0])
    }

    /// Returns whether an agent can be granted access to a pool's memory.
    pub fn can_access(&self, agent: &Agent, pool: &Pool) -> Result<bool> {
        let mut access = [0_u32; 4];
        let arguments = [
            (agent.c_expression.as_str(), hex(agent.value.handle)),
            (pool.c_expression.as_str(), hex(pool.value.handle)),
            ("HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS", "0".to_owned()),
            ("&access", "out".into()),
        ];
        self.call_optional(
            self.table.core.hsa_amd_agent_memory_pool_get_info,
            "hsa_amd_agent_memory_pool_get_info",
            &arguments,
            true,
            |get| {
                // SAFETY: `access` is writable, and larger than the attribute's four bytes.
                let status = unsafe {
                    let attribute = sys::HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS;
                    get(agent.value, pool.value, attribute, access.as_mut_ptr().cast())
                };
                (status, output("access", access[0].to_string()))
            },
        )?;
        Ok(access[0] != sys::HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED)
    }
}
