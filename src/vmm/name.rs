//! Naming things, so that [reports](crate::report) and logs can be read.

use super::{Address, Handle, Ledger, Operation, Physical, Refusal, Shared, Vmm, VmmError};

impl Vmm {
    /// Names the reservation around an address. An empty name takes the name away.
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] if the address is not reserved.
    pub fn name_reservation(&self, address: Address, name: &str) -> Result<(), VmmError> {
        self.shared.name_reservation(address, None, name)
    }

    /// Names the mapping around an address. An empty name takes the name away.
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] if nothing is mapped there.
    pub fn name_mapping(&self, address: Address, name: &str) -> Result<(), VmmError> {
        self.shared.name_mapping(address, None, name)
    }

    /// Names physical memory. An empty name takes the name away.
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] for a handle that is stale, foreign or invented.
    pub fn name_handle(&self, handle: Handle, name: &str) -> Result<(), VmmError> {
        self.shared.name(|ledger| ledger.name_handle(handle, name))
    }
}

impl Shared {
    /// Names a reservation; with a serial only if it is still that one.
    pub(super) fn name_reservation(
        &self,
        address: Address,
        serial: Option<u64>,
        name: &str,
    ) -> Result<(), VmmError> {
        self.name(|ledger| ledger.name_reservation(address.get(), serial, name))
    }

    /// Names a mapping; with a serial only if it is still that one.
    pub(super) fn name_mapping(
        &self,
        address: Address,
        serial: Option<u64>,
        name: &str,
    ) -> Result<(), VmmError> {
        self.name(|ledger| ledger.name_mapping(address.get(), serial, name))
    }

    fn name(
        &self,
        how: impl FnOnce(&Ledger<Physical>) -> Result<(), Refusal>,
    ) -> Result<(), VmmError> {
        let operation = Operation::Name;
        self.alive(operation)?;
        how(&self.ledger).map_err(|refusal| refusal.during(operation))
    }
}
