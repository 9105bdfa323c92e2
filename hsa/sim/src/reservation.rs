//! Reservations: real address ranges of the process.

use crate::address_space::{self, PAGE, Protection};
use crate::generation::Behaviour;
use crate::instance::{Instance, State};
use crate::physical::Memory;
use crate::ranges::Ranges;
use crate::status::{HsaResult, non_null};
use core::ffi::c_void;
use hsa_faults::FaultKind;
use hsa_sys::*;
use std::ops::Range;
use std::sync::Arc;

/// The size of a huge page. Allocations of at least this size are aligned to it. Reservations of at least this size are
/// aligned to it too, except at the caller's hint or with NO_REGISTER.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// A reserved range. Its start is the key in [`State::reservations`].
#[derive(Debug)]
pub(crate) struct Reservation {
    pub(crate) size: usize,
    /// The reserved range of the process, including the padding that was not trimmed.
    padded: Range<usize>,
    /// False if the release honours NO_REGISTER and the reservation has this flag. The range is then ordinary memory of
    /// the process, which is not registered with any GPU.
    registered: bool,
    /// The number of mappings in the range.
    pub(crate) mapping_count: usize,
    /// Address-space holes: parts that the runtime unmapped. Other code may have created mappings
    /// in them.
    pub(crate) holes: Ranges<()>,
    /// Memory that still counts as used after unmap (generation B), by the mappings that keep it in use.
    pub(crate) lingering: Ranges<Arc<Memory>>,
}

impl Reservation {
    pub(crate) fn is_registered(&self) -> bool {
        self.registered
    }
}

impl State {
    /// Finds the reservation that contains an address. Returns its base and the reservation.
    pub(crate) fn reservation_at(&self, address: usize) -> Option<(usize, &Reservation)> {
        let (base, reservation) = self.reservations.range(..=address).next_back()?;
        (address - base < reservation.size).then_some((*base, reservation))
    }

    /// Returns the base of the reservation that contains a range. As in AMD's runtime, a range that
    /// wraps around passes the check, because its end is below the end of the reservation. Some
    /// releases reject a range that wraps around if the range starts after the reservation.
    pub(crate) fn reservation_around(
        &self,
        behaviour: Behaviour,
        address: usize,
        size: usize,
    ) -> Option<usize> {
        let (base, reservation) = self.reservations.range(..=address).next_back()?;
        let end = base + reservation.size;
        let start_is_valid = behaviour.ranges_may_wrap() || address <= end;
        (start_is_valid && address.wrapping_add(size) <= end).then_some(*base)
    }

    /// Counts an unmap call; drops replaced memory at some of them. Otherwise the files of this memory would stay open,
    /// and the process would run out of descriptors.
    pub(crate) fn drop_replaced_memory_sometimes(&mut self) {
        match self.unmaps_until_drop.checked_sub(1) {
            Some(left) => self.unmaps_until_drop = left,
            None => self.drop_replaced_memory(),
        }
    }

    /// Drops the lingering memory whose mappings other code has replaced: the kernel has freed it. If the kernel's list
    /// of mappings cannot be read, drops nothing.
    pub(crate) fn drop_replaced_memory(&mut self) {
        self.unmaps_until_drop = 16;
        if self.reservations.values().all(|it| it.lingering.values().next().is_none()) {
            return;
        }
        let Ok(shared) = address_space::shared_ranges() else { return };
        // The longer it takes to read the list, the less often that happens.
        self.unmaps_until_drop = shared.len().max(16);
        for reservation in self.reservations.values_mut() {
            reservation.lingering.retain(|range| {
                let next = shared.partition_point(|it| it.end <= range.start);
                shared.get(next).is_some_and(|it| it.start < range.end)
            });
        }
    }
}

/// Returns the parts of a reservation that are still mapped: all parts except the holes.
pub(crate) fn mapped_ranges(base: usize, reservation: &Reservation) -> Vec<Range<usize>> {
    let Reservation { padded, holes, .. } = reservation;
    let mut mapped = holes.gaps(padded.clone());
    mapped.retain(|range| !range.is_empty());
    debug_assert!(padded.contains(&base));
    mapped
}

/// `hsa_amd_vmem_address_reserve`
///
/// # Safety
/// `address` must be null or writable.
pub(crate) unsafe fn reserve(
    instance: &Instance,
    address: *mut *mut c_void,
    size: usize,
    hint: u64,
    flags: u64,
) -> HsaResult {
    // SAFETY: both functions have the same contract.
    unsafe { reserve_align(instance, address, size, hint, PAGE as u64, flags) }
}

/// `hsa_amd_vmem_address_reserve_align`
///
/// # Safety
/// `address` must be null or writable.
pub(crate) unsafe fn reserve_align(
    instance: &Instance,
    address: *mut *mut c_void,
    size: usize,
    hint: u64,
    alignment: u64,
    flags: u64,
) -> HsaResult {
    let address = non_null(address)?;
    if size == 0 {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    let behaviour = instance.behaviour;
    if behaviour.reserve_checks_arguments()
        && (!size.is_multiple_of(PAGE)
            || alignment < PAGE as u64
            || !alignment.is_power_of_two()
            || flags & !u64::from(HSA_AMD_VMEM_ADDRESS_NO_REGISTER) != 0)
    {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    let hint = hint as usize;
    let alignment = if alignment == 0 { PAGE } else { alignment as usize };
    let unregistered =
        behaviour.honours_no_register() && flags & u64::from(HSA_AMD_VMEM_ADDRESS_NO_REGISTER) != 0;
    if !unregistered && !instance.config.vmem {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    let mut state = instance.lock();
    let (base, padded) = if unregistered {
        reserve_unregistered(behaviour, size, hint, alignment)
    } else {
        reserve_registered(instance, size, hint, alignment)
    }
    .ok_or(HSA_STATUS_ERROR_OUT_OF_RESOURCES)?;
    let reservation = Reservation {
        size,
        padded,
        registered: !unregistered,
        mapping_count: 0,
        holes: Ranges::default(),
        lingering: Ranges::default(),
    };
    state.reservations.insert(base, reservation);
    // SAFETY: not null, therefore writable (`# Safety`).
    unsafe { address.write(core::ptr::without_provenance_mut(base)) };
    Ok(())
}

/// The base of a reservation, and its range with padding (`Reservation::padded`).
type ReservedRange = (usize, Range<usize>);

fn reserve_registered(
    instance: &Instance,
    size: usize,
    hint: usize,
    alignment: usize,
) -> Option<ReservedRange> {
    let whole_pages = size.is_multiple_of(PAGE);
    let aligned = alignment >= PAGE && alignment.is_power_of_two();
    let allowed = size < instance.behaviour.reservation_limit();
    // GPUs manage the addresses, so at least one GPU is needed.
    if !whole_pages || !aligned || !allowed || instance.config.gpus.is_empty() {
        return None;
    }
    let access = if instance.behaviour.reservations_are_memory() {
        Protection::ReadWrite
    } else {
        Protection::None
    };
    // AMD's runtime uses the addresses at the hint if they are free, even if their alignment is
    // wrong.
    let hinted = (hint != 0 && hint.is_multiple_of(PAGE))
        .then(|| address_space::reserve_at(hint, size, access))
        .flatten();
    let base = hinted.or_else(|| {
        let alignment = alignment.max(natural_alignment(size));
        address_space::reserve(size, alignment, access).ok()
    })?;
    Some((base, base..base + size))
}

/// Returns the largest power of two not above `size`, at most the size of a huge page.
fn natural_alignment(size: usize) -> usize {
    let power = 1 << size.ilog2();
    power.clamp(PAGE, HUGE_PAGE)
}

fn reserve_unregistered(
    behaviour: Behaviour,
    size: usize,
    hint: usize,
    alignment: usize,
) -> Option<ReservedRange> {
    // AMD's runtime computes a wrong address for any other alignment.
    if alignment < PAGE || !alignment.is_power_of_two() {
        return None;
    }
    let needed = size.checked_add(alignment - PAGE)?;
    let total =
        if behaviour.no_register_trims() { needed.checked_add(alignment - PAGE)? } else { needed };
    let start = address_space::reserve_near(hint, total, Protection::ReadWrite).ok()?;
    let base = start.next_multiple_of(alignment);
    if size >= HUGE_PAGE {
        address_space::advise_huge_pages(base, size);
    }
    let end = start + total.next_multiple_of(PAGE);
    if !behaviour.no_register_trims() {
        return Some((base, start..end));
    }
    let kept = base..(base + needed).next_multiple_of(PAGE);
    // SAFETY: both released ranges are part of the new mapping, and outside of the returned range.
    unsafe {
        address_space::release(start, kept.start - start);
        address_space::release(kept.end, end - kept.end);
    }
    Some((base, kept))
}

/// `hsa_amd_vmem_address_free`
///
/// # Safety
/// The range must no longer be in use. The call unmaps the whole range, including mappings that
/// other code created in the range's holes.
pub(crate) unsafe fn free(instance: &Instance, address: *mut c_void, size: usize) -> HsaResult {
    if address.is_null() || size == 0 {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    let base = address.addr();
    let mut state = instance.lock();
    let reservation = state.reservations.get(&base).ok_or(HSA_STATUS_ERROR_INVALID_ALLOCATION)?;
    if reservation.size != size {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    if reservation.mapping_count > 0 {
        return Err(HSA_STATUS_ERROR_RESOURCE_FREE);
    }
    let Some(Reservation { padded, registered, .. }) = state.reservations.remove(&base) else {
        return Err(HSA_STATUS_ERROR_INVALID_ALLOCATION);
    };
    let freed = if !registered && instance.behaviour.no_register_free_leaks() {
        // Frees the requested size, counted from the start of the padded range instead of from the base.
        let end = (padded.start + size).next_multiple_of(PAGE);
        state.leaked_ranges.push(end..padded.end);
        padded.start..end
    } else {
        padded
    };
    if instance.has_fault(FaultKind::Leak) {
        state.leaked_ranges.push(freed);
        return Ok(());
    }
    // SAFETY: this instance has reserved the range. The caller promises that the range is no longer in use.
    unsafe { address_space::release(freed.start, freed.len()) };
    Ok(())
}
