//! Reserves and frees addresses.

use super::ledger::{AddressRange, ReservationRecord};
use super::runtime_mapping::hole_not_filled;
use super::{Address, Shared, Vmm};
use crate::error::{Argument, Error, ErrorKind, Operation, Problem};
use crate::native::block_access;
use rustix::io::Errno;
use std::sync::Arc;

/// The lowest start address that the library requests from the runtime. AMD's user-space driver can reserve addresses
/// below the first GPU address, but cannot free them. The first GPU address is 16 MiB in older kernel drivers
/// (`SVM_USER_BASE`), and 2 MiB in newer drivers.
const MIN_ADDRESS: usize = 16 << 20;

impl Vmm {
    /// Reserves an empty range of addresses (`hipMemAddressReserve`,
    /// `hsa_amd_vmem_address_reserve_align`).
    ///
    /// `size` is in bytes, a multiple of the granule; `alignment` is a power of two, or 0 for the granule. `hint` is
    /// the preferred start. If the hint is not free or not aligned, the range begins at another address, without an
    /// error.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a size that is zero or not a multiple of the granule, or an
    /// alignment that is not a power of two; [`ErrorKind::OutOfMemory`] if there is no such range;
    /// [`ErrorKind::Quarantined`] if the runtime reserves an unsuitable range, and fails to free it, if other code may have
    /// mapped memory in the range (ROCm 6.1, [`ErrorKind::HoleNotFilled`]), or if the runtime reserves addresses of
    /// another reservation ([`ErrorKind::ReservedTwice`]). In the last case, the call quarantines the other reservation,
    /// and the runtime keeps the new range reserved.
    pub fn address_reserve(
        &self,
        size: usize,
        alignment: usize,
        hint: Option<Address>,
    ) -> Result<Address, Error> {
        self.run(Operation::AddressReserve, |shared| {
            let reserved = shared.reserve(size, alignment, hint.unwrap_or_default(), false)?;
            Ok(reserved.range().address())
        })
    }

    /// Reserves `size` bytes of addresses exactly at `address`. HIP has no such call.
    ///
    /// # Errors
    /// As for [`address_reserve`](Self::address_reserve); [`ErrorKind::InvalidArgument`] with
    /// [`Problem::AddressTaken`] if the address is not available. Addresses below 16 MiB never are.
    pub fn address_reserve_at(&self, address: Address, size: usize) -> Result<Address, Error> {
        self.run(Operation::AddressReserve, |shared| {
            Ok(shared.reserve(size, 0, address, true)?.range().address())
        })
    }

    /// Frees a reservation (`hipMemAddressFree`, `hsa_amd_vmem_address_free`).
    ///
    /// `address` and `size` must be exactly those of the reservation, and the reservation must contain no mapping.
    ///
    /// The library removes its record of the reservation before it calls the runtime. If the runtime fails, the
    /// reservation is recorded again. In between, other threads' calls find no reservation, although it exists
    /// afterwards.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if no reservation starts at the address, the reservation has another size, or
    /// something is mapped in it; [`ErrorKind::Quarantined`] if the reservation or a mapping in it is
    /// quarantined, because such a reservation is never freed.
    pub fn address_free(&self, address: Address, size: usize) -> Result<(), Error> {
        self.run(Operation::AddressFree, |shared| {
            let range = AddressRange::new(address, size)?;
            let found = shared.ledger.reservations.find(range.start);
            let found = found.filter(|it| it.base == range.start);
            shared.free(&found.ok_or_else(|| not_a_reservation(range))?, range)
        })
    }
}

impl Shared {
    /// Reserves addresses, at `preferred` if possible. If `exact`, fails if `preferred` is not available.
    pub(super) fn reserve(
        &self,
        size: usize,
        alignment: usize,
        preferred: Address,
        exact: bool,
    ) -> Result<Arc<ReservationRecord>, ErrorKind> {
        let granule = self.granule;
        Argument::Size.check_not_zero(size)?;
        Argument::Size.check_multiple(size, granule)?;
        if alignment != 0 && !alignment.is_power_of_two() {
            return Err(ErrorKind::invalid(Argument::Alignment, alignment, Problem::NotPowerOfTwo));
        }
        let alignment = alignment.max(granule);
        let hint = if preferred.get() < MIN_ADDRESS { 0 } else { preferred.get() };
        let address_taken = ErrorKind::invalid(Argument::Address, preferred, Problem::AddressTaken);
        if exact {
            AddressRange::new(preferred, size)?;
            if hint == 0 || hint % alignment != 0 {
                return Err(address_taken);
            }
        }
        let mut start = match self.reserve_near(hint, size, alignment) {
            // A hint never causes an error.
            Err(_) if hint != 0 && !exact => self.reserve_near(0, size, alignment)?,
            reserved => reserved?,
        };
        if exact && start != hint {
            // SAFETY: the range was just reserved.
            unsafe { self.unreserve(start, size) }?;
            return Err(address_taken);
        }
        // AMD's runtime ignores the alignment if the hint is free.
        if start % alignment != 0 {
            // SAFETY: the range was just reserved.
            unsafe { self.unreserve(start, size) }?;
            start = self.reserve_near(0, size, alignment)?;
        }
        // SAFETY: the range was just reserved.
        unsafe { self.insert_reservation(AddressRange { start, size }) }
    }

    /// Adds to the ledger a range that the runtime has reserved.
    ///
    /// # Safety
    /// The runtime has just reserved the range, and nothing is mapped in it.
    unsafe fn insert_reservation(
        &self,
        range: AddressRange,
    ) -> Result<Arc<ReservationRecord>, ErrorKind> {
        // A runtime that cannot align reservations (ROCm 6.1) also leaves reserved addresses writable. A
        // reservation must not be accessible.
        if !self.native().reserves_aligned() {
            // SAFETY: the caller guarantees that the range was just reserved, so that no other code uses it.
            match unsafe { block_access(range.start, range.size) } {
                Ok(_) => (),
                // At the kernel's limit of mappings, nothing was changed.
                Err(Errno::NOMEM) => {
                    // SAFETY: the caller guarantees that the range was just reserved, and that nothing is mapped in it.
                    unsafe { self.unreserve(range.start, range.size) }?;
                    return Err(ErrorKind::of_system("mprotect", Errno::NOMEM));
                }
                // Another thread may have mapped memory in the range, which freeing the range would unmap.
                Err(errno) => {
                    let failure = hole_not_filled(range, errno);
                    let range =
                        self.list_quarantine(Operation::AddressReserve, range, failure, None);
                    return Err(ErrorKind::Quarantined { range, now: true });
                }
            }
        }
        self.ledger.reservations.insert(range).map_err(|first_overlap| {
            // The runtime has returned addresses that overlap another reservation of this library. This can only
            // happen if the runtime has left a hole in the other reservation.
            let other = self.ledger.reservations.find(first_overlap);
            let failure = ErrorKind::ReservedTwice(Address::new(first_overlap));
            let quarantined_range = other.as_ref().map_or(range, |it| it.range());
            let range =
                self.list_quarantine(Operation::AddressReserve, quarantined_range, failure, None);
            if let Some(reservation) = other {
                reservation.mark_quarantined(range.clone());
            }
            ErrorKind::Quarantined { range, now: true }
        })
    }

    /// Reserves addresses. With hint 0, the result is aligned, even if the runtime does not support alignment, or
    /// ignores the alignment. With another hint, the result can be at another address and unaligned; the caller checks
    /// both.
    fn reserve_near(&self, hint: usize, size: usize, alignment: usize) -> Result<usize, ErrorKind> {
        let call = self.native().reserve_function();
        let not_found = ErrorKind::OutOfMemory { call, status: None, size };
        let failed = |failure| ErrorKind::of_call(failure, size);
        // AMD's runtimes 6.4 and 7.2 would wrongly succeed, because rounding up such a size overflows.
        if size > isize::MAX as usize {
            return Err(not_found);
        }
        let reserve = |hint, size| self.native().address_reserve(size, hint, alignment);
        let address = reserve(hint, size).map_err(failed)?;
        if address % alignment == 0 || hint != 0 {
            return Ok(address);
        }
        // SAFETY: the range was just reserved.
        unsafe { self.unreserve(address, size) }?;
        // Reserves a range that is larger by `alignment`, so that it contains an aligned part of `size` bytes. Frees
        // the range, and reserves the aligned part. Tries again if another thread has reserved that part first.
        let larger_size = size.checked_add(alignment).filter(|&it| it <= isize::MAX as usize);
        let Some(larger_size) = larger_size else { return Err(not_found) };
        let mut last_error = not_found;
        for _ in 0..16 {
            let larger_start = reserve(0, larger_size).map_err(failed)?;
            // SAFETY: the range was just reserved.
            unsafe { self.unreserve(larger_start, larger_size) }?;
            match reserve(larger_start.next_multiple_of(alignment), size) {
                Ok(address) if address % alignment == 0 => return Ok(address),
                // SAFETY: the range was just reserved.
                Ok(address) => unsafe { self.unreserve(address, size) }?,
                Err(failure) => last_error = failed(failure),
            }
        }
        Err(last_error)
    }

    /// Frees addresses that the ledger does not contain yet. If the runtime fails to free the addresses, lists them as
    /// quarantined, and returns [`ErrorKind::Quarantined`].
    ///
    /// # Safety
    /// The runtime has just reserved exactly this range, and nothing is mapped in it.
    unsafe fn unreserve(&self, start: usize, size: usize) -> Result<(), ErrorKind> {
        // SAFETY: the caller guarantees that exactly this range is reserved, and that nothing is mapped in it.
        let freed = unsafe { self.native().address_free(start, size) };
        freed.map_err(|failure| {
            let (range, failure) =
                (AddressRange { start, size }, ErrorKind::of_call(failure, size));
            let range = self.list_quarantine(Operation::AddressReserve, range, failure, None);
            ErrorKind::Quarantined { range, now: true }
        })
    }

    /// Frees a reservation. Fails if its range is not exactly `range`.
    pub(super) fn free(
        &self,
        reservation: &Arc<ReservationRecord>,
        range: AddressRange,
    ) -> Result<(), ErrorKind> {
        reservation.check_lockable()?;
        let guard = reservation.lock();
        reservation.check_usable()?;
        // Another thread may have freed the reservation before it was locked.
        let guard = guard.ok_or_else(|| not_a_reservation(range))?;
        guard.check_free(range)?;
        self.wait_for_gpus_if_due()?;
        // Removes the reservation first, because another thread may reserve the addresses as soon as the
        // runtime has freed them.
        self.ledger.reservations.remove(&guard);
        // SAFETY: exactly this range is reserved and contains no mapping, and no other thread finds it.
        let freed = unsafe { self.native().address_free(range.start, range.size) };
        freed.map_err(|failure| {
            self.ledger.reservations.restore(reservation.clone());
            ErrorKind::of_call(failure, range.size)
        })
    }
}

fn not_a_reservation(range: AddressRange) -> ErrorKind {
    ErrorKind::invalid(Argument::Address, range.address(), Problem::NotAReservation)
}
