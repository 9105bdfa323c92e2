//! This process's view of mapped memory: its own mapping for loads and stores.
//!
//! The exported dma-buf is mapped over the reservation. A change of access is one `mprotect`, and the
//! view is removed by mapping `PROT_NONE` once nothing can fail any more. The runtime is not called: it
//! revokes the CPU's access with `munmap`, which leaves a hole in the reservation.
//!
//! Where dma-bufs cannot be mapped, the runtime maps the memory for the CPU: once, readable and
//! writable. From then on the CPU is in [`AccessState::runtime_granted`], and a change is `mprotect`
//! here, too. Only the runtime unmaps; the hole that it leaves is filled.
//!
//! That a dma-buf of amdgpu can be mapped follows from the kernel's source; it has not been seen on a
//! GPU. If the first mapping is refused, the runtime maps for the CPU from then on.

use super::Shared;
use super::ledger::MappedRange;
use super::shareable::exportable;
use crate::access::{Access, AccessState};
use crate::error::{Argument, ErrorKind, Problem};
use crate::native::{close, fill_hole, map_shared, out_of_descriptors, protect, try_shared};
use crate::sync::atomic::{AtomicBool, Ordering};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use std::os::fd::AsFd;

/// How the CPU is given access.
#[derive(Debug, Default)]
pub(super) struct CpuAccess {
    by_runtime: AtomicBool,
    /// Whether a dma-buf of this process was mapped.
    is_proven: AtomicBool,
}

// As for `mapped_range`: the reservation is locked and the range is a mapping.
impl Shared {
    /// Returns the access of this process's loads and stores: the most that any CPU agent has, because all
    /// CPUs share one address space.
    pub(super) fn cpu_access(&self, access: &AccessState) -> Access {
        access.requested.max_of(self.cpus)
    }

    /// Returns whether the runtime has mapped the memory for the CPU.
    pub(super) fn runtime_mapped_for_cpu(&self, access: &AccessState) -> bool {
        !access.runtime_granted.intersection(self.cpus).is_empty()
    }

    /// Returns whether this process has its own view of the mapping, not the runtime's.
    pub(super) fn has_own_view(&self, access: &AccessState) -> bool {
        self.cpu_access(access) != Access::None && !self.runtime_mapped_for_cpu(access)
    }

    fn by_runtime(&self) -> bool {
        self.cpu_access.by_runtime.load(Ordering::Relaxed)
    }

    /// Changes the view to the access in `wanted`. A view that is no longer needed stays, without access,
    /// until [`drop_unused_view`](Self::drop_unused_view): restoring it after a failure then needs no file
    /// descriptor.
    ///
    /// Returns `false` if the runtime has to map the memory for the CPU.
    pub(super) fn change_view(
        &self,
        it: &MappedRange,
        wanted: &AccessState,
    ) -> Result<bool, ErrorKind> {
        let (now, wanted) = (self.cpu_access(&it.access), self.cpu_access(wanted));
        if now == wanted {
            return Ok(true);
        }
        if now != Access::None || self.runtime_mapped_for_cpu(&it.access) {
            return self.protect_view(it, wanted).map(|()| true);
        }
        if self.by_runtime() {
            return Ok(false);
        }
        self.map_dma_buf(it, wanted)
    }

    /// Changes the protection of the view, if the CPU has one.
    pub(super) fn protect_view(&self, it: &MappedRange, access: Access) -> Result<(), ErrorKind> {
        // SAFETY: the range is a mapping; taking access away makes accesses fault, as asked for.
        unsafe { protect(it.start, it.size, protection(access)) }
            .map_err(|errno| ErrorKind::of_system("mprotect", errno))
    }

    /// Removes the view of a mapping if it had one before and no longer needs it. Cannot fail: at worst
    /// the view stays, without access.
    pub(super) fn drop_unused_view(&self, now: &MappedRange, before: &AccessState) {
        let needed = self.cpu_access(&now.access) != Access::None
            || self.runtime_mapped_for_cpu(&now.access);
        if self.has_own_view(before) && !needed {
            // SAFETY: the range is a mapping, and what is replaced is this library's view of it.
            let _ = unsafe { close(now.start, now.size) };
        }
    }

    /// Fills the hole that the runtime may have left in a mapping that it failed to unmap, if it had
    /// mapped the memory for the CPU.
    ///
    /// Returns whether the CPU has lost the memory.
    pub(super) fn fill_hole(&self, it: &MappedRange) -> Result<bool, ErrorKind> {
        if !self.quirks.cpu_unmap_leaves_hole || !self.runtime_mapped_for_cpu(&it.access) {
            return Ok(true);
        }
        match fill_hole(it.start, it.size) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(ErrorKind::of_system("mmap", errno)),
        }
    }

    /// Fails if no descriptor is free to map again with this access after unmapping.
    pub(super) fn check_remap(&self, access: &AccessState) -> Result<(), ErrorKind> {
        let exports = !self.by_runtime() && self.cpu_access(access) != Access::None;
        if exports && out_of_descriptors() {
            return Err(ErrorKind::OutOfDescriptors);
        }
        Ok(())
    }

    /// Calls a function that must not fail for lack of a descriptor, because it completes or rolls back an
    /// operation. If none is free, closes the reserved descriptor for it.
    pub(super) fn with_descriptor<T>(&self, act: impl FnOnce() -> T) -> T {
        self.runtime.spare().with_reserve(act)
    }

    fn map_dma_buf(&self, it: &MappedRange, access: Access) -> Result<bool, ErrorKind> {
        let handles = &self.ledger.handles;
        let memory = handles.with_live(it.handle, |record| (exportable(record), record.imported));
        let released = || ErrorKind::invalid(Argument::Handle, it.handle, Problem::Released);
        // Memory from another process may be of any kind: its failure says nothing about this machine.
        let (exportable, imported) = memory.ok_or_else(released)?;
        let descriptor = self.export(exportable)?;
        let is_proven = !imported && self.cpu_access.is_proven.load(Ordering::Relaxed);
        // A read-only view could never be made writable later.
        let can_be_mapped = match fcntl_getfl(&descriptor) {
            Ok(flags) if flags & OFlags::ACCMODE != OFlags::RDWR => Err(Errno::ACCESS),
            _ if is_proven => Ok(()),
            _ => try_shared(descriptor.as_fd(), protection(access)),
        };
        let mapped = can_be_mapped.and_then(|()| {
            // SAFETY: the range is a mapping, in which the runtime has left no hole: what is replaced is
            // its inaccessible mapping.
            unsafe { map_shared(descriptor.as_fd(), it.start, it.size, protection(access)) }
        });
        let Err(errno) = mapped else {
            if !imported {
                self.cpu_access.is_proven.store(true, Ordering::Relaxed);
            }
            return Ok(true);
        };
        // The kernel may have unmapped the old mapping before it refused.
        if can_be_mapped.is_ok() {
            let _ = fill_hole(it.start, it.size);
        }
        match errno {
            Errno::NOMEM | Errno::AGAIN => Err(ErrorKind::of_system("mmap", errno)),
            errno => {
                if !imported && !self.cpu_access.by_runtime.swap(true, Ordering::Relaxed) {
                    crate::log::event!(
                        WARN, %errno,
                        "dma-bufs cannot be mapped here; the runtime gives the CPU its access"
                    );
                }
                Ok(false)
            }
        }
    }
}

/// Returns the access as memory protection: HSA's numbers are those of `PROT_READ` and `PROT_WRITE`.
fn protection(access: Access) -> ProtFlags {
    ProtFlags::from_bits_retain(access.to_bits())
}
