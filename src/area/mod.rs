//! Areas: memory by a few flags, as AML's areas for HIP give it.
//!
//! An [`Area`] is a recipe, a device and [`AreaFlags`], and costs nothing. Its
//! [`mmap`](Area::mmap) gives [`AreaMemory`] of any size from one byte, which is unmapped when it
//! goes. The flags say where the memory is and who may use it:
//!
//! | flags | memory | visible to | behind it |
//! |---|---|---|---|
//! | none | the device's | the device | virtual memory; without it, pool memory |
//! | `HOST`, `HOST \| MAPPED` | new, of the CPU nearest to the device | the host and the device | pool memory |
//! | `MAPPED` | the caller's, given to each `mmap` | the host and the device | locked memory |
//! | `UNIFIED`, with whatever else | the device's if the CPU reaches it, else the host's | the host and the device | virtual memory or pool memory |
//! | any of these and `GLOBAL` | the same | all GPUs instead of one | the same |
//!
//! What AML calls is this in HIP, here and in HSA (`aml/area/hip.h`; those for CUDA, OpenCL and
//! Level Zero have the same shape):
//!
//! | AML | HIP | here | HSA |
//! |---|---|---|---|
//! | `aml_area_hip_create` | `hipGetDeviceCount` | [`Area::create`], [`Area::create_in`] | none |
//! | `aml_area_hip_destroy` | none | dropping the [`Area`] | none |
//! | `aml_area_hip` | | [`Area::of_device`] | |
//! | `aml_area_hip_unified` | | [`Area::unified`] | |
//! | `aml_area_mmap`, no flags | `hipMalloc` | [`Area::mmap`] | `hsa_amd_vmem_address_reserve_align`, `hsa_amd_vmem_handle_create`, `hsa_amd_vmem_map`, `hsa_amd_vmem_set_access` |
//! | … `ALLOC_HOST` | `hipHostMalloc` | | `hsa_amd_memory_pool_allocate`, `hsa_amd_agents_allow_access` |
//! | … `ALLOC_MAPPED` | `hipHostRegister` | with [`MmapOptions::mapping`] | `hsa_amd_memory_lock` |
//! | … `ALLOC_UNIFIED` | `hipMallocManaged` | | as for none or `ALLOC_HOST` |
//! | `aml_area_munmap` | `hipFree`, `hipHostFree`, `hipHostUnregister` | [`AreaMemory::munmap`] | `hsa_amd_vmem_unmap` and so on; `hsa_amd_memory_pool_free`; `hsa_amd_memory_unlock` |
//! | `aml_area_fprintf` | none | `Display` of [`Area`] | none |
//! | `aml_errno` | `hipError_t` | [`AreaError`], [`AreaError::aml`] | `hsa_status_t` |
//! | none (`hipMemcpy`) | `hipMemcpy`, `hipMemsetD32` | [`AreaMemory::read`], [`write`](AreaMemory::write), [`fill`](AreaMemory::fill), [`copy`](AreaMemory::copy) | `hsa_amd_memory_async_copy` |
//! | none | `hipHostGetDevicePointer` | [`AreaMemory::device_address`] | |
//!
//! What AML's implementation does otherwise is its defect: there, device 0 cannot be chosen for
//! one `mmap`, an error that it does not know is a success, errors come with either sign and some
//! are translated twice, a failure leaves another device current, printing some flags reads
//! beyond a table, and `munmap` takes a size that it ignores.
//!
//! ```
//! use hsa_vmm::area::MmapOptions;
//! use hsa_vmm::{Area, AreaFlags, Runtime};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(2))?;
//! let device = Area::create(&runtime, 1, AreaFlags::DEFAULT)?;
//! let memory = device.mmap(5, MmapOptions::new())?;
//! memory.write(0, b"hello")?;
//!
//! // Memory of this process, which the same GPU reaches while it is mapped.
//! let mut text = vec![0; 5];
//! let mapping = Area::create(&runtime, 1, AreaFlags::MAPPED)?;
//! let mapped = mapping.mmap(5, MmapOptions::new().mapping(&mut text))?;
//! mapped.copy(0, &memory, 0, 5)?;
//! drop(mapped);
//! assert_eq!(text, b"hello");
//! # Ok(())
//! # }
//! ```

mod backing;
mod device;
mod error;
mod flags;
mod locked;
mod mapped;
mod memory;
mod options;
mod transfer;

pub use backing::Backing;
pub use device::Device;
pub use error::{AreaError, Argument, Cause, Operation, Problem};
pub use flags::AreaFlags;
pub use memory::AreaMemory;
pub use options::MmapOptions;

use crate::agent::{Agent, AgentId};
use crate::memory::PoolMemory;
use crate::runtime::Runtime;
use crate::vmm::{Vmm, VmmError};
use backing::Holding;
use core::fmt;
use flags::Kind;
use locked::LockedMemory;
use mapped::MappedMemory;
use memory::Made;

/// A kind of memory for a device: what [`mmap`](Self::mmap) gives. Cheap to clone; may be used
/// from any thread.
#[derive(Clone, Debug)]
pub struct Area {
    runtime: Runtime,
    /// None where the runtime has no virtual memory.
    vmm: Option<Vmm>,
    device: Device,
    flags: AreaFlags,
}

/// Where memory for a device is, who may use it, and what is behind it.
struct Plan {
    device: AgentId,
    owner: AgentId,
    agents: Box<[AgentId]>,
    backing: Backing,
}

impl Area {
    /// Makes an area for a device (`aml_area_hip_create`). Nothing is allocated yet.
    ///
    /// # Errors
    /// [`AreaError::InvalidValue`] for a device that there is not, or flags that mean nothing.
    pub fn create(
        runtime: &Runtime,
        device: impl Into<Device>,
        flags: AreaFlags,
    ) -> Result<Self, AreaError> {
        let operation = Operation::Create;
        let vmm = match Vmm::open(runtime) {
            Ok(vmm) => Some(vmm),
            Err(VmmError::NotSupported { .. }) => None,
            Err(error) => return Err(AreaError::of_vmm(operation, error, 0)),
        };
        Self::checked(Self { runtime: runtime.clone(), vmm, device: device.into(), flags })
    }

    /// Makes an area whose virtual memory is that of a [`Vmm`], which lists it among its own.
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    pub fn create_in(
        vmm: &Vmm,
        device: impl Into<Device>,
        flags: AreaFlags,
    ) -> Result<Self, AreaError> {
        let (runtime, vmm) = (vmm.runtime().clone(), Some(vmm.clone()));
        Self::checked(Self { runtime, vmm, device: device.into(), flags })
    }

    /// Memory of the current device (`aml_area_hip`).
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    pub fn of_device(runtime: &Runtime) -> Result<Self, AreaError> {
        Self::create(runtime, Device::Current, AreaFlags::DEFAULT)
    }

    /// Memory that host and current device use at one address (`aml_area_hip_unified`).
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    pub fn unified(runtime: &Runtime) -> Result<Self, AreaError> {
        Self::create(runtime, Device::Current, AreaFlags::UNIFIED)
    }

    fn checked(self) -> Result<Self, AreaError> {
        let operation = Operation::Create;
        if self.runtime.has_forked() {
            return Err(AreaError::Failure { operation, cause: Cause::Forked });
        }
        if self.flags.unknown() != 0 {
            let problem = Problem::UnknownFlags(self.flags.unknown());
            return Err(AreaError::refused(operation, Argument::Flags, problem));
        }
        // Whether there is a current device is found out when one is needed, as in AML.
        if self.device != Device::Current {
            self.device.find(&self.runtime, operation)?;
        }
        Ok(self)
    }

    /// The runtime it is on.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The device it is for.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// What kind of memory it gives.
    #[must_use]
    pub fn flags(&self) -> AreaFlags {
        self.flags
    }

    /// What is behind the memory it gives on its device.
    ///
    /// # Errors
    /// What [`mmap`](Self::mmap) of any size would answer: [`AreaError::NotSupported`].
    pub fn backing(&self) -> Result<Backing, AreaError> {
        self.plan(Operation::Mmap, self.device).map(|plan| plan.backing)
    }

    /// Gives memory of so many bytes, at least one (`aml_area_mmap`).
    ///
    /// # Errors
    /// [`AreaError::InvalidValue`] for a size of zero, a device that there is not, or memory of the
    /// host that is missing, too small or not asked for; [`AreaError::NotSupported`] if there is no
    /// device, or a GPU that was to see the memory cannot; [`AreaError::Busy`] for memory of the
    /// host that an area maps already; [`AreaError::OutOfMemory`]; [`AreaError::Failure`].
    pub fn mmap<'a>(
        &self,
        size: usize,
        options: MmapOptions<'a>,
    ) -> Result<AreaMemory<'a>, AreaError> {
        let operation = Operation::Mmap;
        let runtime = &self.runtime;
        if runtime.has_forked() {
            return Err(AreaError::Failure { operation, cause: Cause::Forked });
        }
        if size == 0 {
            return Err(AreaError::refused(operation, Argument::Size, Problem::Zero));
        }
        let start = self.host_memory(size, &options)?;
        let plan = self.plan(operation, options.device.unwrap_or(self.device))?;
        let Plan { device, owner, agents, backing } = plan;
        let of_memory = |error| AreaError::of_memory(operation, error, size);
        let gpus = runtime.gpus().filter(|gpu| agents.contains(&gpu.id()));
        let holding = match (backing, &self.vmm, start) {
            (Backing::Virtual, Some(vmm), _) => {
                Holding::Mapped(MappedMemory::new(vmm, owner, &agents, size)?)
            }
            (Backing::Locked, _, Some(start)) => {
                let natives: Vec<_> = gpus.map(|gpu| gpu.native).collect();
                Holding::Locked(LockedMemory::new(runtime, start, size, &natives)?)
            }
            _ => {
                let memory = PoolMemory::allocate(runtime, owner, size).map_err(of_memory)?;
                let gpus: Vec<_> = gpus.map(Agent::id).collect();
                memory.allow(&gpus).map_err(of_memory)?;
                Holding::Pool(memory)
            }
        };
        let made = Made { runtime: runtime.clone(), size, device, owner, agents };
        Ok(AreaMemory::new(made, holding))
    }

    /// Where the memory of the host begins that is to be mapped, if that is what this area does.
    fn host_memory(
        &self,
        size: usize,
        options: &MmapOptions<'_>,
    ) -> Result<Option<usize>, AreaError> {
        let refused = |argument, problem| AreaError::refused(Operation::Mmap, argument, problem);
        match (&options.host, self.flags.kind()) {
            (None, Kind::Existing) => Err(refused(Argument::Host, Problem::NoHostMemory)),
            (None, _) => Ok(None),
            (Some(host), Kind::Existing) => match host.size {
                Some(whole) if size > whole => {
                    let problem = Problem::BeyondHostMemory { size, host: whole };
                    Err(refused(Argument::Size, problem))
                }
                _ => Ok(Some(host.start)),
            },
            (Some(_), _) => Err(refused(Argument::Host, Problem::HostMemoryUnused)),
        }
    }

    fn plan(&self, operation: Operation, device: Device) -> Result<Plan, AreaError> {
        let runtime = &self.runtime;
        let device = device.find(runtime, operation)?;
        let host = runtime.host();
        let gpus: Vec<&Agent> = if self.flags.contains(AreaFlags::GLOBAL) {
            runtime.gpus().collect()
        } else {
            vec![device]
        };
        let nearest = device.nearest_cpu().unwrap_or(host.id());
        let all_reach = |owner| gpus.iter().all(|gpu| gpu.reaches(owner));
        let has_virtual = self.vmm.is_some() && device.handle_pool().is_some();
        let (owner, backing) = match self.flags.kind() {
            Kind::Device if has_virtual => (device.id(), Backing::Virtual),
            Kind::Device => (device.id(), Backing::Pool),
            // Where one address will do for all, or else in the host's memory.
            Kind::Unified if has_virtual && host.reaches(device.id()) && all_reach(device.id()) => {
                (device.id(), Backing::Virtual)
            }
            Kind::Unified | Kind::Host => (nearest, Backing::Pool),
            Kind::Existing => (host.id(), Backing::Locked),
        };
        if let Some(gpu) = gpus.iter().find(|gpu| !gpu.reaches(owner)) {
            let cause = Cause::Unreachable { agent: gpu.id(), owner };
            return Err(AreaError::NotSupported { operation, cause });
        }
        let mut agents: Vec<AgentId> = gpus.iter().map(|gpu| gpu.id()).collect();
        if self.flags.kind() != Kind::Device {
            agents.push(host.id());
        }
        Ok(Plan { device: device.id(), owner, agents: agents.into(), backing })
    }
}

impl fmt::Display for Area {
    /// One line, as `area for device 1: host, global; pool memory`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "area for {}: {}", self.device, self.flags)?;
        match self.backing() {
            Ok(backing) => write!(f, "; {backing}"),
            Err(error) => write!(f, "; {error}"),
        }
    }
}
