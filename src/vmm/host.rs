//! Physical memory of the host.
//!
//! ROCm 10 creates handles in pools of CPUs; earlier releases reject these pools. On earlier releases, this library
//! opens a DRM file and lets amdgpu allocate the memory (`GEM_CREATE` in GTT). The runtime then imports the memory's
//! dma-buf, like memory of another process.

use super::ledger::HandleRecord;
use super::properties::{AllocationKind, AllocationProperties, Location};
use super::{Handle, Shared, Vmm};
use crate::agent::{Agent, AgentId, AgentKind};
use crate::error::{Argument, Error, ErrorKind, Feature, Operation, Problem, Value};
use crate::handle::HandleType;
use crate::log::with_expected_failures;
use crate::native::{DriverError, FailedCall, Failure, NativeHandle, Status};
use crate::pool::{Pool, PoolFlags, Segment};
use crate::sync::atomic::Ordering;
use hsa_sys::MEMORY_TYPE_NONE;
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};

impl Vmm {
    /// Returns the agent that owns memory with these properties.
    pub(crate) fn owner(&self, properties: &AllocationProperties) -> Result<AgentId, Error> {
        self.run(Operation::Create, |shared| match properties.location {
            Location::Agent(agent) => Ok(agent),
            Location::Host | Location::HostNuma(_) => Ok(shared.host_cpu(properties)?.id()),
            Location::Unknown => {
                Err(ErrorKind::without_value(Argument::Location, Problem::MissingLocation))
            }
        })
    }
}

impl Shared {
    /// Returns the CPU that owns memory of the host with these properties.
    pub(super) fn host_cpu(&self, properties: &AllocationProperties) -> Result<&Agent, ErrorKind> {
        let Location::HostNuma(node) = properties.location else { return Ok(self.runtime.host()) };
        let is_node =
            |agent: &&Agent| agent.kind() == AgentKind::Cpu && agent.numa_node == Some(node);
        let problem = Problem::NotANumaNode;
        let unknown =
            || ErrorKind::invalid(Argument::Location, Value::Number(node.into()), problem);
        self.runtime.agents().iter().find(is_node).ok_or_else(unknown)
    }

    pub(super) fn create_on_host(
        &self,
        size: usize,
        properties: &AllocationProperties,
    ) -> Result<Handle, ErrorKind> {
        let (cpu, granule) = (self.host_cpu(properties)?, self.granule);
        if !HandleType::POSIX_FILE_DESCRIPTOR.contains(properties.handle_types) {
            return Err(
                Feature::HostProperty("a type of shareable handle other than descriptors").into()
            );
        }
        if properties.kind != AllocationKind::Pinned {
            return Err(Feature::HostProperty("the kind Uncached").into());
        }
        if properties.gpu_direct_rdma {
            return Err(Feature::HostProperty("GPUDirect RDMA").into());
        }
        Argument::Size.check_multiple(size, granule)?;
        let (native, descriptor) = match self.create_in_pool(cpu, size, properties)? {
            Some(native) => (native, None),
            None => self.create_by_driver(cpu, size, properties)?,
        };
        let owner = u8::try_from(cpu.id().index()).ok();
        let created = HandleRecord::new(size, granule, *properties, native);
        Ok(self.ledger.handles.insert(HandleRecord { owner, descriptor, ..created }))
    }

    /// Creates memory in a pool of a CPU. Returns `None` if the runtime rejects such pools.
    fn create_in_pool(
        &self,
        cpu: &Agent,
        size: usize,
        properties: &AllocationProperties,
    ) -> Result<Option<NativeHandle>, ErrorKind> {
        let is_usable = |pool: &&Pool| {
            let is_general = !pool.flags.contains(PoolFlags::KERNARG);
            pool.segment == Segment::Global && pool.allocatable && is_general
        };
        let pool = cpu.pools.iter().find(is_usable);
        let Some(pool) = pool.filter(|_| !self.rejects_cpu_pools.load(Ordering::Relaxed)) else {
            return Ok(None);
        };
        let create = |size| {
            with_expected_failures(|| {
                self.call_shared(|native| {
                    native.handle_create(pool.native, size, MEMORY_TYPE_NONE, 0)
                })
            })
        };
        let is_rejected = |failure: Failure| match failure.status {
            // ROCm 6.1 to 7.2 return this status.
            Status::INVALID_ARGUMENT => true,
            // ROCm 6.1 to 7.2 first check whether the size exceeds the pool. A second call with a size that fits
            // shows whether the runtime rejects the pool.
            Status::INVALID_ALLOCATION => match create(self.granule) {
                Err(failure) => failure.status == Status::INVALID_ARGUMENT,
                Ok(native) => {
                    let granule = self.granule;
                    let record = HandleRecord::new(granule, granule, *properties, native);
                    self.release_memory(Operation::Create, record);
                    false
                }
            },
            _ => false,
        };
        match create(size) {
            Ok(native) => Ok(Some(native)),
            Err(failure) if is_rejected(failure) => {
                self.rejects_cpu_pools.store(true, Ordering::Relaxed);
                Ok(None)
            }
            Err(failure) => Err(self.failed_create(failure, size)),
        }
    }

    /// Creates memory with the driver of the first GPU, and imports the memory into the runtime.
    fn create_by_driver(
        &self,
        cpu: &Agent,
        size: usize,
        properties: &AllocationProperties,
    ) -> Result<(NativeHandle, Option<OwnedFd>), ErrorKind> {
        let missing = |what| ErrorKind::from(Feature::HostMemory(what));
        let has_other_cpus = self.cpus.iter().any(|index| index != cpu.id().index());
        if has_other_cpus && matches!(properties.location, Location::HostNuma(_)) {
            // The kernel chooses the node of GTT memory.
            return Err(missing("a runtime that allocates on a NUMA node (ROCm 10)"));
        }
        let gpu = self.runtime.gpus().next().ok_or(Feature::Gpu)?;
        let buffer = self.native().host_buffer(gpu.node, size).map_err(|error| match error {
            DriverError::Call(FailedCall { call, errno: Errno::NOMEM | Errno::NOSPC }) => {
                ErrorKind::OutOfMemory { call, status: None, size }
            }
            DriverError::Call(failed) if !is_lasting(failed.errno) => failed.into(),
            DriverError::File { errno, .. } if !is_lasting(errno) => {
                ErrorKind::of_system("open", errno)
            }
            error => {
                crate::log::event!(WARN, %error, "the driver allocates no memory of the host");
                match error {
                    DriverError::File { errno: Errno::ACCESS | Errno::PERM, .. } => {
                        missing("permission for the GPU's render node (/dev/dri/renderD*)")
                    }
                    _ => missing("a driver that allocates it (GEM_CREATE; HSA_VMM_LOG=warn shows the failed call)"),
                }
            }
        })?;
        self.import_memory(buffer.as_fd(), size, |_| {
            missing("a runtime that imports the driver's memory")
        })
    }
}

/// Returns whether a call of the driver that failed with this error would fail again: the driver lacks the call, or
/// this process may not make it.
fn is_lasting(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT
            | Errno::NXIO
            | Errno::NODEV
            | Errno::NOTTY
            | Errno::NOSYS
            | Errno::INVAL
            | Errno::OPNOTSUPP
            | Errno::ACCESS
            | Errno::PERM
    )
}
