//! Addresses that are freed when nobody needs them any more.

use super::{Allocation, Mapping};
use crate::error::{Argument, Error, ErrorKind, Operation, Problem, Rejected};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::vmm::ledger::{Range, Serial};
use crate::vmm::map::NewRange;
use crate::vmm::reserve::Placement;
use crate::vmm::{Address, Expected, Vmm};
use core::fmt;
use std::sync::Arc;

/// A reserved range of addresses. Cheap to clone; freed when the last clone and the last
/// [`Mapping`] in it are dropped.
///
/// ```
/// use hsa_vmm::{Reservation, Runtime, Vmm};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// let vmm = Vmm::open(&runtime)?;
/// let reservation = Reservation::builder(64 << 20).aligned_to(1 << 30).reserve(&vmm)?;
/// assert_eq!(reservation.address().get() % (1 << 30), 0);
/// reservation.free()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Reservation {
    inner: Arc<Inner>,
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { address, size, .. } = &*self.inner;
        f.debug_struct("Reservation")
            .field("address", address)
            .field("size", size)
            .finish_non_exhaustive()
    }
}

struct Inner {
    vmm: Vmm,
    address: Address,
    size: usize,
    serial: u64,
    freed: AtomicBool,
}

/// A reservation to be made; see [`Reservation::builder`].
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is reserved before `reserve`"]
pub struct ReservationBuilder {
    size: usize,
    alignment: usize,
    placement: Placement,
}

impl ReservationBuilder {
    /// Aligns the start to a power of two, in bytes.
    pub fn aligned_to(mut self, alignment: usize) -> Self {
        self.alignment = alignment;
        self
    }

    /// Prefers an address; another is chosen if that one is in use or not aligned.
    pub fn near(mut self, address: Address) -> Self {
        self.placement = Placement::Near(address);
        self
    }

    /// Requires an address.
    pub fn exactly_at(mut self, address: Address) -> Self {
        self.placement = Placement::Exactly(address);
        self
    }

    /// Reserves (`hipMemAddressReserve`).
    ///
    /// # Errors
    /// As for [`Vmm::address_reserve`]; [`Problem::AddressTaken`] if the exact address is not available.
    pub fn reserve(self, vmm: &Vmm) -> Result<Reservation, Error> {
        let Self { size, alignment, placement } = self;
        let reserved =
            vmm.run(Operation::AddressReserve, |shared| shared.reserve(size, alignment, placement));
        let (address, serial) = reserved?;
        let (vmm, freed) = (vmm.clone(), AtomicBool::new(false));
        Ok(Reservation { inner: Arc::new(Inner { vmm, address, size, serial, freed }) })
    }
}

impl Reservation {
    /// Returns a builder for a reservation of `size` bytes, a multiple of the granule.
    pub fn builder(size: usize) -> ReservationBuilder {
        ReservationBuilder { size, alignment: 0, placement: Placement::Anywhere }
    }

    /// Returns its start address.
    #[must_use]
    pub fn address(&self) -> Address {
        self.inner.address
    }

    /// Returns its size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.inner.size
    }

    /// Names it in reports and logs. One that was freed by its address meanwhile keeps its name.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let Inner { vmm, address, serial, .. } = &*self.inner;
        let _ = vmm
            .run(Operation::Name, |shared| shared.name_reservation(*address, Some(*serial), name));
        self
    }

    /// Returns its name, if it has one. `None` in a
    /// [child of a fork](crate::Runtime::has_forked).
    #[must_use]
    pub fn name(&self) -> Option<String> {
        let Inner { vmm, address, serial, .. } = &*self.inner;
        let name = vmm.ledger()?.reservations.at(address.get(), |reservation| {
            let is_own = reservation.serial == *serial;
            if is_own { reservation.mappings().name.clone() } else { None }
        });
        name?.as_deref().map(str::to_owned)
    }

    /// Maps all of `allocation`, `offset` bytes from the start (`hipMemMap`).
    ///
    /// # Errors
    /// As for [`Vmm::map`].
    pub fn map(&self, offset: usize, allocation: &Allocation) -> Result<Mapping, Error> {
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
    ) -> Result<Mapping, Error> {
        let Inner { vmm, address, serial, .. } = &*self.inner;
        let mapped = vmm.run(Operation::Map, |shared| {
            let range = self.part(offset, size)?;
            let range = Range::new(range.address(), size)?;
            let handle = allocation.handle_of(vmm)?;
            let new = NewRange { range, handle, access: &[], reservation: Some(*serial) };
            let mapped = shared.replace(Operation::Map, &[], Expected::Any, &[new]);
            Ok((
                range.address(),
                mapped.map_err(|kind| kind.about_offset(Argument::Address, *address))?,
            ))
        });
        let (address, serials) = mapped?;
        // One range makes one mapping.
        let serial = serials.first().copied().unwrap_or(Serial { reservation: 0, mapping: 0 });
        Ok(Mapping::new(self.clone(), allocation.clone(), address, size, serial))
    }

    /// Frees the reservation now (`hipMemAddressFree`). Fails while clones or mappings of it exist.
    ///
    /// # Errors
    /// As for [`Vmm::address_free`]; the reservation is returned with the error.
    pub fn free(self) -> Result<(), Rejected<Self>> {
        match Arc::try_unwrap(self.inner) {
            Ok(inner) => inner
                .free()
                .map_err(|error| Rejected { value: Self { inner: Arc::new(inner) }, error }),
            Err(inner) => {
                let error = inner.still_in_use();
                Err(Rejected { value: Self { inner }, error })
            }
        }
    }

    /// Returns the range of `size` bytes at an offset, if it is inside.
    pub(super) fn part(&self, offset: usize, size: usize) -> Result<Range, ErrorKind> {
        let Inner { address, size: end, .. } = *self.inner;
        // Another reservation may begin where this one ends.
        if offset.checked_add(size).is_none_or(|last| last > end) {
            let problem = Problem::OutOfBounds { size, end };
            return Err(ErrorKind::invalid(Argument::Offset, offset, problem));
        }
        Ok(Range { start: address.get() + offset, size })
    }

    /// Returns the `Vmm` that it belongs to.
    #[must_use]
    pub fn vmm(&self) -> &Vmm {
        &self.inner.vmm
    }

    pub(super) fn serial(&self) -> u64 {
        self.inner.serial
    }
}

impl Inner {
    fn range(&self) -> Range {
        Range { start: self.address.get(), size: self.size }
    }

    fn free(&self) -> Result<(), Error> {
        self.vmm
            .run(Operation::AddressFree, |shared| shared.free(self.range(), Some(self.serial)))?;
        self.freed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Returns why it cannot be freed: mappings before clones.
    fn still_in_use(&self) -> Error {
        let invalid = |problem| ErrorKind::invalid(Argument::Address, self.address, problem);
        let refused = self.vmm.run(Operation::AddressFree, |shared| {
            let count = shared.ledger.reservations.at(self.address.get(), |reservation| {
                (reservation.serial == self.serial).then(|| reservation.mappings().len())
            });
            // The addresses may be another reservation's by now.
            Err::<(), _>(invalid(match count.flatten() {
                None => Problem::NotAReservation,
                Some(0) => Problem::InUse,
                Some(mappings) => Problem::StillMapped(mappings),
            }))
        });
        refused.err().unwrap_or(Error::new(Operation::AddressFree, invalid(Problem::InUse)))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.freed.load(Ordering::Relaxed)
            && !self.vmm.runtime().has_forked()
            && let Err(error) = self.free()
        {
            crate::log::warning!(%error, address = %self.address, "a reservation was not freed");
        }
    }
}
