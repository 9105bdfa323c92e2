//! Calls that relocate memory to other addresses, and calls that exchange the memory of two ranges.

use crate::machine::{Machine, access, at, generations, without_cpu_mapping};
use crate::pausable::run_in_child;
use crate::process::assert_inaccessible;
use hsa_vmm::buffer::{PausableBuffer, PauseMode};
use hsa_vmm::error::Rejected;
use hsa_vmm::error::{Argument, Operation, Problem};
use hsa_vmm::simulation::{Config, GpuPermissions};
use hsa_vmm::{Access, Address, Allocation, Mapping, Reservation};

fn new_machine(config: Config) -> Machine {
    Machine::new(config.with_gpu_permissions(GpuPermissions::Enforced))
}

/// Returns whether a GPU's page table allows reads and writes at an address.
fn gpu_permissions(machine: &Machine, gpu: usize, address: Address) -> (bool, bool) {
    let page = machine.simulation.page(gpu, address.get());
    page.map_or((false, false), |page| (page.readable, page.writable))
}

/// Maps adjacent granules, each with memory of its own. Writes eight bytes to the start of each granule: their value is
/// `first` plus the granule's index.
fn map_granules(machine: &Machine, granules: usize, gpu: usize, first: u8) -> Address {
    let granule = machine.granule();
    let base = machine.reserve(granules * granule);
    for number in 0..granules {
        let handle = machine.create(gpu, granule);
        let address = at(base, number * granule);
        machine.map(address, granule, handle);
        machine.vmm.release(handle).unwrap();
        machine.grant(address, granule, machine.cpu(0), Access::ReadWrite);
        machine.vmm.write(address, &[first + number as u8; 8]).unwrap();
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
    // Another thread might take addresses that a runtime frees for a moment.
    run_in_child(|| {
        for (generation, config) in generations() {
            for config in [config.clone(), without_cpu_mapping(config)] {
                let machine = new_machine(config);
                let (vmm, granule) = (&machine.vmm, machine.granule());
                let (first, second) =
                    (map_granules(&machine, 3, 0, 10), map_granules(&machine, 3, 1, 20));
                let [cpu, gpu, peer] = [machine.cpu(0), machine.gpu(0), machine.gpu(1)];
                vmm.set_access(first, 3 * granule, &[access(gpu, Access::ReadWrite)]).unwrap();
                vmm.set_access(first, granule, &[access(cpu, Access::Read)]).unwrap();
                vmm.set_access(second, 3 * granule, &[access(peer, Access::Read)]).unwrap();
                let before = vmm.mappings();
                vmm.exchange(first, second, 3 * granule).unwrap();
                assert_eq!(
                    vmm.mappings(),
                    before,
                    "{generation}: addresses, sizes and access are the same"
                );
                for number in 0..3 {
                    let (in_first, in_second) =
                        (at(first, number * granule), at(second, number * granule));
                    assert_eq!(byte(&machine, in_first), 20 + number as u8, "{generation}");
                    assert_eq!(byte(&machine, in_second), 10 + number as u8, "{generation}");
                    assert_eq!(
                        gpu_permissions(&machine, 0, in_first),
                        (true, true),
                        "{generation}"
                    );
                    assert_eq!(
                        gpu_permissions(&machine, 1, in_first),
                        (false, false),
                        "{generation}"
                    );
                    assert_eq!(
                        gpu_permissions(&machine, 0, in_second),
                        (false, false),
                        "{generation}"
                    );
                    assert_eq!(
                        gpu_permissions(&machine, 1, in_second),
                        (true, false),
                        "{generation}"
                    );
                }
                vmm.write(first, b"no").expect_err("the CPU has read access only");
                // Exchanges two parts of one reservation.
                vmm.exchange(at(first, 2 * granule), at(first, granule), granule).unwrap();
                assert_eq!(byte(&machine, at(first, granule)), 22, "{generation}");
                assert_eq!(byte(&machine, at(first, 2 * granule)), 21, "{generation}");
                vmm.check().unwrap();
                for base in [first, second] {
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
    // Another thread might take addresses that a runtime frees for a moment.
    run_in_child(|| {
        for (generation, config) in generations() {
            for config in [config.clone(), without_cpu_mapping(config)] {
                let machine = new_machine(config);
                let (vmm, granule) = (&machine.vmm, machine.granule());
                let source = map_granules(&machine, 3, 0, 10);
                let destination = machine.reserve(4 * granule);
                let (gpu, peer) = (machine.gpu(0), machine.gpu(1));
                let descriptors = [access(gpu, Access::ReadWrite), access(peer, Access::Read)];
                vmm.set_access(at(source, granule), granule, &descriptors).unwrap();
                vmm.relocate(at(destination, granule), source, 3 * granule).unwrap();
                for number in 0..3 {
                    assert_eq!(
                        byte(&machine, at(destination, (number + 1) * granule)),
                        10 + number as u8
                    );
                }
                let moved = at(destination, 2 * granule);
                assert_eq!(vmm.get_access(peer, moved), Ok(Access::Read), "{generation}");
                assert_eq!(gpu_permissions(&machine, 0, moved), (true, true), "{generation}");
                assert_eq!(gpu_permissions(&machine, 1, moved), (true, false), "{generation}");
                assert_eq!(
                    gpu_permissions(&machine, 0, at(source, granule)),
                    (false, false),
                    "{generation}"
                );
                assert_inaccessible(source.get(), 3 * granule, generation);
                vmm.address_free(source, 3 * granule)
                    .expect("nothing is mapped in the reservation");
                // Relocates within a reservation.
                vmm.relocate(destination, at(destination, granule), granule).unwrap();
                assert_eq!(byte(&machine, destination), 10, "{generation}");
                vmm.check().unwrap();
                vmm.unmap(at(destination, 2 * granule), 2 * granule).unwrap();
                vmm.unmap(destination, granule).unwrap();
                vmm.address_free(destination, 4 * granule).unwrap();
                machine.assert_empty();
            }
        }
    });
}

#[test]
fn exchange_and_relocate_reject_bad_ranges() {
    let mut config = Config::mi300x(2);
    config.peer_access = false;
    let machine = new_machine(config);
    let (vmm, granule) = (&machine.vmm, machine.granule());
    let base = map_granules(&machine, 3, 0, 10);
    let peer_base = map_granules(&machine, 1, 1, 20);
    vmm.set_access(peer_base, granule, &[access(machine.gpu(1), Access::Read)]).unwrap();
    let two_granule_base = machine.map_new_memory(0, 2 * granule).0;
    let empty = machine.reserve(3 * granule);
    let second = at(base, granule);
    let null = Address::NULL;
    let (destination, source, size) = (Argument::Destination, Argument::Source, Argument::Size);
    type Expected = (Argument, fn(Problem) -> bool);
    let overlaps: Expected = (source, |problem| problem == Problem::Overlapping);
    let source_not_mapped: Expected = (source, |problem| matches!(problem, Problem::NotMapped(_)));
    let exchanges: [(Address, Address, usize, Expected); 10] = [
        (base, second, 2 * granule, overlaps),
        (base, base, granule, overlaps),
        (
            base,
            two_granule_base,
            2 * granule,
            (source, |problem| problem == Problem::DifferentLayout),
        ),
        (
            base,
            two_granule_base,
            granule,
            (size, |problem| matches!(problem, Problem::SplitsMapping(_))),
        ),
        (base, empty, granule, source_not_mapped),
        (empty, base, granule, (destination, |problem| matches!(problem, Problem::NotMapped(_)))),
        (null, base, granule, (destination, |problem| problem == Problem::Null)),
        (base, null, granule, (source, |problem| problem == Problem::Null)),
        (base, second, 0, (size, |problem| problem == Problem::Zero)),
        (
            base,
            peer_base,
            granule,
            (Argument::Agent, |problem| matches!(problem, Problem::NoPeerAccess(_))),
        ),
    ];
    for (number, (target, origin, length, (argument, is_expected))) in
        exchanges.into_iter().enumerate()
    {
        vmm.set_access(base, 3 * granule, &[access(machine.gpu(0), Access::Read)]).unwrap();
        let calls = machine.simulation.all_calls();
        let error = vmm.exchange(target, origin, length).expect_err("the range is invalid");
        assert_eq!(error.argument(), Some(argument), "{number}: {error}");
        assert!(error.problem().is_some_and(is_expected), "{number}: {error}");
        assert_eq!(machine.simulation.all_calls(), calls, "{number}");
    }
    let moves: [(Address, Address, usize, Expected); 7] = [
        (
            base,
            peer_base,
            granule,
            (destination, |problem| matches!(problem, Problem::AlreadyMapped(_))),
        ),
        (second, base, 2 * granule, overlaps),
        (empty, empty, granule, overlaps),
        (
            empty,
            at(base, 4 * granule),
            granule,
            (source, |problem| problem == Problem::NotReserved),
        ),
        (
            at(empty, 2 * granule),
            base,
            2 * granule,
            (destination, |problem| problem == Problem::NotReserved),
        ),
        (
            at(empty, 1),
            base,
            granule,
            (destination, |problem| matches!(problem, Problem::NotAligned { .. })),
        ),
        (
            empty,
            two_granule_base,
            granule,
            (size, |problem| matches!(problem, Problem::SplitsMapping(_))),
        ),
    ];
    let calls = machine.simulation.all_calls();
    for (number, (target, origin, length, (argument, is_expected))) in moves.into_iter().enumerate()
    {
        let error = vmm.relocate(target, origin, length).expect_err("the range is invalid");
        assert_eq!(error.argument(), Some(argument), "{number}: {error}");
        assert!(error.problem().is_some_and(is_expected), "{number}: {error}");
    }
    assert_eq!(machine.simulation.all_calls(), calls);
    vmm.check().unwrap();
}

#[test]
fn exchange_and_relocate_update_owned_mappings() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let reservation = Reservation::builder(4 * granule).reserve(&machine.vmm).unwrap();
        let new_mapping = |index: usize| {
            let memory =
                Allocation::create(&machine.vmm, granule, &machine.shareable_on(0)).unwrap();
            let mapping = reservation.map(index * granule, &memory).unwrap();
            mapping.grant(&[machine.cpu(0)], Access::ReadWrite).unwrap();
            mapping.write(0, &[index as u8; 4]).unwrap();
            mapping
        };
        let byte = |mapping: &Mapping| {
            let mut bytes = [0; 4];
            mapping.read(0, &mut bytes).unwrap();
            bytes[0]
        };
        let (mut first, mut second) = (new_mapping(0), new_mapping(1));
        let handles = [&first, &second].map(|mapping| mapping.allocation().handle());
        first.exchange(&mut second).unwrap();
        assert_eq!([byte(&first), byte(&second)], [1, 0], "{generation}");
        assert_eq!(
            [&second, &first].map(|mapping| mapping.allocation().handle()),
            handles,
            "{generation}"
        );

        let other_reservation = Reservation::builder(2 * granule).reserve(&machine.vmm).unwrap();
        let Rejected { value: first, error } =
            first.relocate(&other_reservation, 2 * granule).expect_err("beyond the end");
        assert_eq!(error.argument(), Some(Argument::Offset), "{generation}: {error}");
        let Rejected { value: first, error } = first
            .relocate(&reservation, granule)
            .expect_err("the other mapping occupies the addresses");
        let problem = error.problem();
        assert!(matches!(problem, Some(Problem::AlreadyMapped(_))), "{generation}: {problem:?}");
        let first = first.relocate(&other_reservation, granule).unwrap();
        assert_eq!(first.address(), at(other_reservation.address(), granule), "{generation}");
        assert_eq!(byte(&first), 1, "{generation}");
        // The mapping keeps only its current reservation alive.
        let kept_address = other_reservation.address();
        drop((other_reservation, second));
        assert!(reservation.free().is_ok(), "{generation}");
        assert!(
            machine.vmm.reservations().iter().any(|&(base, _)| base == kept_address),
            "{generation}"
        );
        drop(first);
        machine.assert_empty();
    }
}

/// The lists of `exchange_many` may have any order. The call pairs mappings in the order of their addresses.
#[test]
fn exchanged_mappings_may_be_unsorted() {
    let machine = Machine::new(Config::mi300x(1));
    let granule = machine.granule();
    let new_mappings = |first: u8| {
        let reservation = Reservation::builder(3 * granule).reserve(&machine.vmm).unwrap();
        let new_mapping = |index: usize| {
            let memory =
                Allocation::create(&machine.vmm, granule, &machine.shareable_on(0)).unwrap();
            let mapping = reservation.map(index * granule, &memory).unwrap();
            mapping.grant(&[machine.cpu(0)], Access::ReadWrite).unwrap();
            mapping.write(0, &[first + index as u8]).unwrap();
            mapping
        };
        [new_mapping(0), new_mapping(1), new_mapping(2)]
    };
    let (mut first, mut second) = (new_mappings(10), new_mappings(20));
    first.reverse();
    second.swap(0, 1);
    Mapping::exchange_many(&mut first, &mut second).unwrap();
    for (mapping, expected) in first.iter().chain(&second).zip([22, 21, 20, 11, 10, 12]) {
        let mut byte = [0];
        mapping.read(0, &mut byte).unwrap();
        assert_eq!(byte, [expected], "{mapping:?}");
        let retained = Allocation::at(&machine.vmm, mapping.address()).unwrap();
        assert_eq!(mapping.allocation().handle(), retained.handle(), "{mapping:?}");
    }
    drop((first, second));
    machine.assert_empty();
}

/// Nothing was unmapped, so that the error does not say so.
#[test]
fn exchange_rejects_several_reservations() {
    let machine = Machine::new(Config::mi300x(1));
    let granule = machine.granule();
    let base = machine.reserve(4 * granule);
    machine.vmm.address_free(base, 4 * granule).unwrap();
    let new_mapping = |index: usize| {
        let reservation = Reservation::builder(granule).exactly_at(at(base, index * granule));
        let reservation = reservation.reserve(&machine.vmm).unwrap();
        let memory = Allocation::create(&machine.vmm, granule, &machine.shareable_on(0)).unwrap();
        reservation.map(0, &memory).unwrap()
    };
    let (mut first, mut second) = ([0, 1].map(new_mapping), [2, 3].map(new_mapping));
    let error = Mapping::exchange_many(&mut first, &mut second).unwrap_err();
    assert_eq!(error.argument(), Some(Argument::Destination), "{error}");
    assert_eq!(error.problem(), Some(Problem::NotReserved), "{error}");
    assert!(first.iter().chain(&second).all(|mapping| mapping.check_mapped().is_ok()));
}

/// Two empty lists are valid. If only one list is empty, the layouts differ.
#[test]
fn exchange_rejects_one_empty_list() {
    let machine = Machine::new(Config::mi300x(1));
    let memory =
        Allocation::create(&machine.vmm, machine.granule(), &machine.shareable_on(0)).unwrap();
    let reservation = Reservation::builder(machine.granule()).reserve(&machine.vmm).unwrap();
    let mut mappings = [reservation.map(0, &memory).unwrap()];
    assert_eq!(Mapping::exchange_many(&mut [], &mut []), Ok(()));
    for error in [
        Mapping::exchange_many(&mut mappings, &mut []).unwrap_err(),
        Mapping::exchange_many(&mut [], &mut mappings).unwrap_err(),
    ] {
        assert_eq!(error.operation(), Operation::Exchange);
        assert_eq!(error.problem(), Some(Problem::DifferentLayout), "{error}");
    }
    drop((mappings, memory, reservation));
    machine.assert_empty();
}

/// If a call by address exchanges the memory of owned values, these values then reject calls that use the memory.
#[test]
fn exchange_by_address_makes_owned_values_stale() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let other = machine.map_new_memory(0, granule).0;
        let new_memory =
            || Allocation::create(&machine.vmm, granule, &machine.shareable_on(0)).unwrap();
        let reservation = Reservation::builder(granule).reserve(&machine.vmm).unwrap();
        let mapping = reservation.map(0, &new_memory()).unwrap().named("kept");
        let mut buffer =
            PausableBuffer::create(&machine.vmm, granule, &machine.shareable_on(0)).unwrap();
        buffer.grant(&[machine.cpu(0)], Access::ReadWrite).unwrap();
        for address in [mapping.address(), buffer.address()] {
            machine.vmm.exchange(address, other, granule).unwrap();
        }
        let (entries, _) = machine.vmm.snapshot();
        let names =
            entries.iter().flat_map(|entry| &entry.mappings).filter_map(|it| it.name.clone());
        assert_eq!(names.collect::<Vec<_>>(), ["kept"], "{generation}");
        let errors = [
            mapping.check_mapped(),
            mapping.write(0, &[1]),
            buffer.write(0, &[1]),
            buffer.pause(PauseMode::Save),
        ];
        for error in errors.map(Result::unwrap_err) {
            let problem = error.problem();
            assert!(matches!(problem, Some(Problem::NotMapped(_))), "{generation}: {error}");
        }
        assert!(!buffer.is_paused(), "{generation}");
        for address in [mapping.address(), buffer.address(), other] {
            machine.vmm.unmap(address, granule).unwrap();
        }
        drop((mapping, reservation, buffer));
        machine.vmm.check().unwrap();
    }
}

#[test]
fn stale_mapping_exchanges_nothing() {
    let [machine, foreign_machine] = [0, 1].map(|_| Machine::new(Config::mi300x(1)));
    let granule = machine.granule();
    let new_mapping = |machine: &Machine| {
        let reservation = Reservation::builder(granule).reserve(&machine.vmm).unwrap();
        let memory = Allocation::create(&machine.vmm, granule, &machine.shareable_on(0)).unwrap();
        reservation.map(0, &memory).unwrap()
    };
    let (mut first, mut second, mut foreign) =
        (new_mapping(&machine), new_mapping(&machine), new_mapping(&foreign_machine));
    let error = first.exchange(&mut foreign).expect_err("another Vmm's mapping");
    assert_eq!(error.problem(), Some(Problem::ForeignHandle), "{error}");
    let Rejected { value: mut first, error } =
        first.relocate(foreign.reservation(), 0).expect_err("another Vmm's reservation");
    assert_eq!(error.problem(), Some(Problem::ForeignHandle), "{error}");
    // Calls by address unmap `second`, and map other memory at its address.
    machine.vmm.unmap(second.address(), granule).unwrap();
    let new_memory = machine.create(0, granule);
    machine.map(second.address(), granule, new_memory);
    for error in [first.exchange(&mut second), second.exchange(&mut first)] {
        let error = error.expect_err("`second` is stale");
        assert!(matches!(error.problem(), Some(Problem::NotMapped(_))), "{error}");
    }
    drop((first, foreign));
    machine.vmm.check().unwrap();
}
