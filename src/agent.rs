//! Agents: the CPUs and GPUs of a runtime.

use crate::native::{CopyEngine, NativeAgent};
use crate::pool::Pool;
use core::fmt;
use derive_more::{Debug, Display};
use hsa_sys::hsa_agent_t;

/// The identifier of an agent of one runtime ([`Agent::id`]). Cheap to copy.
///
/// Every function rejects identifiers of other runtimes and identifiers that never existed. Displayed as `CPU 0` or
/// `GPU 1`; GPUs are counted in the order of [`Runtime::gpus`](crate::Runtime::gpus).
///
/// ```
/// # use hsa_vmm::Runtime;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// let gpu = runtime.gpus().next().ok_or("no GPU")?;
/// assert_eq!(gpu.id().to_string(), "GPU 0");
/// assert_eq!(runtime.host().id().to_string(), "CPU 0");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[debug("{self} of runtime {}", _0 >> RUNTIME_SHIFT)]
pub struct AgentId(u64);

// The fields of an identifier, from the lowest bit: the number among agents of the same kind (14 bits), the kind (2
// bits), the index (16 bits), and the runtime's number (32 bits). A runtime's number is never reused.
const NUMBER_BITS: u32 = 14;
const INDEX_SHIFT: u32 = 16;
const RUNTIME_SHIFT: u32 = 32;

impl AgentId {
    /// The maximum number of agents of one runtime.
    pub(crate) const LIMIT: usize = 1 << NUMBER_BITS;

    /// Creates the identifier of the agent at `index`. `number` is the number of earlier agents of the same kind.
    pub(crate) fn new(runtime: u64, index: usize, kind: AgentKind, number: usize) -> Self {
        let kind = match kind {
            AgentKind::Cpu => 0,
            AgentKind::Gpu => 1,
            AgentKind::Other(_) => 2,
        };
        let (index, number) = ((index as u64) << INDEX_SHIFT, number as u64);
        Self(runtime << RUNTIME_SHIFT | index | kind << NUMBER_BITS | number)
    }

    /// Returns the agent's index in [`Runtime::agents`](crate::Runtime::agents).
    pub fn index(self) -> usize {
        (self.0 >> INDEX_SHIFT & 0xffff) as usize
    }

    /// Returns the identifier as a number, for C and for traces.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the identifier with this number. Functions that take an identifier check whether the agent exists.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl fmt::Display for AgentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.0 >> NUMBER_BITS & 3 {
            0 => "CPU",
            1 => "GPU",
            _ => "accelerator",
        };
        write!(f, "{kind} {}", self.0 & ((1 << NUMBER_BITS) - 1))
    }
}

/// The kind of an agent (`HSA_AGENT_INFO_DEVICE`).
///
/// ```
/// use hsa_vmm::Runtime;
/// use hsa_vmm::agent::AgentKind;
///
/// fn count_gpus(runtime: &Runtime) -> usize {
///     runtime.agents().iter().filter(|agent| agent.kind() == AgentKind::Gpu).count()
/// }
/// ```
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AgentKind {
    /// A CPU. There is one CPU agent for each NUMA node.
    #[display("CPU")]
    Cpu,
    /// A GPU.
    #[display("GPU")]
    Gpu,
    /// Another device: a DSP or an AI engine.
    #[display("device type {_0}")]
    Other(u32),
}

/// Whether the access that [`set_access`](crate::Vmm::set_access) sets is enforced for an agent.
///
/// ```
/// use hsa_vmm::agent::Enforcement;
/// use hsa_vmm::{AgentId, Vmm};
///
/// /// Returns whether a store of this agent to read-only memory faults.
/// fn store_faults(vmm: &Vmm, agent: AgentId) -> bool {
///     vmm.enforcement(agent) == Some(Enforcement::Enforced)
/// }
/// ```
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Enforcement {
    /// A forbidden access faults: on CPUs, whose permissions `mprotect` sets, and on GPUs whose page tables the
    /// [`Vmm`](crate::Vmm) controls. All CPU agents of a process share one page table, so each has the highest access
    /// that is granted to any of them.
    #[display("enforced")]
    Enforced,
    /// The permission is only recorded. This applies to GPUs whose page tables the `Vmm` does not control: once any
    /// access was granted, AMD's user-space driver maps the memory readable, writable and executable.
    /// [`Vmm::revoke`](crate::Vmm::revoke) removes the GPU's access. The simulation of AMD's runtime on rocddi enforces
    /// permissions. This was not tested with the runtime itself, so the library reports `Recorded` there, too.
    #[display("recorded")]
    Recorded,
}

/// A PCI address.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[display("{domain:04x}:{bus:02x}:{device:02x}.{function}")]
pub struct PciAddress {
    /// The domain (segment).
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The device on the bus.
    pub device: u8,
    /// The function of the device.
    pub function: u8,
}

/// The kind of a link between agents (`hsa_amd_link_info_type_t`).
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkKind {
    /// HyperTransport.
    HyperTransport,
    /// QuickPath.
    #[display("QPI")]
    Qpi,
    /// PCI Express.
    #[display("PCIe")]
    Pcie,
    /// InfiniBand.
    InfiniBand,
    /// AMD's Infinity Fabric between GPUs.
    #[display("XGMI")]
    Xgmi,
    /// A kind that this version does not know.
    #[display("link type {_0}")]
    Other(u32),
}

/// The access of an agent to another agent's memory (peer access), in [`Agent::peers`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// The agent that owns the memory.
    pub agent: AgentId,
    /// Whether the agent whose [`Agent::peers`] contains this entry can be granted access to the memory.
    pub reachable: bool,
    /// The links between the two agents, one for each hop; empty if the runtime does not report them.
    pub links: Vec<Link>,
}

/// One hop between two agents. Bandwidths are in MB/s; 0 if the runtime does not report them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    /// The kind of the link.
    pub kind: LinkKind,
    /// The minimum bandwidth.
    pub min_bandwidth: u32,
    /// The maximum bandwidth.
    pub max_bandwidth: u32,
    /// The NUMA distance, in ACPI's units.
    pub numa_distance: u32,
}

/// The limits of kernels on a GPU, its clocks and its caches
/// ([`Runtime::compute_properties`](crate::Runtime::compute_properties)). A value that the runtime does not report is
/// 0.
///
/// ```
/// # fn main() -> Result<(), hsa_vmm::Error> {
/// # let runtime = hsa_vmm::Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// for gpu in runtime.gpus() {
///     let limits = runtime.compute_properties(gpu.id());
///     println!("{}: {limits:?}", gpu.name());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ComputeProperties {
    /// The number of work-items in a wavefront.
    pub wavefront_size: u32,
    /// The maximum number of work-items in a work-group.
    pub max_workgroup_size: u32,
    /// The maximum number of work-items in each dimension of a work-group.
    pub max_workgroup_dimensions: [u16; 3],
    /// The maximum number of wavefronts on a compute unit.
    pub max_waves_per_unit: u32,
    /// The size of a work-group's memory (LDS) in bytes.
    pub group_memory: usize,
    /// The highest clock of the compute units in MHz.
    pub clock: u32,
    /// The highest clock of the memory in MHz.
    pub memory_clock: u32,
    /// The width of the memory bus in bits.
    pub memory_width: u32,
    /// The sizes of the data caches in bytes, L1 first.
    pub cache_sizes: [u32; 4],
    /// The revision of the chip.
    pub revision: u32,
}

/// A CPU, a GPU or another device, with the attributes that the runtime reported when it started.
///
/// ```
/// # use hsa_vmm::{Runtime, simulation::Config};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = Runtime::simulated(Config::mi300x(2))?;
/// let gpu = runtime.gpus().next().ok_or("no GPU")?;
/// assert_eq!((gpu.id().to_string().as_str(), gpu.name()), ("GPU 0", "gfx942"));
/// assert!(gpu.vmem_pool().is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[debug("Agent({id}, {name:?})")]
#[non_exhaustive]
pub struct Agent {
    pub(crate) id: AgentId,
    pub(crate) native: NativeAgent,
    pub(crate) kind: AgentKind,
    pub(crate) name: String,
    /// The marketing name; empty if the runtime does not know it.
    pub product: String,
    /// The instruction sets, best first (`amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-`).
    pub isas: Vec<String>,
    /// The device's unique name (`GPU-…`); `GPU-XX` if it has none.
    pub uuid: String,
    /// The number of the node in the driver's topology.
    pub node: u32,
    /// The NUMA node of a CPU, or of the CPU nearest to a GPU; `None` if unknown.
    pub numa_node: Option<u32>,
    /// The CPU nearest to a GPU.
    pub nearest_cpu: Option<AgentId>,
    /// A GPU's PCI address.
    pub pci: Option<PciAddress>,
    /// The PCI device ID of a GPU's chip; 0 if unknown.
    pub chip: u32,
    /// The number of compute units.
    pub compute_units: u32,
    /// Whether a GPU shares the system's memory (an APU).
    pub integrated: bool,
    /// Whether CPUs can access all memory of this GPU (a large BAR, or an APU).
    ///
    /// If this is false, the library rejects a call that grants a CPU access to this GPU's memory. The runtime would
    /// accept the call, but the CPU's first load would fault.
    pub large_bar: bool,
    /// The memory pools, in the runtime's order.
    pub pools: Vec<Pool>,
    /// The access of this agent to the memory of each other agent.
    pub peers: Vec<Peer>,
}

impl Agent {
    /// Returns the identifier by which other functions select this agent.
    pub fn id(&self) -> AgentId {
        self.id
    }
    /// Returns the runtime's own handle of this agent, for HSA calls that the caller makes itself
    /// ([`Runtime::function`](crate::Runtime::function)).
    pub fn hsa_agent(&self) -> hsa_agent_t {
        self.native.raw()
    }
    /// Returns the kind of the agent.
    pub fn kind(&self) -> AgentKind {
        self.kind
    }
    /// Returns the engine that copies on behalf of this agent.
    pub(crate) fn copy_engine(&self) -> CopyEngine {
        match self.kind {
            AgentKind::Cpu => CopyEngine::Cpu,
            _ => CopyEngine::Agent(self.native),
        }
    }
    /// Returns the agent's name in the runtime: a GPU's architecture (`gfx942`), a CPU's model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the pool from which the library creates physical memory: a coarse-grained, allocatable pool on the GPU.
    ///
    /// `None` for CPUs: before ROCm 10, AMD's runtime creates no handles of system memory.
    pub fn vmem_pool(&self) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.supports_handles())
    }

    /// Returns whether this agent can be granted access to the memory of `owner` (`hipDeviceCanAccessPeer`). Returns
    /// `true` if `owner` is this agent.
    pub fn can_access(&self, owner: AgentId) -> bool {
        self.id == owner || self.peers.iter().any(|peer| peer.agent == owner && peer.reachable)
    }

    /// Returns whether this agent's permissions are enforced if no `Vmm` controls page tables.
    /// [`Vmm::enforcement`](crate::Vmm::enforcement) returns whether a particular `Vmm` enforces them.
    pub fn enforcement(&self) -> Enforcement {
        match self.kind {
            AgentKind::Cpu => Enforcement::Enforced,
            _ => Enforcement::Recorded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifier_round_trips_through_bits() {
        let id = AgentId::new(7, 3, AgentKind::Gpu, 1);
        assert_eq!((id.index(), id.to_bits()), (3, 0x7_0003_4001));
        assert_eq!(id.to_string(), "GPU 1");
        assert_eq!(AgentId::from_bits(id.to_bits()), id);
        assert_eq!(format!("{id:?}"), "GPU 1 of runtime 7");
    }

    #[test]
    fn kinds_and_enforcement_have_names() {
        let kinds = [AgentKind::Cpu, AgentKind::Gpu, AgentKind::Other(2)];
        assert_eq!(kinds.map(|kind| kind.to_string()), ["CPU", "GPU", "device type 2"]);
        let both = [Enforcement::Enforced, Enforcement::Recorded];
        assert_eq!(both.map(|it| it.to_string()), ["enforced", "recorded"]);
    }
}
