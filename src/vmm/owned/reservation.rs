//! A reservation that is freed when its last owner is dropped.

use super::{Allocation, Mapping};
use crate::error::{Argument, Error, ErrorKind, Operation, Problem, Rejected};
use crate::vmm::ledger::AddressRange;
use crate::vmm::map::NewRange;
use crate::vmm::query::stored_name;
use crate::vmm::{Address, ExpectedMappings, ReservationRecord, Vmm};
use core::ops::Range;
use derive_more::Debug;
use std::sync::Arc;

/// Returns the size of a part of an allocation. Fails if its start is after its end.
pub(super) fn size_of(part: &Range<usize>) -> Result<usize, ErrorKind> {
    part.end.checked_sub(part.start).ok_or_else(|| {
        ErrorKind::invalid(Argument::Offset, part.start, Problem::StartAfterEnd(part.end))
    })
}

/// A reserved range of addresses. Clones share the reservation, and are cheap. The reservation is freed when the last
/// clone and the last [`Mapping`] in it are dropped.
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
#[derive(Clone, Debug)]
#[debug("Reservation({:#x} bytes at {})", self.size(), self.address())]
pub struct Reservation {
    inner: Arc<Inner>,
}

struct Inner {
    vmm: Vmm,
    reserved: Arc<ReservationRecord>,
}

/// The builder of a [`Reservation`]; see [`Reservation::builder`].
///
/// ```
/// # use hsa_vmm::{Reservation, Runtime, Vmm};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// # let vmm = Vmm::open(&runtime)?;
/// let reservation = Reservation::builder(64 << 20).aligned_to(1 << 30).reserve(&vmm)?;
/// assert_eq!(reservation.size(), 64 << 20);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is reserved before `reserve`"]
pub struct ReservationBuilder {
    size: usize,
    alignment: usize,
    address: Address,
    exact: bool,
}

impl ReservationBuilder {
    /// Aligns the start to a power of two, in bytes.
    pub fn aligned_to(mut self, alignment: usize) -> Self {
        self.alignment = alignment;
        self
    }

    /// Prefers a start address. If the address is in use or not aligned, the runtime chooses another address.
    pub fn near(mut self, address: Address) -> Self {
        (self.address, self.exact) = (address, false);
        self
    }

    /// Requires a start address; [`reserve`](Self::reserve) fails if the address is not available.
    pub fn exactly_at(mut self, address: Address) -> Self {
        (self.address, self.exact) = (address, true);
        self
    }

    /// Reserves the addresses (`hipMemAddressReserve`).
    ///
    /// # Errors
    /// As for [`Vmm::address_reserve`]; [`Problem::AddressTaken`] if the exact address is not available.
    pub fn reserve(self, vmm: &Vmm) -> Result<Reservation, Error> {
        let Self { size, alignment, address, exact } = self;
        let reserved = vmm.run(Operation::AddressReserve, |shared| {
            shared.reserve(size, alignment, address, exact)
        })?;
        Ok(Reservation { inner: Arc::new(Inner { vmm: vmm.clone(), reserved }) })
    }
}

impl Reservation {
    /// Returns a builder for a reservation of `size` bytes, a multiple of the granule.
    pub fn builder(size: usize) -> ReservationBuilder {
        ReservationBuilder { size, alignment: 0, address: Address::NULL, exact: false }
    }

    /// Returns the start address.
    pub fn address(&self) -> Address {
        self.inner.reserved.range().address()
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> usize {
        self.inner.reserved.size
    }

    /// Names the reservation in reports and logs. Has no effect on a reservation that was freed by its address.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        if !self.vmm().runtime().has_forked() {
            self.inner.reserved.mappings_mut().name = stored_name(name);
        }
        self
    }

    /// Returns the name; `None` if the reservation has no name or was freed by its address, and in a
    /// [forked child](crate::Runtime::has_forked).
    pub fn name(&self) -> Option<String> {
        if self.vmm().runtime().has_forked() || self.inner.reserved.is_freed() {
            return None;
        }
        self.inner.reserved.mappings().name.as_deref().map(str::to_owned)
    }

    /// Maps all of `allocation`, `offset` bytes from the start of the reservation (`hipMemMap`).
    ///
    /// # Errors
    /// As for [`Vmm::map`].
    pub fn map(&self, offset: usize, allocation: &Allocation) -> Result<Mapping, Error> {
        self.map_part(offset, allocation, 0..allocation.size())
    }

    /// Maps the bytes `part` of `allocation`, `offset` bytes from the start of the reservation (`hipMemMap`).
    ///
    /// Offset, start and end are multiples of the granule. A start other than 0 has a condition: see the offset of
    /// [`Vmm::map`].
    ///
    /// # Errors
    /// As for [`Vmm::map`].
    pub fn map_part(
        &self,
        offset: usize,
        allocation: &Allocation,
        part: Range<usize>,
    ) -> Result<Mapping, Error> {
        let allocation = allocation.clone();
        let (range, serial) = self.vmm().run(Operation::Map, |shared| {
            let size = size_of(&part)?;
            let range = self.part(offset, size)?;
            let handle = allocation.handle_of(self.vmm())?;
            let reservation = Some(self.serial());
            let mut new = [NewRange::new(range, part.start, handle, reservation)];
            let mapped = shared.unmap_and_map(Operation::Map, &[], ExpectedMappings::Any, &mut new);
            let address = self.address();
            mapped.map_err(|kind| kind.for_offset(Argument::Address, address))?;
            Ok((range, new[0].serial.get()))
        })?;
        let (address, size) = (range.address(), range.size);
        Ok(Mapping {
            reservation: self.clone(),
            allocation,
            address,
            size,
            serial,
            unmaps_on_drop: true,
        })
    }

    /// Frees the reservation now (`hipMemAddressFree`). Fails while clones of this value or mappings in the
    /// reservation exist.
    ///
    /// # Errors
    /// As for [`Vmm::address_free`]; the error contains the reservation.
    pub fn free(mut self) -> Result<(), Rejected<Self>> {
        let freed = match Arc::get_mut(&mut self.inner) {
            Some(inner) => inner.free(),
            None => Err(self.inner.still_in_use()),
        };
        freed.map_err(|error| Rejected { value: self, error })
    }

    /// Returns the range of `size` bytes at an offset. Fails if the range is empty, or not inside the
    /// reservation.
    pub(super) fn part(&self, offset: usize, size: usize) -> Result<AddressRange, ErrorKind> {
        // Another reservation may begin at the end of this reservation.
        Argument::Offset.check_bounds(offset, size, self.size())?;
        AddressRange::new(Address::new(self.address().get() + offset), size)
    }

    /// Returns the `Vmm` of the reservation.
    pub fn vmm(&self) -> &Vmm {
        &self.inner.vmm
    }

    pub(crate) fn serial(&self) -> u64 {
        self.inner.reserved.serial
    }

    /// Fails if the reservation is quarantined.
    pub(super) fn check_usable(&self) -> Result<(), ErrorKind> {
        self.inner.reserved.check_usable()
    }

    /// Returns whether the reservation was freed by its address.
    pub(crate) fn is_freed(&self) -> bool {
        self.inner.reserved.is_freed()
    }
}

impl Inner {
    fn free(&self) -> Result<(), Error> {
        let range = self.reserved.range();
        self.vmm.run(Operation::AddressFree, |shared| shared.free(&self.reserved, range))
    }

    /// Returns why the reservation cannot be freed; mappings are reported before clones, and quarantined mappings
    /// before others.
    fn still_in_use(&self) -> Error {
        let address = self.reserved.range().address();
        let invalid = |problem| ErrorKind::invalid(Argument::Address, address, problem);
        let kind = if self.vmm.runtime().has_forked() {
            ErrorKind::Forked
        } else if self.reserved.is_freed() {
            // Another reservation may have the addresses now.
            invalid(Problem::NotAReservation)
        } else {
            let mappings = self.reserved.mappings();
            let in_use = match mappings.len() {
                0 => invalid(Problem::InUse),
                count => invalid(Problem::StillMapped(count)),
            };
            mappings.check_none_quarantined().err().unwrap_or(in_use)
        };
        Error::new(Operation::AddressFree, kind)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Does not check `is_freed` first: another thread that is freeing the reservation by its address may fail.
        if !self.vmm.runtime().has_forked()
            // Tries twice, as a dropped mapping does: the first wait for GPUs may fail.
            && let Err(error) = self.free().or_else(|_| self.free())
            && error.problem() != Some(Problem::NotAReservation)
        {
            let address = self.reserved.range().address();
            crate::log::event!(WARN, %error, %address, "a reservation was not freed");
        }
    }
}
