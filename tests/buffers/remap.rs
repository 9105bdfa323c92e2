//! Relocating memory to other addresses, and exchanging memory at addresses.

use crate::errors::{different_pages, page_error};
use crate::machine::{KIB, Machine, access, at, generations, without_cpu_mapping};
use crate::pausable::alone;
use crate::process::{assert_untouchable, within};
use hsa_vmm::Error;
use hsa_vmm::buffer::PagedBuffer;
use hsa_vmm::error::Rejected;
use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::simulation::{Config, GpuPermissions};
use hsa_vmm::{Access, Address, Allocation, Mapping, Reservation};
use std::time::Duration;

fn machine(config: Config) -> Machine {
    Machine::new(config.with_gpu_permissions(GpuPermissions::Enforced))
}

/// Returns the permissions in a GPU's page table at an address.
fn page(machine: &Machine, gpu: usize, address: Address) -> (bool, bool) {
    let page = machine.simulation.page(gpu, address.get());
    page.map_or((false, false), |page| (page.readable, page.writable))
}

/// Maps adjacent granules, each with memory of its own that contains its number.
fn run(machine: &Machine, granules: usize, gpu: usize, first: u8) -> Address {
    let granule = machine.granule();
    let base = machine.reserve(granules * granule);
    for number in 0..granules {
        let handle = machine.create(gpu, granule);
        let there = at(base, number * granule);
        machine.map(there, granule, handle);
        machine.vmm.release(handle).unwrap();
        machine.grant(there, granule, machine.cpu(0), Access::ReadWrite);
        machine.vmm.write(there, &[first + number as u8; 8]).unwrap();
    }
    base
}

fn byte(machine: &Machine, address: Address) -> u8 {
    let mut bytes = [0; 8];
    machine.vmm.read(address, &mut bytes).unwrap();
    assert_eq!(bytes, [bytes[0]; 8]);
    bytes[0]
}

#[test]
fn exchange_swaps_memory_and_keeps_access() {
    // Another thread might take addresses that a runtime gives up for a moment.
    alone(|| {
        for (generation, config) in generations() {
            for config in [config.clone(), without_cpu_mapping(config)] {
                let machine = machine(config);
                let (vmm, granule) = (&machine.vmm, machine.granule());
                let (one, other) = (run(&machine, 3, 0, 10), run(&machine, 3, 1, 20));
                let [cpu, gpu, peer] = [machine.cpu(0), machine.gpu(0), machine.gpu(1)];
                vmm.set_access(one, 3 * granule, &[access(gpu, Access::ReadWrite)]).unwrap();
                vmm.set_access(one, granule, &[access(cpu, Access::Read)]).unwrap();
                vmm.set_access(other, 3 * granule, &[access(peer, Access::Read)]).unwrap();
                let before = vmm.mappings();
                vmm.exchange(one, other, 3 * granule).unwrap();
                assert_eq!(
                    vmm.mappings(),
                    before,
                    "{generation}: addresses, sizes and access are the same"
                );
                for number in 0..3 {
                    let (here, there) = (at(one, number * granule), at(other, number * granule));
                    assert_eq!(byte(&machine, here), 20 + number as u8, "{generation}");
                    assert_eq!(byte(&machine, there), 10 + number as u8, "{generation}");
                    assert_eq!(page(&machine, 0, here), (true, true), "{generation}");
                    assert_eq!(page(&machine, 1, here), (false, false), "{generation}");
                    assert_eq!(page(&machine, 0, there), (false, false), "{generation}");
                    assert_eq!(page(&machine, 1, there), (true, false), "{generation}");
                }
                vmm.write(one, b"no").expect_err("the CPU may only read there");
                // A part of one range and a part of another, in one reservation.
                vmm.exchange(at(one, 2 * granule), at(one, granule), granule).unwrap();
                assert_eq!(byte(&machine, at(one, granule)), 22, "{generation}");
                assert_eq!(byte(&machine, at(one, 2 * granule)), 21, "{generation}");
                vmm.check().unwrap();
                for base in [one, other] {
                    vmm.unmap(base, 3 * granule).unwrap();
                    vmm.address_free(base, 3 * granule).unwrap();
                }
                machine.assert_empty();
            }
        }
    });
}

#[test]
fn relocate_moves_memory_with_its_access() {
    // Another thread might take addresses that a runtime gives up for a moment.
    alone(|| {
        for (generation, config) in generations() {
            for config in [config.clone(), without_cpu_mapping(config)] {
                let machine = machine(config);
                let (vmm, granule) = (&machine.vmm, machine.granule());
                let from = run(&machine, 3, 0, 10);
                let to = machine.reserve(4 * granule);
                let (gpu, peer) = (machine.gpu(0), machine.gpu(1));
                let descriptors = [access(gpu, Access::ReadWrite), access(peer, Access::Read)];
                vmm.set_access(at(from, granule), granule, &descriptors).unwrap();
                vmm.relocate(at(to, granule), from, 3 * granule).unwrap();
                for number in 0..3 {
                    assert_eq!(byte(&machine, at(to, (number + 1) * granule)), 10 + number as u8);
                }
                let moved = at(to, 2 * granule);
                assert_eq!(vmm.get_access(peer, moved), Ok(Access::Read), "{generation}");
                assert_eq!(page(&machine, 0, moved), (true, true), "{generation}");
                assert_eq!(page(&machine, 1, moved), (true, false), "{generation}");
                assert_eq!(page(&machine, 0, at(from, granule)), (false, false), "{generation}");
                assert_untouchable(from.get(), 3 * granule, generation);
                vmm.address_free(from, 3 * granule).expect("nothing is in it any more");
                // Within a reservation.
                vmm.relocate(to, at(to, granule), granule).unwrap();
                assert_eq!(byte(&machine, to), 10, "{generation}");
                vmm.check().unwrap();
                vmm.unmap(at(to, 2 * granule), 2 * granule).unwrap();
                vmm.unmap(to, granule).unwrap();
                vmm.address_free(to, 4 * granule).unwrap();
                machine.assert_empty();
            }
        }
    });
}

#[test]
fn exchange_and_relocate_reject_bad_ranges() {
    let mut config = Config::mi300x(2);
    config.peer_access = false;
    let machine = machine(config);
    let (vmm, granule) = (&machine.vmm, machine.granule());
    let one = run(&machine, 3, 0, 10);
    let peers = run(&machine, 1, 1, 20);
    vmm.set_access(peers, granule, &[access(machine.gpu(1), Access::Read)]).unwrap();
    let double = machine.mapped(0, 2 * granule).0;
    let empty = machine.reserve(3 * granule);
    let calls = machine.simulation.all_calls();
    let second = at(one, granule);
    let null = Address::NULL;
    let (to, from, size) = (Argument::Destination, Argument::Source, Argument::Size);
    type Expected = (Argument, fn(Problem) -> bool);
    let overlaps: Expected = (from, |it| it == Problem::Overlapping);
    let not_mapped_from: Expected = (from, |it| matches!(it, Problem::NotMapped(_)));
    let exchanges: [(Address, Address, usize, Expected); 10] = [
        (one, second, 2 * granule, overlaps),
        (one, one, granule, overlaps),
        (one, double, 2 * granule, (from, |it| it == Problem::DifferentLayout)),
        (one, double, granule, (size, |it| matches!(it, Problem::SplitsMapping(_)))),
        (one, empty, granule, not_mapped_from),
        (empty, one, granule, (to, |it| matches!(it, Problem::NotMapped(_)))),
        (null, one, granule, (to, |it| it == Problem::Null)),
        (one, null, granule, (from, |it| it == Problem::Null)),
        (one, second, 0, (size, |it| it == Problem::Zero)),
        (one, peers, granule, (Argument::Agent, |it| matches!(it, Problem::Unreachable(_)))),
    ];
    for (number, (to, from, size, (argument, is_it))) in exchanges.into_iter().enumerate() {
        vmm.set_access(one, 3 * granule, &[access(machine.gpu(0), Access::Read)]).unwrap();
        let calls = machine.simulation.all_calls();
        let error = vmm.exchange(to, from, size).expect_err("refused");
        assert_eq!(error.argument(), Some(argument), "{number}: {error}");
        assert!(error.problem().is_some_and(is_it), "{number}: {error}");
        assert_eq!(machine.simulation.all_calls(), calls, "{number}");
    }
    let moves: [(Address, Address, usize, Expected); 7] = [
        (one, peers, granule, (to, |it| matches!(it, Problem::AlreadyMapped(_)))),
        (second, one, 2 * granule, overlaps),
        (empty, empty, granule, overlaps),
        (empty, at(one, 4 * granule), granule, (from, |it| it == Problem::NotReserved)),
        (at(empty, 2 * granule), one, 2 * granule, (to, |it| it == Problem::NotReserved)),
        (at(empty, 1), one, granule, (to, |it| matches!(it, Problem::NotAligned { .. }))),
        (empty, double, granule, (size, |it| matches!(it, Problem::SplitsMapping(_)))),
    ];
    drop(calls);
    let calls = machine.simulation.all_calls();
    for (number, (to, from, size, (argument, is_it))) in moves.into_iter().enumerate() {
        let error = vmm.relocate(to, from, size).expect_err("refused");
        assert_eq!(error.argument(), Some(argument), "{number}: {error}");
        assert!(error.problem().is_some_and(is_it), "{number}: {error}");
    }
    assert_eq!(machine.simulation.all_calls(), calls);
    vmm.check().unwrap();
}

#[test]
fn owned_mappings_follow_their_memory() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let reservation = Reservation::builder(4 * granule).reserve(&machine.vmm).unwrap();
        let mapping = |place: usize| {
            let memory = Allocation::create(&machine.vmm, granule, &machine.on(0)).unwrap();
            let mapping = reservation.map(place * granule, &memory).unwrap();
            mapping.grant(&[machine.cpu(0)], Access::ReadWrite).unwrap();
            mapping.write(0, &[place as u8; 4]).unwrap();
            mapping
        };
        let byte = |mapping: &Mapping| {
            let mut bytes = [0; 4];
            mapping.read(0, &mut bytes).unwrap();
            bytes[0]
        };
        let (mut one, mut other) = (mapping(0), mapping(1));
        let handles = [&one, &other].map(|mapping| mapping.allocation().handle());
        one.exchange(&mut other).unwrap();
        assert_eq!([byte(&one), byte(&other)], [1, 0], "{generation}");
        assert_eq!([&other, &one].map(|it| it.allocation().handle()), handles, "{generation}");

        let elsewhere = Reservation::builder(2 * granule).reserve(&machine.vmm).unwrap();
        let Rejected { value: one, error } =
            one.relocate(&elsewhere, 2 * granule).expect_err("beyond the end");
        assert_eq!(error.argument(), Some(Argument::Offset), "{generation}: {error}");
        let Rejected { value: one, error } =
            one.relocate(&reservation, granule).expect_err("the other mapping is in the way");
        let problem = error.problem();
        assert!(matches!(problem, Some(Problem::AlreadyMapped(_))), "{generation}: {problem:?}");
        let one = one.relocate(&elsewhere, granule).unwrap();
        assert_eq!(one.address(), at(elsewhere.address(), granule), "{generation}");
        assert_eq!(byte(&one), 1, "{generation}");
        // The mapping keeps only its current reservation alive.
        let gone = elsewhere.address();
        drop((elsewhere, other));
        assert!(reservation.free().is_ok(), "{generation}");
        assert!(machine.vmm.reservations().iter().any(|&(base, _)| base == gone), "{generation}");
        drop(one);
        machine.assert_empty();
    }
}

#[test]
fn stale_mapping_exchanges_nothing() {
    let (machine, foreign) = (Machine::new(Config::mi300x(1)), Machine::new(Config::mi300x(1)));
    let granule = machine.granule();
    let mapping = |machine: &Machine| {
        let reservation = Reservation::builder(granule).reserve(&machine.vmm).unwrap();
        let memory = Allocation::create(&machine.vmm, granule, &machine.on(0)).unwrap();
        reservation.map(0, &memory).unwrap()
    };
    let (mut one, mut other, mut foreign) =
        (mapping(&machine), mapping(&machine), mapping(&foreign));
    let error = one.exchange(&mut foreign).expect_err("of another Vmm");
    assert_eq!(error.problem(), Some(Problem::ForeignHandle), "{error}");
    let Rejected { value: mut one, error } =
        one.relocate(foreign.reservation(), 0).expect_err("of another Vmm");
    assert_eq!(error.problem(), Some(Problem::ForeignHandle), "{error}");
    // A call by address unmapped it, and another mapped other memory there.
    machine.vmm.unmap(other.address(), granule).unwrap();
    let theirs = machine.create(0, granule);
    machine.map(other.address(), granule, theirs);
    for error in [one.exchange(&mut other), other.exchange(&mut one)] {
        let error = error.expect_err("it is not the same mapping");
        assert!(matches!(error.problem(), Some(Problem::NotMapped(_))), "{error}");
    }
    drop((one, foreign));
    machine.vmm.check().unwrap();
}

const PAGE: usize = 16 * KIB;

fn buffer(machine: &Machine, zero: bool) -> PagedBuffer {
    let options = PagedBuffer::builder(8 * PAGE).with_page_size(PAGE);
    let options = if zero { options.with_zero_page() } else { options };
    let buffer = options.reserve(&machine.vmm, &machine.on(0)).unwrap();
    buffer.grant(&[machine.cpu(0)], Access::ReadWrite).unwrap();
    buffer
}

fn mark(buffer: &PagedBuffer, page: usize, mark: u8) {
    buffer.write(page * PAGE + 100, &[mark]).unwrap();
}

fn marked(buffer: &PagedBuffer, page: usize) -> u8 {
    let mut byte = [0xff];
    buffer.read(page * PAGE + 100, &mut byte).unwrap();
    byte[0]
}

#[test]
fn pages_move_between_buffers_and_within_one() {
    for (generation, config) in generations() {
        for (zero_here, zero_there) in [(false, false), (true, false), (false, true), (true, true)]
        {
            let machine = Machine::new(config.clone());
            let (here, there) = (buffer(&machine, zero_here), buffer(&machine, zero_there));
            there.grant(&[machine.gpu(1)], Access::ReadWrite).unwrap();
            here.map(0..4).unwrap();
            (0..4).for_each(|page| mark(&here, page, 10 + page as u8));
            let used = machine.used_by(0);
            here.move_pages(1..3, &there, 5).unwrap();
            assert_eq!((marked(&there, 5), marked(&there, 6)), (11, 12), "{generation}");
            let may = |page: usize| {
                machine.vmm.get_access(machine.gpu(1), there.address_of(page).unwrap()).unwrap()
            };
            assert_eq!(
                may(5),
                Access::ReadWrite,
                "{generation}: agents with access to the buffer can access the page"
            );
            let gone = here.read(PAGE + 100, &mut [0]);
            if zero_here {
                assert_eq!(marked(&here, 1), 0, "{generation}");
            } else {
                assert_eq!(
                    gone.map_err(Error::into_kind),
                    Err(page_error(1, Problem::PageNotMapped)),
                    "{generation}"
                );
            }
            // Defragmentation: the remaining pages become adjacent.
            here.move_pages(3..4, &here, 1).unwrap();
            assert_eq!((marked(&here, 0), marked(&here, 1)), (10, 13), "{generation}");
            assert_eq!(
                (here.statistics().mapped, there.statistics().mapped),
                (2, 2),
                "{generation}"
            );
            assert_eq!(machine.used_by(0), used, "{generation}: no memory was made");
            there.exchange_pages(5..7, &here, 0).unwrap();
            assert_eq!((marked(&here, 0), marked(&here, 1)), (11, 12), "{generation}");
            assert_eq!((marked(&there, 5), marked(&there, 6)), (10, 13), "{generation}");
            assert_eq!(may(6), Access::ReadWrite, "{generation}: access stays with the pages");
            there.exchange_pages(5..6, &there, 6).unwrap();
            assert_eq!((marked(&there, 5), marked(&there, 6)), (13, 10), "{generation}");
            // The buffer that owns the memory now is the one that releases it.
            here.unmap(0..2).unwrap();
            assert_eq!((marked(&there, 5), marked(&there, 6)), (13, 10), "{generation}");
            drop((here, there));
            machine.assert_empty();
        }
    }
}

#[test]
fn failed_moves_change_nothing() {
    let (machine, foreign) = (Machine::new(Config::mi300x(2)), Machine::new(Config::mi300x(2)));
    let (here, there, foreign) =
        (buffer(&machine, false), buffer(&machine, false), buffer(&foreign, false));
    let options = PagedBuffer::builder(8 * PAGE).with_page_size(2 * PAGE);
    let larger = options.reserve(&machine.vmm, &machine.on(0)).unwrap();
    let options = PagedBuffer::builder(8 * PAGE).with_page_size(PAGE);
    let peers = options.reserve(&machine.vmm, &machine.on(1)).unwrap();
    here.map(0..3).unwrap();
    there.map(2..3).unwrap();
    let calls = machine.simulation.all_calls();
    let foreign = here.move_pages(0..1, &foreign, 0).unwrap_err();
    assert_eq!(foreign.problem(), Some(Problem::ForeignHandle));
    for other in [&larger, &peers] {
        assert_eq!(
            here.move_pages(0..1, other, 0).map_err(Error::into_kind),
            Err(different_pages())
        );
        assert_eq!(
            here.exchange_pages(0..1, other, 0).map_err(Error::into_kind),
            Err(different_pages())
        );
    }
    assert_eq!(
        here.move_pages(2..4, &there, 4).map_err(Error::into_kind),
        Err(page_error(3, Problem::PageNotMapped))
    );
    assert_eq!(
        here.move_pages(0..2, &there, 1).map_err(Error::into_kind),
        Err(page_error(2, Problem::PageMapped))
    );
    let none = page_error(8, Problem::OutOfRange(8));
    assert_eq!(here.move_pages(0..2, &there, 7).map_err(Error::into_kind), Err(none));
    assert_eq!(
        here.move_pages(0..2, &there, usize::MAX).map_err(Error::into_kind),
        Err(page_error(usize::MAX, Problem::OutOfRange(8)))
    );
    assert_eq!(
        here.exchange_pages(0..1, &there, 0).map_err(Error::into_kind),
        Err(page_error(0, Problem::PageNotMapped))
    );
    let overlapping = here.move_pages(0..2, &here, 1).unwrap_err();
    assert!(overlapping.to_string().contains("overlaps"), "{overlapping}");
    here.move_pages(1..1, &there, 2).expect("an empty range");
    here.exchange_pages(1..1, &there, 2).expect("an empty range");
    assert_eq!(machine.simulation.all_calls(), calls);
    assert_eq!((here.statistics().mapped, there.statistics().mapped), (3, 1));
}

#[test]
fn opposite_moves_do_not_deadlock() {
    within(Duration::from_secs(120), || {
        let machine = Machine::new(Config::mi300x(1));
        let (one, other) = (buffer(&machine, false), buffer(&machine, true));
        one.map(0..2).unwrap();
        other.map(2..4).unwrap();
        let to_and_fro = |from: &PagedBuffer, to: &PagedBuffer, first: usize| {
            for _ in 0..200 {
                from.move_pages(first..first + 2, to, first).unwrap();
                to.move_pages(first..first + 2, from, first).unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| to_and_fro(&one, &other, 0));
            scope.spawn(|| to_and_fro(&other, &one, 2));
            scope.spawn(|| {
                for _ in 0..200 {
                    let _ = one.exchange_pages(0..2, &other, 2);
                }
            });
        });
        assert_eq!((one.statistics().mapped, other.statistics().mapped), (2, 2));
        drop((one, other));
        machine.assert_empty();
    });
}
