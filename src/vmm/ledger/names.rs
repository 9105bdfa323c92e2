//! What the caller calls things.

use super::Ledger;
use crate::address::Address;
use crate::handle::Handle;
use crate::sync::lock;
use crate::vmm::error::{Argument, Problem, Refusal};
use std::sync::Arc;

/// A name; none for an empty text.
fn name_of(text: &str) -> Option<Arc<str>> {
    (!text.is_empty()).then(|| text.into())
}

impl<H> Ledger<H> {
    /// Names the reservation that holds an address; with a serial only if it is still that one.
    pub fn name_reservation(
        &self,
        address: usize,
        serial: Option<u64>,
        name: &str,
    ) -> Result<(), Refusal> {
        let named = self.at(address, |reserved| {
            let is_it = serial.is_none_or(|serial| serial == reserved.serial);
            is_it.then(|| *lock(&reserved.name) = name_of(name))
        });
        named.flatten().ok_or(Refusal::new(Argument::Address, Problem::NotReserved))
    }

    /// Names the mapping that holds an address; with a serial only if it is still that one.
    pub fn name_mapping(
        &self,
        address: usize,
        serial: Option<u64>,
        name: &str,
    ) -> Result<(), Refusal> {
        let at = Address::new(address);
        let named = self.at(address, |reserved| {
            reserved.change(|mappings| {
                let found = mappings.at(address)?.1.serial;
                if serial.is_some_and(|serial| serial != found) {
                    return None;
                }
                match name_of(name) {
                    Some(name) => mappings.names.insert(found, name),
                    None => mappings.names.remove(&found),
                };
                Some(())
            })
        });
        named.flatten().ok_or(Refusal::new(Argument::Address, Problem::NotMapped { at }))
    }

    /// Names physical memory.
    pub fn name_handle(&self, handle: Handle, name: &str) -> Result<(), Refusal> {
        self.handles.with(handle, |record| record.name = name_of(name))
    }
}

impl super::Mappings {
    /// The name of the mapping with this serial.
    pub fn name(&self, serial: u64) -> Option<&Arc<str>> {
        self.names.get(&serial)
    }
}
