//! Queries a started runtime once for its properties, its agents and their pools.

use super::RuntimeInfo;
use crate::agent::{Agent, AgentId, AgentKind, Link, LinkKind, PciAddress, Peer};
use crate::native::{Failure, Native, NativeAgent, NativePool};
use crate::pool::{Pool, PoolFlags, PoolLocation, Segment};
use hsa_sys as sys;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// The next runtime's number, so that an agent's identifier is invalid in any other runtime.
static NEXT_RUNTIME: AtomicU64 = AtomicU64::new(1);

/// Turns "unknown attribute or function" into `None`.
fn known<T>(answer: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(failure) if failure.is_unknown() => Ok(None),
        Err(failure) => Err(failure),
    }
}

pub(super) fn describe(
    native: &Native,
    name: String,
    path: Option<PathBuf>,
) -> Result<RuntimeInfo, Failure> {
    let flag = |attribute| known(native.system_flag(attribute)).map(Option::unwrap_or_default);
    let extension = (
        known(native.system_u16(sys::HSA_AMD_SYSTEM_INFO_EXT_VERSION_MAJOR))?.unwrap_or(1),
        // Attributes 0x207 and 0x208 came with ROCm 6.1; 6.0 is 1.4.
        known(native.system_u16(sys::HSA_AMD_SYSTEM_INFO_EXT_VERSION_MINOR))?.unwrap_or(4),
    );
    let supported = flag(sys::HSA_AMD_SYSTEM_INFO_VIRTUAL_MEM_API_SUPPORTED)?;
    let without_virtual_memory = match native.vmem() {
        Err(missing) => Some(format!("the library does not export {missing} (ROCm 6.0 and later)")),
        Ok(_) if !supported => Some(
            "the runtime says that it is not supported: it needs the kernel's KFD interface 1.15 \
             (Linux 6.7) and a libdrm_amdgpu that exports amdgpu_device_get_fd"
                .into(),
        ),
        Ok(_) => None,
    };
    Ok(RuntimeInfo {
        name,
        path,
        version: (
            native.system_u16(sys::HSA_SYSTEM_INFO_VERSION_MAJOR)?,
            native.system_u16(sys::HSA_SYSTEM_INFO_VERSION_MINOR)?,
        ),
        extension,
        build: known(native.build_version())?.unwrap_or_default(),
        virtual_memory: without_virtual_memory.is_none(),
        without_virtual_memory,
        dmabuf: flag(sys::HSA_AMD_SYSTEM_INFO_DMABUF_SUPPORTED)?,
        svm: flag(sys::HSA_AMD_SYSTEM_INFO_SVM_SUPPORTED)?,
        xnack: flag(sys::HSA_AMD_SYSTEM_INFO_XNACK_ENABLED)?,
        fabric: flag(sys::HSA_AMD_SYSTEM_INFO_FABRIC_HANDLES_SUPPORTED)?,
        optional_functions: native.optional_functions(),
    })
}

pub(super) fn discover(native: &Native) -> Result<Vec<Agent>, Failure> {
    let runtime = NEXT_RUNTIME.fetch_add(1, Ordering::Relaxed);
    let mut natives = native.agents()?;
    // No machine has that many agents; an identifier has no bits for more.
    natives.truncate(AgentId::MOST);
    let mut ids: Vec<AgentId> = Vec::with_capacity(natives.len());
    let mut numbers = BTreeMap::new();
    for (index, &agent) in natives.iter().enumerate() {
        let kind = kind_of(native, agent)?;
        let number: &mut usize = numbers.entry(kind.to_string()).or_default();
        ids.push(AgentId::new(runtime, index, kind, *number));
        *number += 1;
    }
    let id = |index: usize| ids[index];
    let find = |agent: NativeAgent| natives.iter().position(|&other| other == agent).map(id);
    let mut agents = Vec::with_capacity(natives.len());
    for (index, &agent) in natives.iter().enumerate() {
        let nearest = known(native.nearest_cpu(agent))?.and_then(find);
        agents.push(describe_agent(native, agent, id(index), nearest)?);
    }
    for index in 0..agents.len() {
        agents[index].peers = peers(native, &agents, index)?;
        let nearest = agents[index].nearest_cpu.map(|cpu| cpu.index());
        agents[index].numa_node = match agents[index].kind {
            AgentKind::Cpu => Some(agents[index].node),
            _ => nearest.and_then(|cpu| agents.get(cpu)).map(|cpu| cpu.node),
        };
    }
    for index in 0..agents.len() {
        agents[index].large_bar = agents[index].kind == AgentKind::Gpu
            && agents
                .iter()
                .filter(|agent| agent.kind == AgentKind::Cpu)
                .any(|cpu| cpu.reaches(agents[index].id));
    }
    Ok(agents)
}

fn kind_of(native: &Native, agent: NativeAgent) -> Result<AgentKind, Failure> {
    Ok(match native.agent_u32(agent, sys::HSA_AGENT_INFO_DEVICE)? {
        sys::HSA_DEVICE_TYPE_CPU => AgentKind::Cpu,
        sys::HSA_DEVICE_TYPE_GPU => AgentKind::Gpu,
        other => AgentKind::Other(other),
    })
}

fn describe_agent(
    native: &Native,
    agent: NativeAgent,
    id: AgentId,
    nearest_cpu: Option<AgentId>,
) -> Result<Agent, Failure> {
    let number =
        |attribute| known(native.agent_u32(agent, attribute)).map(Option::unwrap_or_default);
    let text =
        |attribute| known(native.agent_text(agent, attribute)).map(Option::unwrap_or_default);
    let kind = kind_of(native, agent)?;
    let is_gpu = kind == AgentKind::Gpu;
    let pci = if is_gpu {
        let place = number(sys::HSA_AMD_AGENT_INFO_BDFID)?;
        Some(PciAddress {
            domain: number(sys::HSA_AMD_AGENT_INFO_DOMAIN)?,
            bus: (place >> 8) as u8,
            device: (place >> 3 & 0x1f) as u8,
            function: (place & 7) as u8,
        })
    } else {
        None
    };
    let properties = sys::HSA_AMD_AGENT_INFO_MEMORY_PROPERTIES;
    let properties = known(native.agent_u64(agent, properties))?.unwrap_or_default();
    let pools = native.pools(agent)?;
    Ok(Agent {
        id,
        native: agent,
        kind,
        name: native.agent_text(agent, sys::HSA_AGENT_INFO_NAME)?,
        product: text(sys::HSA_AMD_AGENT_INFO_PRODUCT_NAME)?,
        isas: if is_gpu { known(native.isas(agent))?.unwrap_or_default() } else { Vec::new() },
        uuid: text(sys::HSA_AMD_AGENT_INFO_UUID)?,
        node: number(sys::HSA_AMD_AGENT_INFO_DRIVER_NODE_ID)?,
        numa_node: None,
        nearest_cpu: if is_gpu { nearest_cpu } else { None },
        pci,
        chip: number(sys::HSA_AMD_AGENT_INFO_CHIP_ID)?,
        compute_units: number(sys::HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT)?,
        // The constant is the number of a bit, not a mask (hsa_ext_amd.h: hsa_flag_isset64).
        integrated: properties >> sys::HSA_AMD_MEMORY_PROPERTY_AGENT_IS_APU & 1 == 1,
        large_bar: false,
        pools: pools
            .into_iter()
            .map(|pool| describe_pool(native, pool, kind))
            .collect::<Result<_, _>>()?,
        peers: Vec::new(),
    })
}

fn describe_pool(native: &Native, pool: NativePool, owner: AgentKind) -> Result<Pool, Failure> {
    let segment = match native.pool_u32(pool, sys::HSA_AMD_MEMORY_POOL_INFO_SEGMENT)? {
        sys::HSA_AMD_SEGMENT_GLOBAL => Segment::Global,
        sys::HSA_AMD_SEGMENT_READONLY => Segment::ReadOnly,
        sys::HSA_AMD_SEGMENT_PRIVATE => Segment::Private,
        sys::HSA_AMD_SEGMENT_GROUP => Segment::Group,
        other => Segment::Other(other),
    };
    let size = |attribute| known(native.pool_size(pool, attribute)).map(Option::unwrap_or_default);
    let flag = |attribute| known(native.pool_flag(pool, attribute)).map(Option::unwrap_or_default);
    let flags = if segment == Segment::Global {
        native.pool_u32(pool, sys::HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS)?
    } else {
        0
    };
    let granule = size(sys::HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_GRANULE)?;
    let recommended = size(sys::HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_REC_GRANULE)?;
    let location = known(native.pool_u32(pool, sys::HSA_AMD_MEMORY_POOL_INFO_LOCATION))?;
    Ok(Pool {
        native: pool,
        segment,
        flags: PoolFlags::from_bits_retain(flags),
        size: native.pool_size(pool, sys::HSA_AMD_MEMORY_POOL_INFO_SIZE)?,
        allocatable: flag(sys::HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED)?,
        granule,
        recommended_granule: recommended.max(granule),
        alignment: size(sys::HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALIGNMENT)?,
        largest_allocation: size(sys::HSA_AMD_MEMORY_POOL_INFO_ALLOC_MAX_SIZE)?,
        accessible_by_all: flag(sys::HSA_AMD_MEMORY_POOL_INFO_ACCESSIBLE_BY_ALL)?,
        location: match location {
            Some(sys::HSA_AMD_MEMORY_POOL_LOCATION_GPU) => PoolLocation::Gpu,
            Some(_) => PoolLocation::Cpu,
            // The attribute came with ROCm 5.5; before, a pool is where its agent is.
            None if owner == AgentKind::Gpu => PoolLocation::Gpu,
            None => PoolLocation::Cpu,
        },
    })
}

/// How the agent at `index` reaches the memory of every other.
fn peers(native: &Native, agents: &[Agent], index: usize) -> Result<Vec<Peer>, Failure> {
    let mut peers = Vec::new();
    for (other, owner) in agents.iter().enumerate() {
        // Any pool of the global segment is on the same side of the same links; the one that
        // handles come from is what is asked about where there is one.
        let global = || owner.pools.iter().find(|pool| pool.segment == Segment::Global);
        let Some(pool) = owner.handle_pool().or_else(global) else { continue };
        if other == index {
            continue;
        }
        let agent = agents[index].native;
        let access = known(native.pool_access(agent, pool.native))?;
        let links = known(native.links(agent, pool.native))?.unwrap_or_default();
        peers.push(Peer {
            agent: owner.id,
            reachable: access
                .is_some_and(|access| access != sys::HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED),
            links: links
                .into_iter()
                .map(|link| Link {
                    kind: match link.kind {
                        sys::HSA_AMD_LINK_INFO_TYPE_HYPERTRANSPORT => LinkKind::HyperTransport,
                        sys::HSA_AMD_LINK_INFO_TYPE_QPI => LinkKind::Qpi,
                        sys::HSA_AMD_LINK_INFO_TYPE_PCIE => LinkKind::Pcie,
                        sys::HSA_AMD_LINK_INFO_TYPE_INFINBAND => LinkKind::InfiniBand,
                        sys::HSA_AMD_LINK_INFO_TYPE_XGMI => LinkKind::Xgmi,
                        other => LinkKind::Other(other),
                    },
                    min_bandwidth: link.min_bandwidth,
                    max_bandwidth: link.max_bandwidth,
                    numa_distance: link.numa_distance,
                })
                .collect(),
        });
    }
    Ok(peers)
}
