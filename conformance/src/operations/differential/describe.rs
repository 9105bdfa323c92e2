//! Formats values for the messages of differences.

use crate::page_table::PageTableEntry;
use hsa_vmm::vmm::{AllocationKind, Location, Usage};
use hsa_vmm::{Access, Address, AgentId, AllocationProperties, Handle, HandleType};
use std::ops::Range;
use std::os::fd::OwnedFd;

/// Formats a value for the message of a difference. Unlike `Display`, this trait can be implemented for tuples, lists
/// and types of other crates.
pub(super) trait Describe {
    /// Returns the text of the value, without names of Rust types.
    fn describe(&self) -> String;
}

/// Returns the values in brackets.
pub(super) fn list<T: Describe>(values: &[T]) -> String {
    let values: Vec<_> = values.iter().map(Describe::describe).collect();
    format!("[{}]", values.join(", "))
}

impl<T: Describe> Describe for Vec<T> {
    fn describe(&self) -> String {
        list(self)
    }
}

impl<T: Describe> Describe for Option<T> {
    fn describe(&self) -> String {
        self.as_ref().map_or_else(|| "none".to_owned(), Describe::describe)
    }
}

/// Implements [`Describe`] for each type with a function that returns the text.
macro_rules! describe {
    ($($type:ty: $describe:expr;)+) => {$(
        impl Describe for $type {
            fn describe(&self) -> String {
                let describe: fn(&Self) -> String = $describe;
                describe(self)
            }
        }
    )+};
}

describe! {
    (): |()| "success".to_owned();
    bool: Self::to_string;
    usize: |&number| (number as u64).describe();
    // Numbers below 1000 are counts. Larger numbers are sizes and addresses.
    u64: |&number| if number < 1000 { number.to_string() } else { format!("{number:#x}") };
    Address: |address| format!("{:#x}", address.get());
    Range<usize>: |range| format!("{:#x}..{:#x}", range.start, range.end);
    Handle: Self::to_string;
    AgentId: Self::to_string;
    OwnedFd: |_| "a descriptor".to_owned();
    Access: |access| match access {
        Self::None => "no access".to_owned(),
        Self::Read => "read".to_owned(),
        Self::ReadWrite => "read and write".to_owned(),
    };
    (AgentId, Access): |(agent, access)| format!("{agent}: {}", access.describe());
    HandleType: |kind| match *kind {
        Self::POSIX_FILE_DESCRIPTOR => "descriptor".to_owned(),
        other => format!("handle types {:#x}", other.bits()),
    };
    AllocationProperties: properties;
    (AllocationProperties, usize): |(it, size)| format!("{size:#x} bytes {}", it.describe());
    Usage: |Self { reservations, handles, mappings }| {
        format!("{reservations} reservations, {handles} handles, {mappings} mappings")
    };
    PageTableEntry: Self::to_string;
    // A reservation.
    (usize, usize): |(address, size)| format!("{address:#x} of {size:#x} bytes");
    // A mapping: its address, size, offset and access.
    (Address, usize, usize, Vec<(AgentId, Access)>): |(address, size, offset, access)| {
        let (address, access) = (address.describe(), access.describe());
        format!("{address} of {size:#x} bytes from offset {offset:#x} {access}")
    };
    (usize, usize, usize): |(first, second, third)| format!("{first}, {second}, {third}");
    (usize, usize, usize, usize): |(first, second, third, fourth)| {
        format!("{first}, {second}, {third}, {fourth}")
    };
    (u64, usize): |(bytes, count)| format!("{} bytes, {count}", bytes.describe());
}

fn properties(properties: &AllocationProperties) -> String {
    let location = match properties.location {
        Location::Agent(agent) => format!("on {agent}"),
        Location::Host => "on the host".to_owned(),
        Location::HostNuma(node) => format!("on NUMA node {node}"),
        _ => "at an unknown location".to_owned(),
    };
    let kind = if properties.kind == AllocationKind::Uncached { ", uncached" } else { "" };
    let shared = match properties.handle_types.is_empty() {
        true => String::new(),
        false => format!(", shareable as {}", properties.handle_types.describe()),
    };
    let rdma = if properties.gpu_direct_rdma { ", for RDMA" } else { "" };
    format!("{location}{kind}{shared}{rdma}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_formatted_without_type_names() {
        let gpu = AgentId::from_bits(1 << 32);
        let mapping = (Address::new(0x7000), 0x2000, 0, vec![(gpu, Access::ReadWrite)]);
        let text = vec![mapping].describe();
        let expected = format!("[0x7000 of 0x2000 bytes from offset 0x0 [{gpu}: read and write]]");
        assert_eq!(text, expected);
        let entry = PageTableEntry { offset: 0x1000, readable: true, writable: false };
        assert_eq!(Some(entry).describe(), "read, offset 0x1000");
        assert_eq!(None::<PageTableEntry>.describe(), "none");
        let usage = Usage { reservations: 1, handles: 2, mappings: 3 };
        assert_eq!(usage.describe(), "1 reservations, 2 handles, 3 mappings");
        let properties = AllocationProperties::on(gpu);
        let shareable = properties.shareable_as(HandleType::POSIX_FILE_DESCRIPTOR);
        let expected = format!("0x1000 bytes on {gpu}, shareable as descriptor");
        assert_eq!((shareable, 0x1000).describe(), expected);
    }
}
