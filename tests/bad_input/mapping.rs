//! Mapping, unmapping and changes of access reject bad ranges and foreign memory.

use crate::machine::{access, at};
use crate::setup::{Setup, check_rejections, last_page, state};
use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::{Access, Address, Allocation, Error, Handle};

fn map(s: &Setup, address: Address, size: usize, handle: Handle) -> Result<(), Error> {
    s.machine.vmm.map(address, size, 0, handle)
}

#[test]
fn map_rejects_bad_input() {
    check_rejections(&[
        (
            "null",
            |s| map(s, Address::NULL, s.granule, s.handle),
            Argument::Address,
            |_| Problem::Null,
        ),
        ("no size", |s| map(s, s.empty, 0, s.handle), Argument::Size, |_| Problem::Zero),
        (
            "an overflow",
            |s| map(s, last_page(), 2 * s.granule, s.handle),
            Argument::Size,
            |_| Problem::Overflow,
        ),
        (
            "the largest size",
            |s| map(s, s.empty, usize::MAX, s.handle),
            Argument::Size,
            |_| Problem::Overflow,
        ),
        (
            "an address that is not a multiple of the granule",
            |s| map(s, at(s.empty, 1), s.granule, s.handle),
            Argument::Address,
            |s| Problem::NotAligned { granule: s.granule },
        ),
        (
            "half a granule",
            |s| map(s, s.empty, s.granule / 2, s.handle),
            Argument::Size,
            |s| Problem::NotAligned { granule: s.granule },
        ),
        (
            "more than the handle",
            |s| map(s, s.empty, 2 * s.granule, s.handle),
            Argument::Size,
            |s| Problem::TooLarge { maximum: s.granule, whole: Argument::Handle },
        ),
        (
            "an address that is not reserved",
            |s| map(s, Address::new(1 << 40), s.granule, s.handle),
            Argument::Address,
            |_| Problem::NotReserved,
        ),
        (
            "a reservation of another `Vmm`",
            |s| {
                let foreign = s.foreign_machine.vmm.reservations();
                assert!(foreign.is_empty());
                s.foreign_machine.vmm.map(s.empty, s.granule, 0, s.foreign_handle)
            },
            Argument::Address,
            |_| Problem::NotReserved,
        ),
        (
            "two adjacent reservations",
            |s| map(s, s.granule_at(7), 2 * s.granule, s.two_granule_handle),
            Argument::Address,
            |_| Problem::NotReserved,
        ),
        (
            "past the end of a reservation",
            |s| map(s, at(s.empty, 7 * s.granule), 2 * s.granule, s.two_granule_handle),
            Argument::Address,
            |_| Problem::NotReserved,
        ),
        (
            "a mapped address",
            |s| map(s, s.used, s.granule, s.handle),
            Argument::Address,
            |s| Problem::AlreadyMapped(s.used),
        ),
        (
            "the second half of a mapping",
            |s| map(s, s.granule_at(2), s.granule, s.handle),
            Argument::Address,
            |s| Problem::AlreadyMapped(s.granule_at(1)),
        ),
    ]);
}

#[test]
fn range_calls_reject_bad_ranges() {
    type RangeCall = fn(&Setup, Address, usize) -> Result<(), Error>;
    let calls: &[(&str, RangeCall)] = &[
        ("unmap", |s, address, size| s.machine.vmm.unmap(address, size)),
        ("set_access", |s, address, size| {
            let grants = [access(s.machine.gpu(0), Access::ReadWrite)];
            s.machine.vmm.set_access(address, size, &grants)
        }),
        ("revoke", |s, address, size| s.machine.vmm.revoke(address, size, &[s.machine.gpu(0)])),
    ];
    let s = Setup::new();
    let granule = s.granule;
    let invalid_ranges: &[(&str, Address, usize, Argument, Problem)] = &[
        ("null", Address::NULL, granule, Argument::Address, Problem::Null),
        ("no size", s.used, 0, Argument::Size, Problem::Zero),
        ("an overflow", s.used, usize::MAX, Argument::Size, Problem::Overflow),
        ("the end of the address space", last_page(), 4096, Argument::Size, Problem::Overflow),
        (
            "nothing reserved",
            Address::new(1 << 40),
            granule,
            Argument::Address,
            Problem::NotReserved,
        ),
        ("nothing mapped", s.empty, granule, Argument::Address, Problem::NotMapped(s.empty)),
        (
            "less than a mapping",
            s.granule_at(1),
            granule,
            Argument::Size,
            Problem::SplitsMapping(s.granule_at(1)),
        ),
        ("a byte less", s.used, granule - 1, Argument::Size, Problem::SplitsMapping(s.used)),
        (
            "a byte more",
            s.used,
            granule + 1,
            Argument::Size,
            Problem::SplitsMapping(s.granule_at(1)),
        ),
        (
            "one byte after the start",
            at(s.used, 1),
            granule,
            Argument::Address,
            Problem::SplitsMapping(s.used),
        ),
        (
            "half a mapping",
            s.granule_at(2),
            granule,
            Argument::Address,
            Problem::SplitsMapping(s.granule_at(1)),
        ),
        (
            "one and a half mappings",
            s.used,
            2 * granule,
            Argument::Size,
            Problem::SplitsMapping(s.granule_at(1)),
        ),
        (
            "unmapped addresses at the end",
            s.used,
            5 * granule,
            Argument::Address,
            Problem::NotMapped(s.granule_at(4)),
        ),
        (
            "the whole reservation",
            s.used,
            8 * granule,
            Argument::Address,
            Problem::NotMapped(s.granule_at(4)),
        ),
        ("more than the reservation", s.used, 9 * granule, Argument::Address, Problem::NotReserved),
        (
            "only unmapped addresses",
            s.granule_at(7),
            granule,
            Argument::Address,
            Problem::NotMapped(s.granule_at(7)),
        ),
    ];
    for (call, function) in calls {
        for &(name, address, size, argument, problem) in invalid_ranges {
            let before = (state(&s.machine), state(&s.foreign_machine));
            let error = function(&s, address, size).expect_err(name);
            assert_eq!(error.argument(), Some(argument), "{call}, {name}: {error}");
            assert_eq!(error.problem(), Some(problem), "{call}, {name}");
            assert_eq!(before, (state(&s.machine), state(&s.foreign_machine)), "{call}, {name}");
        }
    }
}

#[test]
fn reservation_rejects_foreign_memory() {
    let s = Setup::new();
    let foreign =
        Allocation::create(&s.foreign_machine.vmm, s.granule, &s.foreign_machine.shareable_on(0))
            .unwrap();
    let before = state(&s.machine);
    let error = s.mapping.reservation().map(s.granule, &foreign).unwrap_err();
    assert_eq!(
        (error.argument(), error.problem()),
        (Some(Argument::Handle), Some(Problem::ForeignHandle))
    );
    assert_eq!(state(&s.machine), before);
}
