//! Shareable handles: physical memory as a file descriptor, and back.

use super::ledger::HandleRecord;
use super::properties::{AllocationProperties, Location};
use super::{Handle, HandleType, Shared, Vmm};
use crate::agent::{Agent, AgentKind};
use crate::error::{Argument, Error, ErrorKind, Feature, Operation, Problem, Value};
use crate::native::{FailedCall, Failure, NativeHandle, Status, duplicate, out_of_descriptors};
use hsa_sys::HSA_AMD_MEMORY_POOL_ACCESS_ALLOWED_BY_DEFAULT;
use rustix::fs::{FileType, SealFlags, SeekFrom, fcntl_get_seals, fstat, fstatfs, seek};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

impl Vmm {
    /// Exports physical memory as a file descriptor, for another process or driver
    /// (`hipMemExportToShareableHandle`, `hsa_amd_vmem_export_shareable_handle`).
    ///
    /// Every call returns a new descriptor with close-on-exec set. The descriptor keeps the memory alive, even after
    /// the handle is released or this process ends.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an invalid handle, or a type that was not requested when the
    /// memory was created; [`ErrorKind::NotSupported`] for types other than descriptors (fabric handles:
    /// [`export_to_fabric_handle`](Vmm::export_to_fabric_handle)); [`ErrorKind::OutOfDescriptors`].
    pub fn export_to_shareable_handle(
        &self,
        handle: Handle,
        handle_type: HandleType,
    ) -> Result<OwnedFd, Error> {
        self.run(Operation::ExportToShareableHandle, |shared| {
            shared.while_exporting(handle, handle_type, exportable, |memory| match handle_type {
                // SAFETY: `while_exporting` keeps the memory alive.
                HandleType::POSIX_FILE_DESCRIPTOR => unsafe { shared.export(memory) },
                _ => Err(Feature::HandleType.into()),
            })
        })
    }

    /// Imports physical memory from a file descriptor that another process exported
    /// (`hipMemImportFromShareableHandle`, `hsa_amd_vmem_import_shareable_handle`).
    ///
    /// Every import returns a new handle of the same memory, with the size of the whole allocation. The caller keeps
    /// the descriptor, and may close it immediately. The import's [`Location`] is what the runtime reports: for memory
    /// of the host, AMD's runtime reports the GPU whose driver has allocated the memory. Therefore, unless every GPU can
    /// access the memory of this GPU, [`set_access`](Vmm::set_access) leaves it to the runtime which GPUs can access the
    /// import. The CPU can access the import if the GPU has a large BAR; if the GPU is unknown, all GPUs need one
    /// ([`Feature::CpuAccess`]).
    ///
    /// A file that another process can shrink is rejected, because an access of the CPU to the removed part would end
    /// this process.
    ///
    /// Up to ROCm 7.2, the runtime checks during the import whether the file is memory of an AMD GPU. ROCm 7.14 and
    /// later check only when access is granted. With these releases, this method accepts a dma-buf of another driver,
    /// and [`set_access`](Vmm::set_access) for a GPU rejects it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a descriptor that is not a dma-buf; [`ErrorKind::Runtime`] if the runtime
    /// rejects a dma-buf, because the dma-buf belongs to another driver, or because AMD's driver has failed (the
    /// runtime returns the same status); [`ErrorKind::NotSupported`] for other types (fabric handles:
    /// [`import_from_fabric_handle`](Vmm::import_from_fabric_handle)); [`ErrorKind::OutOfDescriptors`].
    pub fn import_from_shareable_handle(
        &self,
        descriptor: impl AsFd,
        handle_type: HandleType,
    ) -> Result<Handle, Error> {
        self.run(Operation::ImportFromShareableHandle, |shared| match handle_type {
            HandleType::POSIX_FILE_DESCRIPTOR => shared.import(descriptor.as_fd()),
            _ => Err(Feature::HandleType.into()),
        })
    }
}

/// Returns the source for an export: the runtime's handle, or a copy of the imported descriptor.
pub(super) fn exportable(record: &HandleRecord) -> Exportable {
    Exportable {
        native: record.native,
        mapping_type: match record.properties.gpu_direct_rdma {
            true => hsa_sys::HSA_AMD_DMABUF_MAPPING_TYPE_PCIE,
            false => hsa_sys::HSA_AMD_DMABUF_MAPPING_TYPE_NONE,
        },
        copy: record.descriptor.as_ref().map(duplicate),
    }
}

/// The source for an export.
#[derive(Debug)]
pub(super) struct Exportable {
    native: NativeHandle,
    /// The mapping type of the dma-buf (`hsa_amd_dma_buf_mapping_type_t`).
    mapping_type: u32,
    /// A copy of the imported descriptor, if the record has one.
    copy: Option<Result<OwnedFd, Errno>>,
}

impl Shared {
    /// Calls `read` with a handle's record, and `export` with the result. Marks the memory as exported. Fails if
    /// `handle_type` was not requested when the memory was created. The memory stays alive during the call.
    pub(super) fn while_exporting<S, T>(
        &self,
        handle: Handle,
        handle_type: HandleType,
        read: impl FnOnce(&HandleRecord) -> S,
        export: impl FnOnce(S) -> Result<T, ErrorKind>,
    ) -> Result<T, ErrorKind> {
        let source = self.ledger.handles.with(handle, |record| {
            if !record.properties.handle_types.contains(handle_type) {
                let problem = Problem::NotRequested;
                return Err(ErrorKind::invalid(Argument::HandleType, handle_type, problem));
            }
            record.uses += 1;
            record.exported = true;
            Ok(read(record))
        })??;
        let exported = export(source);
        self.end_use(Operation::ExportToShareableHandle, handle);
        exported
    }

    /// Exports the memory of a live handle, with or without references. Fails if the memory has no dma-buf.
    ///
    /// # Safety
    /// The handle's memory stays alive during the call.
    pub(super) unsafe fn export_live(&self, handle: Handle) -> Result<OwnedFd, ErrorKind> {
        let memory = self
            .ledger
            .handles
            .with_live(handle, |record| record.has_dma_buf().then(|| exportable(record)));
        let released = || ErrorKind::invalid(Argument::Handle, handle, Problem::Released);
        let memory = memory.ok_or_else(released)?.ok_or(Feature::DmaBufOfFabricImport)?;
        // SAFETY: the caller guarantees that the memory stays alive during the call.
        unsafe { self.export(memory) }
    }

    /// Exports physical memory as a descriptor that this library owns.
    ///
    /// # Safety
    /// The memory stays alive during the call.
    pub(super) unsafe fn export(&self, memory: Exportable) -> Result<OwnedFd, ErrorKind> {
        let failed = |errno| ErrorKind::of_system("fcntl", errno);
        let Exportable { native, mapping_type, copy } = memory;
        if let Some(copy) = copy {
            return copy.map_err(failed);
        }
        let (flags, runtime_keeps) = (mapping_type.into(), self.quirks.export_keeps_descriptor);
        // SAFETY: the caller guarantees that the memory stays alive during the call.
        let exported =
            self.call_exclusive(|runtime| unsafe { runtime.export(native, flags, runtime_keeps) });
        let exported = exported?.map_err(failed)?;
        if !runtime_keeps {
            // AMD's runtime sets close-on-exec (libhsakmt: hsaKmtExportDMABufHandle); other runtimes may not.
            fcntl_setfd(&exported, FdFlags::CLOEXEC).map_err(failed)?;
        }
        Ok(exported)
    }

    fn import(&self, descriptor: BorrowedFd<'_>) -> Result<Handle, ErrorKind> {
        let not_importable = || {
            let number = Value::Number(descriptor.as_raw_fd() as u64);
            ErrorKind::invalid(Argument::Descriptor, number, Problem::NotImportable)
        };
        // Reads the size only after the check: another process can shrink the file until it is sealed.
        if !cannot_shrink(descriptor) {
            return Err(not_importable());
        }
        let size = size_of_buffer(descriptor).map_err(|_| not_importable())?;
        if size == 0 {
            return Err(not_importable());
        }
        Argument::Size.check_multiple(size, self.granule)?;
        let (native, copy) = self.import_memory(descriptor, size, ErrorKind::from)?;
        // SAFETY: the handle was just imported, and nothing else uses it.
        let owner = unsafe { self.owner_of_import(native) };
        let pool = owner.and_then(Agent::vmem_pool);
        let granule = pool.map_or(self.granule, |pool| pool.granule);
        let location = match owner {
            None => Location::Unknown,
            Some(agent) if agent.kind() == AgentKind::Cpu => Location::Host,
            Some(agent) => Location::Agent(agent.id()),
        };
        // AMD's runtime reports a GPU as the owner of imported memory of the host, too. Other GPUs can access such
        // memory, even if they cannot access the GPU's own memory. Then the runtime decides about grants.
        let accessible_to_all =
            |owner: &&Agent| self.runtime.gpus().all(|gpu| gpu.can_access(owner.id()));
        let owner = owner.filter(accessible_to_all);
        let owner = owner.and_then(|agent| u8::try_from(agent.id().index()).ok());
        let properties =
            AllocationProperties::at(location).shareable_as(HandleType::POSIX_FILE_DESCRIPTOR);
        let created = HandleRecord::new(size, granule, properties, native);
        let record = HandleRecord { imported: true, owner, descriptor: copy, ..created };
        Ok(self.ledger.handles.insert(record))
    }

    /// Imports a dma-buf of `size` bytes. Returns the runtime's handle, and a copy of the descriptor if the runtime
    /// needs it later. `rejected` returns the error if the runtime rejects the dma-buf.
    pub(super) fn import_memory(
        &self,
        descriptor: BorrowedFd<'_>,
        size: usize,
        rejected: impl FnOnce(Failure) -> ErrorKind,
    ) -> Result<(NativeHandle, Option<OwnedFd>), ErrorKind> {
        // If the runtime uses the descriptor after the import, the library imports a copy that no other code can
        // close.
        let copy = match self.quirks.import_needs_descriptor {
            true => Some(duplicate(descriptor)),
            false => None,
        };
        let copy = copy.transpose().map_err(|errno| ErrorKind::of_system("fcntl", errno))?;
        let source = copy.as_ref().map_or(descriptor, |copy| copy.as_fd());
        let imported = self.call_exclusive(|native| native.import(source));
        let native = imported.map_err(|failure| match failure.status {
            // The runtime returns these two statuses if the dma-buf is of another driver, if its own driver has
            // failed, and if no descriptor is free.
            Status::INCOMPATIBLE_ARGUMENTS | Status::INVALID_ALLOCATION => {
                if out_of_descriptors() {
                    ErrorKind::OutOfDescriptors
                } else {
                    rejected(failure)
                }
            }
            _ => ErrorKind::of_call(failure, size),
        })?;
        Ok((native, copy))
    }

    /// Returns the agent that owns imported memory, if the runtime knows it.
    ///
    /// # Safety
    /// The handle is alive.
    unsafe fn owner_of_import(&self, native: NativeHandle) -> Option<&Agent> {
        // SAFETY: the caller guarantees that the handle is alive.
        let pool = self.call_exclusive(|runtime| unsafe { runtime.pool_of(native) });
        let pool = pool.ok()?;
        let mut agents = self.runtime.agents().iter();
        let listed = agents.find(|agent| agent.pools.iter().any(|listed| listed.native == pool));
        // AMD's runtime takes the last region of the owner, which it may not list as a pool. Only the owner can access
        // the region without a grant. `ROCR_VISIBLE_DEVICES` can hide the owner. A runtime with `import_is_lazy` does
        // not know the owner.
        let without_grant = |gpu: &&Agent| {
            let access = self.native().pool_access(gpu.native, pool);
            access.is_ok_and(|it| it == HSA_AMD_MEMORY_POOL_ACCESS_ALLOWED_BY_DEFAULT)
        };
        match listed {
            None if self.quirks.import_is_lazy => None,
            None => self.runtime.gpus().find(without_grant),
            listed => listed,
        }
    }
}

/// Returns the size of a dma-buf in bytes. Returns 0 for a directory, and for a file whose size is not valid.
pub(super) fn size_of_buffer(descriptor: BorrowedFd<'_>) -> Result<usize, FailedCall> {
    let failed = |call| move |errno| FailedCall { call, errno };
    let file = fstat(descriptor).map_err(failed("fstat"))?;
    // The size of a directory is not a number of bytes that can be mapped.
    if FileType::from_raw_mode(file.st_mode) == FileType::Directory {
        return Ok(0);
    }
    size_by(file.st_size, || match file_system(descriptor).map_err(failed("fstatfs"))? {
        DMA_BUF => seek(descriptor, SeekFrom::End(0)).map_err(failed("lseek")),
        // Other files report their size. Seeking would change the position of the caller's file.
        _ => Ok(0),
    })
}

// `DMA_BUF_MAGIC` and `TMPFS_MAGIC` (linux/magic.h).
const DMA_BUF: u32 = 0x444d_4142;
const MEMORY_FILE: u32 = 0x0102_1994;

fn file_system(descriptor: BorrowedFd<'_>) -> Result<u32, Errno> {
    fstatfs(descriptor).map(|file_system| file_system.f_type as u32)
}

/// Returns whether no process can shrink a file. This holds for dma-bufs, and for memory files (memfd) that are
/// sealed against shrinking. The dma-bufs of the simulation and of the emulated driver are sealed memory files. A
/// load or store beyond the end of a file that was shrunk raises SIGBUS.
fn cannot_shrink(descriptor: BorrowedFd<'_>) -> bool {
    match file_system(descriptor) {
        Ok(DMA_BUF) => true,
        Ok(MEMORY_FILE) => {
            fcntl_get_seals(descriptor).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
        }
        _ => false,
    }
}

/// Returns the size that `fstat` reported. If this is 0, returns the offset of the end of the file. Older kernels do
/// not report the size of a dma-buf, but support seeking to its end (`dma_buf_llseek`). This seek does not change the
/// file position. Newer kernels report the size (`dma_buf_getfile` in drivers/dma-buf/dma-buf.c). Returns 0 for a size
/// that is not valid.
fn size_by<E>(reported: i64, end: impl FnOnce() -> Result<u64, E>) -> Result<usize, E> {
    let size = if reported == 0 { usize::try_from(end()?) } else { usize::try_from(reported) };
    Ok(size.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;

    #[test]
    fn size_falls_back_to_the_end_of_the_file() {
        let not_called = || -> Result<u64, Errno> { panic!("the size was reported") };
        assert_eq!(size_by(2 << 20, not_called), Ok(2 << 20));
        assert_eq!(size_by(0, || Ok::<_, Errno>(2 << 20)), Ok(2 << 20));
        assert_eq!(size_by(0, || Ok::<_, Errno>(0)), Ok(0));
        assert_eq!(size_by(-1, not_called), Ok(0));
    }

    #[test]
    fn pipes_and_directories_have_no_size() {
        assert_eq!(size_by(0, || Err(Errno::SPIPE)), Err(Errno::SPIPE));
        let (pipe, _) = std::io::pipe().unwrap();
        assert_eq!(size_of_buffer(pipe.as_fd()), Ok(0));
        let folder = std::fs::File::open("/").unwrap();
        assert_eq!(size_of_buffer(folder.as_fd()), Ok(0));
    }

    #[test]
    fn only_sealed_memory_files_cannot_shrink() {
        let flags = MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("buffer", flags).unwrap();
        assert!(!cannot_shrink(file.as_fd()));
        rustix::fs::fcntl_add_seals(&file, SealFlags::GROW).unwrap();
        assert!(!cannot_shrink(file.as_fd()));
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        assert!(cannot_shrink(file.as_fd()));
        let (pipe, _) = std::io::pipe().unwrap();
        assert!(!cannot_shrink(pipe.as_fd()));
        let executable = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(!cannot_shrink(executable.as_fd()));
    }

    #[test]
    fn size_of_buffer_keeps_the_file_position() {
        let file = rustix::fs::memfd_create("buffer", MemfdFlags::empty()).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        seek(&file, SeekFrom::Start(123)).unwrap();
        assert_eq!(size_of_buffer(file.as_fd()), Ok(4096));
        assert_eq!(seek(&file, SeekFrom::Current(0)), Ok(123));
    }
}
