//! What the runtime tells about itself, its agents and their pools.

use super::{Failure, Native, Status, call, call_optional};
use core::ffi::{CStr, c_char, c_void};
use hsa_sys as sys;

/// An agent of the runtime; made only here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NativeAgent(sys::hsa_agent_t);

impl NativeAgent {
    pub fn raw(self) -> sys::hsa_agent_t {
        self.0
    }
}

/// A memory pool of the runtime; made only here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NativePool(sys::hsa_amd_memory_pool_t);

impl NativePool {
    pub fn raw(self) -> sys::hsa_amd_memory_pool_t {
        self.0
    }
    pub(super) fn from_raw(pool: sys::hsa_amd_memory_pool_t) -> Self {
        Self(pool)
    }
}

/// How an agent reaches a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NativeLink {
    pub kind: u32,
    pub min_bandwidth: u32,
    pub max_bandwidth: u32,
    pub numa_distance: u32,
}

/// Collects what an iteration of the runtime calls back with.
///
/// # Safety
/// `data` must be the `Vec` that was given to the iteration.
unsafe extern "C" fn collect<T>(item: T, data: *mut c_void) -> sys::hsa_status_t {
    // SAFETY: the caller says so, and the iteration runs while the vector is borrowed for it.
    let items = unsafe { &mut *data.cast::<Vec<T>>() };
    items.push(item);
    sys::HSA_STATUS_SUCCESS
}

/// Types whose every bit pattern is a value, so that the runtime may write into them.
///
/// # Safety
/// Only for plain old data.
unsafe trait Plain: Copy + Default {}
// SAFETY: integers.
unsafe impl Plain for u8 {}
// SAFETY: integers.
unsafe impl Plain for u16 {}
// SAFETY: integers.
unsafe impl Plain for u32 {}
// SAFETY: integers.
unsafe impl Plain for u64 {}

/// The longest text that an attribute answers (`hsa_ext_amd.h` says 63 and a zero).
const TEXT: usize = 64;
/// Room behind what an attribute is documented to answer: newer runtimes once wrote more.
type Room<T> = [T; 8];

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
}

impl Native {
    /// All agents, in the runtime's order.
    pub fn agents(&self) -> Result<Vec<NativeAgent>, Failure> {
        let mut agents: Vec<sys::hsa_agent_t> = Vec::new();
        let data = (&raw mut agents).cast();
        // SAFETY: `collect` gets the vector it is made for.
        unsafe { call!(self.table.core, hsa_iterate_agents(Some(collect), data)) }?;
        Ok(agents.into_iter().map(NativeAgent).collect())
    }

    /// All pools of an agent, in the runtime's order.
    pub fn pools(&self, agent: NativeAgent) -> Result<Vec<NativePool>, Failure> {
        let mut pools: Vec<sys::hsa_amd_memory_pool_t> = Vec::new();
        let data = (&raw mut pools).cast();
        // SAFETY: the agent comes from the runtime; `collect` gets the vector it is made for.
        unsafe {
            call!(self.table.core, hsa_amd_agent_iterate_memory_pools(agent.0, Some(collect), data))
        }?;
        Ok(pools.into_iter().map(NativePool).collect())
    }

    /// The names of an agent's instruction sets.
    pub fn isas(&self, agent: NativeAgent) -> Result<Vec<String>, Failure> {
        let core = &self.table.core;
        let mut isas: Vec<sys::hsa_isa_t> = Vec::new();
        let data = (&raw mut isas).cast();
        // SAFETY: the agent comes from the runtime; `collect` gets the vector it is made for.
        unsafe { call_optional!(core, hsa_agent_iterate_isas(agent.0, Some(collect), data)) }?;
        let name = |isa| {
            let mut length: Room<u32> = [0; 8];
            let value = (&raw mut length).cast();
            // SAFETY: the instruction set comes from the runtime, the answer is one u32.
            unsafe {
                call_optional!(
                    core,
                    hsa_isa_get_info_alt(isa, sys::HSA_ISA_INFO_NAME_LENGTH, value)
                )
            }?;
            let mut name = vec![0u8; length[0] as usize + TEXT];
            // SAFETY: as above; the buffer is longer than the length just asked for.
            unsafe {
                call_optional!(
                    core,
                    hsa_isa_get_info_alt(isa, sys::HSA_ISA_INFO_NAME, name.as_mut_ptr().cast())
                )
            }?;
            Ok(text(&name))
        };
        isas.into_iter().map(name).collect()
    }

    fn system<T: Plain>(&self, attribute: sys::hsa_system_info_t) -> Result<T, Failure> {
        let mut value: Room<T> = [T::default(); 8];
        // SAFETY: the callers below ask for the type the attribute is documented to answer.
        unsafe { call!(self.table.core, hsa_system_get_info(attribute, (&raw mut value).cast())) }?;
        Ok(value[0])
    }

    /// A system attribute of 16 bits.
    pub fn system_u16(&self, attribute: sys::hsa_system_info_t) -> Result<u16, Failure> {
        self.system(attribute)
    }

    /// A system attribute that is yes or no.
    pub fn system_flag(&self, attribute: sys::hsa_system_info_t) -> Result<bool, Failure> {
        Ok(self.system::<u8>(attribute)? != 0)
    }

    /// The runtime's build, where it tells.
    pub fn build_version(&self) -> Result<String, Failure> {
        let mut value: Room<*const c_char> = [core::ptr::null(); 8];
        let attribute = sys::HSA_AMD_SYSTEM_INFO_BUILD_VERSION;
        // SAFETY: this attribute answers a pointer to a string.
        unsafe { call!(self.table.core, hsa_system_get_info(attribute, (&raw mut value).cast())) }?;
        if value[0].is_null() {
            return Ok(String::new());
        }
        // SAFETY: not null, and by its documentation a string constant of the runtime.
        Ok(unsafe { CStr::from_ptr(value[0]) }.to_string_lossy().into_owned())
    }

    fn agent<T: Plain>(
        &self,
        agent: NativeAgent,
        attribute: sys::hsa_agent_info_t,
    ) -> Result<T, Failure> {
        let mut value: Room<T> = [T::default(); 8];
        // SAFETY: the agent comes from the runtime; the callers below ask for the type the
        // attribute is documented to answer.
        unsafe {
            call!(self.table.core, hsa_agent_get_info(agent.0, attribute, (&raw mut value).cast()))
        }?;
        Ok(value[0])
    }

    /// An agent's attribute of 32 bits.
    pub fn agent_u32(
        &self,
        agent: NativeAgent,
        attribute: sys::hsa_agent_info_t,
    ) -> Result<u32, Failure> {
        self.agent(agent, attribute)
    }

    /// An agent's attribute of 64 bits.
    pub fn agent_u64(
        &self,
        agent: NativeAgent,
        attribute: sys::hsa_agent_info_t,
    ) -> Result<u64, Failure> {
        self.agent(agent, attribute)
    }

    /// An agent's attribute that is a text.
    pub fn agent_text(
        &self,
        agent: NativeAgent,
        attribute: sys::hsa_agent_info_t,
    ) -> Result<String, Failure> {
        let mut value = [0u8; 2 * TEXT];
        // SAFETY: the agent comes from the runtime; texts have at most 64 bytes.
        unsafe {
            call!(self.table.core, hsa_agent_get_info(agent.0, attribute, (&raw mut value).cast()))
        }?;
        Ok(text(&value))
    }

    /// The CPU nearest to an agent.
    pub fn nearest_cpu(&self, agent: NativeAgent) -> Result<NativeAgent, Failure> {
        let handle = self.agent(agent, sys::HSA_AMD_AGENT_INFO_NEAREST_CPU)?;
        Ok(NativeAgent(sys::hsa_agent_t { handle }))
    }

    fn pool<T: Plain>(
        &self,
        pool: NativePool,
        attribute: sys::hsa_amd_memory_pool_info_t,
    ) -> Result<T, Failure> {
        let mut value: Room<T> = [T::default(); 8];
        // SAFETY: the pool comes from the runtime; the callers below ask for the type the
        // attribute is documented to answer.
        unsafe {
            call!(
                self.table.core,
                hsa_amd_memory_pool_get_info(pool.0, attribute, (&raw mut value).cast())
            )
        }?;
        Ok(value[0])
    }

    /// A pool's attribute of 32 bits.
    pub fn pool_u32(
        &self,
        pool: NativePool,
        attribute: sys::hsa_amd_memory_pool_info_t,
    ) -> Result<u32, Failure> {
        self.pool(pool, attribute)
    }

    /// A pool's attribute that is a size.
    pub fn pool_size(
        &self,
        pool: NativePool,
        attribute: sys::hsa_amd_memory_pool_info_t,
    ) -> Result<usize, Failure> {
        // 64-bit only (asserted at the root), so that a size_t is a u64.
        Ok(self.pool::<u64>(pool, attribute)? as usize)
    }

    /// A pool's attribute that is yes or no.
    pub fn pool_flag(
        &self,
        pool: NativePool,
        attribute: sys::hsa_amd_memory_pool_info_t,
    ) -> Result<bool, Failure> {
        Ok(self.pool::<u8>(pool, attribute)? != 0)
    }

    /// Whether and by default an agent reaches a pool (`HSA_AMD_MEMORY_POOL_ACCESS_*`).
    pub fn pool_access(&self, agent: NativeAgent, pool: NativePool) -> Result<u32, Failure> {
        let attribute = sys::HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS;
        self.agent_pool(agent, pool, attribute)
    }

    /// The links between an agent and a pool, one a hop.
    pub fn links(&self, agent: NativeAgent, pool: NativePool) -> Result<Vec<NativeLink>, Failure> {
        let attribute = sys::HSA_AMD_AGENT_MEMORY_POOL_INFO_NUM_LINK_HOPS;
        let hops = self.agent_pool(agent, pool, attribute)?;
        if hops == 0 {
            return Ok(Vec::new());
        }
        let empty = sys::hsa_amd_memory_pool_link_info_t {
            min_latency: 0,
            max_latency: 0,
            min_bandwidth: 0,
            max_bandwidth: 0,
            atomic_support_32bit: false,
            atomic_support_64bit: false,
            coherent_support: false,
            link_type: 0,
            numa_distance: 0,
        };
        let mut links = vec![empty; hops as usize];
        // SAFETY: agent and pool come from the runtime; it writes one record a hop, and `links`
        // has as many. Its flags are C bools, written by C++ as 0 or 1.
        unsafe {
            call_optional!(
                self.table.core,
                hsa_amd_agent_memory_pool_get_info(
                    agent.0,
                    pool.0,
                    sys::HSA_AMD_AGENT_MEMORY_POOL_INFO_LINK_INFO,
                    links.as_mut_ptr().cast()
                )
            )
        }?;
        Ok(links
            .into_iter()
            .map(|link| NativeLink {
                kind: link.link_type,
                min_bandwidth: link.min_bandwidth,
                max_bandwidth: link.max_bandwidth,
                numa_distance: link.numa_distance,
            })
            .collect())
    }

    fn agent_pool(
        &self,
        agent: NativeAgent,
        pool: NativePool,
        attribute: sys::hsa_amd_agent_memory_pool_info_t,
    ) -> Result<u32, Failure> {
        let mut value: Room<u32> = [0; 8];
        // SAFETY: agent and pool come from the runtime; both attributes used answer one u32.
        unsafe {
            call_optional!(
                self.table.core,
                hsa_amd_agent_memory_pool_get_info(
                    agent.0,
                    pool.0,
                    attribute,
                    (&raw mut value).cast()
                )
            )
        }?;
        Ok(value[0])
    }
}

impl Failure {
    /// Whether the runtime does not know the attribute or the function.
    pub fn is_unknown(self) -> bool {
        self.status == Status::NOT_SUPPORTED
            || self.status == Status::new(sys::HSA_STATUS_ERROR_INVALID_ARGUMENT)
    }
}
