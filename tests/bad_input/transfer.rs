//! Reads, writes, copies, fills, and maps at an offset of a reservation reject bad input.

use crate::machine::at;
use crate::setup::{Setup, check_rejections, invented_agent, last_page};
use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::{Access, Address, Error};

#[test]
fn read_and_write_reject_bad_input() {
    fn read(s: &Setup, address: Address, size: usize) -> Result<(), Error> {
        s.machine.vmm.read(address, &mut vec![0; size])
    }
    fn write(s: &Setup, address: Address, size: usize) -> Result<(), Error> {
        s.machine.vmm.write(address, &vec![0; size])
    }
    check_rejections(&[
        ("read null", |s| read(s, Address::NULL, 1), Argument::Address, |_| Problem::Null),
        (
            "read unmapped memory",
            |s| read(s, s.empty, 1),
            Argument::Address,
            |s| Problem::NotMapped(s.empty),
        ),
        (
            "read unreserved addresses",
            |s| read(s, Address::new(1 << 40), 1),
            Argument::Address,
            |_| Problem::NotReserved,
        ),
        (
            "read beyond the address space",
            |s| read(s, last_page(), 8192),
            Argument::Size,
            |_| Problem::Overflow,
        ),
        (
            "read past the accessible memory",
            |s| read(s, s.used, s.granule + 1),
            Argument::Address,
            |s| Problem::NotGranted {
                at: s.granule_at(1),
                agent: s.machine.cpu(0),
                access: Access::Read,
            },
        ),
        (
            "write read-only memory",
            |s| write(s, s.used, 1),
            Argument::Address,
            |s| Problem::NotGranted {
                at: s.used,
                agent: s.machine.cpu(0),
                access: Access::ReadWrite,
            },
        ),
        (
            "write across reservations",
            |s| write(s, s.granule_at(7), 2 * s.granule),
            Argument::Address,
            |_| Problem::NotReserved,
        ),
        (
            "read beyond the mapping",
            |s| s.mapping.read(s.granule - 1, &mut [0; 2]),
            Argument::Offset,
            |s| Problem::OutOfBounds { size: 2, end: s.granule },
        ),
        (
            "write far beyond the mapping",
            |s| s.mapping.write(usize::MAX, &[0; 2]),
            Argument::Offset,
            |s| Problem::OutOfBounds { size: 2, end: s.granule },
        ),
        (
            "read without access, by offset",
            |s| s.mapping.read(0, &mut [0; 2]),
            Argument::Offset,
            |s| Problem::NotGranted {
                at: s.mapping.address(),
                agent: s.machine.cpu(0),
                access: Access::Read,
            },
        ),
        (
            "map beyond the reservation",
            |s| s.mapping.reservation().map(2 * s.granule, s.mapping.allocation()).map(drop),
            Argument::Offset,
            |s| Problem::OutOfBounds { size: s.granule, end: 2 * s.granule },
        ),
        (
            "map far beyond the reservation",
            |s| {
                let far_offset = usize::MAX & !(s.granule - 1);
                s.mapping.reservation().map(far_offset, s.mapping.allocation()).map(drop)
            },
            Argument::Offset,
            |s| Problem::OutOfBounds { size: s.granule, end: 2 * s.granule },
        ),
        (
            "map at an offset that is not a multiple of the granule",
            |s| s.mapping.reservation().map(1, s.mapping.allocation()).map(drop),
            Argument::Offset,
            |s| Problem::NotAligned { granule: s.granule },
        ),
        (
            "map mapped addresses, by offset",
            |s| s.mapping.reservation().map(0, s.mapping.allocation()).map(drop),
            Argument::Offset,
            |s| Problem::AlreadyMapped(s.mapping.address()),
        ),
    ]);
}

#[test]
fn offset_errors_name_the_end_of_the_mapping() {
    let setup = Setup::new();
    let granule = setup.granule;
    let error = setup.mapping.write(granule - 1, &[0; 2]).unwrap_err();
    let expected = format!(
        "cannot write: offset {:#x} is out of bounds: 0x2 bytes from there extend past the end at {granule:#x}",
        granule - 1
    );
    assert_eq!(error.to_string(), expected);
}

#[test]
fn copies_of_mappings_name_the_offset() {
    let setup = Setup::new();
    let (agent, mapping) = (setup.machine.gpu(1), &setup.mapping);
    for error in [
        mapping.copy_to_host(agent, 16, &mut [0]).expect_err("the GPU has no access"),
        mapping.copy_from_host(agent, 16, &[0]).expect_err("the GPU has no access"),
    ] {
        assert_eq!(error.argument(), Some(Argument::Offset), "{error}");
        assert!(error.to_string().contains("offset 0x10 "), "{error}");
    }
}

#[test]
fn copy_and_fill_reject_bad_input() {
    fn copy(s: &Setup, destination: Address, source: Address, size: usize) -> Result<(), Error> {
        s.machine.vmm.copy(s.machine.gpu(0), destination, source, size)
    }
    check_rejections(&[
        (
            "to null",
            |s| copy(s, Address::NULL, s.used, 8),
            Argument::Destination,
            |_| Problem::Null,
        ),
        ("from null", |s| copy(s, s.used, Address::NULL, 8), Argument::Source, |_| Problem::Null),
        ("zero bytes", |s| copy(s, s.used, s.used, 0), Argument::Size, |_| Problem::Zero),
        (
            "to a range that overflows",
            |s| copy(s, last_page(), s.used, 8192),
            Argument::Size,
            |_| Problem::Overflow,
        ),
        (
            "from a range that overflows",
            |s| copy(s, s.used, last_page(), 8192),
            Argument::Size,
            |_| Problem::Overflow,
        ),
        (
            "to unreserved addresses",
            |s| copy(s, Address::new(1 << 40), s.used, 8),
            Argument::Destination,
            |_| Problem::NotReserved,
        ),
        (
            "from unreserved addresses",
            |s| copy(s, s.used, Address::new(1 << 40), 8),
            Argument::Source,
            |_| Problem::NotReserved,
        ),
        (
            "between unreserved addresses",
            |s| copy(s, Address::new(1 << 40), Address::new(1 << 41), 8),
            Argument::Destination,
            |_| Problem::NotReserved,
        ),
        (
            "to unmapped memory",
            |s| copy(s, s.empty, s.used, 8),
            Argument::Destination,
            |s| Problem::NotMapped(s.empty),
        ),
        (
            "beyond the reservation",
            |s| copy(s, s.granule_at(7), s.used, 2 * s.granule),
            Argument::Destination,
            |_| Problem::NotReserved,
        ),
        (
            "to read-only memory",
            |s| copy(s, s.used, s.used, 8),
            Argument::Destination,
            |s| Problem::NotGranted {
                at: s.used,
                agent: s.machine.gpu(0),
                access: Access::ReadWrite,
            },
        ),
        (
            "by an agent of another runtime",
            |s| s.machine.vmm.copy(s.foreign_machine.gpu(0), s.used, s.used, 8),
            Argument::Agent,
            |_| Problem::UnknownAgent,
        ),
        (
            "by an invented agent",
            |s| s.machine.vmm.copy(invented_agent(s), s.used, s.used, 8),
            Argument::Agent,
            |_| Problem::UnknownAgent,
        ),
        (
            "fill null",
            |s| s.machine.vmm.fill(Address::NULL, 1, 4),
            Argument::Address,
            |_| Problem::Null,
        ),
        ("fill nothing", |s| s.machine.vmm.fill(s.used, 1, 0), Argument::Size, |_| Problem::Zero),
        (
            "fill half a word",
            |s| s.machine.vmm.fill(s.used, 1, 6),
            Argument::Size,
            |_| Problem::NotMultipleOfFour,
        ),
        (
            "fill between words",
            |s| s.machine.vmm.fill(at(s.used, 2), 1, 4),
            Argument::Address,
            |_| Problem::NotMultipleOfFour,
        ),
        (
            "fill a range that overflows",
            |s| s.machine.vmm.fill(s.used, 1, usize::MAX - 3),
            Argument::Size,
            |_| Problem::Overflow,
        ),
        (
            "fill unmapped memory",
            |s| s.machine.vmm.fill(s.empty, 1, 4),
            Argument::Address,
            |s| Problem::NotMapped(s.empty),
        ),
        (
            "fill read-only memory",
            |s| s.machine.vmm.fill(s.used, 1, 4),
            Argument::Address,
            |s| Problem::NotGranted {
                at: s.used,
                agent: s.machine.gpu(0),
                access: Access::ReadWrite,
            },
        ),
        (
            "fill memory without access",
            |s| s.machine.vmm.fill(s.granule_at(1), 1, 4),
            Argument::Address,
            |s| Problem::NotGranted {
                at: s.granule_at(1),
                agent: s.machine.gpu(0),
                access: Access::ReadWrite,
            },
        ),
    ]);
}
