//! Areas: kinds of memory described by a few flags, like the HIP areas of AML (Argonne's memory library).
//!
//! An [`Area`] describes a kind of memory by a device and [`AreaFlags`]; creating an area allocates nothing.
//! [`Area::mmap`] allocates [`AreaMemory`] of any size from one byte. Dropping the `AreaMemory` unmaps the memory. The
//! flags select the owner of the memory and the agents with access:
//!
//! | flags | memory | accessible to | implemented by |
//! |---|---|---|---|
//! | none | the device's | the device | virtual memory; without a [`Vmm`], pool memory |
//! | `HOST`, `HOST \| MAPPED` | new memory of the CPU nearest to the device | the host and the device | pool memory |
//! | `MAPPED` | the caller's, passed to each `mmap` | the host and the device | locked memory |
//! | `UNIFIED`, with any of the flags above | the device's, if the area has a [`Vmm`], the device has virtual memory, and the host and all selected GPUs can access the device's memory; otherwise the host's | the host and the device | virtual memory or pool memory |
//! | `GLOBAL`, with any of the flags above | as without `GLOBAL` | all GPUs in place of the device | as without `GLOBAL` |
//!
//! The next table lists the calls of AML for HIP (`aml/area/hip.h`) and their equivalents. AML's calls for CUDA, OpenCL
//! and Level Zero have the same parameters.
//!
//! | AML | HIP | hsa-vmm | HSA |
//! |---|---|---|---|
//! | `aml_area_hip_create` | `hipGetDeviceCount` | [`Area::new`], [`Area::without_vmm`] | none |
//! | `aml_area_hip_destroy` | none | dropping the [`Area`] | none |
//! | `aml_area_hip` | | [`Area::new`] with [`Device::Current`], [`AreaFlags::DEFAULT`] | |
//! | `aml_area_hip_unified` | | [`Area::new`] with [`Device::Current`], [`AreaFlags::UNIFIED`] | |
//! | `aml_area_mmap`, no flags | `hipMalloc` | [`Area::mmap`] | `hsa_amd_vmem_address_reserve_align`, `hsa_amd_vmem_handle_create`, `hsa_amd_vmem_map`, `hsa_amd_vmem_set_access` |
//! | … `ALLOC_HOST` | `hipHostMalloc` | | `hsa_amd_memory_pool_allocate`, `hsa_amd_agents_allow_access` |
//! | … `ALLOC_MAPPED` | `hipHostRegister` | with [`MmapOptions::with_host_memory`] | `hsa_amd_memory_lock` |
//! | … `ALLOC_UNIFIED` | `hipMallocManaged` | | as for no flags, or as for `ALLOC_HOST` |
//! | `aml_area_munmap` | `hipFree`, `hipHostFree`, `hipHostUnregister` | [`AreaMemory::munmap`] | `hsa_amd_vmem_unmap` and so on; `hsa_amd_memory_pool_free`; `hsa_amd_memory_unlock` |
//! | `aml_area_fprintf` | none | `Display` of [`Area`] | none |
//! | `aml_errno` | `hipError_t` | [`Error`], [`Error::aml`] | `hsa_status_t` |
//! | none (`hipMemcpy`) | `hipMemcpy`, `hipMemsetD32` | [`AreaMemory::read`], [`write`](AreaMemory::write), [`fill`](AreaMemory::fill), [`copy`](AreaMemory::copy) | `hsa_amd_memory_async_copy` |
//! | none | `hipHostGetDevicePointer` | [`AreaMemory::device_address`] | |
//!
//! AML's implementation has defects that areas do not have. The options of `mmap` cannot choose device 0. An unknown
//! error counts as success. Error numbers can be positive or negative, and some are translated twice. After a failure,
//! another device stays current. Displaying some flags reads beyond the end of a table. `munmap` ignores its size
//! argument.
//!
//! ```
//! use hsa_vmm::area::MmapOptions;
//! use hsa_vmm::area::AreaFlags;
//! use hsa_vmm::{Area, Runtime, Vmm};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(2))?;
//! let vmm = Vmm::open(&runtime)?;
//! let device_area = Area::new(&vmm, 1, AreaFlags::DEFAULT)?;
//! let memory = device_area.mmap(5, MmapOptions::new())?;
//! memory.write(0, b"hello")?;
//!
//! // Memory of this process. The same GPU can access this memory while it is mapped.
//! let mut text = vec![0; 5];
//! let host_area = Area::new(&vmm, 1, AreaFlags::MAPPED)?;
//! let mapped = host_area.mmap(5, MmapOptions::new().with_host_memory(&mut text))?;
//! mapped.copy(0, &memory, 0, 5)?;
//! drop(mapped);
//! assert_eq!(text, b"hello");
//! # Ok(())
//! # }
//! ```

mod allocated;
mod memory;
mod options;

pub use memory::AreaMemory;
pub use options::{AreaFlags, Backing, Device, MmapOptions};

use crate::agent::{Agent, AgentId};
use crate::error::{Argument, Error, ErrorKind, Feature, Operation, Problem};
use crate::memory::{PoolMemory, Span};
use crate::native::Status;
use crate::runtime::Runtime;
use crate::vmm::Vmm;
use allocated::{Allocated, LockedMemory, MappedMemory, Memory};
use core::fmt;
use core::marker::PhantomData;
use derive_more::Debug;

/// A kind of memory for a device; [`mmap`](Self::mmap) allocates memory of this kind. Cheap to clone; can be used from
/// any thread.
///
/// ```
/// # use hsa_vmm::area::AreaFlags;
/// # use hsa_vmm::{Area, Runtime, Vmm};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(2))?;
/// let area = Area::new(&Vmm::open(&runtime)?, 1, AreaFlags::HOST | AreaFlags::GLOBAL)?;
/// assert_eq!(area.to_string(), "area for GPU 1: host, global; pool memory");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[debug("Area({device}: {flags})")]
pub struct Area {
    runtime: Runtime,
    vmm: Option<Vmm>,
    device: Device,
    flags: AreaFlags,
}

/// How `mmap` allocates: the owner of the memory, the agents with access, and the implementation.
struct Placement<'a> {
    device: &'a Agent,
    owner: &'a Agent,
    gpus: Vec<&'a Agent>,
    agents: Vec<AgentId>,
    backing: Backing,
}

impl Area {
    /// Creates an area for a device (`aml_area_hip_create`). Allocates nothing.
    ///
    /// The area creates its virtual memory on this [`Vmm`], whose reports list the memory.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a device that does not exist, or undefined flags.
    pub fn new(vmm: &Vmm, device: impl Into<Device>, flags: AreaFlags) -> Result<Self, Error> {
        let (runtime, vmm) = (vmm.runtime().clone(), Some(vmm.clone()));
        Self { runtime, vmm, device: device.into(), flags }.checked()
    }

    /// Creates an area with pool memory in place of virtual memory, for a runtime that has no virtual memory.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn without_vmm(
        runtime: &Runtime,
        device: impl Into<Device>,
        flags: AreaFlags,
    ) -> Result<Self, Error> {
        Self { runtime: runtime.clone(), vmm: None, device: device.into(), flags }.checked()
    }

    /// Checks the flags and the device.
    fn checked(self) -> Result<Self, Error> {
        Operation::AreaCreate.run(|| {
            self.runtime.check_not_forked()?;
            self.flags.check_defined()?;
            match self.device {
                // As in AML, the current device need not exist before the first `mmap`.
                Device::Current => Ok(()),
                device => device.find(&self.runtime).map(drop),
            }
        })?;
        Ok(self)
    }

    /// Returns the runtime.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns the device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns the flags.
    pub fn flags(&self) -> AreaFlags {
        self.flags
    }

    /// Returns how the memory of this area is implemented on its device.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] if an agent of the area cannot access such memory. Does not check whether the runtime
    /// has the pools and functions that [`mmap`](Self::mmap) needs.
    pub fn backing(&self) -> Result<Backing, Error> {
        let placement = self.runtime.check_not_forked().and_then(|()| self.placement(self.device));
        Ok(placement.map_err(|kind| Error::new(Operation::Mmap, kind))?.backing)
    }

    /// Allocates `size` bytes, or maps `size` bytes of the caller's memory (`aml_area_mmap`). `size` is at least 1.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a size of zero, a device that does not exist, and host memory that is
    /// missing, too small, or not used by this area; [`ErrorKind::NotSupported`] without a GPU, or for a GPU that
    /// cannot access the memory; [`ErrorKind::HostMemoryMapped`] for host memory that an area maps already;
    /// [`ErrorKind::OutOfMemory`]; [`ErrorKind::Runtime`].
    pub fn mmap<'a>(&self, size: usize, options: MmapOptions<'a>) -> Result<AreaMemory<'a>, Error> {
        self.allocate(size, options).map_err(|kind| Error::new(Operation::Mmap, kind))
    }

    fn allocate<'a>(
        &self,
        size: usize,
        options: MmapOptions<'a>,
    ) -> Result<AreaMemory<'a>, ErrorKind> {
        let runtime = &self.runtime;
        runtime.check_not_forked()?;
        Argument::Size.check_not_zero(size)?;
        let host_start = self.host_start(size, &options)?;
        let placement = self.placement(options.device.unwrap_or(self.device))?;
        let Placement { device, owner, gpus, agents, backing } = placement;
        let (memory, start, device_start) = match (backing, &self.vmm, host_start) {
            (Backing::Virtual, Some(vmm), _) => {
                let mapped = MappedMemory::new(vmm, owner.id(), &agents, size);
                let (memory, address) = mapped.map_err(Error::into_kind)?;
                (Memory::Mapped(memory), address.get(), address.get())
            }
            (Backing::Locked, _, Some(start)) => {
                // SAFETY: the memory is borrowed for 'a, the lifetime of the new value, or the caller of
                // `with_host_pointer` guarantees that the memory stays allocated. If the value is forgotten or fails to
                // unlock, the memory stays locked, but no method of this library accesses it any more.
                let locked = unsafe { LockedMemory::new(runtime, start, size, &gpus) };
                let (memory, device_start) = locked?;
                (Memory::Locked(memory), start, device_start)
            }
            _ => {
                let gpus: Vec<_> = gpus.into_iter().map(Agent::id).collect();
                let memory = PoolMemory::allocate(runtime, owner.id(), size)
                    .and_then(|memory| memory.allow(&gpus).map(|()| memory))
                    .map_err(|error| match error.problem() {
                        Some(Problem::NoPool) => Feature::Pool(owner.id()).into(),
                        _ => error.into_kind(),
                    })?;
                let start = memory.address().get();
                (Memory::Pool(memory), start, start)
            }
        };
        // SAFETY: the new value keeps `memory` allocated, and its methods ensure that the memory is mapped while the
        // span is used. The owner has access. `device_start` is the address of the same memory for the device.
        let span = unsafe { Span::new(runtime, owner, (start, device_start), size) };
        let allocated = Box::new(Allocated { device: device.id(), agents, memory });
        Ok(AreaMemory { span, allocated, borrowed: PhantomData })
    }

    /// Returns the start of the host memory, if this area maps host memory of the caller.
    fn host_start(
        &self,
        size: usize,
        options: &MmapOptions<'_>,
    ) -> Result<Option<usize>, ErrorKind> {
        let invalid = |problem| Err(ErrorKind::without_value(Argument::Host, problem));
        match (options.host, self.flags.maps_existing_memory()) {
            (None, true) => invalid(Problem::MissingHostMemory),
            (None, false) => Ok(None),
            (Some(_), false) => invalid(Problem::UnusedHostMemory),
            (Some((_, maximum)), true) if size > maximum => {
                let problem = Problem::TooLarge { maximum, whole: Argument::Host };
                Err(ErrorKind::invalid(Argument::Size, size, problem))
            }
            (Some((start, _)), true) => Ok(Some(start)),
        }
    }

    fn placement(&self, device: Device) -> Result<Placement<'_>, ErrorKind> {
        let runtime = &self.runtime;
        let device = device.find(runtime)?;
        let host = runtime.host();
        let gpus: Vec<&Agent> = if self.flags.contains(AreaFlags::GLOBAL) {
            runtime.gpus().collect()
        } else {
            vec![device]
        };
        let nearest = device.nearest_cpu.and_then(|cpu| runtime.agent(cpu)).unwrap_or(host);
        let all_can_access_device =
            || host.can_access(device.id()) && gpus.iter().all(|gpu| gpu.can_access(device.id()));
        let has_virtual_memory = self.vmm.is_some() && device.vmem_pool().is_some();
        let host_has_access =
            self.flags.intersects(AreaFlags::HOST | AreaFlags::MAPPED | AreaFlags::UNIFIED);
        let is_unified = self.flags.contains(AreaFlags::UNIFIED);
        let (owner, backing) = if self.flags.maps_existing_memory() {
            (host, Backing::Locked)
        } else if has_virtual_memory && (!host_has_access || is_unified && all_can_access_device())
        {
            (device, Backing::Virtual)
        } else if host_has_access {
            (nearest, Backing::Pool)
        } else {
            (device, Backing::Pool)
        };
        if let Some(gpu) = gpus.iter().find(|gpu| !gpu.can_access(owner.id())) {
            return Err(Feature::PeerAccess { agent: gpu.id(), owner: owner.id() }.into());
        }
        let host = host_has_access.then_some(host);
        let mut agents: Vec<_> = gpus.iter().copied().chain(host).map(Agent::id).collect();
        if !agents.contains(&owner.id()) {
            agents.push(owner.id());
        }
        Ok(Placement { device, owner, gpus, agents, backing })
    }
}

impl fmt::Display for Area {
    /// Writes one line, such as `area for GPU 1: host, global; pool memory`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "area for {}: {}", self.device, self.flags)?;
        match self.backing() {
            Ok(backing) => write!(f, "; {backing}"),
            Err(error) => write!(f, "; {error}"),
        }
    }
}

impl Error {
    /// Returns AML's number for the error (`aml/utils/error.h`): failure 1, out of memory 2, invalid value
    /// 3, not supported 5, busy 6.
    ///
    /// The number is positive, whereas some functions of AML return negative numbers. For an error about an argument
    /// that no method of an area has, such as the address of [`Vmm::unmap`], the number is 1 (failure).
    ///
    /// ```
    /// # use hsa_vmm::area::{AreaFlags, MmapOptions};
    /// # use hsa_vmm::{Area, Runtime};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
    /// let area = Area::without_vmm(&runtime, 0, AreaFlags::HOST)?;
    /// assert_eq!(area.mmap(0, MmapOptions::new()).unwrap_err().aml(), 3);
    /// # Ok(())
    /// # }
    /// ```
    pub fn aml(&self) -> i32 {
        match *self.kind() {
            ErrorKind::OutOfMemory { .. } => 2,
            ErrorKind::InvalidArgument {
                argument:
                    Argument::Device
                    | Argument::Flags
                    | Argument::Size
                    | Argument::Host
                    | Argument::Offset
                    | Argument::Source,
                ..
            } => 3,
            ErrorKind::NotSupported(_)
            | ErrorKind::Runtime { status: Status::NOT_SUPPORTED, .. } => 5,
            ErrorKind::HostMemoryMapped(_)
            | ErrorKind::BeingOpened
            | ErrorKind::Runtime { status: Status::RESOURCE_BUSY, .. } => 6,
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Value;
    use crate::vmm::Address;

    #[test]
    fn aml_returns_the_number_of_the_kind() {
        let (call, address) = ("hsa_amd_memory_lock", Address::new(4096));
        let invalid = |argument| ErrorKind::invalid(argument, Value::None, Problem::Zero);
        let status = Status::ERROR;
        for (kind, number) in [
            (ErrorKind::Runtime { call, status }, 1),
            (ErrorKind::Forked, 1),
            (ErrorKind::OutOfDescriptors, 1),
            (invalid(Argument::Address), 1),
            (ErrorKind::OutOfMemory { call, status: Some(status), size: 1 }, 2),
            (invalid(Argument::Device), 3),
            (invalid(Argument::Source), 3),
            (Feature::Gpu.into(), 5),
            (ErrorKind::HostMemoryMapped(address), 6),
            (ErrorKind::BeingOpened, 6),
            (ErrorKind::Runtime { call, status: Status::RESOURCE_BUSY }, 6),
        ] {
            let error = Error::new(Operation::Mmap, kind);
            assert_eq!(error.aml(), number, "{error}");
        }
    }
}
