//! What is at an address, and names. In a child of a fork, whose parent may have held the locks, nothing
//! is found.

use super::ledger::{Ledger, MappingRecord, Range, Serial, not_mapped};
use super::{Access, Address, Handle, Location, MappingInfo, Physical, Shared, Usage, Vmm};
use crate::error::{Argument, BrokenInvariant, Error, ErrorKind, Operation, Problem, Quarantined};
use std::sync::Arc;

impl Vmm {
    /// Returns the mapping that contains an address, if one does (`hipPointerGetAttributes`,
    /// `hipMemGetAddressRange`).
    #[must_use]
    pub fn mapping_at(&self, address: Address) -> Option<MappingInfo> {
        let (start, record) = self.mapping_record_at(address)?;
        Some(self.describe(start, &record))
    }

    /// Returns start and size in bytes of the mapping that contains an address, if one does
    /// (`hipMemGetAddressRange`): [`mapping_at`](Self::mapping_at) without access, and without allocating.
    #[must_use]
    pub fn mapped_range_at(&self, address: Address) -> Option<(Address, usize)> {
        let (start, record) = self.mapping_record_at(address)?;
        Some((Address::new(start), record.size))
    }

    /// Returns whose memory is mapped at an address, if any is.
    #[must_use]
    pub fn location_at(&self, address: Address) -> Option<Location> {
        let ledger = self.ledger()?;
        let owner = ledger.reservations.at(address.get(), |reservation| {
            let mappings = reservation.mappings();
            let (_, record) = mappings.at(address.get())?;
            ledger.handles.with_live(record.handle, |record| record.payload.owner)
        })??;
        let agent = owner.and_then(|owner| self.runtime().agents().get(owner));
        Some(agent.map_or(Location::Unknown, |agent| Location::Agent(agent.id())))
    }

    /// Returns start and size in bytes of the reservation that contains an address, if one does.
    #[must_use]
    pub fn reservation_at(&self, address: Address) -> Option<(Address, usize)> {
        let range = |it: &super::ledger::Reservation| (Address::new(it.base), it.size);
        self.ledger()?.reservations.at(address.get(), range)
    }

    /// Counts what is held. Zeros in a [child of a fork](crate::Runtime::has_forked).
    #[must_use]
    pub fn usage(&self) -> Usage {
        let counts = self.ledger().map(Ledger::counts);
        let (reservations, handles, mappings) = counts.unwrap_or_default();
        Usage { reservations, handles, mappings }
    }

    /// Lists ranges that are never used again, and why. Empty in a
    /// [child of a fork](crate::Runtime::has_forked).
    #[must_use]
    pub fn quarantine(&self) -> Vec<Quarantined> {
        if self.runtime().has_forked() {
            return Vec::new();
        }
        self.shared.quarantined().iter().map(|range| Quarantined::clone(range)).collect()
    }

    /// Checks the invariants of the library's own state.
    ///
    /// # Errors
    /// The invariant that does not hold: a defect of this library. Also an error in a
    /// [child of a fork](crate::Runtime::has_forked), where nothing can be checked.
    pub fn check(&self) -> Result<(), BrokenInvariant> {
        let forked = || "cannot check in a child of a fork; check in the parent".to_owned();
        let ledger = self.ledger().ok_or_else(|| BrokenInvariant(forked()))?;
        ledger.check().map_err(BrokenInvariant)
    }

    /// Lists every mapping, by address, and what each agent may do. Empty in a
    /// [child of a fork](crate::Runtime::has_forked).
    #[must_use]
    pub fn mappings(&self) -> Vec<MappingInfo> {
        let Some(ledger) = self.ledger() else { return Vec::new() };
        ledger.reservations.snapshot(|all| {
            let all = all.iter().flat_map(|it| it.mappings.iter());
            all.map(|(start, record)| self.describe(start, &record)).collect()
        })
    }

    /// Lists every reservation, by address, with its size in bytes. Empty in a
    /// [child of a fork](crate::Runtime::has_forked).
    #[must_use]
    pub fn reservations(&self) -> Vec<(Address, usize)> {
        let Some(ledger) = self.ledger() else { return Vec::new() };
        ledger.reservations.snapshot(|all| {
            all.iter().map(|it| (Address::new(it.reservation.base), it.reservation.size)).collect()
        })
    }

    /// Names the reservation around an address. An empty name removes the name.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the address is not reserved.
    pub fn name_reservation(&self, address: Address, name: &str) -> Result<(), Error> {
        self.run(Operation::Name, |shared| shared.name_reservation(address, None, name))
    }

    /// Names the mapping around an address. An empty name removes the name.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if nothing is mapped there.
    pub fn name_mapping(&self, address: Address, name: &str) -> Result<(), Error> {
        self.run(Operation::Name, |shared| shared.name_mapping(address, None, name))
    }

    /// Names physical memory. An empty name removes the name.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a handle that is stale, foreign or invented.
    pub fn name_handle(&self, handle: Handle, name: &str) -> Result<(), Error> {
        self.run(Operation::Name, |shared| {
            shared.ledger.handles.with(handle, |record| record.name = name_of(name))
        })
    }

    /// Returns the ledger; `None` in a child of a fork.
    pub(super) fn ledger(&self) -> Option<&Ledger<Physical>> {
        (!self.runtime().has_forked()).then_some(&self.shared.ledger)
    }

    fn mapping_record_at(&self, address: Address) -> Option<(usize, MappingRecord)> {
        let reservations = &self.ledger()?.reservations;
        reservations.at(address.get(), |reservation| reservation.mappings().at(address.get()))?
    }

    fn describe(&self, start: usize, record: &MappingRecord) -> MappingInfo {
        let agents = self.runtime().agents().iter().enumerate();
        let access = agents
            .map(|(index, agent)| (agent.id(), record.access.requested.get(index)))
            .filter(|&(_, access)| access != Access::None)
            .collect();
        MappingInfo { address: Address::new(start), size: record.size, access }
    }
}

impl Shared {
    /// Names a reservation; with a serial only if it is still that one.
    pub(super) fn name_reservation(
        &self,
        address: Address,
        serial: Option<u64>,
        name: &str,
    ) -> Result<(), ErrorKind> {
        let named = self.ledger.reservations.at(address.get(), |reservation| {
            let is_it = serial.is_none_or(|serial| serial == reservation.serial);
            is_it.then(|| reservation.mappings_mut().name = name_of(name))
        });
        let not_reserved = || ErrorKind::invalid(Argument::Address, address, Problem::NotReserved);
        named.flatten().ok_or_else(not_reserved)
    }

    /// Names a mapping; with a serial only if it is still that one.
    pub(super) fn name_mapping(
        &self,
        address: Address,
        serial: Option<Serial>,
        name: &str,
    ) -> Result<(), ErrorKind> {
        let named = self.ledger.reservations.at(address.get(), |reservation| {
            if serial.is_some_and(|serial| serial.reservation != reservation.serial) {
                return Err(not_mapped(address.get()));
            }
            let serial = serial.map(|serial| serial.mapping);
            reservation.mappings_mut().set_name(address.get(), serial, name_of(name))
        });
        named.unwrap_or_else(|| Err(not_mapped(address.get())))
    }

    /// Checks that the mappings of a range are the expected ones.
    pub(super) fn check_mapped(
        &self,
        range: Range,
        expected: super::Expected<'_>,
    ) -> Result<(), ErrorKind> {
        let checked = self.ledger.reservations.at(range.start, |reservation| {
            self.check_usable(reservation)?;
            expected.check_range(range, reservation.serial, &reservation.mappings())
        });
        checked.unwrap_or_else(|| Err(range.invalid(Problem::NotReserved)))
    }
}

fn name_of(text: &str) -> Option<Arc<str>> {
    (!text.is_empty()).then(|| text.into())
}
