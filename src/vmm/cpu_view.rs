//! This process's view of mapped memory: its own mapping for loads and stores.
//!
//! The library maps the exported dma-buf over the reservation, and changes access by `mprotect`. The library removes
//! the view by mapping inaccessible pages (`PROT_NONE`) over the view, at the end of an operation, when no step can
//! fail any more. The library does not call the runtime to remove the view: the runtime calls `munmap`, which leaves an
//! address-space hole in the reservation.
//!
//! If dma-bufs cannot be mapped, the runtime maps the memory for the CPU once, readable and writable. From
//! then on the CPU is in [`AccessState::runtime_granted`], and the library changes access by `mprotect`.
//! Only the runtime unmaps such memory; the library then fills the hole that the runtime leaves.
//!
//! According to the kernel's source, a dma-buf of amdgpu can be mapped. This was not tested on a GPU. If mapping the
//! first dma-buf fails, the runtime maps all memory for the CPU from then on.

use super::Shared;
use super::journal::Journal;
use super::ledger::{AddressRange, MappedRange};
use super::runtime_mapping::hole_not_filled;
use super::shareable::exportable;
use crate::access::{Access, AccessState};
use crate::error::{Argument, ErrorKind, Feature, Problem};
use crate::native::{
    Blocked, NotReplaced, block_access, check_room, fill_possible_hole, map_shared,
    out_of_descriptors, protect, try_map_shared,
};
use crate::sync::atomic::{AtomicBool, Ordering};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use std::os::fd::AsFd;

/// How memory is mapped for the CPU.
#[derive(Debug, Default)]
pub(super) struct CpuMapping {
    /// Whether the runtime maps all memory for the CPU, because mapping the first dma-buf has failed.
    by_runtime: AtomicBool,
    /// Whether mapping a dma-buf of a GPU's memory, created by this process, has succeeded.
    dma_buf_works: AtomicBool,
    /// Whether the kernel has failed to replace an unused view. Never reset: after such a failure, each unmap replaces
    /// what is mapped at its addresses.
    keeps_unused_view: AtomicBool,
}

impl Journal<'_, '_> {
    /// Removes the views that the operation has made unnecessary. If a view leaves a hole that cannot be filled,
    /// quarantines its reservation.
    pub(super) fn drop_unused_views(&mut self) {
        for index in 0..self.targets.len() {
            let target = &self.targets[index];
            if !target.is_mapped() {
                continue;
            }
            // SAFETY: the journal holds the lock of the target, which is mapped.
            let dropped = unsafe { self.shared.drop_unused_view(target.now(), &target.before) };
            if let Err(failure) = dropped {
                self.quarantine(index, failure, None);
            }
        }
    }
}

impl Shared {
    /// Returns the access of this process's loads and stores. This is the highest access of any CPU agent, because all
    /// CPUs share one address space.
    pub(super) fn process_access(&self, access: &AccessState) -> Access {
        access.requested.highest_of(self.cpus)
    }

    /// Returns whether the runtime has mapped the memory for the CPU.
    pub(super) fn runtime_mapped_for_cpu(&self, access: &AccessState) -> bool {
        !access.runtime_granted.intersection(self.cpus).is_empty()
    }

    /// Returns whether this library, not the runtime, has mapped the memory for the CPU.
    pub(super) fn library_mapped_for_cpu(&self, access: &AccessState) -> bool {
        self.process_access(access) != Access::None && !self.runtime_mapped_for_cpu(access)
    }

    /// Returns whether the runtime has to map memory for the CPU.
    fn must_map_by_runtime(&self) -> bool {
        self.cpu_mapping.by_runtime.load(Ordering::Relaxed)
    }

    /// Changes the view to the CPU's access in `new`. If the CPU loses its access, the view stays, without access, until
    /// [`drop_unused_view`](Self::drop_unused_view): a rollback can then restore it without a descriptor.
    ///
    /// Returns `false` if the runtime has to map the memory for the CPU.
    ///
    /// # Safety
    /// The mapping is [locked](super::runtime_mapping), and mapped.
    pub(super) unsafe fn change_view(
        &self,
        mapping: &MappedRange,
        new: &AccessState,
    ) -> Result<bool, ErrorKind> {
        let (now, new) = (self.process_access(&mapping.access), self.process_access(new));
        if now == new {
            return Ok(true);
        }
        if now != Access::None || self.runtime_mapped_for_cpu(&mapping.access) {
            // SAFETY: the caller guarantees that the mapping is locked and mapped.
            return unsafe { self.protect_view(mapping.range(), new) }.map(|()| true);
        }
        // SAFETY: the caller guarantees that the mapping is locked and mapped. The check above shows that the CPU has
        // no view.
        let is_mapped = !self.must_map_by_runtime() && unsafe { self.map_dma_buf(mapping, new) }?;
        // With an offset, the runtime would map the start of the memory.
        if !is_mapped && mapping.offset != 0 {
            return Err(Feature::CpuAccessAtOffset.into());
        }
        Ok(is_mapped)
    }

    /// Fails near the kernel's limit of mappings, where the runtime would abort the process when it maps memory for the
    /// CPU (ROCm 6.0 to 6.3). Other threads can reach the limit after this check.
    pub(super) fn check_room_for_view() -> Result<(), ErrorKind> {
        /// More mappings than the view needs. The view splits the mapping of the reservation.
        const MAPPINGS: usize = 4;
        check_room(MAPPINGS).map_err(|errno| ErrorKind::of_system("mmap", errno))
    }

    /// Changes the protection of the view.
    ///
    /// # Safety
    /// The range is [locked](super::runtime_mapping), and mapped.
    pub(super) unsafe fn protect_view(
        &self,
        range: AddressRange,
        access: Access,
    ) -> Result<(), ErrorKind> {
        // SAFETY: the caller guarantees that the range is locked and mapped. Faults are intended: the user of the
        // library requested this access.
        unsafe { protect(range.start, range.size, protection(access)) }
            .map_err(|errno| ErrorKind::of_system("mprotect", errno))
    }

    /// Limits the view to the CPU's access. The runtime has just mapped the memory for the CPU, readable and writable.
    ///
    /// # Safety
    /// The range is [locked](super::runtime_mapping), and mapped.
    pub(super) unsafe fn limit_view(
        &self,
        range: AddressRange,
        access: &AccessState,
    ) -> Result<(), ErrorKind> {
        match self.process_access(access) {
            Access::ReadWrite => Ok(()),
            // SAFETY: the caller guarantees that the range is locked and mapped.
            limited => unsafe { self.protect_view(range, limited) },
        }
    }

    /// Removes the view of a mapping that had a view before and does not need it now. At a limit of the process, the
    /// view stays, without access; this is not an error. The view keeps the memory allocated until
    /// [`keep_reserved`](Self::keep_reserved) replaces it.
    ///
    /// # Errors
    /// [`ErrorKind::HoleNotFilled`] if the kernel has removed the view but has failed to map other pages.
    ///
    /// # Safety
    /// The mapping is [locked](super::runtime_mapping), and mapped.
    pub(super) unsafe fn drop_unused_view(
        &self,
        now: &MappedRange,
        before: &AccessState,
    ) -> Result<(), ErrorKind> {
        let is_needed = self.process_access(&now.access) != Access::None
            || self.runtime_mapped_for_cpu(&now.access);
        if !self.library_mapped_for_cpu(before) || is_needed {
            return Ok(());
        }
        // SAFETY: the caller guarantees that the mapping is locked and mapped. The call replaces only this library's
        // view or, if the memory was mapped again since the view was made, the runtime's inaccessible mapping.
        let blocked = unsafe { block_access(now.start, now.size) };
        if blocked == Ok(Blocked::Replaced) {
            return Ok(());
        }
        self.note_unused_view();
        match blocked {
            Ok(_) => Ok(()),
            // The kernel may have unmapped the view before it failed.
            Err(_) => self.fill_hole_with_spare(now.range()),
        }
    }

    /// Notes that an unused view may still be mapped at the addresses of a mapping.
    pub(super) fn note_unused_view(&self) {
        self.cpu_mapping.keeps_unused_view.store(true, Ordering::Relaxed);
    }

    /// Returns whether an unused view may still be mapped at the addresses of a mapping that has no view now.
    pub(super) fn may_keep_unused_view(&self) -> bool {
        self.cpu_mapping.keeps_unused_view.load(Ordering::Relaxed)
    }

    /// Fails if the memory cannot be mapped again with its access. This is the case if no descriptor is free for the
    /// export, or if the runtime would have to map memory from an offset for the CPU.
    pub(super) fn check_remap(&self, mapping: &MappedRange) -> Result<(), ErrorKind> {
        if self.process_access(&mapping.access) == Access::None {
            return Ok(());
        }
        match self.must_map_by_runtime() {
            true if mapping.offset != 0 => Err(Feature::CpuAccessAtOffset.into()),
            false if out_of_descriptors() => Err(ErrorKind::OutOfDescriptors),
            _ => Ok(()),
        }
    }

    /// Calls a function that needs a descriptor. If no descriptor is free, or if the function must not fail, first
    /// closes the spare descriptor. A function must not fail if it rolls back an operation or fills a hole. The
    /// function must not call this method.
    pub(super) fn with_free_descriptor<T>(
        &self,
        must_not_fail: bool,
        act: impl FnOnce() -> T,
    ) -> T {
        self.runtime.spare_descriptors().with_spare(must_not_fail, act)
    }

    /// Fills the address-space hole that a failed call may have left in a range.
    pub(super) fn fill_hole_with_spare(&self, range: AddressRange) -> Result<(), ErrorKind> {
        self.with_free_descriptor(true, || fill_possible_hole(range.start, range.size))
            .map_err(|errno| hole_not_filled(range, errno))
    }

    /// Maps the memory's dma-buf for the CPU. Returns `false` if the runtime has to map the memory instead.
    ///
    /// # Safety
    /// The mapping is [locked](super::runtime_mapping), and mapped. The CPU has no view of it.
    unsafe fn map_dma_buf(&self, mapping: &MappedRange, access: Access) -> Result<bool, ErrorKind> {
        let handles = &self.ledger.handles;
        let AddressRange { start, size } = mapping.range();
        let memory = handles.with_live(mapping.handle, |it| {
            let is_imported_or_host = it.imported || it.properties.is_on_host();
            (it.has_dma_buf().then(|| exportable(it)), is_imported_or_host)
        });
        let released = || ErrorKind::invalid(Argument::Handle, mapping.handle, Problem::Released);
        // Failures for imported memory and for memory of the host do not change `by_runtime`. A failure for other
        // memory does, unless such memory was mapped before.
        let (exportable, is_imported_or_host) = memory.ok_or_else(released)?;
        let Some(exportable) = exportable else { return Ok(false) };
        // SAFETY: the mapping keeps the memory alive.
        let descriptor = unsafe { self.export(exportable) }?;
        let is_known_to_work =
            !is_imported_or_host && self.cpu_mapping.dma_buf_works.load(Ordering::Relaxed);
        // A view of a read-only descriptor could never become writable.
        let tested = match fcntl_getfl(&descriptor) {
            Ok(flags) if flags & OFlags::ACCMODE != OFlags::RDWR => Err(Errno::ACCESS),
            _ if is_known_to_work => Ok(()),
            _ => try_map_shared(descriptor.as_fd(), protection(access)),
        };
        let not_filled = |errno| hole_not_filled(mapping.range(), errno);
        let mapped = match tested {
            // SAFETY: the caller guarantees that the mapping is locked and mapped. The runtime has left no hole, so the
            // call replaces only the runtime's inaccessible mapping.
            Ok(()) => unsafe {
                map_shared(descriptor.as_fd(), mapping.offset, start, size, protection(access))
            },
            Err(errno) => Err(NotReplaced::Failed(errno)),
        };
        let errno = match mapped {
            Ok(()) => {
                if !is_imported_or_host {
                    self.cpu_mapping.dma_buf_works.store(true, Ordering::Relaxed);
                }
                return Ok(true);
            }
            Err(NotReplaced::Kept(errno)) => errno,
            Err(NotReplaced::Hole(errno)) => return Err(not_filled(errno)),
            Err(NotReplaced::Failed(errno)) => {
                // The kernel may have unmapped the old mapping before it failed.
                if tested.is_ok() {
                    drop(descriptor);
                    fill_possible_hole(start, size).map_err(not_filled)?;
                }
                errno
            }
        };
        match errno {
            Errno::NOMEM | Errno::AGAIN => Err(ErrorKind::of_system("mmap", errno)),
            errno => {
                if !is_imported_or_host
                    && !self.cpu_mapping.dma_buf_works.load(Ordering::Relaxed)
                    && !self.cpu_mapping.by_runtime.swap(true, Ordering::Relaxed)
                {
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

/// Returns the access as memory protection. HSA's bits for read and write equal `PROT_READ` and `PROT_WRITE`.
fn protection(access: Access) -> ProtFlags {
    ProtFlags::from_bits_retain(access.to_bits())
}
