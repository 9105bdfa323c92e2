//! Queries a started runtime for its properties, its agents and their pools.

use super::implementation::{Evidence, identify};
use super::{RuntimeInfo, SIMULATION};
use crate::agent::{
    Agent, AgentId, AgentKind, ComputeProperties, Link, LinkKind, PciAddress, Peer,
};
use crate::native::{AttributeValue, Failure, Native, NativeAgent, NativePool, Status};
use crate::pool::{Pool, PoolFlags, Segment};
use core::ffi::CStr;
use hsa_sys as sys;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of the next runtime. Agents' identifiers contain the number, so that they are invalid in other
/// runtimes.
static NEXT_RUNTIME: AtomicU64 = AtomicU64::new(1);

/// Converts the result of a query. Returns `None` if the runtime does not know the attribute or function.
fn optional<T>(result: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(failure) => match failure.status {
            Status::MISSING_FUNCTION | Status::NOT_SUPPORTED | Status::INVALID_ARGUMENT => Ok(None),
            _ => Err(failure),
        },
    }
}

/// Converts the result of a query. Returns the default value if the runtime does not know the attribute or function.
fn or_default<T: Default>(result: Result<T, Failure>) -> Result<T, Failure> {
    optional(result).map(Option::unwrap_or_default)
}

/// Queries the runtime's properties.
pub(super) fn describe(native: &Native) -> Result<RuntimeInfo, Failure> {
    let library = native.library();
    let path = library.map(|library| library.path().to_owned());
    let name = path.as_ref().map(|path| path.file_name().unwrap_or(path.as_os_str()));
    let flag = |attribute| or_default(native.system_attribute(attribute)).map(|it| it.flag());
    let version =
        |attribute| optional(native.system_attribute(attribute)).map(|it| it.map(|it| it.number()));
    let extension = (
        version(sys::HSA_AMD_SYSTEM_INFO_EXT_VERSION_MAJOR)?.unwrap_or(1),
        // ROCm 6.0 has extension 1.4, and does not know these attributes.
        version(sys::HSA_AMD_SYSTEM_INFO_EXT_VERSION_MINOR)?.unwrap_or(4),
    );
    let supported = flag(sys::HSA_AMD_SYSTEM_INFO_VIRTUAL_MEM_API_SUPPORTED)?;
    let virtual_memory_failure = match native.vmem() {
        Err(missing) => Some(format!("the library does not export {missing}, which ROCm 6.0 added")),
        Ok(_) if !supported => Some(
            "the runtime reports that virtual memory is not supported: this needs the kernel's KFD \
             interface 1.15 (Linux 6.7) and a libdrm_amdgpu that exports amdgpu_device_get_fd"
                .into(),
        ),
        Ok(_) => None,
    };
    let build = or_default(native.build_version())?;
    let functions = native.optional_functions();
    let has_function = |name: &CStr| {
        functions
            .iter()
            .any(|(function, is_exported)| *is_exported && function.as_bytes() == name.to_bytes())
    };
    let exports = |name: &CStr| library.map_or(has_function(name), |it| it.symbol(name).is_some());
    let implementation = identify(&Evidence {
        file: &name.map(|name| name.to_string_lossy()).unwrap_or_default(),
        build: &build,
        extension,
        has_rocr_symbol_version: library.is_none_or(sys::Library::has_rocr_symbol_version),
        exports: &exports,
    });
    Ok(RuntimeInfo {
        name: name.map_or(SIMULATION.into(), |name| name.to_string_lossy()).into_owned(),
        path,
        origin: library.map(sys::Library::origin),
        implementation,
        version: (
            native.system_attribute(sys::HSA_SYSTEM_INFO_VERSION_MAJOR)?.number(),
            native.system_attribute(sys::HSA_SYSTEM_INFO_VERSION_MINOR)?.number(),
        ),
        extension,
        build,
        virtual_memory_failure,
        dmabuf: flag(sys::HSA_AMD_SYSTEM_INFO_DMABUF_SUPPORTED)?,
        svm: flag(sys::HSA_AMD_SYSTEM_INFO_SVM_SUPPORTED)?,
        xnack: flag(sys::HSA_AMD_SYSTEM_INFO_XNACK_ENABLED)?,
        fabric: flag(sys::HSA_AMD_SYSTEM_INFO_FABRIC_HANDLES_SUPPORTED)?,
        optional_functions: functions,
    })
}

/// Queries all agents with their pools and peers, in the runtime's order.
pub(super) fn discover(native: &Native) -> Result<Vec<Agent>, Failure> {
    let runtime = NEXT_RUNTIME.fetch_add(1, Ordering::Relaxed);
    let native_agents = native.agents()?;
    let mut agents: Vec<Agent> = Vec::with_capacity(native_agents.len());
    // Ignores further agents, because an identifier has no bits for them. No machine has so many agents.
    for (index, &agent) in native_agents.iter().take(AgentId::LIMIT).enumerate() {
        let kind = match native.agent_attribute(agent, sys::HSA_AGENT_INFO_DEVICE)?.number() {
            sys::HSA_DEVICE_TYPE_CPU => AgentKind::Cpu,
            sys::HSA_DEVICE_TYPE_GPU => AgentKind::Gpu,
            other => AgentKind::Other(other),
        };
        let number = agents.iter().filter(|agent| agent.kind == kind).count();
        let id = AgentId::new(runtime, index, kind, number);
        agents.push(describe_agent(native, agent, id, kind)?);
    }
    for index in 0..agents.len() {
        agents[index].peers = peers(native, &agents, index)?;
        let agent = &agents[index];
        let nearest_cpu = match agent.kind {
            AgentKind::Cpu => Some(agent),
            AgentKind::Gpu => {
                let attribute = sys::HSA_AMD_AGENT_INFO_NEAREST_CPU;
                let handle = optional(native.agent_attribute(agent.native, attribute))?
                    .map(|it| it.number());
                let is_nearest = |it: &&Agent| Some(it.native.raw().handle) == handle;
                agents.iter().find(is_nearest)
            }
            AgentKind::Other(_) => None,
        };
        let (id, node) = (nearest_cpu.map(|cpu| cpu.id), nearest_cpu.map(|cpu| cpu.node));
        agents[index].numa_node = node;
        agents[index].nearest_cpu = id.filter(|id| *id != agents[index].id);
    }
    for index in 0..agents.len() {
        let (is_gpu, id) = (agents[index].kind == AgentKind::Gpu, agents[index].id);
        let mut cpus = agents.iter().filter(|agent| agent.kind == AgentKind::Cpu);
        agents[index].large_bar = is_gpu && cpus.any(|cpu| cpu.can_access(id));
    }
    native.name_agents(agents.iter().map(|it| (it.native, it.id.to_string())).collect());
    Ok(agents)
}

/// Describes an agent, except for the fields that depend on other agents.
fn describe_agent(
    native: &Native,
    agent: NativeAgent,
    id: AgentId,
    kind: AgentKind,
) -> Result<Agent, Failure> {
    let query = |attribute| or_default(native.agent_attribute(agent, attribute));
    let is_gpu = kind == AgentKind::Gpu;
    let mut pci = None;
    if is_gpu {
        let bdf = query(sys::HSA_AMD_AGENT_INFO_BDFID)?.number::<u32>();
        pci = Some(PciAddress {
            domain: query(sys::HSA_AMD_AGENT_INFO_DOMAIN)?.number(),
            bus: (bdf >> 8) as u8,
            device: (bdf >> 3 & 0x1f) as u8,
            function: (bdf & 7) as u8,
        });
    }
    let memory_properties = query(sys::HSA_AMD_AGENT_INFO_MEMORY_PROPERTIES)?.number::<u64>();
    let pools = native.pools(agent)?;
    Ok(Agent {
        id,
        native: agent,
        kind,
        name: native.agent_attribute(agent, sys::HSA_AGENT_INFO_NAME)?.text(),
        product: query(sys::HSA_AMD_AGENT_INFO_PRODUCT_NAME)?.text(),
        isas: if is_gpu { or_default(native.isas(agent))? } else { Vec::new() },
        uuid: query(sys::HSA_AMD_AGENT_INFO_UUID)?.text(),
        node: query(sys::HSA_AMD_AGENT_INFO_DRIVER_NODE_ID)?.number(),
        numa_node: None,
        nearest_cpu: None,
        pci,
        chip: query(sys::HSA_AMD_AGENT_INFO_CHIP_ID)?.number(),
        compute_units: query(sys::HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT)?.number(),
        // The constant is the number of a bit, not a mask (hsa_ext_amd.h: hsa_flag_isset64).
        integrated: memory_properties >> sys::HSA_AMD_MEMORY_PROPERTY_AGENT_IS_APU & 1 == 1,
        large_bar: false,
        pools: pools
            .into_iter()
            .map(|pool| describe_pool(native, pool, kind))
            .collect::<Result<_, _>>()?,
        peers: Vec::new(),
    })
}

/// Queries an agent's limits, clocks and caches. A value whose query fails is 0.
pub(super) fn compute_properties(native: &Native, agent: &Agent) -> ComputeProperties {
    let query = |attribute| native.agent_attribute(agent.native, attribute).unwrap_or_default();
    let group = agent.pools.iter().find(|pool| pool.segment == Segment::Group);
    ComputeProperties {
        wavefront_size: query(sys::HSA_AGENT_INFO_WAVEFRONT_SIZE).number(),
        max_workgroup_size: query(sys::HSA_AGENT_INFO_WORKGROUP_MAX_SIZE).number(),
        max_workgroup_dimensions: query(sys::HSA_AGENT_INFO_WORKGROUP_MAX_DIM).number(),
        max_waves_per_unit: query(sys::HSA_AMD_AGENT_INFO_MAX_WAVES_PER_CU).number(),
        group_memory: group.map_or(0, |pool| pool.size),
        clock: query(sys::HSA_AMD_AGENT_INFO_MAX_CLOCK_FREQUENCY).number(),
        memory_clock: query(sys::HSA_AMD_AGENT_INFO_MEMORY_MAX_FREQUENCY).number(),
        memory_width: query(sys::HSA_AMD_AGENT_INFO_MEMORY_WIDTH).number(),
        cache_sizes: query(sys::HSA_AGENT_INFO_CACHE_SIZE).number(),
        revision: query(sys::HSA_AMD_AGENT_INFO_ASIC_REVISION).number(),
    }
}

fn describe_pool(native: &Native, pool: NativePool, owner: AgentKind) -> Result<Pool, Failure> {
    let query = |attribute| or_default::<AttributeValue>(native.pool_attribute(pool, attribute));
    let segment = match native.pool_attribute(pool, sys::HSA_AMD_MEMORY_POOL_INFO_SEGMENT)?.number()
    {
        sys::HSA_AMD_SEGMENT_GLOBAL => Segment::Global,
        sys::HSA_AMD_SEGMENT_READONLY => Segment::ReadOnly,
        sys::HSA_AMD_SEGMENT_PRIVATE => Segment::Private,
        sys::HSA_AMD_SEGMENT_GROUP => Segment::Group,
        other => Segment::Other(other),
    };
    let flags = match segment {
        Segment::Global => {
            native.pool_attribute(pool, sys::HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS)?.number()
        }
        _ => 0,
    };
    let granule = query(sys::HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_GRANULE)?.number::<usize>();
    let recommended =
        query(sys::HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_REC_GRANULE)?.number::<usize>();
    let location = optional(native.pool_attribute(pool, sys::HSA_AMD_MEMORY_POOL_INFO_LOCATION))?;
    let on_gpu = match location {
        Some(location) => location.number::<u32>() == sys::HSA_AMD_MEMORY_POOL_LOCATION_GPU,
        // Releases before ROCm 5.5 lack the attribute. Their pools are on the agent itself.
        None => owner == AgentKind::Gpu,
    };
    Ok(Pool {
        native: pool,
        segment,
        flags: PoolFlags::from_bits_retain(flags),
        size: native.pool_attribute(pool, sys::HSA_AMD_MEMORY_POOL_INFO_SIZE)?.number(),
        allocatable: query(sys::HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED)?.flag(),
        granule,
        recommended_granule: recommended.max(granule),
        alignment: query(sys::HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALIGNMENT)?.number(),
        largest_allocation: query(sys::HSA_AMD_MEMORY_POOL_INFO_ALLOC_MAX_SIZE)?.number(),
        accessible_by_all: query(sys::HSA_AMD_MEMORY_POOL_INFO_ACCESSIBLE_BY_ALL)?.flag(),
        on_gpu,
    })
}

/// Returns the access of the agent at `index` to the memory of every other agent.
fn peers(native: &Native, agents: &[Agent], index: usize) -> Result<Vec<Peer>, Failure> {
    let (agent, mut peers) = (agents[index].native, Vec::new());
    for owner in agents.iter().filter(|owner| owner.native != agent) {
        // All global pools of an agent have the same links, so querying one pool is sufficient. Prefers the pool for
        // virtual memory.
        let global = || owner.pools.iter().find(|pool| pool.segment == Segment::Global);
        let Some(pool) = owner.vmem_pool().or_else(global) else { continue };
        let access = optional(native.pool_access(agent, pool.native))?;
        let links = or_default(native.links(agent, pool.native))?;
        let links = links.into_iter().map(|link| Link {
            kind: match link.link_type {
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
        });
        peers.push(Peer {
            agent: owner.id,
            reachable: access.is_some_and(|it| it != sys::HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED),
            links: links.collect(),
        });
    }
    Ok(peers)
}
