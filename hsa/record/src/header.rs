//! The header of a recording: the process, the runtime, its agents and their pools.

use crate::line::Line;
use crate::recording::bytes;
use crate::stack;
use core::ffi::c_void;
use core::mem::transmute_copy;
use core::ptr;
use hsa_sys::tools::{AMD_EXT, ApiTable, CORE, FunctionTable, function_index};
use hsa_sys::*;

const VERSION: u64 = 1;

/// The functions of the runtime that the header needs.
struct Queries {
    iterate_agents: hsa_iterate_agents_fn,
    agent_info: hsa_agent_get_info_fn,
    iterate_pools: hsa_amd_agent_iterate_memory_pools_fn,
    pool_info: hsa_amd_memory_pool_get_info_fn,
    system_info: hsa_system_get_info_fn,
}

/// Returns the line of the header. The caller can add keys, and must end the line.
///
/// # Safety
/// The tables must be those of the runtime, with the versions that `hsa_sys::tools` describes.
pub(crate) unsafe fn header(table: &ApiTable) -> Line {
    // SAFETY: the caller promises the tables; each field has the type of the named function.
    let queries = unsafe {
        Queries {
            iterate_agents: function(table.core, CORE, "hsa_iterate_agents"),
            agent_info: function(table.core, CORE, "hsa_agent_get_info"),
            iterate_pools: function(table.amd_ext, AMD_EXT, "hsa_amd_agent_iterate_memory_pools"),
            pool_info: function(table.amd_ext, AMD_EXT, "hsa_amd_memory_pool_get_info"),
            system_info: function(table.core, CORE, "hsa_system_get_info"),
        }
    };
    let mut line = Line::new();
    line.text("format", b"hsa-vmm-hsa-trace");
    line.number("version", VERSION);
    line.number("pid", std::process::id().into());
    if let Ok(program) = std::env::current_exe() {
        line.text("program", bytes(&program));
    }
    // SAFETY: an optional function pointer has the size of a pointer.
    let runtime_function: *const c_void = unsafe { transmute_copy(&queries.system_info) };
    if let Some(file) = stack::file_of(runtime_function) {
        line.text("runtime", file);
    }
    let (mut major, mut minor) = (0_u16, 0_u16);
    queries.system(HSA_AMD_SYSTEM_INFO_EXT_VERSION_MAJOR, &mut major);
    queries.system(HSA_AMD_SYSTEM_INFO_EXT_VERSION_MINOR, &mut minor);
    line.text("extension", format!("{major}.{minor}").as_bytes());
    line.list("agents", queries.agents(), |line, agent| {
        line.object_item(|line| queries.write_agent(line, agent));
    });
    line
}

/// Reads a function's pointer from a table. `F` is an optional function pointer. The result is
/// `None` if the table does not have the function.
///
/// # Safety
/// The table must be the runtime's, and `F` the type of the function.
unsafe fn function<F>(table: *mut FunctionTable, functions: &[(&str, usize)], name: &str) -> F {
    let index = function_index(functions, name);
    // SAFETY: the caller promises the table.
    let slot = index.and_then(|index| unsafe { FunctionTable::slot(table, index) });
    // SAFETY: a slot contains a pointer.
    let pointer = slot.map_or(ptr::null_mut(), |slot| unsafe { *slot });
    // SAFETY: an optional function pointer has the size of a pointer, and null is `None`.
    unsafe { transmute_copy(&pointer) }
}

extern "C" fn add_agent(agent: hsa_agent_t, list: *mut c_void) -> hsa_status_t {
    // SAFETY: `agents` passes a list of this type.
    unsafe { &mut *list.cast::<Vec<hsa_agent_t>>() }.push(agent);
    HSA_STATUS_SUCCESS
}

extern "C" fn add_pool(pool: hsa_amd_memory_pool_t, list: *mut c_void) -> hsa_status_t {
    // SAFETY: `pools` passes a list of this type.
    unsafe { &mut *list.cast::<Vec<hsa_amd_memory_pool_t>>() }.push(pool);
    HSA_STATUS_SUCCESS
}

impl Queries {
    fn system<T>(&self, attribute: hsa_system_info_t, value: &mut T) {
        if let Some(query) = self.system_info {
            // SAFETY: every caller passes the type of the attribute. For an unknown attribute, the runtime writes
            // nothing.
            unsafe { query(attribute, ptr::from_mut(value).cast()) };
        }
    }

    fn agents(&self) -> Vec<hsa_agent_t> {
        let mut list = Vec::new();
        if let Some(iterate) = self.iterate_agents {
            // SAFETY: the callback casts the pointer to the type of this list.
            unsafe { iterate(Some(add_agent), ptr::from_mut(&mut list).cast()) };
        }
        list
    }

    fn pools(&self, agent: hsa_agent_t) -> Vec<hsa_amd_memory_pool_t> {
        let mut list = Vec::new();
        if let Some(iterate) = self.iterate_pools {
            // SAFETY: the callback casts the pointer to the type of this list.
            unsafe { iterate(agent, Some(add_pool), ptr::from_mut(&mut list).cast()) };
        }
        list
    }

    fn write_agent(&self, line: &mut Line, agent: hsa_agent_t) {
        let (mut name, mut kind) = ([0_u8; 64], 0_u32);
        if let Some(query) = self.agent_info {
            // SAFETY: each variable has the type of its attribute.
            unsafe {
                query(agent, HSA_AGENT_INFO_NAME, name.as_mut_ptr().cast());
                query(agent, HSA_AGENT_INFO_DEVICE, (&raw mut kind).cast());
            }
        }
        line.hex("agent", agent.handle);
        line.text(
            "kind",
            match kind {
                HSA_DEVICE_TYPE_CPU => b"cpu",
                HSA_DEVICE_TYPE_GPU => b"gpu",
                _ => b"other",
            },
        );
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        line.text("name", name);
        line.list("pools", self.pools(agent), |line, pool| {
            line.object_item(|line| self.write_pool(line, pool));
        });
    }

    fn write_pool(&self, line: &mut Line, pool: hsa_amd_memory_pool_t) {
        let (mut segment, mut flags, mut granule) = (0_u32, 0_u32, 0_usize);
        if let Some(query) = self.pool_info {
            // SAFETY: each variable has the type of its attribute.
            unsafe {
                query(pool, HSA_AMD_MEMORY_POOL_INFO_SEGMENT, (&raw mut segment).cast());
                query(pool, HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS, (&raw mut flags).cast());
                query(
                    pool,
                    HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_GRANULE,
                    (&raw mut granule).cast(),
                );
            }
        }
        line.hex("pool", pool.handle);
        line.number("segment", segment.into());
        line.number("flags", flags.into());
        line.number("granule", granule as u64);
    }
}
