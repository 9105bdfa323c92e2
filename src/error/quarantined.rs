//! What put a range into quarantine.

use super::Operation;
use crate::address::Address;
use core::fmt;

/// A range or memory that is not used any more, because its state is unknown or no longer ours.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quarantined {
    /// The start of the reservation; null for physical memory.
    pub address: Address,
    /// Its size in bytes.
    pub size: usize,
    /// The operation that went wrong.
    pub operation: Operation,
    /// What the runtime or the system answered.
    pub reason: String,
}

impl fmt::Display for Quarantined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, size, operation, reason } = self;
        write!(f, "{size:#x} bytes at {address} since {operation}: {reason}")
    }
}
