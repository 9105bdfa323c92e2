//! Maps and unmaps ranges in the runtime, and keeps their addresses reserved.
//!
//! # Safety
//!
//! The unsafe functions of this module, and the unsafe functions whose documentation refers to this module, change a
//! mapping in the runtime and in this process. The caller must hold the lock of the mapping's reservation
//! (`ReservationGuard`). The range must consist of whole mappings of this library, or must have just been unmapped.
//! Otherwise these functions replace memory of other code.

use super::Shared;
use super::ledger::{AddressRange, MappedRange};
use crate::access::{Access, AgentSet};
use crate::error::{ErrorKind, Feature};
use crate::native::{
    NotReplaced, contains_private_mapping, fill_hole, fill_possible_hole_of_map, replace_mapping,
};
use rustix::io::Errno;

/// Returns the error for an address-space hole that could not be filled. The addresses are not reserved any more, and a
/// foreign mapping may be in the range.
pub(super) fn hole_not_filled(range: AddressRange, errno: Errno) -> ErrorKind {
    ErrorKind::HoleNotFilled { address: range.address(), size: range.size, errno }
}

impl Shared {
    /// Maps memory, without access for any agent.
    ///
    /// # Safety
    /// The reservation is locked, the range is empty, and the handle counts the mapping.
    pub(super) unsafe fn map_in_runtime(&self, mapping: &MappedRange) -> Result<(), ErrorKind> {
        self.call_shared(|native| {
            // SAFETY: the caller guarantees that the range is locked and empty, and that the handle is alive, because
            // it counts the mapping.
            unsafe { native.map(mapping.start, mapping.size, mapping.native) }
        })
        .map_err(|failure| ErrorKind::of_call(failure, mapping.size))
    }

    /// Returns the result of a map. If the map has failed, first fills the address-space hole that it may have left:
    /// from ROCm 7.2 on, `hsa_amd_vmem_map` maps inaccessible pages with `MAP_FIXED`, and the kernel may have unmapped
    /// the reserved pages before it failed. The caller must not use the spare descriptor.
    pub(super) fn fill_hole_of_map(
        &self,
        range: AddressRange,
        mapped: Result<(), ErrorKind>,
    ) -> Result<(), ErrorKind> {
        if mapped.is_err() {
            let AddressRange { start, size } = range;
            self.with_free_descriptor(true, || fill_possible_hole_of_map(start, size))
                .map_err(|errno| hole_not_filled(range, errno))?;
        }
        mapped
    }

    /// Checks that the runtime can unmap a mapping again after a failed unmap, without unmapping a foreign mapping.
    /// From ROCm 7.2 on, an unmap of memory that the runtime has mapped for the CPU calls `munmap`, and then maps
    /// inaccessible pages. If that fails, the runtime still lists the CPU, so that the next unmap calls `munmap` again.
    /// Therefore also fills the address-space hole.
    ///
    /// # Errors
    /// [`ErrorKind::HoleNotFilled`] if the range contains a foreign mapping. A shared or inaccessible mapping cannot be
    /// told from the runtime's own.
    pub(super) fn prepare_second_unmap(&self, mapping: &MappedRange) -> Result<(), ErrorKind> {
        if !self.runtime_mapped_for_cpu(&mapping.access) {
            return Ok(());
        }
        let range @ AddressRange { start, size } = mapping.range();
        // With the quirk, the runtime does not fill the hole, and `keep_reserved` fills it after the next unmap.
        if !self.quirks.cpu_unmap_leaves_hole {
            // Fails if the failed unmap has left no hole.
            let _ = fill_hole(start, size);
        }
        match self.with_free_descriptor(true, || contains_private_mapping(start, size)) {
            true => Err(hole_not_filled(range, Errno::EXIST)),
            false => Ok(()),
        }
    }

    /// Unmaps adjacent whole mappings.
    ///
    /// # Safety
    /// The range is [locked](self), and mapped.
    pub(super) unsafe fn unmap_in_runtime(&self, range: AddressRange) -> Result<(), ErrorKind> {
        self.call_shared(|native| {
            // SAFETY: the caller guarantees that the range is locked and mapped. Code that still uses the memory
            // dereferences a dangling pointer, which requires `unsafe` there.
            unsafe { native.unmap(range.start, range.size) }
        })
        .map_err(|failure| ErrorKind::of_call(failure, range.size))
    }

    /// Returns whether the runtime has memory mapped at the addresses of a mapping. Queries the access of a GPU, because
    /// that of a CPU cannot be queried.
    pub(super) fn is_mapped_in_runtime(&self, mapping: &MappedRange) -> Result<bool, ErrorKind> {
        // Queries an address in the middle, because AMD's runtime also finds a mapping by the address at its end.
        let inside = mapping.start + mapping.size / 2;
        let Some(gpu) = self.runtime.gpus().next() else { return Err(Feature::Gpu.into()) };
        self.call_shared(|native| native.is_mapped(inside, gpu.native))
            .map_err(|failure| ErrorKind::of_call(failure, mapping.size))
    }

    /// Keeps the addresses of an unmapped range reserved and inaccessible. If the runtime has left an address-space
    /// hole, fills the hole. If the runtime has left the old memory, or if this library's view is in the range,
    /// replaces it by an inaccessible mapping. With `may_have_view`, a view that has lost its access may be in the range.
    /// If the process has reached a limit, so that the kernel does not replace the view, removes the view's access.
    ///
    /// # Errors
    /// [`ErrorKind::HoleNotFilled`], or the error of `mmap` if this library's view stays accessible, because the kernel
    /// could not change its access either.
    ///
    /// # Safety
    /// The range is [locked](self), or no other thread can use the ledger any more. The range was just unmapped.
    pub(super) unsafe fn keep_reserved(
        &self,
        mapping: &MappedRange,
        may_have_view: bool,
    ) -> Result<(), ErrorKind> {
        let range @ AddressRange { start, size } = mapping.range();
        let not_filled = |errno| hole_not_filled(range, errno);
        if self.quirks.cpu_unmap_leaves_hole && self.runtime_mapped_for_cpu(&mapping.access) {
            return fill_hole(start, size).map_err(not_filled);
        }
        if self.quirks.unmap_keeps_memory
            || may_have_view
            || self.library_mapped_for_cpu(&mapping.access)
            || self.may_keep_unused_view()
        {
            // SAFETY: the caller guarantees that the range is locked and was just unmapped. The runtime has left no
            // hole, so the call replaces only the runtime's inaccessible mapping or this library's view.
            let replace = || unsafe { replace_mapping(start, size) };
            let replaced = match replace() {
                Err(NotReplaced::Kept(_)) => self.with_free_descriptor(true, replace),
                result => result,
            };
            return match replaced {
                Ok(()) => Ok(()),
                Err(NotReplaced::Kept(errno)) => {
                    self.note_unused_view();
                    // SAFETY: as above. The old mapping is still there, or else, if the list of mappings cannot be read,
                    // the call removes the access to what is mapped there now (docs/attacks.md).
                    unsafe { self.protect_view(range, Access::None) }
                        .map_err(|_| ErrorKind::of_system("mmap", errno))
                }
                Err(NotReplaced::Failed(_)) => self.fill_hole_with_spare(range),
                Err(NotReplaced::Hole(errno)) => Err(not_filled(errno)),
            };
        }
        Ok(())
    }

    /// Unmaps a mapping whose state is unknown, and removes it from the ledger, so that its reservation can be freed.
    ///
    /// # Errors
    /// The error of the runtime's call; the errors of [`keep_reserved`](Self::keep_reserved) if the reservation must not
    /// be freed. The ledger then keeps the mapping.
    ///
    /// # Safety
    /// The mapping was in the ledger when the `Vmm` was dropped, and no other thread can use the ledger any more. If an
    /// operation has removed it since, the runtime has unmapped it, and rejects a second unmap.
    pub(super) unsafe fn unmap_at_drop(&self, mapping: &MappedRange) -> Result<(), ErrorKind> {
        let range = mapping.range();
        self.prepare_second_unmap(mapping)?;
        // SAFETY: no other thread changes the mapping. If the runtime does not have the mapping after a failed
        // rollback, it rejects the call.
        unsafe { self.unmap_in_runtime(range) }?;
        let Some(reservation) = self.ledger.reservations.find(range.start) else { return Ok(()) };
        // A rollback may have changed whether the runtime has mapped the memory for the CPU.
        let now = reservation.mappings().exact(range).unwrap_or(*mapping);
        // In a reservation with a hole, other code may have mapped memory at these addresses. Such a reservation is
        // not freed, so its addresses need not be kept.
        if !reservation.quarantined().is_some_and(|entry| entry.leaves_hole()) {
            // SAFETY: no other thread changes the range, which was just unmapped.
            unsafe { self.keep_reserved(&now, true) }?;
        }
        reservation.mappings_mut().remove(range.start);
        Ok(())
    }

    /// Returns the index of the GPU that owns the memory, if known. For the runtime, the owner of host memory is the
    /// GPU whose driver has allocated the memory; the library does not know which GPU this is.
    pub(super) fn gpu_owner(&self, mapping: &MappedRange) -> Option<u8> {
        mapping.owner.filter(|owner| !self.cpus.contains(usize::from(*owner)))
    }

    /// If the runtime must grant the owner access last, but the owner is unknown, returns the GPUs that may be the
    /// owner. Otherwise returns no GPU.
    pub(super) fn possible_owners(&self, mapping: &MappedRange) -> AgentSet {
        match self.quirks.peer_after_owner_fails && self.gpu_owner(mapping).is_none() {
            true => {
                let gpus = self.runtime.gpus().map(|gpu| gpu.id().index()).collect::<AgentSet>();
                gpus.intersection(mapping.access.requested.read)
            }
            false => AgentSet::NONE,
        }
    }
}
