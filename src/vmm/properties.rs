//! Properties of physical memory: its location, its kind, and the types of its shareable handles.

use crate::agent::AgentId;
use crate::handle::HandleType;

/// The kind of physical memory (`hipMemAllocationType`).
///
/// ```
/// # use hsa_vmm::{AllocationProperties, Runtime};
/// use hsa_vmm::vmm::AllocationKind;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// # let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
/// let uncached = AllocationProperties::on(gpu).of_kind(AllocationKind::Uncached);
/// assert_ne!(uncached.kind, AllocationKind::default());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AllocationKind {
    /// Pinned (`hipMemAllocationTypePinned`), like all memory of a GPU.
    #[default]
    Pinned,
    /// Pinned and not cached (`hipMemAllocationTypeUncached`): needs version 1.18 of AMD's extension.
    Uncached,
}

/// The location of physical memory (`hipMemLocation`).
///
/// ```
/// # use hsa_vmm::{AllocationProperties, Runtime};
/// use hsa_vmm::vmm::Location;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// # let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
/// assert_eq!(AllocationProperties::on(gpu).location, Location::Agent(gpu));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Location {
    /// In the memory of this agent, a GPU.
    Agent(AgentId),
    /// In memory of the host (`hipMemLocationTypeHost`).
    Host,
    /// In memory of the host, in the NUMA node with this number
    /// ([`Agent::numa_node`](crate::Agent::numa_node); `hipMemLocationTypeHostNuma`). If the host has several nodes,
    /// only ROCm 10 supports this.
    HostNuma(u32),
    /// Unknown: imported memory whose owner the runtime does not report.
    Unknown,
}

/// Properties of physical memory (`hipMemAllocationProp`).
///
/// ```
/// use hsa_vmm::vmm::Location;
/// use hsa_vmm::{AgentId, AllocationProperties, HandleType};
///
/// fn shareable(gpu: AgentId) -> AllocationProperties {
///     let properties = AllocationProperties::on(gpu);
///     assert_eq!(properties.location, Location::Agent(gpu));
///     properties.shareable_as(HandleType::POSIX_FILE_DESCRIPTOR)
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct AllocationProperties {
    /// The location.
    pub location: Location,
    /// The kind.
    pub kind: AllocationKind,
    /// The types of shareable handles that the memory may be exported as. Exporting another type is an error.
    pub handle_types: HandleType,
    /// Whether other PCIe devices, such as network adapters, may access the memory directly
    /// (`allocFlags.gpuDirectRDMACapable`).
    pub gpu_direct_rdma: bool,
}

impl AllocationProperties {
    /// Returns the properties of pinned memory of a GPU. The memory is not shareable. For memory of the host, use
    /// [`at`](Self::at) with [`Location::Host`].
    #[must_use]
    pub fn on(agent: AgentId) -> Self {
        Self::at(Location::Agent(agent))
    }

    /// Returns the properties of pinned memory at a location. The memory is not shareable.
    #[must_use]
    pub fn at(location: Location) -> Self {
        Self {
            location,
            kind: AllocationKind::Pinned,
            handle_types: HandleType::empty(),
            gpu_direct_rdma: false,
        }
    }

    /// Sets the kind.
    #[must_use]
    pub fn of_kind(self, kind: AllocationKind) -> Self {
        Self { kind, ..self }
    }

    /// Returns the index of the agent that owns the memory, if known.
    pub(super) fn owner(&self) -> Option<u8> {
        match self.location {
            Location::Agent(id) => u8::try_from(id.index()).ok(),
            Location::Host | Location::HostNuma(_) | Location::Unknown => None,
        }
    }

    pub(super) fn is_on_host(&self) -> bool {
        matches!(self.location, Location::Host | Location::HostNuma(_))
    }

    /// Lets other PCIe devices, such as network adapters, access the memory directly. The library sets the runtime's
    /// PCIe flag (`HSA_AMD_MEMORY_POOL_PCIE_FLAG`) when it creates the memory. When the library exports the memory, it
    /// sets the mapping type of the dma-buf (`HSA_AMD_DMABUF_MAPPING_TYPE_PCIE`).
    ///
    /// ROCm 7.0 to 7.2 know the flag and the mapping type, but ignore both for virtual memory; ROCm 7.14 rejects the
    /// mapping type for a GPU whose memory is not completely visible over PCIe. Runtimes without mapping types, and
    /// GPUs without a large BAR, cannot create such memory ([`Feature::GpuDirectRdma`](crate::error::Feature)), and
    /// memory of the host cannot have this property.
    #[must_use]
    pub fn with_gpu_direct_rdma(self) -> Self {
        Self { gpu_direct_rdma: true, ..self }
    }

    /// Adds a type of handle that the memory may be exported as.
    #[must_use]
    pub fn shareable_as(mut self, handle_type: HandleType) -> Self {
        self.handle_types |= handle_type;
        self
    }
}

/// The requested granularity (`hipMemAllocationGranularity_flags`).
///
/// ```
/// # use hsa_vmm::{AllocationProperties, Runtime, Vmm};
/// use hsa_vmm::vmm::Granularity;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// # let vmm = Vmm::open(&runtime)?;
/// # let on_gpu = AllocationProperties::on(runtime.gpus().next().ok_or("no GPU")?.id());
/// let minimum = vmm.allocation_granularity(&on_gpu, Granularity::Minimum)?;
/// let recommended = vmm.allocation_granularity(&on_gpu, Granularity::Recommended)?;
/// assert_eq!(recommended % minimum, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Granularity {
    /// The smallest unit of sizes and addresses.
    Minimum,
    /// The unit that gives the best performance.
    Recommended,
}
