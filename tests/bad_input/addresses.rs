//! Reserving and freeing addresses rejects bad input.

use crate::machine::{self, MIB, Machine, at};
use crate::setup::{check_rejections, last_page};
use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::{Address, Error, ErrorKind, Reservation};

#[test]
fn address_reserve_rejects_bad_input() {
    check_rejections(&[
        (
            "no size",
            |s| s.machine.vmm.address_reserve(0, 0, None).map(drop),
            Argument::Size,
            |_| Problem::Zero,
        ),
        (
            "one byte",
            |s| s.machine.vmm.address_reserve(1, 0, None).map(drop),
            Argument::Size,
            |s| Problem::NotAligned { granule: s.granule },
        ),
        (
            "the largest size",
            |s| s.machine.vmm.address_reserve(usize::MAX, 0, None).map(drop),
            Argument::Size,
            |s| Problem::NotAligned { granule: s.granule },
        ),
        (
            "an alignment of three",
            |s| s.machine.vmm.address_reserve(s.granule, 3, None).map(drop),
            Argument::Alignment,
            |_| Problem::NotPowerOfTwo,
        ),
        (
            "the greatest alignment",
            |s| s.machine.vmm.address_reserve(s.granule, usize::MAX, None).map(drop),
            Argument::Alignment,
            |_| Problem::NotPowerOfTwo,
        ),
        (
            "exactly at null",
            |s| {
                let options = Reservation::builder(s.granule).exactly_at(Address::NULL);
                options.reserve(&s.machine.vmm).map(drop)
            },
            Argument::Address,
            |_| Problem::Null,
        ),
        (
            "exactly at an address that is not a multiple of the granule",
            |s| {
                let options = Reservation::builder(s.granule).exactly_at(at(s.used, 1));
                options.reserve(&s.machine.vmm).map(drop)
            },
            Argument::Address,
            |_| Problem::AddressTaken,
        ),
        (
            "exactly at an address that is not a multiple of the alignment",
            |s| {
                let unaligned = at(Address::new(1 << 40), s.granule);
                let options =
                    Reservation::builder(s.granule).aligned_to(2 * MIB).exactly_at(unaligned);
                options.reserve(&s.machine.vmm).map(drop)
            },
            Argument::Address,
            |_| Problem::AddressTaken,
        ),
        (
            "exactly at the end of the address space",
            |s| {
                let options = Reservation::builder(2 * s.granule).exactly_at(last_page());
                options.reserve(&s.machine.vmm).map(drop)
            },
            Argument::Size,
            |_| Problem::Overflow,
        ),
    ]);
}

#[test]
fn address_free_rejects_bad_input() {
    check_rejections(&[
        (
            "null",
            |s| s.machine.vmm.address_free(Address::NULL, s.granule),
            Argument::Address,
            |_| Problem::Null,
        ),
        ("no size", |s| s.machine.vmm.address_free(s.used, 0), Argument::Size, |_| Problem::Zero),
        (
            "an overflow",
            |s| s.machine.vmm.address_free(s.used, usize::MAX),
            Argument::Size,
            |_| Problem::Overflow,
        ),
        (
            "an invented address",
            |s| s.machine.vmm.address_free(Address::new(1 << 40), s.granule),
            Argument::Address,
            |_| Problem::NotAReservation,
        ),
        (
            "an address inside the reservation",
            |s| s.machine.vmm.address_free(s.granule_at(1), s.granule),
            Argument::Address,
            |_| Problem::NotAReservation,
        ),
        (
            "one byte after the start",
            |s| s.machine.vmm.address_free(at(s.used, 1), 8 * s.granule),
            Argument::Address,
            |_| Problem::NotAReservation,
        ),
        (
            "a part",
            |s| s.machine.vmm.address_free(s.empty, s.granule),
            Argument::Size,
            |s| Problem::WrongSize(8 * s.granule),
        ),
        (
            "two reservations",
            |s| s.machine.vmm.address_free(s.used, 16 * s.granule),
            Argument::Size,
            |s| Problem::WrongSize(8 * s.granule),
        ),
        (
            "a mapped address",
            |s| s.machine.vmm.address_free(s.used, 8 * s.granule),
            Argument::Address,
            |_| Problem::StillMapped(3),
        ),
        (
            "a reservation of another `Vmm`",
            |s| s.foreign_machine.vmm.address_free(s.empty, 8 * s.granule),
            Argument::Address,
            |_| Problem::NotAReservation,
        ),
    ]);
}

#[test]
fn reserve_of_too_much_is_out_of_memory() {
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let sizes = [1 << 47, 1 << 62, usize::MAX & !(granule - 1)];
        let cases = sizes.map(|size| (size, 0)).into_iter().chain([(granule, 1 << 63)]);
        for (size, alignment) in cases {
            let result = machine.vmm.address_reserve(size, alignment, None);
            let is_out_of_memory =
                matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::OutOfMemory { .. }));
            assert!(is_out_of_memory, "{release}: {size:#x} at {alignment:#x}: {result:?}");
        }
        machine.assert_empty();
    }
}

/// ROCm 6.1 cannot align addresses. To align them, the library reserves more, but not more than the address space has.
#[test]
fn alignment_never_exceeds_the_address_space() {
    let (_, config) = machine::releases().swap_remove(1);
    let machine = Machine::new(config);
    let reserve = || drop(machine.vmm.address_reserve(machine.granule(), 1 << 63, None));
    assert_eq!(machine.calls(reserve), [("address_reserve", 1), ("address_free", 1)]);
}

/// AMD's runtime would reserve addresses below those of GPUs, but could not free them.
#[test]
fn addresses_below_gpu_addresses_are_not_reserved() {
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let low = Address::new(8 << 20);
        let reserved = machine.vmm.address_reserve(granule, 0, Some(low)).unwrap();
        assert!(reserved.get() >= 16 << 20, "{release}: {reserved}");
        machine.vmm.address_free(reserved, granule).unwrap();
        let error = machine.vmm.address_reserve_at(low, granule).unwrap_err();
        let is_taken = matches!(
            error.kind(),
            ErrorKind::InvalidArgument { problem: Problem::AddressTaken, .. }
        );
        assert!(is_taken, "{release}: {error}");
        machine.assert_empty();
    }
}

#[test]
fn bad_hints_are_ignored() {
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let occupied = machine.reserve(granule);
        for hint in [Address::NULL, Address::new(1), last_page(), occupied, at(occupied, 1)] {
            for alignment in [0, 1, granule, 2 * MIB] {
                let reserved = machine.vmm.address_reserve(granule, alignment, Some(hint));
                let reserved =
                    reserved.unwrap_or_else(|error| panic!("{release}: {hint}: {error}"));
                assert_eq!(reserved.get() % alignment.max(granule), 0, "{release}: {hint}");
                machine.vmm.address_free(reserved, granule).unwrap();
            }
        }
        machine.vmm.address_free(occupied, granule).unwrap();
        machine.assert_empty();
    }
}
