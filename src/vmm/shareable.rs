//! Shareable handles: physical memory as a file descriptor, and back.

use super::properties::{AllocationKind, Location};
use super::{
    AllocationProperties, Argument, Feature, Handle, HandleType, Operation, Physical, Problem,
    Refusal, Shared, Vmm, VmmError, no_flags, out_of_descriptors, system_failure,
};
use crate::agent::{Agent, AgentKind};
use crate::native::{ExportFailure, Native, NativeHandle, Status};
use crate::sync::atomic::{AtomicBool, Ordering};
use rustix::fs::{FileType, SeekFrom, fstat, seek};
use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd};
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
            Ok(Exportable::of(&record.payload))
        });
        let (slot, exportable) = used.map_err(refused)?;
        let exported = if handle_type == HandleType::PosixFileDescriptor {
            shared.export(operation, exportable)
        } else {
            Err(VmmError::NotSupported { operation, feature: Feature::HandleType })
        };
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
        let descriptor = descriptor.as_fd();
        let size = size_of_buffer(descriptor).map_err(|_| not_importable())?;
        if size == 0 || size % shared.granule != 0 {
            return Err(not_importable());
        }
        // Where the runtime goes on using it, it has to have one that nobody else closes.
        let own = match shared.quirks.import_needs_descriptor {
            true => Some(fcntl_dupfd_cloexec(descriptor, 0)),
            false => None,
        };
        let own = own.transpose().map_err(|errno| system_failure(operation, "fcntl", errno))?;
        let imported = own.as_ref().map_or(descriptor, |own| own.as_fd());
        let native =
            shared.call_unlocked(|native| native.import(imported)).map_err(
                |failure| match failure.status {
                    // The runtime answers the same to everything that goes wrong.
                    Status::INCOMPATIBLE_ARGUMENTS | Status::INVALID_ALLOCATION
                        if out_of_descriptors() =>
                    {
                        VmmError::OutOfDescriptors { operation }
                    }
                    Status::INCOMPATIBLE_ARGUMENTS | Status::INVALID_ALLOCATION => not_importable(),
                    _ => shared.failure(operation, failure, size),
                },
            )?;
        let owner = shared.owner_of_import(native);
        let granule = owner
            .and_then(|(_, agent)| agent.handle_pool())
            .map_or(shared.granule, |pool| pool.granule());
        let properties = AllocationProperties {
            location: owner.map_or(Location::Unknown, |(_, agent)| Location::Agent(agent.id())),
            kind: AllocationKind::Pinned,
            handle_types: handle_type.bit(),
        };
        let owner = owner.map(|(index, _)| index);
        let physical = Physical { native, owner, imported: true, descriptor: own };
        shared.enter_handle(operation, size, granule, properties, physical)
    }
}

/// What physical memory is exported from.
#[derive(Debug)]
pub(super) enum Exportable {
    Handle(NativeHandle),
    /// A copy of the descriptor that it was imported from.
    Descriptor(Result<OwnedFd, Errno>),
}

impl Exportable {
    pub fn of(physical: &Physical) -> Self {
        match &physical.descriptor {
            Some(own) => Self::Descriptor(fcntl_dupfd_cloexec(own, 0)),
            None => Self::Handle(physical.native),
        }
    }
}

impl Shared {
    /// Exports physical memory as a descriptor of our own.
    ///
    /// The caller sees to it that the handle stays alive.
    pub(super) fn export(
        &self,
        operation: Operation,
        exportable: Exportable,
    ) -> Result<OwnedFd, VmmError> {
        let failed = |errno| system_failure(operation, "fcntl", errno);
        let native = match exportable {
            Exportable::Handle(native) => native,
            Exportable::Descriptor(copy) => return copy.map_err(failed),
        };
        let kept = self.quirks.export_keeps_descriptor;
        let export = |runtime: &Native| runtime.export(native, kept);
        let exported = self.call_unlocked(export).map_err(|failure| match failure {
            ExportFailure::Runtime(failure) => self.failure(operation, failure, 0),
            ExportFailure::Descriptor(errno) => failed(errno),
        })?;
        if !kept {
            close_on_exec(&exported, &self.exports_close_on_exec).map_err(failed)?;
        }
        Ok(exported)
    }

    /// The agent whose memory was imported, with its index, where that can be known.
    fn owner_of_import(&self, native: NativeHandle) -> Option<(usize, &Agent)> {
        let pool = self.call_unlocked(|runtime| runtime.pool_of(native)).ok();
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

/// Has a descriptor that the runtime made closed on exec, as AMD's runtime does by itself (libhsakmt's
/// `hsaKmtExportDMABufHandle`). What does so once does so always: it is `known` then, and not asked again.
fn close_on_exec(exported: &OwnedFd, known: &AtomicBool) -> Result<(), Errno> {
    if known.load(Ordering::Relaxed) {
        return Ok(());
    }
    if fcntl_getfd(exported)?.contains(FdFlags::CLOEXEC) {
        known.store(true, Ordering::Relaxed);
        return Ok(());
    }
    fcntl_setfd(exported, FdFlags::CLOEXEC)
}

/// The size of a dma-buf in bytes.
fn size_of_buffer(descriptor: BorrowedFd<'_>) -> Result<usize, Errno> {
    let file = fstat(descriptor)?;
    // It has a size, too.
    if FileType::from_raw_mode(file.st_mode) == FileType::Directory {
        return Err(Errno::ISDIR);
    }
    size_by(file.st_size, || seek(descriptor, SeekFrom::End(0)))
}

/// The same, of what the file says and of where its end is. Linux says the size of a dma-buf
/// (drivers/dma-buf/dma-buf.c, `dma_buf_getfile`); where it did not yet, there was its end
/// (`dma_buf_llseek`).
fn size_by(said: i64, end: impl FnOnce() -> Result<u64, Errno>) -> Result<usize, Errno> {
    let size = if said == 0 { usize::try_from(end()?) } else { usize::try_from(said) };
    size.map_err(|_| Errno::OVERFLOW)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;

    #[test]
    fn a_dma_buf_has_a_size_or_an_end() {
        let not_asked = || panic!("its size was said");
        assert_eq!(size_by(2 << 20, not_asked), Ok(2 << 20));
        assert_eq!(size_by(0, || Ok(2 << 20)), Ok(2 << 20));
        assert_eq!(size_by(0, || Ok(0)), Ok(0));
        assert_eq!(size_by(-1, not_asked), Err(Errno::OVERFLOW));
    }

    #[test]
    fn what_is_no_buffer_has_no_size() {
        assert_eq!(size_by(0, || Err(Errno::SPIPE)), Err(Errno::SPIPE));
        let (pipe, _) = std::io::pipe().unwrap();
        assert_eq!(size_of_buffer(pipe.as_fd()), Err(Errno::SPIPE));
        let folder = std::fs::File::open("/").unwrap();
        assert_eq!(size_of_buffer(folder.as_fd()), Err(Errno::ISDIR));
    }

    #[test]
    fn a_files_position_stays() {
        let file = rustix::fs::memfd_create("buffer", MemfdFlags::empty()).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        seek(&file, SeekFrom::Start(123)).unwrap();
        assert_eq!(size_of_buffer(file.as_fd()), Ok(4096));
        assert_eq!(seek(&file, SeekFrom::Current(0)), Ok(123));
    }

    #[test]
    fn a_runtime_is_believed_to_close_on_exec_once_it_was_seen_to() {
        let made = |flags| rustix::fs::memfd_create("exported", flags).unwrap();
        let closes = |file: &OwnedFd| fcntl_getfd(file).unwrap().contains(FdFlags::CLOEXEC);
        let known = AtomicBool::new(false);
        for _ in 0..2 {
            let bare = made(MemfdFlags::empty());
            assert_eq!(close_on_exec(&bare, &known), Ok(()));
            assert!(closes(&bare) && !known.load(Ordering::Relaxed));
        }
        let marked = made(MemfdFlags::CLOEXEC);
        assert_eq!(close_on_exec(&marked, &known), Ok(()));
        assert!(closes(&marked) && known.load(Ordering::Relaxed));
        let bare = made(MemfdFlags::empty());
        assert_eq!(close_on_exec(&bare, &known), Ok(()));
        assert!(!closes(&bare), "it was asked all the same");
    }
}
