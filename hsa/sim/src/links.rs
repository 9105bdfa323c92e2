//! Peer access and links between agents.

use crate::agents::Agent;
use crate::config::GpuKind;
use crate::instance::Instance;
use crate::pools::Pool;
use crate::status::{HsaResult, non_null};
use core::ffi::c_void;
use hsa_sys::*;

/// The link between an agent and a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// No link: the memory is the agent's own.
    None,
    Xgmi,
    Pcie,
    /// Between CPUs.
    Socket,
}

impl Instance {
    /// Returns whether a GPU can access an agent's memory.
    pub(crate) fn gpu_can_access(&self, gpu: usize, owner: Agent) -> bool {
        match owner {
            Agent::Gpu(number) => number == gpu || self.config.peer_access,
            Agent::Cpu(_) => true,
        }
    }

    /// Returns whether CPUs can access all of an agent's memory.
    pub(crate) fn cpu_can_access(&self, owner: Agent) -> bool {
        match owner {
            Agent::Cpu(_) => true,
            Agent::Gpu(number) => self.config.gpus[number].large_bar,
        }
    }

    fn access(&self, agent: Agent, pool: Pool) -> hsa_amd_memory_pool_access_t {
        let accessible = match (agent, pool.owner) {
            _ if agent == pool.owner => return HSA_AMD_MEMORY_POOL_ACCESS_ALLOWED_BY_DEFAULT,
            _ if !pool.allocates() => false,
            (Agent::Cpu(_), Agent::Cpu(_)) => {
                return HSA_AMD_MEMORY_POOL_ACCESS_ALLOWED_BY_DEFAULT;
            }
            (Agent::Cpu(_), owner) => self.cpu_can_access(owner),
            (Agent::Gpu(gpu), owner) => self.gpu_can_access(gpu, owner),
        };
        if accessible {
            HSA_AMD_MEMORY_POOL_ACCESS_DISALLOWED_BY_DEFAULT
        } else {
            HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED
        }
    }

    fn link(&self, agent: Agent, owner: Agent) -> Link {
        match (agent, owner) {
            _ if agent == owner => Link::None,
            (Agent::Cpu(_), Agent::Cpu(_)) => Link::Socket,
            (Agent::Gpu(gpu), Agent::Gpu(peer)) => {
                let hive = self.config.gpus[gpu].hive;
                let linked = hive.is_some() && hive == self.config.gpus[peer].hive;
                if linked { Link::Xgmi } else { Link::Pcie }
            }
            (Agent::Gpu(gpu), Agent::Cpu(_)) | (Agent::Cpu(_), Agent::Gpu(gpu)) => {
                match self.config.gpus[gpu].kind {
                    GpuKind::Discrete => Link::Pcie,
                    GpuKind::Apu => Link::Xgmi,
                }
            }
        }
    }
}

fn describe(link: Link) -> hsa_amd_memory_pool_link_info_t {
    // AMD's runtime passes on what the kernel reports (amd_topology.cpp). Distances (kfd_crat.h): 15 for an XGMI
    // hop, 20 for PCIe. Bandwidths in MB/s (amdgpu_amdkfd.c of Linux): 16 lanes of 25 Gbit/s for one link of XGMI
    // (`amdgpu_amdkfd_get_xgmi_bandwidth_mbytes`), 16 lanes of 32 Gbit/s for PCIe 5
    // (`amdgpu_amdkfd_get_pcie_bandwidth_mbytes`). For a link between CPUs, the kernel reports what the firmware
    // describes; the simulation always reports the same values.
    let (link_type, numa_distance, max_bandwidth) = match link {
        Link::Xgmi => (HSA_AMD_LINK_INFO_TYPE_XGMI, 15, 50_000),
        Link::Pcie => (HSA_AMD_LINK_INFO_TYPE_PCIE, 20, 64_000),
        Link::None | Link::Socket => (HSA_AMD_LINK_INFO_TYPE_HYPERTRANSPORT, 32, 0),
    };
    hsa_amd_memory_pool_link_info_t {
        min_latency: 0,
        max_latency: 0,
        min_bandwidth: max_bandwidth,
        max_bandwidth,
        atomic_support_32bit: true,
        atomic_support_64bit: true,
        coherent_support: true,
        link_type,
        numa_distance,
    }
}

/// `hsa_amd_agent_memory_pool_get_info`
///
/// # Safety
/// `value` must be null or have room for the attribute's type.
pub(crate) unsafe fn info(
    instance: &Instance,
    agent: hsa_agent_t,
    pool: hsa_amd_memory_pool_t,
    attribute: hsa_amd_agent_memory_pool_info_t,
    value: *mut c_void,
) -> HsaResult {
    let agent = instance.agent(agent)?;
    let pool = instance.pool(pool).ok_or(HSA_STATUS_ERROR_INVALID_MEMORY_POOL)?;
    let value = non_null(value)?;
    let link = instance.link(agent, pool.owner);
    let accessible = instance.access(agent, pool) != HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED;
    // 0 for the agent's own memory and for inaccessible memory.
    let hops = u32::from(accessible && link != Link::None);
    match attribute {
        // SAFETY: not null, and the caller has room for the attribute's type.
        HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS => unsafe {
            value.cast().write_unaligned(instance.access(agent, pool));
        },
        // SAFETY: not null, and the caller has room for a 32-bit number.
        HSA_AMD_AGENT_MEMORY_POOL_INFO_NUM_LINK_HOPS => unsafe {
            value.cast().write_unaligned(hops);
        },
        HSA_AMD_AGENT_MEMORY_POOL_INFO_LINK_INFO => {
            if hops > 0 {
                // SAFETY: not null, and the caller has room for one element per hop.
                unsafe { value.cast().write_unaligned(describe(link)) };
            }
        }
        _ => return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT),
    }
    Ok(())
}
