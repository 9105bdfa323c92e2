//! The words with which differences show values.

use crate::page_table::Page;
use hsa_vmm::vmm::{AllocationKind, Location, Usage};
use hsa_vmm::{Access, Address, AgentId, AllocationProperties, Handle, HandleType};
use std::ops::Range;
use std::os::fd::OwnedFd;

/// A value in the message of a difference.
pub(super) trait Words {
    /// Returns the value in the library's words.
    fn words(&self) -> String;
}

/// Returns the values in brackets.
pub(super) fn list<T: Words>(values: &[T]) -> String {
    let values: Vec<_> = values.iter().map(Words::words).collect();
    format!("[{}]", values.join(", "))
}

impl<T: Words> Words for Vec<T> {
    fn words(&self) -> String {
        list(self)
    }
}

impl<T: Words> Words for Option<T> {
    fn words(&self) -> String {
        self.as_ref().map_or_else(|| "none".to_owned(), Words::words)
    }
}

impl Words for bool {
    fn words(&self) -> String {
        self.to_string()
    }
}

/// Small numbers are counts, and large ones are sizes and addresses.
fn number(value: u64) -> String {
    if value < 1000 { value.to_string() } else { format!("{value:#x}") }
}

impl Words for usize {
    fn words(&self) -> String {
        number(*self as u64)
    }
}

impl Words for u64 {
    fn words(&self) -> String {
        number(*self)
    }
}

impl Words for () {
    fn words(&self) -> String {
        "success".to_owned()
    }
}

impl Words for Address {
    fn words(&self) -> String {
        format!("{:#x}", self.get())
    }
}

impl Words for Range<usize> {
    fn words(&self) -> String {
        format!("{:#x}..{:#x}", self.start, self.end)
    }
}

impl Words for Handle {
    fn words(&self) -> String {
        self.to_string()
    }
}

impl Words for OwnedFd {
    fn words(&self) -> String {
        "a descriptor".to_owned()
    }
}

impl Words for Access {
    fn words(&self) -> String {
        let access = match self {
            Self::None => "no access",
            Self::Read => "read",
            Self::ReadWrite => "read and write",
        };
        access.to_owned()
    }
}

impl Words for AgentId {
    fn words(&self) -> String {
        self.to_string()
    }
}

impl Words for (AgentId, Access) {
    fn words(&self) -> String {
        format!("{}: {}", self.0, self.1.words())
    }
}

impl Words for HandleType {
    fn words(&self) -> String {
        match *self {
            Self::POSIX_FILE_DESCRIPTOR => "descriptor".to_owned(),
            other => format!("handle types {:#x}", other.bits()),
        }
    }
}

impl Words for AllocationProperties {
    fn words(&self) -> String {
        let location = match self.location {
            Location::Agent(agent) => format!("on {agent}"),
            Location::Host => "on the host".to_owned(),
            Location::HostNuma(node) => format!("on NUMA node {node}"),
            _ => "at an unknown location".to_owned(),
        };
        let kind = if self.kind == AllocationKind::Uncached { ", uncached" } else { "" };
        let shared = match self.handle_types.is_empty() {
            true => String::new(),
            false => format!(", shareable as {}", self.handle_types.words()),
        };
        let rdma = if self.gpu_direct_rdma { ", for RDMA" } else { "" };
        format!("{location}{kind}{shared}{rdma}")
    }
}

impl Words for (AllocationProperties, usize) {
    fn words(&self) -> String {
        format!("{:#x} bytes {}", self.1, self.0.words())
    }
}

impl Words for Usage {
    fn words(&self) -> String {
        let Self { reservations, handles, mappings } = self;
        format!("{reservations} reservations, {handles} handles, {mappings} mappings")
    }
}

impl Words for Page {
    fn words(&self) -> String {
        let access = match (self.readable, self.writable) {
            (false, false) => "no access",
            (true, false) => "read",
            (false, true) => "write",
            (true, true) => "read and write",
        };
        format!("{access}, offset {:#x}", self.offset)
    }
}

/// An address and a size: a reservation.
impl Words for (usize, usize) {
    fn words(&self) -> String {
        format!("{:#x} of {:#x} bytes", self.0, self.1)
    }
}

/// A mapping: its address, size, offset and access.
impl Words for (Address, usize, usize, Vec<(AgentId, Access)>) {
    fn words(&self) -> String {
        let (address, size, offset, access) = self;
        format!("{} of {size:#x} bytes from offset {offset:#x} {}", address.words(), list(access))
    }
}

impl Words for (usize, usize, usize) {
    fn words(&self) -> String {
        format!("{}, {}, {}", self.0, self.1, self.2)
    }
}

impl Words for (usize, usize, usize, usize) {
    fn words(&self) -> String {
        format!("{}, {}, {}, {}", self.0, self.1, self.2, self.3)
    }
}

impl Words for (u64, usize) {
    fn words(&self) -> String {
        format!("{} bytes, {}", self.0.words(), self.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_words_without_names_of_types() {
        let gpu = AgentId::from_bits(1 << 32);
        let mapping = (Address::new(0x7000), 0x2000, 0, vec![(gpu, Access::ReadWrite)]);
        let words = vec![mapping].words();
        let expected = format!("[0x7000 of 0x2000 bytes from offset 0x0 [{gpu}: read and write]]");
        assert_eq!(words, expected);
        let page = Page { offset: 0x1000, readable: true, writable: false };
        assert_eq!(Some(page).words(), "read, offset 0x1000");
        assert_eq!(None::<Page>.words(), "none");
        let usage = Usage { reservations: 1, handles: 2, mappings: 3 };
        assert_eq!(usage.words(), "1 reservations, 2 handles, 3 mappings");
        let properties = AllocationProperties::on(gpu);
        let shareable = properties.shareable_as(HandleType::POSIX_FILE_DESCRIPTOR);
        let expected = format!("0x1000 bytes on {gpu}, shareable as descriptor");
        assert_eq!((shareable, 0x1000).words(), expected);
    }
}
