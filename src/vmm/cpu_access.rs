//! This process's view of mapped memory: what its own loads and stores may do.
//!
//! The exported dma-buf is mapped over the reservation. A change of access is one `mprotect`, and the
//! view is removed by mapping `PROT_NONE` when nothing can fail any more. The runtime is not asked: it
//! takes the CPU's access away with `munmap`, which leaves a hole in the reservation.
//!
//! Where dma-bufs cannot be mapped, the runtime maps the memory for the CPU: once, readable and
//! writable. From then on the CPU is in [`MappingRecord::granted`], and a change is `mprotect` here
//! too. Only unmapping is the runtime's; the hole that it leaves then is filled by `plug`.
//!
//! That a dma-buf of amdgpu can be mapped follows from the kernel's source; it has not been seen
//! on a GPU. If the first mapping is refused, the runtime maps for the CPU from then on.

use super::error::{Argument, Operation, Problem, Refusal};
use super::ledger::MappingRecord;
use super::mapping::Piece;
use super::shareable::Exportable;
use super::{Access, Shared, VmmError, out_of_descriptors, system_failure};
use crate::access::AccessSet;
use crate::native::{Protection, close, map_shared, plug, protect, try_shared};
use crate::sync::atomic::{AtomicBool, Ordering};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use std::os::fd::AsFd;

/// Which way the CPU is given access.
#[derive(Debug, Default)]
pub(super) struct CpuAccess {
    by_runtime: AtomicBool,
    /// Whether a dma-buf of this process was mapped.
    is_proven: AtomicBool,
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
    pub(super) fn has_own_view(&self, record: &MappingRecord) -> bool {
        self.protection(&record.access) != Protection::Nothing
            && !self.cpu_was_granted_by_runtime(record)
    }

    fn by_runtime(&self) -> bool {
        self.cpu_access.by_runtime.load(Ordering::Relaxed)
    }

    /// Changes the CPU's view from what the mapping has to what `access` says. A view that is not
    /// needed any more stays, without access, until [`remove_view`](Self::remove_view): to give it back
    /// after a failure takes no file descriptor.
    ///
    /// Returns `false` if the runtime has to map the memory for the CPU.
    pub(super) fn change_cpu_view(
        &self,
        operation: Operation,
        piece: &Piece,
        access: &AccessSet,
    ) -> Result<bool, VmmError> {
        let (before, after) = (self.protection(&piece.record.access), self.protection(access));
        if before == after {
            return Ok(true);
        }
        let is_mapped =
            before != Protection::Nothing || self.cpu_was_granted_by_runtime(&piece.record);
        if is_mapped {
            return self.protect_view(operation, piece, after).map(|()| true);
        }
        if self.by_runtime() {
            return Ok(false);
        }
        self.map_dma_buf(operation, piece, after)
    }

    /// Changes what loads and stores may do where the CPU has a view.
    pub(super) fn protect_view(
        &self,
        operation: Operation,
        piece: &Piece,
        protection: Protection,
    ) -> Result<(), VmmError> {
        protect(piece.start, piece.record.size, protection)
            .map_err(|errno| system_failure(operation, "mprotect", errno))
    }

    /// Gives this process its view of a mapping that the runtime has just made, or may not have
    /// unmapped.
    ///
    /// Returns `false` if the runtime has to map the memory for the CPU.
    pub(super) fn show_to_cpu(
        &self,
        operation: Operation,
        piece: &Piece,
        access: &AccessSet,
    ) -> Result<bool, VmmError> {
        match self.protection(access) {
            Protection::Nothing => Ok(true),
            _ if self.by_runtime() || self.cpu_was_granted_by_runtime(&piece.record) => Ok(false),
            protection => self.with_descriptor(|| self.map_dma_buf(operation, piece, protection)),
        }
    }

    /// Removes the view of a mapping whose access has changed from that of `before` to `after`, if there
    /// was one and nobody needs it. Cannot fail: at worst it stays, without access.
    pub(super) fn remove_view(&self, before: &Piece, after: &MappingRecord) {
        let is_needed = self.protection(&after.access) != Protection::Nothing
            || self.cpu_was_granted_by_runtime(after);
        if self.has_own_view(&before.record) && !is_needed {
            let _ = close(before.start, before.record.size);
        }
    }

    /// Fills the hole that the runtime may have left in a mapping that it failed to unmap, if it had
    /// mapped the memory for the CPU.
    ///
    /// Returns whether the CPU has lost the memory.
    pub(super) fn fill_hole(&self, operation: Operation, piece: &Piece) -> Result<bool, VmmError> {
        if !self.quirks.cpu_unmap_leaves_hole || !self.cpu_was_granted_by_runtime(&piece.record) {
            return Ok(true);
        }
        match plug(piece.start, piece.record.size) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(system_failure(operation, "mmap", errno)),
        }
    }

    /// Refuses what takes a mapping down and makes it anew with this access, if there is no descriptor
    /// for the latter.
    pub(super) fn check_rebuild(
        &self,
        operation: Operation,
        access: &AccessSet,
    ) -> Result<(), VmmError> {
        let exports = !self.by_runtime() && self.protection(access) != Protection::Nothing;
        if exports && out_of_descriptors() {
            return Err(VmmError::OutOfDescriptors { operation });
        }
        Ok(())
    }

    /// Does something that must not fail for want of a descriptor, since it completes or undoes what has
    /// begun: if there is none left, the runtime's reserve is closed for it.
    pub(super) fn with_descriptor<T>(&self, act: impl FnOnce() -> T) -> T {
        self.runtime.spare().lend(act)
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
        // What another process sends may be of any kind; it says nothing of this machine.
        let imported = self.ledger.handles.in_slot(slot, |it| it.payload.imported) != Some(false);
        let is_proven = !imported && self.cpu_access.is_proven.load(Ordering::Relaxed);
        // One that can only be read would do for reading, but could never be made writable.
        let can_be_mapped = match fcntl_getfl(&descriptor) {
            Ok(flags) if flags & OFlags::ACCMODE != OFlags::RDWR => Err(Errno::ACCESS),
            _ if is_proven => Ok(()),
            _ => try_shared(descriptor.as_fd(), protection),
        };
        let mapped =
            can_be_mapped.and_then(|()| map_shared(descriptor.as_fd(), start, size, protection));
        let Err(errno) = mapped else {
            if !imported {
                self.cpu_access.is_proven.store(true, Ordering::Relaxed);
            }
            return Ok(true);
        };
        // The kernel may have removed what was there before it refused.
        if can_be_mapped.is_ok() {
            let _ = plug(start, size);
        }
        match errno {
            Errno::NOMEM | Errno::AGAIN => Err(system_failure(operation, "mmap", errno)),
            errno => {
                if !imported && !self.cpu_access.by_runtime.swap(true, Ordering::Relaxed) {
                    crate::log::warning!(
                        %errno,
                        "dma-bufs cannot be mapped here; the runtime gives the CPU its access"
                    );
                }
                Ok(false)
            }
        }
    }
}
