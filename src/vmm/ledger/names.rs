//! What the caller calls things.

use super::Ledger;
use crate::vmm::address::Address;
use crate::vmm::error::{Argument, Problem, Refusal};
use crate::vmm::handle::Handle;
use std::sync::Arc;

/// A name; none for an empty text.
fn name_of(text: &str) -> Option<Arc<str>> {
    (!text.is_empty()).then(|| text.into())
}

impl<R, H> Ledger<R, H> {
    /// Names the reservation that holds an address; with a serial only if it is still that one.
    pub fn name_reservation(
        &mut self,
        address: usize,
        serial: Option<u64>,
        name: &str,
    ) -> Result<(), Refusal> {
        let found = self.reservations.range_mut(..=address).next_back();
        let found = found.filter(|(base, record)| address - **base < record.size);
        match found.filter(|(_, record)| serial.is_none_or(|serial| serial == record.serial)) {
            Some((_, record)) => {
                record.name = name_of(name);
                Ok(())
            }
            None => Err(Refusal::new(Argument::Address, Problem::NotReserved)),
        }
    }

    /// Names the mapping that holds an address; with a serial only if it is still that one.
    pub fn name_mapping(
        &mut self,
        address: usize,
        serial: Option<u64>,
        name: &str,
    ) -> Result<(), Refusal> {
        let found = self.mapping_at(address).map(|(_, record)| record.serial);
        let found = found.filter(|found| serial.is_none_or(|serial| serial == *found));
        let at = Address::new(address);
        let found = found.ok_or(Refusal::new(Argument::Address, Problem::NotMapped { at }))?;
        match name_of(name) {
            Some(name) => self.mapping_names.insert(found, name),
            None => self.mapping_names.remove(&found),
        };
        Ok(())
    }

    /// Names physical memory.
    pub fn name_handle(&mut self, handle: Handle, name: &str) -> Result<(), Refusal> {
        let record = self.handle_mut(handle)?;
        record.name = name_of(name);
        Ok(())
    }

    /// The name of the mapping with this serial.
    pub fn mapping_name(&self, serial: u64) -> Option<&Arc<str>> {
        self.mapping_names.get(&serial)
    }
}
