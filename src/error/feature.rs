//! Features that this library, the runtime or the hardware does not support.

use super::ErrorKind;
use crate::agent::AgentId;

/// A feature that this library, the runtime or the hardware does not support.
///
/// ```
/// use hsa_vmm::error::{ErrorKind, Feature};
///
/// /// Returns whether an agent must copy the data, because no CPU can access the memory.
/// fn needs_copy(kind: &ErrorKind) -> bool {
///     matches!(kind, ErrorKind::NotSupported(Feature::CpuAccess))
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Feature {
    /// Virtual memory management.
    #[error("virtual memory management")]
    VirtualMemory,
    /// Sparse arrays (`hipMemMapArrayAsync`). HIP does not support them on AMD's GPUs either.
    #[error("sparse arrays")]
    SparseArrays,
    /// An operation that needs a GPU: the runtime has no GPU.
    #[error("an operation that needs a GPU")]
    Gpu,
    /// A type of shareable handle.
    #[error("this type of shareable handle, or this combination of types,")]
    HandleType,
    /// Loads and stores by the CPU in memory of a GPU without a large BAR, or in imported memory that may be memory of
    /// such a GPU: for imported memory of the host, too, AMD's runtime reports a GPU as the owner.
    #[error(
        "CPU access to memory of a GPU without a large BAR, or to imported memory that may be such memory,"
    )]
    CpuAccess,
    /// CPU access to a mapping with an offset, on a system where dma-bufs cannot be mapped. There, the runtime
    /// would map the start of the memory.
    #[error("CPU access to a mapping with an offset where dma-bufs cannot be mapped")]
    CpuAccessAtOffset,
    /// Mapping memory from an offset without control of every GPU's page table, because the runtime ignores the
    /// offset. Contains the offset in bytes.
    #[error(
        "mapping from offset {0:#x} without control of every GPU's page table \
         (VmmOptions::with_page_tables)"
    )]
    MapAtOffset(usize),
    /// Access of an agent to memory of another agent.
    #[error("access of {agent} to the memory of {owner} (Agent::can_access)")]
    PeerAccess {
        /// The agent that cannot access the memory.
        agent: AgentId,
        /// The owner of the memory.
        owner: AgentId,
    },
    /// A machine with more agents than this library supports.
    #[error("a machine with more than 128 agents")]
    ManyAgents,
    /// A kind of memory for which the agent has no pool.
    #[error("this kind of memory on {0}")]
    Pool(AgentId),
    /// Physical memory with a CPU as its [`Location::Agent`](crate::vmm::Location).
    #[error("physical memory on {0}")]
    CpuMemory(AgentId),
    /// Retiring pages of a buffer that has a zero page.
    #[error("retiring pages of a buffer that has a zero page")]
    RetireFromZeroPageBuffer,
    /// Memory that is not cached: needs version 1.18 of AMD's extension.
    #[error("uncached memory")]
    Uncached,
    /// Memory that other PCIe devices access: needs ROCm 7 or later (`hsa_amd_portable_export_dmabuf_v2`), and a GPU
    /// with a large BAR.
    #[error("memory for GPUDirect RDMA (it needs ROCm 7 or later, and a GPU with a large BAR)")]
    GpuDirectRdma,
    /// Fabric handles: the runtime reports that the driver or the GPUs have no fabric.
    #[error(
        "sharing memory over a fabric (the runtime reports false for \
         HSA_AMD_SYSTEM_INFO_FABRIC_HANDLES_SUPPORTED: the driver or the GPUs have no UALink)"
    )]
    Fabric,
    /// Importing memory over a fabric into a `Vmm` that controls the page table of a GPU: such memory has no dma-buf,
    /// which the control needs.
    #[error(
        "importing memory over a fabric with control of a GPU's page table (VmmOptions::with_page_tables)"
    )]
    FabricImportWithPageTables,
    /// Exporting memory that was imported over a fabric as a dma-buf.
    #[error("a dma-buf of memory that was imported over a fabric")]
    DmaBufOfFabricImport,
    /// Physical memory of the host. Contains what the runtime or the system lacks for this memory.
    #[error("physical memory of the host, which needs {0},")]
    HostMemory(&'static str),
    /// A property that memory of the host cannot have. Contains the property.
    #[error("{0} for memory of the host")]
    HostProperty(&'static str),
    /// A function that the runtime does not export. Contains the function's name. The message continues with "is not
    /// supported".
    #[error("{0}, which the runtime does not export,")]
    Function(&'static str),
}

impl Feature {
    /// Returns the end of the message, after "is not supported".
    pub(super) fn message_end(&self) -> &'static str {
        match self {
            Self::RetireFromZeroPageBuffer => {
                "; unmap the pages when no kernel uses them any more, or build the buffer without a zero page"
            }
            Self::CpuMemory(_) => {
                "; use Location::Host or Location::HostNuma for memory of the host"
            }
            Self::VirtualMemory
            | Self::HandleType
            | Self::CpuAccess
            | Self::PeerAccess { .. }
            | Self::Fabric
            | Self::Pool(_)
            | Self::Function(_) => {
                " here (`hsa-vmm info` shows what the runtime and the agents support)"
            }
            _ => " here",
        }
    }
}

impl From<Feature> for ErrorKind {
    fn from(feature: Feature) -> Self {
        Self::NotSupported(feature)
    }
}
