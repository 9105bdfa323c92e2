//! The runtime: loaded or simulated, started, and asked once for everything it tells.

use crate::agent::{Agent, AgentId, AgentKind, Link, LinkKind, PciAddress, Peer};
use crate::native::{Failure, Generation, Native, NativeAgent, NativePool, Status};
use crate::pool::{Pool, PoolFlags, PoolLocation, Segment};
use core::fmt;
use hsa_sys as sys;
pub use hsa_sys::{Attempt, LoadError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Why a runtime could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// No library was found, or none that exports what is needed.
    #[error(
        "{0}\ninstall ROCm's runtime, or name the library in HSA_VMM_RUNTIME \
         (`sim` for the simulation)"
    )]
    Load(LoadError),

    /// The library is there but did not start.
    #[error("hsa_init answered {status} ({})\n{driver}", path.display())]
    Start {
        /// The library.
        path: PathBuf,
        /// What it answered.
        status: Status,
        /// What was found where the kernel driver should be.
        driver: DriverState,
    },

    /// A started runtime did not say what it has.
    #[error(
        "the runtime did not describe its agents: {call} answered {status}; \
         `rocminfo` should fail the same way, and the driver's log may say why"
    )]
    Discovery {
        /// The runtime's function.
        call: &'static str,
        /// What it answered.
        status: Status,
    },

    /// The runtime has no CPU agent, which HSA promises.
    #[error("the runtime has no CPU agent; its kernel topology is incomplete")]
    NoCpu,

    /// The simulation could not be started.
    #[error("the simulation could not be started: {0}")]
    Simulation(String),
}

/// What was found where AMD's kernel driver should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverState {
    /// There is no `/dev/kfd`: no AMD GPU, or its driver is not loaded.
    Missing,
    /// `/dev/kfd` may not be opened by this user.
    Forbidden,
    /// `/dev/kfd` can be opened.
    Present,
}

impl DriverState {
    /// Looks at `/dev/kfd` as the runtime would.
    #[must_use]
    pub fn probe() -> Self {
        match std::fs::OpenOptions::new().read(true).write(true).open("/dev/kfd") {
            Ok(_) => Self::Present,
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Self::Forbidden,
            Err(_) => Self::Missing,
        }
    }
}

impl fmt::Display for DriverState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => {
                "/dev/kfd is missing: this machine has no AMD GPU, or the kernel module amdgpu is \
                 not loaded (in a container: the device was not passed in)"
            }
            Self::Forbidden => {
                "/dev/kfd may not be opened: add this user to the groups `render` and `video`"
            }
            Self::Present => "/dev/kfd is there; the kernel's log may say more (`dmesg`)",
        })
    }
}

/// What the runtime says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeInfo {
    /// `simulation`, or the library's file name.
    pub name: String,
    /// The loaded library; `None` for the simulation.
    pub path: Option<PathBuf>,
    /// The version of HSA.
    pub version: (u16, u16),
    /// The version of AMD's extension, by which features are told apart. 1.4 where the runtime
    /// is too old to say (ROCm 6.0).
    pub extension: (u16, u16),
    /// The runtime's build, where it tells.
    pub build: String,
    /// Whether runtime and kernel driver support virtual-memory management.
    pub virtual_memory: bool,
    /// Why not, if not.
    pub without_virtual_memory: Option<String>,
    /// Whether memory can be exported as dma-bufs.
    pub dmabuf: bool,
    /// Whether shared virtual memory is supported.
    pub svm: bool,
    /// Whether page faults of GPUs are handled.
    pub xnack: bool,
    /// Whether handles can be shared over a fabric.
    pub fabric: bool,
    /// Every optional function of the library and whether it is there.
    pub optional_functions: Vec<(&'static str, bool)>,
}

/// A started HSA runtime. Cheap to clone; the last clone stops it.
///
/// Stands for `hsa_init`, `hsa_shut_down`, `hsa_system_get_info`, `hsa_iterate_agents`,
/// `hsa_agent_get_info`, `hsa_amd_agent_iterate_memory_pools`, `hsa_amd_memory_pool_get_info`
/// and `hsa_amd_agent_memory_pool_get_info`.
#[derive(Clone, Debug)]
pub struct Runtime {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    native: Native,
    generation: Generation,
    info: RuntimeInfo,
    agents: Vec<Agent>,
    first_cpu: usize,
    #[cfg(feature = "simulation")]
    simulation: Option<crate::native::SharedSimulation>,
}

static NEXT_RUNTIME: AtomicU32 = AtomicU32::new(1);

impl Runtime {
    /// Loads AMD's runtime from the usual places and starts it.
    ///
    /// `HSA_VMM_RUNTIME` names the library to load (`sim`: the simulation, configured by
    /// `HSA_SIM`); else `ROCM_PATH`, the dynamic linker's search, and where ROCm was when this
    /// was built. There is no falling back to the simulation.
    ///
    /// # Errors
    /// [`RuntimeError`] says what was tried, or what the runtime answered.
    pub fn load() -> Result<Self, RuntimeError> {
        if std::env::var_os(sys::library::RUNTIME_VARIABLE).is_some_and(|value| value == "sim") {
            return Self::simulated_by_environment();
        }
        Self::open(&sys::Search::usual(option_env!("HSA_VMM_ROCM_LIBRARIES").map(Path::new)))
    }

    /// Loads the runtime from this file and starts it.
    ///
    /// # Errors
    /// As for [`Runtime::load`].
    pub fn load_from(path: impl AsRef<Path>) -> Result<Self, RuntimeError> {
        Self::open(&sys::Search::only(path.as_ref()))
    }

    fn open(search: &sys::Search) -> Result<Self, RuntimeError> {
        let (native, path) = Native::load(search)?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Self::start(native, name, Some(path))
    }

    /// Starts a simulated runtime.
    ///
    /// # Errors
    /// [`RuntimeError::Simulation`] if the configuration makes no sense or too many simulations
    /// run at once in this process.
    #[cfg(feature = "simulation")]
    pub fn simulated(config: hsa_sim::Config) -> Result<Self, RuntimeError> {
        let simulation = hsa_sim::Simulation::start(config)
            .map_err(|error| RuntimeError::Simulation(error.to_string()))?;
        Self::simulated_by(Arc::new(simulation))
    }

    /// Uses a simulation that was started by the caller, who can go on watching it.
    ///
    /// # Errors
    /// As for [`Runtime::load`], when the simulation was told to fail.
    #[cfg(feature = "simulation")]
    pub fn simulated_by(simulation: Arc<hsa_sim::Simulation>) -> Result<Self, RuntimeError> {
        let native = Native::simulated(simulation.clone());
        let runtime = Self::start(native, "simulation".into(), None)?;
        // Nobody else holds it yet.
        let mut inner = Arc::try_unwrap(runtime.inner)
            .map_err(|_| RuntimeError::Simulation("it is in use".into()))?;
        inner.simulation = Some(simulation);
        Ok(Self { inner: Arc::new(inner) })
    }

    #[cfg(feature = "simulation")]
    fn simulated_by_environment() -> Result<Self, RuntimeError> {
        let config = match std::env::var("HSA_SIM") {
            Ok(text) => text.parse().map_err(|error| {
                RuntimeError::Simulation(format!("HSA_SIM is not understood: {error}"))
            })?,
            Err(_) => hsa_sim::Config::default(),
        };
        Self::simulated(config)
    }

    #[cfg(not(feature = "simulation"))]
    fn simulated_by_environment() -> Result<Self, RuntimeError> {
        let reason = "this program was built without the feature `simulation`";
        Err(RuntimeError::Simulation(reason.into()))
    }

    fn start(native: Native, name: String, path: Option<PathBuf>) -> Result<Self, RuntimeError> {
        let generation = Generation::current();
        native.init().map_err(|failure| RuntimeError::Start {
            path: path.clone().unwrap_or_else(|| name.clone().into()),
            status: failure.status,
            driver: DriverState::probe(),
        })?;
        // From here on, dropping `started` stops what was started.
        let started = Started { native: Some(native), generation };
        let native = started.native();
        let info = describe(native, name, path)?;
        let agents = discover(native)?;
        let first_cpu = agents
            .iter()
            .position(|agent| agent.kind == AgentKind::Cpu)
            .ok_or(RuntimeError::NoCpu)?;
        tracing::debug!(name = info.name, extension = ?info.extension, agents = agents.len());
        Ok(Self {
            inner: Arc::new(Inner {
                native: started.keep(),
                generation,
                info,
                agents,
                first_cpu,
                #[cfg(feature = "simulation")]
                simulation: None,
            }),
        })
    }

    /// What the runtime says about itself.
    #[must_use]
    pub fn info(&self) -> &RuntimeInfo {
        &self.inner.info
    }

    /// All agents, in the runtime's order.
    #[must_use]
    pub fn agents(&self) -> &[Agent] {
        &self.inner.agents
    }

    /// The GPUs, in the order in which HIP counts them.
    pub fn gpus(&self) -> impl Iterator<Item = &Agent> {
        self.inner.agents.iter().filter(|agent| agent.kind == AgentKind::Gpu)
    }

    /// The first CPU: the agent that stands for this process's own loads and stores.
    #[must_use]
    pub fn host(&self) -> &Agent {
        &self.inner.agents[self.inner.first_cpu]
    }

    /// The agent of that identifier; `None` if it is another runtime's or invented.
    #[must_use]
    pub fn agent(&self, id: AgentId) -> Option<&Agent> {
        self.inner.agents.get(id.index as usize).filter(|agent| agent.id == id)
    }

    /// The simulation below, if this is one.
    #[cfg(feature = "simulation")]
    #[must_use]
    pub fn simulation(&self) -> Option<&hsa_sim::Simulation> {
        self.inner.simulation.as_deref()
    }

    pub(crate) fn native(&self) -> &Native {
        &self.inner.native
    }

    /// Whether this process is a fork of the one that opened the runtime.
    pub(crate) fn has_forked(&self) -> bool {
        self.inner.generation.has_forked()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        stop(&self.native, self.generation);
    }
}

/// A runtime that was started and is not yet anybody's.
struct Started {
    native: Option<Native>,
    generation: Generation,
}

impl Started {
    fn native(&self) -> &Native {
        match &self.native {
            Some(native) => native,
            // Only `keep` takes it, and that consumes `self`.
            None => unreachable!("a started runtime is there until it is kept"),
        }
    }

    fn keep(mut self) -> Native {
        match self.native.take() {
            Some(native) => native,
            None => unreachable!("a started runtime is kept once"),
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(native) = &self.native {
            stop(native, self.generation);
        }
    }
}

fn stop(native: &Native, generation: Generation) {
    // The child of a fork has no runtime of its own to stop.
    if !generation.has_forked()
        && let Err(failure) = native.shut_down()
    {
        tracing::warn!(?failure, "the runtime did not stop");
    }
}

// Not by `#[from]`: the text above already says all of it, and a source would say it again.
impl From<LoadError> for RuntimeError {
    fn from(error: LoadError) -> Self {
        Self::Load(error)
    }
}

impl From<Failure> for RuntimeError {
    fn from(Failure { call, status }: Failure) -> Self {
        Self::Discovery { call, status }
    }
}

/// An answer, or nothing where this runtime does not know the question.
fn known<T>(answer: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(failure) if failure.is_unknown() => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn describe(
    native: &Native,
    name: String,
    path: Option<PathBuf>,
) -> Result<RuntimeInfo, RuntimeError> {
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

fn discover(native: &Native) -> Result<Vec<Agent>, RuntimeError> {
    let runtime = NEXT_RUNTIME.fetch_add(1, Ordering::Relaxed);
    let natives = native.agents()?;
    let id = |index: usize| AgentId { runtime, index: index as u32 };
    let find = |agent: NativeAgent| natives.iter().position(|&other| other == agent).map(id);
    let mut agents = Vec::with_capacity(natives.len());
    for (index, &agent) in natives.iter().enumerate() {
        let nearest = known(native.nearest_cpu(agent))?.and_then(find);
        agents.push(describe_agent(native, agent, id(index), nearest)?);
    }
    for index in 0..agents.len() {
        agents[index].peers = peers(native, &agents, index)?;
        let nearest = agents[index].nearest_cpu.map(|cpu| cpu.index as usize);
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
    let kind = match native.agent_u32(agent, sys::HSA_AGENT_INFO_DEVICE)? {
        sys::HSA_DEVICE_TYPE_CPU => AgentKind::Cpu,
        sys::HSA_DEVICE_TYPE_GPU => AgentKind::Gpu,
        other => AgentKind::Other(other),
    };
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
