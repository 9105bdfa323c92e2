//! How a report's parts are serialised that have a form of their own elsewhere.

use crate::vmm::Access;
use core::fmt::Display;
use serde::Serializer;

/// As it is printed: addresses and handles are text in hexadecimal.
pub(super) fn display<S: Serializer>(value: &impl Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

pub(super) fn access<S: Serializer>(access: &Access, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(match access {
        Access::None => "none",
        Access::Read => "read",
        Access::ReadWrite => "read_write",
    })
}
