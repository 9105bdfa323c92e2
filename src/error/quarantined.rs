//! What put a range into quarantine.

use super::{ErrorKind, Operation};
use crate::address::Address;
use core::fmt;

/// A range or memory that is never used again, because its state is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quarantined {
    /// The start of the reservation; null for physical memory.
    pub address: Address,
    /// Its size in bytes.
    pub size: usize,
    /// The operation that failed.
    pub operation: Operation,
    /// Why it failed.
    pub failure: ErrorKind,
    /// Why it could not be rolled back, if that was tried.
    pub rollback: Option<ErrorKind>,
}

impl Quarantined {
    /// Returns why, in words: the failed call and its status, and those of the failed rollback.
    #[must_use]
    pub fn reason(&self) -> String {
        match &self.rollback {
            Some(rollback) => format!("{}; rolling it back failed: {rollback}", self.failure),
            None => self.failure.to_string(),
        }
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Quarantined {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut fields = serializer.serialize_struct("Quarantined", 4)?;
        fields.serialize_field("address", &self.address)?;
        fields.serialize_field("size", &self.size)?;
        fields.serialize_field("operation", self.operation.name())?;
        fields.serialize_field("reason", &self.reason())?;
        fields.end()
    }
}

impl fmt::Display for Quarantined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, size, operation, .. } = self;
        write!(f, "{size:#x} bytes at {address} since {operation}: {}", self.reason())
    }
}

/// An invariant of the library's own state does not hold ([`Vmm::check`](crate::Vmm::check)).
///
/// It is a defect of this library, whatever the runtime did; please report it with this message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BrokenInvariant(pub(crate) String);
