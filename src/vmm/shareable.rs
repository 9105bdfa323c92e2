//! Shareable handles: physical memory as a file descriptor, and back.

use super::properties::{AllocationKind, Location};
use super::turns::Turn;
use super::{
    AllocationProperties, Argument, Feature, Handle, HandleType, Operation, Physical, Problem,
    Refusal, Shared, Vmm, VmmError, no_flags, out_of_descriptors, system_failure,
};
use crate::agent::{Agent, AgentKind};
use crate::native::{NativeHandle, Status};
use rustix::fs::{SeekFrom, seek};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

impl Vmm {
    /// Makes a file descriptor of physical memory, for another process or driver
    /// (`hipMemExportToShareableHandle`, `hsa_amd_vmem_export_shareable_handle`).
    ///
    /// Every call makes a new descriptor, closed on exec. It keeps the memory alive by itself:
    /// releasing the handle or ending this process does not take it away. `flags` must be 0.
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] for a bad handle, flags, or a type that was not requested
    /// when the memory was made; [`VmmError::NotSupported`] for other types than descriptors;
    /// [`VmmError::OutOfDescriptors`].
    pub fn export_to_shareable_handle(
        &self,
        handle: Handle,
        handle_type: HandleType,
        flags: u64,
    ) -> Result<OwnedFd, VmmError> {
        let operation = Operation::ExportToShareableHandle;
        let shared = &*self.shared;
        let refused = |refusal: Refusal| refusal.during(operation);
        shared.alive(operation)?;
        no_flags(flags).map_err(refused)?;
        let used = shared.ledger.handles.begin_use(handle, |record| {
            if !record.properties.handle_types.contains(handle_type.bit()) {
                let problem = Problem::NotRequested(handle_type);
                return Err(Refusal::new(Argument::HandleType, problem));
            }
            Ok(())
        });
        let (slot, ()) = used.map_err(refused)?;
        if handle_type != HandleType::PosixFileDescriptor {
            shared.end_use(operation, slot);
            return Err(VmmError::NotSupported { operation, feature: Feature::HandleType });
        }
        let exported = shared.export(operation, slot);
        shared.end_use(operation, slot);
        exported
    }

    /// Makes a handle of a file descriptor that another process exported
    /// (`hipMemImportFromShareableHandle`, `hsa_amd_vmem_import_shareable_handle`).
    ///
    /// Every import is a handle of its own and the same memory. The descriptor stays the
    /// caller's and may be closed at once. The size is that of the whole allocation.
    ///
    /// ROCm 7.14 and later do not look at the descriptor before access is granted; there, one
    /// that is no memory is refused only by [`set_access`](Vmm::set_access).
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] for a descriptor that is no dma-buf of an AMD GPU;
    /// [`VmmError::NotSupported`] for other types; [`VmmError::OutOfDescriptors`].
    pub fn import_from_shareable_handle(
        &self,
        descriptor: impl AsFd,
        handle_type: HandleType,
    ) -> Result<Handle, VmmError> {
        let operation = Operation::ImportFromShareableHandle;
        let shared = &*self.shared;
        let not_importable =
            || Refusal::new(Argument::Descriptor, Problem::NotImportable).during(operation);
        shared.alive(operation)?;
        if handle_type != HandleType::PosixFileDescriptor {
            return Err(VmmError::NotSupported { operation, feature: Feature::HandleType });
        }
        let own = fcntl_dupfd_cloexec(descriptor.as_fd(), 0).map_err(|errno| match errno {
            Errno::BADF => not_importable(),
            errno => system_failure(operation, "fcntl", errno),
        })?;
        let size = size_of_buffer(own.as_fd()).map_err(|_| not_importable())?;
        if size == 0 || size % shared.granule != 0 {
            return Err(not_importable());
        }
        let native = shared
            .call_in_turn(Turn::UnlockedChange, |native| native.import(own.as_fd()))
            .map_err(|failure| match failure.status {
                // The runtime answers the same to everything that goes wrong.
                Status::INCOMPATIBLE_ARGUMENTS | Status::INVALID_ALLOCATION
                    if out_of_descriptors() =>
                {
                    VmmError::OutOfDescriptors { operation }
                }
                Status::INCOMPATIBLE_ARGUMENTS | Status::INVALID_ALLOCATION => not_importable(),
                _ => shared.failure(operation, failure, size),
            })?;
        let owner = shared.owner_of_import(native);
        let granule = owner
            .and_then(|(_, agent)| agent.handle_pool())
            .map_or(shared.granule, |pool| pool.granule());
        let properties = AllocationProperties {
            location: owner.map_or(Location::Unknown, |(_, agent)| Location::Agent(agent.id())),
            kind: AllocationKind::Pinned,
            handle_types: handle_type.bit(),
        };
        let keep = shared.quirks.import_needs_descriptor;
        let physical = Physical {
            native,
            owner: owner.map(|(index, _)| index),
            imported: true,
            descriptor: keep.then_some(own),
        };
        shared.enter_handle(operation, size, granule, properties, physical)
    }
}

impl Shared {
    /// The agent whose memory was imported, with its index, where that can be known.
    fn owner_of_import(&self, native: NativeHandle) -> Option<(usize, &Agent)> {
        let pool = self.call_in_turn(Turn::UnlockedRead, |runtime| runtime.pool_of(native)).ok();
        let agents = || self.runtime.agents().iter().enumerate();
        let of_pool = pool.and_then(|pool| {
            agents().find(|(_, agent)| agent.pools().iter().any(|known| known.native == pool))
        });
        // The runtime may name a pool that it lists nowhere. It has found the owner all the same,
        // and if there is one GPU it is that.
        let mut gpus = agents().filter(|(_, agent)| agent.kind() == AgentKind::Gpu);
        let only = match (gpus.next(), gpus.next()) {
            (Some(gpu), None) if !self.quirks.import_is_lazy => Some(gpu),
            _ => None,
        };
        of_pool.or(only)
    }
}

/// The size of a dma-buf in bytes.
fn size_of_buffer(descriptor: BorrowedFd<'_>) -> Result<usize, Errno> {
    size_by(|to| seek(descriptor, to))
}

/// The same, of whatever is sought in. A dma-buf has a beginning and an end and no position
/// (`dma_buf_llseek`: `EINVAL`). What stands for one where there is no GPU is a file, whose position is
/// the caller's and stays.
fn size_by(mut seek: impl FnMut(SeekFrom) -> Result<u64, Errno>) -> Result<usize, Errno> {
    let before = seek(SeekFrom::Current(0));
    let size = seek(SeekFrom::End(0))?;
    if let Ok(before) = before {
        seek(SeekFrom::Start(before))?;
    }
    usize::try_from(size).map_err(|_| Errno::OVERFLOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Linux answers (drivers/dma-buf/dma-buf.c); there is none without a driver to ask.
    fn dma_buf(size: u64) -> impl FnMut(SeekFrom) -> Result<u64, Errno> {
        move |to| match to {
            SeekFrom::End(0) => Ok(size),
            SeekFrom::Start(0) => Ok(0),
            _ => Err(Errno::INVAL),
        }
    }

    #[test]
    fn a_dma_buf_has_a_size_and_no_position() {
        assert_eq!(size_by(dma_buf(2 << 20)), Ok(2 << 20));
        assert_eq!(size_by(dma_buf(0)), Ok(0));
    }

    #[test]
    fn a_files_position_stays() {
        let mut at = 123;
        let file = |to| {
            at = match to {
                SeekFrom::Current(0) => at,
                SeekFrom::End(0) => 4096,
                SeekFrom::Start(start) => start,
                _ => return Err(Errno::INVAL),
            };
            Ok(at)
        };
        assert_eq!(size_by(file), Ok(4096));
        assert_eq!(at, 123);
    }

    #[test]
    fn what_cannot_be_sought_in_has_no_size() {
        assert_eq!(size_by(|_| Err(Errno::SPIPE)), Err(Errno::SPIPE));
        assert_eq!(size_by(|_| Err(Errno::BADF)), Err(Errno::BADF));
    }
}
