//! Queries the attributes of the runtime, its agents and their pools.

use super::{Failure, Native, call, call_optional, hex};
use crate::log::with_expected_failures;
use bytemuck::Pod;
use core::ffi::{CStr, c_char, c_void};
use hsa_sys as sys;

/// An agent of the runtime. Only `native` creates one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct NativeAgent(pub(super) sys::hsa_agent_t);

impl NativeAgent {
    pub fn raw(self) -> sys::hsa_agent_t {
        self.0
    }
}

/// A memory pool of the runtime. Only `native` creates one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NativePool(pub(super) sys::hsa_amd_memory_pool_t);

impl NativePool {
    pub fn raw(self) -> sys::hsa_amd_memory_pool_t {
        self.0
    }
}

/// A callback of the runtime's iterate functions. Appends each item to a vector.
///
/// # Safety
/// `data` must point to a `Vec<T>`.
unsafe extern "C" fn collect<T>(item: T, data: *mut c_void) -> sys::hsa_status_t {
    // SAFETY: the caller guarantees that `data` points to a `Vec<T>`. Only this function uses the vector during the
    // iteration.
    let items = unsafe { &mut *data.cast::<Vec<T>>() };
    items.push(item);
    sys::HSA_STATUS_SUCCESS
}

/// The value of an attribute, all zeros by default.
///
/// The longest attribute that this library queries is a text of 64 bytes (`hsa_ext_amd.h`). The capacity is larger,
/// because some runtimes write more bytes than they document.
#[derive(Clone, Copy)]
#[repr(align(8))]
pub(crate) struct AttributeValue([u8; Self::CAPACITY]);

impl Default for AttributeValue {
    fn default() -> Self {
        Self([0; Self::CAPACITY])
    }
}

impl AttributeValue {
    const CAPACITY: usize = 512;

    fn of(query: impl FnOnce(*mut c_void) -> Result<(), Failure>) -> Result<Self, Failure> {
        let mut value = Self::default();
        // Older releases do not know every attribute.
        with_expected_failures(|| query((&raw mut value).cast()))?;
        Ok(value)
    }

    pub fn flag(&self) -> bool {
        self.0[0] != 0
    }

    /// Returns the value as a number.
    pub fn number<T: Pod>(&self) -> T {
        bytemuck::pod_read_unaligned(&self.0[..size_of::<T>()])
    }

    pub fn text(&self) -> String {
        let text = self.0.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).trim().to_owned()
    }
}

impl Native {
    /// Returns all agents, in the runtime's order.
    pub fn agents(&self) -> Result<Vec<NativeAgent>, Failure> {
        let mut agents: Vec<sys::hsa_agent_t> = Vec::new();
        let data = (&raw mut agents).cast();
        // SAFETY: `data` is a vector of the type that `collect` expects, and outlives the call.
        unsafe {
            call!(self.hsa_iterate_agents(Some(collect), data), {}, { agents = agents.len() })
        }?;
        Ok(agents.into_iter().map(NativeAgent).collect())
    }

    /// Returns all pools of an agent, in the runtime's order.
    pub fn pools(&self, agent: NativeAgent) -> Result<Vec<NativePool>, Failure> {
        let mut pools: Vec<sys::hsa_amd_memory_pool_t> = Vec::new();
        let data = (&raw mut pools).cast();
        // SAFETY: the agent comes from the runtime. `data` is a vector of the type that `collect` expects, and
        // outlives the call.
        unsafe {
            call!(
                self.hsa_amd_agent_iterate_memory_pools(agent.0, Some(collect), data),
                { agent = %self.show_agent(agent) },
                { pools = pools.len() }
            )
        }?;
        Ok(pools.into_iter().map(NativePool).collect())
    }

    /// Returns the names of an agent's instruction sets. Omits names of 256 bytes or more (half of the capacity of an
    /// [`AttributeValue`]).
    pub fn isas(&self, agent: NativeAgent) -> Result<Vec<String>, Failure> {
        let mut isas: Vec<sys::hsa_isa_t> = Vec::new();
        let data = (&raw mut isas).cast();
        // SAFETY: the agent comes from the runtime. `data` is a vector of the type that `collect` expects, and
        // outlives the call.
        with_expected_failures(|| unsafe {
            call_optional!(
                self.hsa_agent_iterate_isas(agent.0, Some(collect), data),
                { agent = %self.show_agent(agent) },
                { isas = isas.len() }
            )
        })?;
        let query = |isa: sys::hsa_isa_t, attribute| {
            // SAFETY: the instruction set comes from the runtime; the value has room for the length,
            // and for a name whose length was checked.
            AttributeValue::of(|value| unsafe {
                call_optional!(
                    self.hsa_isa_get_info_alt(isa, attribute, value),
                    { isa = %hex(isa.handle), attribute = %hex(attribute) }
                )
            })
        };
        let mut names = Vec::with_capacity(isas.len());
        for isa in isas {
            if query(isa, sys::HSA_ISA_INFO_NAME_LENGTH)?.number::<u32>()
                < AttributeValue::CAPACITY as u32 / 2
            {
                names.push(query(isa, sys::HSA_ISA_INFO_NAME)?.text());
            }
        }
        Ok(names)
    }

    /// Queries an attribute of the system.
    pub fn system_attribute(
        &self,
        attribute: sys::hsa_system_info_t,
    ) -> Result<AttributeValue, Failure> {
        // SAFETY: the value has room for every attribute of the system that is queried.
        AttributeValue::of(|value| unsafe {
            call!(self.hsa_system_get_info(attribute, value), { attribute = %hex(attribute) })
        })
    }

    /// Returns the runtime's build version; empty if the runtime returns no text.
    pub fn build_version(&self) -> Result<String, Failure> {
        let build = self.system_attribute(sys::HSA_AMD_SYSTEM_INFO_BUILD_VERSION)?.number::<usize>()
            as *const c_char;
        if build.is_null() {
            return Ok(String::new());
        }
        // SAFETY: the pointer is not null; the documentation says that it is a string constant.
        Ok(unsafe { CStr::from_ptr(build) }.to_string_lossy().into_owned())
    }

    /// Queries an attribute of an agent.
    pub fn agent_attribute(
        &self,
        agent: NativeAgent,
        attribute: sys::hsa_agent_info_t,
    ) -> Result<AttributeValue, Failure> {
        // SAFETY: the agent comes from the runtime; the value has room for every attribute of an agent
        // that is queried.
        AttributeValue::of(|value| unsafe {
            call!(
                self.hsa_agent_get_info(agent.0, attribute, value),
                { agent = %self.show_agent(agent), attribute = %hex(attribute) }
            )
        })
    }

    /// Queries an attribute of a pool.
    pub fn pool_attribute(
        &self,
        pool: NativePool,
        attribute: sys::hsa_amd_memory_pool_info_t,
    ) -> Result<AttributeValue, Failure> {
        // SAFETY: the pool comes from the runtime; the value has room for every attribute of a pool.
        AttributeValue::of(|value| unsafe {
            call!(
                self.hsa_amd_memory_pool_get_info(pool.0, attribute, value),
                { pool = %hex(pool.0.handle), attribute = %hex(attribute) }
            )
        })
    }

    /// Returns how an agent can access a pool, as a constant `HSA_AMD_MEMORY_POOL_ACCESS_*`: never, without a grant, or
    /// only after a grant.
    pub fn pool_access(&self, agent: NativeAgent, pool: NativePool) -> Result<u32, Failure> {
        let attribute = sys::HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS;
        // SAFETY: the attribute is one u32, which fits into the value.
        let access = AttributeValue::of(|value| unsafe {
            self.link_attribute(agent, pool, attribute, value)
        })?;
        Ok(access.number())
    }

    /// Returns the links between an agent and a pool, one for each hop.
    pub fn links(
        &self,
        agent: NativeAgent,
        pool: NativePool,
    ) -> Result<Vec<sys::hsa_amd_memory_pool_link_info_t>, Failure> {
        let attribute = sys::HSA_AMD_AGENT_MEMORY_POOL_INFO_NUM_LINK_HOPS;
        // SAFETY: the attribute is one u32, which fits into the value.
        let hops = AttributeValue::of(|value| unsafe {
            self.link_attribute(agent, pool, attribute, value)
        })?;
        // SAFETY: the type consists of numbers and flags, for which zero is valid.
        let empty: sys::hsa_amd_memory_pool_link_info_t = unsafe { core::mem::zeroed() };
        let mut links = vec![empty; hops.number::<u32>() as usize];
        if !links.is_empty() {
            let attribute = sys::HSA_AMD_AGENT_MEMORY_POOL_INFO_LINK_INFO;
            // SAFETY: the runtime writes one record for each hop, and `links` has one element for each hop. The flags
            // in a record are C bools, which the runtime writes as 0 or 1.
            unsafe { self.link_attribute(agent, pool, attribute, links.as_mut_ptr().cast()) }?;
        }
        Ok(links)
    }

    /// Queries an attribute of the links between an agent and a pool.
    ///
    /// # Safety
    /// `value` has room for the attribute.
    unsafe fn link_attribute(
        &self,
        agent: NativeAgent,
        pool: NativePool,
        attribute: sys::hsa_amd_agent_memory_pool_info_t,
        value: *mut c_void,
    ) -> Result<(), Failure> {
        let (raw_agent, pool) = (agent.0, pool.0);
        // SAFETY: agent and pool come from the runtime; the caller guarantees that the value has room for the
        // attribute.
        unsafe {
            call_optional!(
                self.hsa_amd_agent_memory_pool_get_info(raw_agent, pool, attribute, value),
                {
                    agent = %self.show_agent(agent),
                    pool = %hex(pool.handle),
                    attribute = %hex(attribute)
                }
            )
        }
    }
}
