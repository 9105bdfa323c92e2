//! Physical memory: making it, naming it, letting it go.

use super::properties::{AllocationKind, Location};
use super::{
    Address, AllocationProperties, Argument, Feature, Granularity, Handle, Operation, Physical,
    Problem, Refusal, Shared, Vmm, VmmError, no_flags,
};
use crate::agent::AgentKind;
use crate::handle::HandleTypes;
use crate::hip::HipProfile;
use crate::native::Status;
use crate::pool::Pool;

/// HSA's flag for memory that is not cached (`HSA_AMD_MEMORY_POOL_UNCACHED_FLAG`).
const UNCACHED: u64 = hsa_sys::HSA_AMD_MEMORY_POOL_UNCACHED_FLAG as u64;

impl Vmm {
    /// Makes physical memory, mapped nowhere yet (`hipMemCreate`,
    /// `hsa_amd_vmem_handle_create`).
    ///
    /// `size` is in bytes, a multiple of the granule. `flags` must be 0.
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] for a size of zero or off the granule, an unknown agent,
    /// flags; [`VmmError::NotSupported`] for a CPU's memory, Windows handles, fabric handles
    /// where there are none; [`VmmError::OutOfMemory`].
    pub fn create(
        &self,
        size: usize,
        properties: &AllocationProperties,
        flags: u64,
    ) -> Result<Handle, VmmError> {
        let operation = Operation::Create;
        let shared = &*self.shared;
        let refused = |refusal: Refusal| refusal.during(operation);
        shared.alive(operation)?;
        no_flags(flags).map_err(refused)?;
        if size == 0 {
            return Err(refused(Refusal::new(Argument::Size, Problem::Zero)));
        }
        let (owner, pool) = shared.pool(operation, properties)?;
        shared.check_handle_types(operation, properties.handle_types)?;
        let granule = pool.granule();
        if !size.is_multiple_of(granule) {
            let problem = Problem::NotAligned { value: size, granule };
            return Err(refused(Refusal::new(Argument::Size, problem)));
        }
        let flags = match properties.kind {
            AllocationKind::Pinned => 0,
            AllocationKind::Uncached => shared.uncached(operation)?,
        };
        let native = shared
            .call_locked(|native| native.handle_create(pool.native, size, flags))
            .map_err(|failure| match failure.status {
                // More than the pool could ever hold.
                Status::INVALID_ALLOCATION => VmmError::OutOfMemory {
                    operation,
                    call: failure.call,
                    status: failure.status,
                    size,
                },
                _ => shared.failure(operation, failure, size),
            })?;
        let physical = Physical { native, owner: Some(owner), imported: false, descriptor: None };
        shared.enter_handle(operation, size, granule, *properties, physical)
    }

    /// Drops a reference to physical memory (`hipMemRelease`, `hsa_amd_vmem_handle_release`).
    ///
    /// The memory goes when no reference and no mapping is left; until then its contents stay.
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] for a handle that is stale, foreign or invented.
    pub fn release(&self, handle: Handle) -> Result<(), VmmError> {
        let operation = Operation::Release;
        let shared = &*self.shared;
        shared.alive(operation)?;
        let handles = &shared.ledger.handles;
        let dead = handles.begin_release(handle, |record| record.payload.native);
        let Some((slot, native)) = dead.map_err(|refusal| refusal.during(operation))? else {
            return Ok(());
        };
        match shared.call_locked(|runtime| runtime.handle_release(native)) {
            Ok(()) => {
                drop(handles.forget(slot));
                Ok(())
            }
            Err(failure) => {
                handles.unrelease(slot);
                Err(shared.failure(operation, failure, 0))
            }
        }
    }

    /// Takes one more reference to what is mapped at an address
    /// (`hipMemRetainAllocationHandle`).
    ///
    /// Any address inside the mapping will do. The handle is the one that was mapped, also if
    /// all its references had been released. Each retain needs a [`release`](Vmm::release).
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] if nothing is mapped there.
    pub fn retain_allocation_handle(&self, address: Address) -> Result<Handle, VmmError> {
        let operation = Operation::RetainAllocationHandle;
        let shared = &*self.shared;
        shared.alive(operation)?;
        if address == Address::NULL {
            return Err(Refusal::new(Argument::Address, Problem::Null).during(operation));
        }
        shared.ledger.retain(address.get()).map_err(|refusal| refusal.during(operation))
    }

    /// The properties physical memory was made with
    /// (`hipMemGetAllocationPropertiesFromHandle`).
    ///
    /// Of imported memory: pinned, where its owner is if the runtime tells, and shareable as it
    /// was imported.
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] for a handle that is stale, foreign or invented.
    pub fn allocation_properties(&self, handle: Handle) -> Result<AllocationProperties, VmmError> {
        let operation = Operation::AllocationProperties;
        self.shared.alive(operation)?;
        let properties = self.shared.ledger.handles.with(handle, |record| record.properties);
        properties.map_err(|refusal| refusal.during(operation))
    }

    /// The size of physical memory in bytes. HIP has no call for it.
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] for a handle that is stale, foreign or invented.
    pub fn allocation_size(&self, handle: Handle) -> Result<usize, VmmError> {
        let operation = Operation::AllocationProperties;
        self.shared.alive(operation)?;
        let size = self.shared.ledger.handles.with(handle, |record| record.size);
        size.map_err(|refusal| refusal.during(operation))
    }

    /// The unit of sizes and addresses for memory with these properties
    /// (`hipMemGetAllocationGranularity`, `hsa_amd_memory_pool_get_info`), in bytes.
    ///
    /// # Errors
    /// As for [`create`](Vmm::create), as far as they concern the properties.
    pub fn allocation_granularity(
        &self,
        properties: &AllocationProperties,
        granularity: Granularity,
    ) -> Result<usize, VmmError> {
        let operation = Operation::AllocationGranularity;
        self.shared.alive(operation)?;
        let (_, pool) = self.shared.pool(operation, properties)?;
        Ok(match (granularity, self.shared.profile) {
            // HIP 6 answered the least granule to both.
            (Granularity::Minimum, _) | (_, HipProfile::Hip6) => pool.granule(),
            (Granularity::Recommended, _) => pool.recommended_granule(),
        })
    }
}

impl Shared {
    /// The agent of the properties, by index, and its pool of handles.
    pub(super) fn pool(
        &self,
        operation: Operation,
        properties: &AllocationProperties,
    ) -> Result<(usize, &Pool), VmmError> {
        let refused = |refusal: Refusal| refusal.during(operation);
        let Location::Agent(id) = properties.location else {
            return Err(refused(Refusal::new(Argument::Location, Problem::NoLocation)));
        };
        let (index, agent) = self.agent(id, Argument::Location).map_err(refused)?;
        match (agent.handle_pool(), agent.kind()) {
            (Some(pool), _) => Ok((index, pool)),
            (None, AgentKind::Cpu) => {
                Err(VmmError::NotSupported { operation, feature: Feature::HostMemory })
            }
            (None, _) => Err(refused(Refusal::new(Argument::Location, Problem::NotAGpu))),
        }
    }

    fn check_handle_types(&self, operation: Operation, types: HandleTypes) -> Result<(), VmmError> {
        // Fabric handles wait for hardware that has a fabric to try them on.
        let supported = HandleTypes::POSIX_FILE_DESCRIPTOR;
        if supported.contains(types) {
            Ok(())
        } else {
            Err(VmmError::NotSupported { operation, feature: Feature::HandleType })
        }
    }

    /// The flag for memory that is not cached, where the runtime heeds it (extension 1.18).
    fn uncached(&self, operation: Operation) -> Result<u64, VmmError> {
        if self.runtime.info().extension >= (1, 18) {
            Ok(UNCACHED)
        } else {
            Err(VmmError::NotSupported { operation, feature: Feature::Function })
        }
    }

    /// Enters physical memory that the runtime has made; gives it back if there is no handle.
    pub(super) fn enter_handle(
        &self,
        operation: Operation,
        size: usize,
        granule: usize,
        properties: AllocationProperties,
        physical: Physical,
    ) -> Result<Handle, VmmError> {
        let native = physical.native;
        let handle = self.ledger.handles.add(size, granule, properties, physical);
        handle.ok_or_else(|| {
            let gone = Physical { native, owner: None, imported: false, descriptor: None };
            self.give_back(operation, &gone, size);
            VmmError::OutOfMemory {
                operation,
                call: "the table of handles",
                status: Status::OUT_OF_RESOURCES,
                size,
            }
        })
    }
}
