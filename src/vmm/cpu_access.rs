//! The CPU's own view of mapped memory.
//!
//! The runtime gives the CPU access by mapping the buffer over the reservation, and takes it
//! away with `munmap`: for a moment, or for good, the addresses belong to nobody. Here the
//! exported dma-buf is mapped over the reservation instead. A change is then one `mprotect`, a
//! removal one `mmap` of nothing, and the runtime never unmaps anything of the CPU's.
//!
//! That a dma-buf of amdgpu can be mapped follows from the kernel's source; it has not been seen
//! on a GPU. If the first mapping is refused, the runtime's own way is taken from then on.

use super::access::AccessSet;
use super::error::{Argument, Operation, Problem, Refusal};
use super::ledger::MappingRecord;
use super::mapping::Piece;
use super::shareable::Exportable;
use super::{Access, Shared, VmmError, out_of_descriptors, system_failure};
use crate::native::{Protection, close, map_shared, protect};
use crate::sync::atomic::{AtomicBool, Ordering};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use std::os::fd::AsFd;

/// Which way the CPU is given access.
#[derive(Debug, Default)]
pub(super) struct CpuAccess {
    by_runtime: AtomicBool,
}

impl Shared {
    /// What this process's loads and stores may do: as much as any CPU agent may, since all of
    /// them share one address space.
    pub(super) fn protection(&self, access: &AccessSet) -> Protection {
        let of = |index| match access.get(index) {
            Access::None => Protection::Nothing,
            Access::Read => Protection::Read,
            Access::ReadWrite => Protection::ReadWrite,
        };
        self.cpus.iter().map(of).max().unwrap_or(Protection::Nothing)
    }

    /// Whether the runtime itself has mapped the memory for the CPU.
    pub(super) fn cpu_was_granted_by_runtime(&self, record: &MappingRecord) -> bool {
        self.cpus.iter().any(|index| record.granted.contains(index))
    }

    /// Whether this process has a view of the mapping that is not the runtime's.
    fn is_seen(&self, record: &MappingRecord) -> bool {
        self.protection(&record.access) != Protection::Nothing
            && !self.cpu_was_granted_by_runtime(record)
    }

    fn by_runtime(&self) -> bool {
        self.cpu_access.by_runtime.load(Ordering::Relaxed)
    }

    /// Changes the CPU's view from what the mapping has to what `access` says.
    ///
    /// Answers `false` if the runtime has to do it.
    pub(super) fn change_cpu_view(
        &self,
        operation: Operation,
        piece: &Piece,
        access: &AccessSet,
    ) -> Result<bool, VmmError> {
        let seen = self.is_seen(&piece.record);
        if self.cpu_was_granted_by_runtime(&piece.record) || self.by_runtime() && !seen {
            return Ok(false);
        }
        let (start, size) = (piece.start, piece.record.size);
        match (self.protection(&piece.record.access), self.protection(access)) {
            (before, after) if before == after => Ok(true),
            (_, Protection::Nothing) => close(start, size)
                .map(|()| true)
                .map_err(|errno| system_failure(operation, "mmap", errno)),
            (Protection::Nothing, after) => self.map_dma_buf(operation, piece, after),
            (_, after) => protect(start, size, after)
                .map(|()| true)
                .map_err(|errno| system_failure(operation, "mprotect", errno)),
        }
    }

    /// Gives this process its view of a mapping that the runtime has just made.
    ///
    /// Answers `false` if the runtime has to do it.
    pub(super) fn show_to_cpu(
        &self,
        operation: Operation,
        piece: &Piece,
        access: &AccessSet,
    ) -> Result<bool, VmmError> {
        if self.by_runtime() || self.cpu_was_granted_by_runtime(&piece.record) {
            return Ok(false);
        }
        match self.protection(access) {
            Protection::Nothing => Ok(true),
            protection => self.map_dma_buf(operation, piece, protection),
        }
    }

    /// Takes this process's view away before the runtime unmaps.
    pub(super) fn hide_from_cpu(
        &self,
        operation: Operation,
        start: usize,
        record: &MappingRecord,
    ) -> Result<(), VmmError> {
        if self.is_seen(record) {
            close(start, record.size).map_err(|errno| system_failure(operation, "mmap", errno))?;
        }
        Ok(())
    }

    /// Whether to make a mapping with this access anew takes a descriptor that is not to be had.
    pub(super) fn lacks_descriptor(&self, access: &AccessSet) -> bool {
        !self.by_runtime() && self.protection(access) != Protection::Nothing && out_of_descriptors()
    }

    fn map_dma_buf(
        &self,
        operation: Operation,
        piece: &Piece,
        protection: Protection,
    ) -> Result<bool, VmmError> {
        let (start, size) = (piece.start, piece.record.size);
        let slot = piece.record.slot;
        let exportable = self.ledger.handles.in_slot(slot, |it| Exportable::of(&it.payload));
        let gone = Refusal::new(Argument::Handle, Problem::Released);
        let exportable = exportable.ok_or_else(|| gone.during(operation))?;
        let descriptor = self.export(operation, exportable)?;
        // One that can only be read would do for reading, but could never be made writable.
        let mapped = match fcntl_getfl(&descriptor) {
            Ok(flags) if flags & OFlags::ACCMODE != OFlags::RDWR => Err(Errno::ACCESS),
            _ => map_shared(descriptor.as_fd(), start, size, protection),
        };
        let Err(errno) = mapped else {
            return Ok(true);
        };
        // The kernel may have removed what was there before it refused.
        close(start, size).map_err(|errno| system_failure(operation, "mmap", errno))?;
        match errno {
            Errno::NOMEM | Errno::AGAIN => Err(system_failure(operation, "mmap", errno)),
            errno => {
                // What another process sends may be of any kind; it says nothing of this machine.
                let handles = &self.ledger.handles;
                let imported = |slot| handles.in_slot(slot, |it| it.payload.imported);
                if imported(piece.record.slot) == Some(false)
                    && !self.cpu_access.by_runtime.swap(true, Ordering::Relaxed)
                {
                    tracing::warn!(
                        %errno,
                        "dma-bufs cannot be mapped here; the runtime gives the CPU its access"
                    );
                }
                Ok(false)
            }
        }
    }
}
