//! Queries by address, lists, and names. In a forked child, queries and lists return nothing. A thread of the parent
//! may have held a lock at the fork, and the child would wait for this lock forever.

use super::ledger::{AddressRange, Ledger, MappedRange, not_mapped};
use super::{
    Access, Address, Handle, Location, MappingInfo, ReservationRecord, Shared, Usage, Vmm,
};
use crate::error::{Argument, BrokenInvariant, Error, ErrorKind, Operation, Problem, Quarantined};
use crate::sync::lock;
use std::sync::Arc;

impl Vmm {
    /// Returns the mapping that contains an address, if any (`hipPointerGetAttributes`,
    /// `hipMemGetAddressRange`).
    pub fn mapping_at(&self, address: Address) -> Option<MappingInfo> {
        self.find_mapping(address).map(|it| self.describe(&it))
    }

    /// Returns the start and the size in bytes of the mapping that contains an address, if any
    /// (`hipMemGetAddressRange`). Unlike [`mapping_at`](Self::mapping_at), this method does not allocate and does not
    /// return the access.
    pub fn mapped_range_at(&self, address: Address) -> Option<(Address, usize)> {
        self.find_mapping(address).map(|it| (it.range().address(), it.size))
    }

    /// Returns the location of the memory that is mapped at an address, if any.
    pub fn location_at(&self, address: Address) -> Option<Location> {
        let handle = self.find_mapping(address)?.handle;
        // Another thread may have released the memory after the look-up.
        self.ledger()?.handles.with_live(handle, |record| record.properties.location)
    }

    /// Returns the start and the size in bytes of the reservation that contains an address, if any.
    pub fn reservation_at(&self, address: Address) -> Option<(Address, usize)> {
        let range = |it: &ReservationRecord| (it.range().address(), it.size);
        self.ledger()?.reservations.at(address.get(), range)
    }

    /// Returns the numbers of reservations, handles and mappings; zeros in a
    /// [forked child](crate::Runtime::has_forked).
    pub fn usage(&self) -> Usage {
        self.ledger().map(Ledger::usage).unwrap_or_default()
    }

    /// Lists the quarantined ranges and memory, with the reasons. The list is empty in a
    /// [forked child](crate::Runtime::has_forked).
    pub fn quarantined_ranges(&self) -> Vec<Quarantined> {
        if self.runtime().has_forked() {
            return Vec::new();
        }
        lock(&self.shared.quarantine_list).iter().map(|range| Quarantined::clone(range)).collect()
    }

    /// Checks the invariants of the library's own state.
    ///
    /// # Errors
    /// Names the invariant that does not hold. A broken invariant is a defect of this library. In a
    /// [forked child](crate::Runtime::has_forked), always returns an error, because the check is not possible there.
    pub fn check(&self) -> Result<(), BrokenInvariant> {
        let message = || "cannot check in a forked child; check in the parent".to_owned();
        let ledger = self.ledger().ok_or_else(|| BrokenInvariant(message()))?;
        ledger.check().map_err(BrokenInvariant)
    }

    /// Lists every mapping, by address, with the access of each agent. Empty in a
    /// [forked child](crate::Runtime::has_forked).
    pub fn mappings(&self) -> Vec<MappingInfo> {
        let Some(ledger) = self.ledger() else { return Vec::new() };
        ledger.reservations.snapshot(|all| {
            let all = all.iter().flat_map(|it| it.mappings.iter());
            all.map(|it| self.describe(&it)).collect()
        })
    }

    /// Lists every reservation, by address, with its size in bytes. Empty in a
    /// [forked child](crate::Runtime::has_forked).
    pub fn reservations(&self) -> Vec<(Address, usize)> {
        let Some(ledger) = self.ledger() else { return Vec::new() };
        ledger.reservations.snapshot(|all| {
            all.iter().map(|it| (it.reservation.range().address(), it.reservation.size)).collect()
        })
    }

    /// Names the reservation that contains an address. An empty name removes the name.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the address is not reserved.
    pub fn name_reservation(&self, address: Address, name: &str) -> Result<(), Error> {
        self.run(Operation::Name, |shared| {
            let set_name = |it: &ReservationRecord| it.mappings_mut().name = stored_name(name);
            let named = shared.ledger.reservations.at(address.get(), set_name);
            named.ok_or(ErrorKind::invalid(Argument::Address, address, Problem::NotReserved))
        })
    }

    /// Names the mapping that contains an address. An empty name removes the name.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if nothing is mapped at the address.
    pub fn name_mapping(&self, address: Address, name: &str) -> Result<(), Error> {
        self.run(Operation::Name, |shared| shared.name_mapping(address, None, name))
    }

    /// Names physical memory. An empty name removes the name.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a handle that was released, belongs to another `Vmm` or never existed.
    pub fn name_handle(&self, handle: Handle, name: &str) -> Result<(), Error> {
        self.run(Operation::Name, |shared| {
            shared.ledger.handles.with(handle, |record| record.name = stored_name(name))
        })
    }

    /// Returns the ledger; `None` in a forked child.
    pub(super) fn ledger(&self) -> Option<&Ledger> {
        (!self.runtime().has_forked()).then_some(&self.shared.ledger)
    }

    /// Returns whether the mapping that contains an address has this serial.
    pub(crate) fn has_mapping(&self, address: Address, serial: u64) -> bool {
        self.find_mapping(address).is_some_and(|it| it.serial == serial)
    }

    /// Returns whether the mapping with this serial, in the reservation that contains the address, is quarantined.
    pub(crate) fn has_quarantined(&self, address: Address, serial: u64) -> bool {
        let is_quarantined = self.ledger().and_then(|ledger| {
            let reservations = &ledger.reservations;
            reservations.at(address.get(), |it| it.mappings().quarantined(serial).is_some())
        });
        is_quarantined.unwrap_or(false)
    }

    fn find_mapping(&self, address: Address) -> Option<MappedRange> {
        let reservations = &self.ledger()?.reservations;
        reservations.at(address.get(), |reservation| reservation.mappings().at(address.get()))?
    }

    fn describe(&self, mapping: &MappedRange) -> MappingInfo {
        let agents = self.runtime().agents().iter().enumerate();
        let access = agents
            .map(|(index, agent)| (agent.id(), mapping.access.requested.get(index)))
            .filter(|&(_, access)| access != Access::None)
            .collect();
        let MappedRange { size, offset, .. } = *mapping;
        MappingInfo { address: mapping.range().address(), size, offset, access }
    }
}

impl Shared {
    /// Names a mapping. With a serial, the mapping must have this serial.
    pub(super) fn name_mapping(
        &self,
        address: Address,
        serial: Option<u64>,
        name: &str,
    ) -> Result<(), ErrorKind> {
        let named = self.ledger.reservations.at(address.get(), |reservation| {
            reservation.mappings_mut().set_name(address.get(), serial, stored_name(name))
        });
        named.unwrap_or_else(|| Err(not_mapped(address.get())))
    }

    /// Checks that the mappings of a range are the expected mappings.
    pub(super) fn check_mapped(
        &self,
        range: AddressRange,
        expected: super::ExpectedMappings<'_>,
    ) -> Result<(), ErrorKind> {
        let checked = self.ledger.reservations.at(range.start, |reservation| {
            reservation.check_usable()?;
            expected.check(range, reservation.mappings().overlapping(range))
        });
        checked.unwrap_or_else(|| Err(not_mapped(range.start)))
    }
}

/// Returns the name to store; `None` for an empty text, which removes a name.
pub(super) fn stored_name(text: &str) -> Option<Arc<str>> {
    (!text.is_empty()).then(|| text.into())
}
