//! The memory pools of each agent, in the order of AMD's runtime.

use crate::abi::PoolCallback;
use crate::agents::Agent;
use crate::identity::Kind;
use crate::instance::Instance;
use crate::physical::{Account, Claim};
use crate::status::{HsaResult, non_null};
use core::ffi::c_void;
use hsa_sys::*;
use std::sync::Arc;

const FINE: u32 = HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED;
const COARSE: u32 = HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED;
const EXTENDED: u32 = HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_EXTENDED_SCOPE_FINE_GRAINED;
const KERNARG: u32 = HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_KERNARG_INIT;

const GLOBAL: hsa_amd_segment_t = HSA_AMD_SEGMENT_GLOBAL;
const LDS: SegmentAndFlags = (HSA_AMD_SEGMENT_GROUP, 0);

/// A pool's segment and flags.
type SegmentAndFlags = (hsa_amd_segment_t, u32);

const CPU_POOLS: &[SegmentAndFlags] =
    &[(GLOBAL, FINE), (GLOBAL, EXTENDED), (GLOBAL, FINE | KERNARG), (GLOBAL, COARSE)];
const CPU_POOLS_WITHOUT_EXTENDED: &[SegmentAndFlags] =
    &[(GLOBAL, FINE), (GLOBAL, FINE | KERNARG), (GLOBAL, COARSE)];
const GPU_POOLS: &[SegmentAndFlags] = &[(GLOBAL, COARSE), (GLOBAL, EXTENDED), (GLOBAL, FINE), LDS];
const GFX12_POOLS: &[SegmentAndFlags] = &[(GLOBAL, COARSE), (GLOBAL, FINE), LDS];

/// The number of low bits of a pool's index that contain the pool's number among the pools of its agent.
const NUMBER_BITS: u32 = 4;

/// The granule of a CPU's memory.
const SYSTEM_GRANULE: u64 = 4096;
/// Bytes of the local data share (LDS) of a compute unit.
const LDS_SIZE: u64 = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    pub(crate) owner: Agent,
    pub(crate) segment: hsa_amd_segment_t,
    pub(crate) flags: u32,
    /// Whether iteration lists the pool. The properties of an import can name a hidden pool.
    pub(crate) visible: bool,
    /// The number among the pools of the agent.
    number: usize,
}

impl Pool {
    /// Returns whether memory can be allocated from the pool.
    pub(crate) fn allocates(self) -> bool {
        self.segment == GLOBAL
    }
}

impl Instance {
    pub(crate) fn pools(&self, owner: Agent) -> impl Iterator<Item = Pool> + use<> {
        let (descriptions, hidden) = match owner {
            Agent::Cpu(_) if self.behaviour.cpus_have_extended_pool() => (CPU_POOLS, None),
            Agent::Cpu(_) => (CPU_POOLS_WITHOUT_EXTENDED, None),
            Agent::Gpu(number) => {
                let gpu = &self.config.gpus[number];
                let gfx12 = gpu.isa.starts_with("gfx12");
                let hidden = gpu.hive.is_none().then_some(FINE);
                (if gfx12 { GFX12_POOLS } else { GPU_POOLS }, hidden)
            }
        };
        let pool = move |(number, &(segment, flags)): (usize, &SegmentAndFlags)| {
            let visible = segment != GLOBAL || Some(flags) != hidden;
            Pool { owner, segment, flags, visible, number }
        };
        descriptions.iter().enumerate().map(pool)
    }

    pub(crate) fn pool_handle(&self, pool: Pool) -> hsa_amd_memory_pool_t {
        let index = self.node(pool.owner) << NUMBER_BITS | pool.number;
        hsa_amd_memory_pool_t { handle: self.identity.value(Kind::Pool, index) }
    }

    /// Finds a pool by its handle.
    pub(crate) fn pool(&self, pool: hsa_amd_memory_pool_t) -> Option<Pool> {
        let index = self.identity.index(Kind::Pool, pool.handle)?;
        let owner = self.agent_at(index >> NUMBER_BITS)?;
        self.pools(owner).nth(index & ((1 << NUMBER_BITS) - 1))
    }

    /// Returns the pool that the properties of imported memory report: the last of the owner's pools from which memory
    /// can be allocated. The first GPU's driver has allocated memory of the host
    /// ([`host_buffer`](crate::Simulation::host_buffer)), and is reported as the owner.
    pub(crate) fn pool_of_imports(&self, owner: Agent) -> Option<Pool> {
        let owner = match owner {
            Agent::Cpu(_) if !self.config.gpus.is_empty() => Agent::Gpu(0),
            owner => owner,
        };
        self.pools(owner).filter(|pool| pool.allocates()).last()
    }

    pub(crate) fn account(&self, owner: Agent) -> &Arc<Account> {
        match owner {
            Agent::Cpu(number) => &self.system_memory[number],
            Agent::Gpu(number) => &self.video_memory[number],
        }
    }

    /// Counts `bytes` of an agent's memory as used until the claim is dropped. Returns `None` if fewer bytes are free.
    pub(crate) fn claim(&self, owner: Agent, bytes: u64) -> Option<Claim> {
        let account = self.account(owner);
        account.claim(bytes).or_else(|| {
            self.lock().drop_replaced_memory();
            account.claim(bytes)
        })
    }

    pub(crate) fn pool_size(&self, pool: Pool) -> u64 {
        match (pool.segment, pool.owner) {
            (HSA_AMD_SEGMENT_GROUP, _) => LDS_SIZE,
            (_, Agent::Cpu(number)) => self.config.cpus[number].memory,
            (_, Agent::Gpu(number)) => self.config.gpus[number].vram,
        }
    }

    pub(crate) fn granule(&self, pool: Pool) -> u64 {
        match (pool.segment, pool.owner) {
            (HSA_AMD_SEGMENT_GROUP, _) => 0,
            (_, Agent::Cpu(_)) => SYSTEM_GRANULE,
            (_, Agent::Gpu(_)) => self.config.granule,
        }
    }

    fn recommended_granule(&self, pool: Pool) -> u64 {
        match (pool.segment, pool.owner) {
            (HSA_AMD_SEGMENT_GROUP, _) => 0,
            (_, Agent::Cpu(_)) => SYSTEM_GRANULE,
            (_, Agent::Gpu(_)) => self.config.recommended_granule,
        }
    }
}

/// `hsa_amd_agent_iterate_memory_pools`
///
/// # Safety
/// `callback` must be callable with `data`.
pub(crate) unsafe fn iterate(
    instance: &Instance,
    agent: hsa_agent_t,
    callback: PoolCallback,
    data: *mut c_void,
) -> HsaResult {
    let agent = instance.agent(agent)?;
    let callback = callback.ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
    for pool in instance.pools(agent).filter(|pool| pool.visible) {
        // SAFETY: `callback` accepts `data`, as the caller promises.
        match unsafe { callback(instance.pool_handle(pool), data) } {
            HSA_STATUS_SUCCESS => {}
            status => return Err(status),
        }
    }
    Ok(())
}

/// `hsa_amd_memory_pool_get_info`
///
/// # Safety
/// `value` must be null or have room for the attribute's type.
pub(crate) unsafe fn info(
    instance: &Instance,
    pool: hsa_amd_memory_pool_t,
    attribute: hsa_amd_memory_pool_info_t,
    value: *mut c_void,
) -> HsaResult {
    let pool = instance.pool(pool).ok_or(HSA_STATUS_ERROR_INVALID_MEMORY_POOL)?;
    let value = non_null(value)?;
    // SAFETY: not null, and the caller has room for the attribute's type, a 32-bit number.
    let write_word = |number: u32| unsafe { value.cast().write_unaligned(number) };
    // SAFETY: not null, and the caller has room for the attribute's type, a size.
    let write_size = |number: u64| unsafe {
        value.cast().write_unaligned(instance.reported_size(number) as usize);
    };
    // SAFETY: not null, and the caller has room for the attribute's type, a boolean.
    let write_boolean = |flag: bool| unsafe { value.cast().write_unaligned(flag) };
    match attribute {
        HSA_AMD_MEMORY_POOL_INFO_SEGMENT => write_word(pool.segment),
        HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS => write_word(pool.flags),
        HSA_AMD_MEMORY_POOL_INFO_SIZE => write_size(instance.pool_size(pool)),
        HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED => write_boolean(pool.allocates()),
        HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_GRANULE
        | HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALIGNMENT => write_size(instance.granule(pool)),
        HSA_AMD_MEMORY_POOL_INFO_ACCESSIBLE_BY_ALL => {
            write_boolean(pool.allocates() && matches!(pool.owner, Agent::Cpu(_)));
        }
        HSA_AMD_MEMORY_POOL_INFO_ALLOC_MAX_SIZE => {
            write_size(if pool.allocates() { instance.pool_size(pool) } else { 0 });
        }
        HSA_AMD_MEMORY_POOL_INFO_LOCATION if pool.segment != GLOBAL => {
            return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
        }
        HSA_AMD_MEMORY_POOL_INFO_LOCATION => write_word(match pool.owner {
            Agent::Cpu(_) => HSA_AMD_MEMORY_POOL_LOCATION_CPU,
            Agent::Gpu(_) => HSA_AMD_MEMORY_POOL_LOCATION_GPU,
        }),
        HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_REC_GRANULE if instance.behaviour.has_vmem() => {
            write_size(instance.recommended_granule(pool));
        }
        _ => return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT),
    }
    Ok(())
}
