//! Addresses that are freed when nobody needs them any more.

use super::{Allocation, Mapping};
use crate::Kept;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::vmm::Serial;
use crate::vmm::ledger::Range;
use crate::vmm::reserve::Placement;
use crate::vmm::{Address, Argument, Operation, Problem, Refusal, Vmm, VmmError};
use std::sync::Arc;

/// A reserved range of addresses. Cheap to clone; freed when the last clone and the last
/// [`Mapping`] in it are gone.
#[derive(Clone, Debug)]
pub struct Reservation {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    vmm: Vmm,
    address: Address,
    size: usize,
    serial: u64,
    freed: AtomicBool,
}

/// How a reservation is to be made; see [`Reservation::of`].
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is reserved before `reserve`"]
pub struct ReservationOptions {
    size: usize,
    alignment: usize,
    placement: Placement,
}

impl ReservationOptions {
    /// Aligns the start to a power of two, in bytes.
    pub fn aligned_to(mut self, alignment: usize) -> Self {
        self.alignment = alignment;
        self
    }

    /// Asks for an address, but takes another if that one is taken or not aligned.
    pub fn near(mut self, address: Address) -> Self {
        self.placement = Placement::Near(address);
        self
    }

    /// Insists on an address.
    pub fn exactly_at(mut self, address: Address) -> Self {
        self.placement = Placement::Exactly(address);
        self
    }

    /// Reserves (`hipMemAddressReserve`).
    ///
    /// # Errors
    /// As for [`Vmm::address_reserve`]; [`Problem::AddressTaken`] if the address insisted on is
    /// not to be had.
    pub fn reserve(self, vmm: &Vmm) -> Result<Reservation, VmmError> {
        let Self { size, alignment, placement } = self;
        let operation = Operation::AddressReserve;
        let (address, serial) = vmm.shared.reserve(operation, size, alignment, placement)?;
        let (vmm, freed) = (vmm.clone(), AtomicBool::new(false));
        Ok(Reservation { inner: Arc::new(Inner { vmm, address, size, serial, freed }) })
    }
}

impl Reservation {
    /// Begins a reservation of `size` bytes, a multiple of the granule.
    pub fn of(size: usize) -> ReservationOptions {
        ReservationOptions { size, alignment: 0, placement: Placement::Anywhere }
    }

    /// Where it begins.
    #[must_use]
    pub fn address(&self) -> Address {
        self.inner.address
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.inner.size
    }

    /// Names it in reports and logs. One that has been freed by its address meanwhile stays as it
    /// is.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let Inner { vmm, address, serial, .. } = &*self.inner;
        let _ = vmm.shared.name_reservation(*address, Some(*serial), name);
        self
    }

    /// What it is called, if it has a name. `None` in a
    /// [child of a fork](crate::Runtime::has_forked).
    #[must_use]
    pub fn name(&self) -> Option<String> {
        let Inner { vmm, address, serial, .. } = &*self.inner;
        let name = vmm.ledger()?.at(address.get(), |reserved| {
            let is_own = reserved.serial == *serial;
            if is_own { reserved.name() } else { None }
        });
        name?.as_deref().map(str::to_owned)
    }

    /// Maps all of `allocation`, `offset` bytes from the start (`hipMemMap`).
    ///
    /// # Errors
    /// As for [`Vmm::map`].
    pub fn map(&self, offset: usize, allocation: &Allocation) -> Result<Mapping, VmmError> {
        self.map_part(offset, allocation.size(), allocation)
    }

    /// Maps the first `size` bytes of `allocation`, `offset` bytes from the start (`hipMemMap`).
    ///
    /// # Errors
    /// As for [`Vmm::map`].
    pub fn map_part(
        &self,
        offset: usize,
        size: usize,
        allocation: &Allocation,
    ) -> Result<Mapping, VmmError> {
        let (address, serial) = self.map_unowned(offset, size, allocation)?;
        Ok(Mapping::new(self.clone(), allocation.clone(), address, size, serial))
    }

    /// Maps memory that the caller is to unmap, and returns what it knows the mapping by.
    pub(crate) fn map_unowned(
        &self,
        offset: usize,
        size: usize,
        allocation: &Allocation,
    ) -> Result<(Address, Serial), VmmError> {
        let operation = Operation::Map;
        let address = Address::new(self.part(operation, offset, size)?.start);
        let vmm = &self.inner.vmm;
        let handle = allocation.handle_of(operation, vmm)?;
        let serial = vmm
            .shared
            .map(address, size, 0, handle, 0, Some(self.serial()))
            .map_err(|error| error.about_offset(self.address()))?;
        Ok((address, serial))
    }

    /// Frees the reservation now, and says whether that worked. It fails while clones or
    /// mappings of it are there.
    ///
    /// # Errors
    /// As for [`Vmm::address_free`]; the reservation comes back with the error.
    pub fn free(self) -> Result<(), Kept<Self, VmmError>> {
        match Arc::try_unwrap(self.inner) {
            Ok(inner) => {
                inner.free().map_err(|error| Kept::new(Self { inner: Arc::new(inner) }, error))
            }
            Err(inner) => {
                let error = inner.still_needed();
                Err(Kept::new(Self { inner }, error))
            }
        }
    }

    /// The range of `size` bytes at an offset, if it is inside.
    pub(super) fn part(
        &self,
        operation: Operation,
        offset: usize,
        size: usize,
    ) -> Result<Range, VmmError> {
        let Inner { address, size: end, .. } = *self.inner;
        // Another reservation may begin where this one ends.
        if offset.checked_add(size).is_none_or(|last| last > end) {
            let problem = Problem::BeyondEnd { offset, size, end };
            return Err(Refusal::new(Argument::Offset, problem).during(operation));
        }
        Ok(Range { start: address.get() + offset, size })
    }

    pub(super) fn vmm(&self) -> &Vmm {
        &self.inner.vmm
    }

    pub(super) fn serial(&self) -> u64 {
        self.inner.serial
    }
}

impl Inner {
    fn free(&self) -> Result<(), VmmError> {
        let operation = Operation::AddressFree;
        let shared = &self.vmm.shared;
        shared.alive(operation)?;
        let range = Range { start: self.address.get(), size: self.size };
        shared.free(operation, range, Some(self.serial))?;
        self.freed.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Inner {
    /// Why it cannot be freed: mappings before clones.
    fn still_needed(&self) -> VmmError {
        let operation = Operation::AddressFree;
        let range = Range { start: self.address.get(), size: self.size };
        let shared = &self.vmm.shared;
        if let Err(error) = shared.alive(operation) {
            return error;
        }
        // The addresses may be another reservation's by now.
        let found = shared.ledger.at(range.start, |reserved| {
            let own = (reserved.serial == self.serial).then(|| reserved.mappings());
            own.map(|mappings| reserved.check_free(range, &mappings).err())
        });
        let refusal = match found.flatten() {
            Some(refusal) => refusal,
            None => Some(Refusal::new(Argument::Address, Problem::NotAReservation)),
        };
        refusal.unwrap_or(Refusal::new(Argument::Address, Problem::InUse)).during(operation)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.freed.load(Ordering::Relaxed)
            && !self.vmm.shared.runtime.has_forked()
            && let Err(error) = self.free()
        {
            crate::log::warning!(%error, address = %self.address, "a reservation was not freed");
        }
    }
}
