//! Creates, references and releases physical memory, and returns its properties.

use super::ledger::{AddressRange, HandleRecord};
use super::properties::{AllocationKind, AllocationProperties, Granularity, Location};
use super::{Address, Handle, Shared, Vmm};
use crate::agent::AgentKind;
use crate::error::{Argument, Error, ErrorKind, Feature, Operation, Problem};
use crate::handle::HandleType;
use crate::hip::HipProfile;
use crate::native::{Failure, Native, Status, out_of_descriptors};
use crate::pool::Pool;
use hsa_sys::MEMORY_TYPE_PINNED;

/// HSA's flag for memory that is not cached (`HSA_AMD_MEMORY_POOL_UNCACHED_FLAG`).
const UNCACHED: u64 = hsa_sys::HSA_AMD_MEMORY_POOL_UNCACHED_FLAG as u64;
/// HSA's flag for memory that other PCIe devices access (`HSA_AMD_MEMORY_POOL_PCIE_FLAG`).
const PCIE: u64 = hsa_sys::HSA_AMD_MEMORY_POOL_PCIE_FLAG as u64;

impl Vmm {
    /// Creates physical memory, which is not mapped (`hipMemCreate`, `hsa_amd_vmem_handle_create`).
    ///
    /// `size` is in bytes, a multiple of the granule.
    ///
    /// ROCm 10 allocates memory [of the host](Location::Host) from a CPU's pool. With earlier releases, the driver of
    /// the first GPU allocates the memory (GTT), and the runtime imports it. These releases report that GPU as the
    /// owner, so a process that imports the memory sees memory of the GPU. All agents can be granted access to memory
    /// of the host; the CPU cannot, if the memory was imported and the GPU has no large BAR
    /// ([`Feature::CpuAccess`]).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a size that is zero or not a multiple of the granule, an agent that is unknown
    /// or is neither a CPU nor a GPU, or an unknown NUMA node; [`ErrorKind::OutOfMemory`]; [`ErrorKind::NotSupported`] in these cases:
    ///
    /// * the agent is a CPU, or a GPU without a pool for virtual memory;
    /// * neither the runtime nor the driver allocates memory of the host ([`Feature::HostMemory`]);
    /// * memory of the host is requested as uncached, for GPUDirect RDMA, or with a type of handle other than
    ///   descriptors ([`Feature::HostProperty`]);
    /// * memory of a GPU is requested with Windows handles, with fabric handles without a fabric, or with fabric handles
    ///   together with descriptors;
    /// * the runtime lacks uncached memory, or the runtime or the GPU lacks [GPUDirect
    ///   RDMA](AllocationProperties::with_gpu_direct_rdma).
    pub fn create(&self, size: usize, properties: &AllocationProperties) -> Result<Handle, Error> {
        let created = self.run(Operation::Create, |shared| shared.create(size, properties));
        created.map_err(|error| match properties.location {
            Location::Agent(agent) => error.of_agent(agent),
            _ => error,
        })
    }

    /// Drops a reference to physical memory (`hipMemRelease`, `hsa_amd_vmem_handle_release`).
    ///
    /// The memory is released when no reference and no mapping is left. Until then, the memory keeps its contents.
    ///
    /// The library removes its record of the memory before it calls the runtime. If the runtime fails, the memory is
    /// recorded again. In between, other threads' calls find that the handle was released, although it exists
    /// afterwards.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a handle that was released, belongs to another `Vmm` or never existed.
    pub fn release(&self, handle: Handle) -> Result<(), Error> {
        self.run(Operation::Release, |shared| shared.release(handle))
    }

    /// Adds a reference to the memory that is mapped at an address
    /// (`hipMemRetainAllocationHandle`).
    ///
    /// Any address inside the mapping is accepted. Returns the handle that was mapped, even if all its
    /// references were released. Each retain needs a [`release`](Vmm::release).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if nothing is mapped at the address; [`ErrorKind::LimitReached`] if the memory
    /// already has 2^32 - 1 references.
    pub fn retain_allocation_handle(&self, address: Address) -> Result<Handle, Error> {
        self.run(Operation::RetainAllocationHandle, |shared| match address {
            Address::NULL => Err(ErrorKind::invalid(Argument::Address, address, Problem::Null)),
            _ => shared.ledger.retain(address.get()),
        })
    }

    /// Returns the properties with which physical memory was created
    /// (`hipMemGetAllocationPropertiesFromHandle`).
    ///
    /// For imported memory, the kind is pinned, and the type of shareable handle is the type that was imported. The
    /// location is the owner that the runtime reports, or unknown.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a handle that was released, belongs to another `Vmm` or never existed.
    pub fn allocation_properties(&self, handle: Handle) -> Result<AllocationProperties, Error> {
        self.run(Operation::AllocationProperties, |shared| {
            shared.ledger.handles.with(handle, |record| record.properties)
        })
    }

    /// Returns the size of physical memory in bytes. HIP has no such call.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a handle that was released, belongs to another `Vmm` or never existed.
    pub fn allocation_size(&self, handle: Handle) -> Result<usize, Error> {
        self.run(Operation::AllocationProperties, |shared| {
            shared.ledger.handles.with(handle, |record| record.size)
        })
    }

    /// Returns the unit of sizes and addresses for memory with these properties, in bytes
    /// (`hipMemGetAllocationGranularity`, `hsa_amd_memory_pool_get_info`).
    ///
    /// # Errors
    /// As for [`create`](Vmm::create), for an invalid location. Does not check the other properties.
    pub fn allocation_granularity(
        &self,
        properties: &AllocationProperties,
        granularity: Granularity,
    ) -> Result<usize, Error> {
        self.run(Operation::AllocationGranularity, |shared| {
            if properties.is_on_host() {
                return shared.host_cpu(properties).map(|_| shared.granule);
            }
            let pool = shared.pool(properties)?;
            Ok(match (granularity, shared.profile) {
                // HIP 6 returns the minimum for both granularities.
                (Granularity::Minimum, _) | (_, HipProfile::Hip6) => pool.granule,
                (Granularity::Recommended, _) => pool.recommended_granule,
            })
        })
    }
}

impl Shared {
    fn create(&self, size: usize, properties: &AllocationProperties) -> Result<Handle, ErrorKind> {
        Argument::Size.check_not_zero(size)?;
        if properties.is_on_host() {
            return self.create_on_host(size, properties);
        }
        let pool = self.pool(properties)?;
        match properties.handle_types {
            HandleType::FABRIC => self.check_fabric()?,
            // HIP rejects fabric handles together with descriptors.
            types if !HandleType::POSIX_FILE_DESCRIPTOR.contains(types) => {
                return Err(Feature::HandleType.into());
            }
            _ => {}
        }
        let granule = pool.granule;
        Argument::Size.check_multiple(size, granule)?;
        let flags = match properties.kind {
            AllocationKind::Pinned => 0,
            // Earlier runtimes ignore the flag.
            AllocationKind::Uncached if self.runtime.info().extension >= (1, 18) => UNCACHED,
            AllocationKind::Uncached => return Err(Feature::Uncached.into()),
        };
        let flags = match properties.gpu_direct_rdma {
            false => flags,
            true if self.has_gpu_direct_rdma(properties) => flags | PCIE,
            true => return Err(Feature::GpuDirectRdma.into()),
        };
        let created = self.call_shared(|native| {
            native.handle_create(pool.native, size, MEMORY_TYPE_PINNED, flags)
        });
        let native = created.map_err(|failure| match failure.status {
            // rocddi exports the function that `has_mapping_types` looks for, but rejects the flag.
            Status::INVALID_ARGUMENT if properties.gpu_direct_rdma => Feature::GpuDirectRdma.into(),
            _ => self.failed_create(failure, size),
        })?;
        Ok(self.ledger.handles.insert(HandleRecord::new(size, granule, *properties, native)))
    }

    /// Returns the error for a failed call of `hsa_amd_vmem_handle_create`.
    pub(super) fn failed_create(&self, failure: Failure, size: usize) -> ErrorKind {
        match failure.status {
            // ROCm 7.14 and rocddi open a descriptor for each handle. These runtimes have this quirk.
            Status::OUT_OF_RESOURCES | Status::ERROR
                if self.quirks.import_needs_descriptor && out_of_descriptors() =>
            {
                ErrorKind::OutOfDescriptors
            }
            _ => ErrorKind::of_call(failure, size),
        }
    }

    /// Returns whether the runtime supports mapping types of dma-bufs and PCIe devices can access all memory of the
    /// owner.
    fn has_gpu_direct_rdma(&self, properties: &AllocationProperties) -> bool {
        let owner = properties.owner().map(usize::from);
        let owner = owner.and_then(|index| self.runtime.agents().get(index));
        owner.is_some_and(|agent| agent.large_bar) && self.native().has_mapping_types()
    }

    fn release(&self, handle: Handle) -> Result<(), ErrorKind> {
        let handles = &self.ledger.handles;
        let Some(record) = handles.release(handle)? else { return Ok(()) };
        self.release_removed(&record).inspect_err(|_| handles.restore(handle, record))
    }

    /// Ends a use of a handle's memory. Releases the memory if nothing references, maps or uses it any more.
    pub(super) fn end_use(&self, operation: Operation, handle: Handle) {
        if let Some(record) = self.ledger.handles.decrement(handle, |it| it.uses -= 1) {
            self.release_memory(operation, record);
        }
    }

    /// Releases memory whose handle was removed. Quarantines the memory if the release fails, or if a GPU may still use
    /// the memory; dropping the last `Vmm` then tries again.
    pub(super) fn release_memory(&self, operation: Operation, memory: HandleRecord) {
        if let Err(failure) = self.release_removed(&memory) {
            let range = AddressRange { start: 0, size: memory.size };
            self.list_quarantine(operation, range, failure, None);
            self.ledger.handles.keep_unreleased(memory);
        }
    }

    /// Releases the memory of a record that was removed from the ledger.
    fn release_removed(&self, memory: &HandleRecord) -> Result<(), ErrorKind> {
        self.wait_for_gpus_if_due()?;
        // SAFETY: nothing references, maps or uses the memory. Its record was removed from the ledger, so no later
        // code uses the handle.
        let release = |native: &Native| unsafe { native.handle_release(memory.native) };
        self.call_shared(release).map_err(|failure| ErrorKind::of_call(failure, memory.size))
    }

    /// Returns the index of the agent that would own memory with these properties.
    pub(super) fn owner_of(
        &self,
        properties: &AllocationProperties,
    ) -> Result<Option<u8>, ErrorKind> {
        match properties.is_on_host() {
            true => self.host_cpu(properties).map(|cpu| u8::try_from(cpu.id().index()).ok()),
            false => self.pool(properties).map(|_| properties.owner()),
        }
    }

    /// Returns the pool from which memory with these properties is created.
    pub(super) fn pool(&self, properties: &AllocationProperties) -> Result<&Pool, ErrorKind> {
        let Location::Agent(id) = properties.location else {
            return Err(ErrorKind::without_value(Argument::Location, Problem::MissingLocation));
        };
        let agent = self.agent(id, Argument::Location)?;
        match (agent.vmem_pool(), agent.kind()) {
            (_, AgentKind::Other(_)) => {
                Err(ErrorKind::invalid(Argument::Location, id, Problem::NotAGpu))
            }
            (Some(pool), _) => Ok(pool),
            (None, AgentKind::Cpu) => Err(Feature::CpuMemory(id).into()),
            (None, _) => Err(Feature::Pool(id).into()),
        }
    }
}
