//! A batch has the effect of single calls, changes everything or nothing, and makes the fewest runtime calls.

mod hostile;
mod machine;

use hostile::HostileRuntime;
use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::simulation::Config;
use hsa_vmm::vmm::{MappingInfo, NewMapping};
use hsa_vmm::{Access, AccessDescriptor, Address, AllocationProperties, Error, Handle};
use machine::{Machine, access, at};
use std::thread;

fn new_mapping(address: Address, size: usize, handle: Handle) -> NewMapping {
    NewMapping { address, size, offset: 0, handle }
}

/// Returns read and write access for both GPUs.
fn read_write_for_gpus(machine: &Machine) -> [AccessDescriptor; 2] {
    [0, 1].map(|gpu| access(machine.gpu(gpu), Access::ReadWrite))
}

/// The numbers of granules of the two reservations of a `Fixture`.
const GRANULES: [usize; 2] = [8, 3];

/// Nine new mappings in two reservations, in no particular order. The first reservation has six mappings of the first
/// GPU's memory: four adjacent mappings, and two other adjacent mappings. The second reservation has three mappings
/// of the second GPU's memory.
struct Fixture {
    machine: Machine,
    granule: usize,
    bases: [Address; 2],
    mappings: Vec<NewMapping>,
}

impl Fixture {
    fn new(config: Config) -> Self {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let bases = GRANULES.map(|granules| machine.reserve(granules * granule));
        let [first, second] = [0, 1].map(|gpu| machine.create(gpu, granule));
        let granule_mapping = |base: Address, index: usize, handle| {
            new_mapping(at(base, index * granule), granule, handle)
        };
        let mut mappings: Vec<_> =
            [3, 0, 7, 2, 1, 6].map(|index| granule_mapping(bases[0], index, first)).to_vec();
        mappings.extend([2, 0, 1].map(|index| granule_mapping(bases[1], index, second)));
        Self { machine, granule, bases, mappings }
    }

    fn ranges(&self) -> [(Address, usize); 3] {
        let [first, second] = self.bases;
        let range =
            |base, first_index, count| (at(base, first_index * self.granule), count * self.granule);
        [range(second, 0, 3), range(first, 6, 2), range(first, 0, 4)]
    }

    fn map(&self, access: &[AccessDescriptor]) {
        self.machine.vmm.map_many(&self.mappings, access).unwrap();
    }
}

#[test]
fn adjacent_mappings_take_one_runtime_call() {
    for (release, config) in machine::releases() {
        let minor = config.extension_minor;
        let fixture = Fixture::new(config);
        let (vmm, grants) = (&fixture.machine.vmm, read_write_for_gpus(&fixture.machine));
        let calls = |call: &dyn Fn()| fixture.machine.calls(call);
        // Newer releases need one call for adjacent mappings. Older releases need one call for each mapping.
        let grant_calls = if minor >= 7 { 3 } else { 9 };
        let unmap_calls = if minor >= 9 { 3 } else { 9 };
        assert_eq!(
            calls(&|| fixture.map(&grants)),
            [("map", 9), ("set_access", grant_calls)],
            "{release}"
        );
        let grant = |access: &[_]| {
            let changes: Vec<_> = fixture.ranges().iter().map(|it| (it.0, it.1, access)).collect();
            vmm.set_access_many(&changes).unwrap();
        };
        assert_eq!(calls(&|| grant(&grants)), [], "{release}: already granted");
        let read_only =
            grants.map(|descriptor| AccessDescriptor { access: Access::Read, ..descriptor });
        assert_eq!(calls(&|| grant(&read_only)), [("set_access", grant_calls)], "{release}");
        let unmap = || vmm.unmap_many(&fixture.ranges()).unwrap();
        assert_eq!(calls(&unmap), [("unmap", unmap_calls)], "{release}");
        assert_eq!(calls(&|| fixture.map(&[])), [("map", 9)], "{release}: without agents");
        assert_eq!(calls(&unmap), [("unmap", unmap_calls)], "{release}");
        assert_eq!(vmm.usage().mappings, 0, "{release}");
        assert_eq!(vmm.quarantined_ranges(), []);
    }
}

#[test]
fn adjacent_reservations_take_two_runtime_calls() {
    for (generation, config) in machine::generations() {
        let machine = Machine::new(config);
        let (granule, handle) = (machine.granule(), machine.create(0, machine.granule()));
        let bases = machine.adjacent_reservations(granule);
        let mappings = bases.map(|base| new_mapping(base, granule, handle));
        let map = || machine.vmm.map_many(&mappings, &read_write_for_gpus(&machine)).unwrap();
        assert_eq!(machine.calls(map), [("map", 2), ("set_access", 2)], "{generation}");
        let unmap = || machine.vmm.unmap_many(&bases.map(|base| (base, granule))).unwrap();
        assert_eq!(machine.calls(unmap), [("unmap", 2)], "{generation}");
    }
}

/// The state of a mapping, without values that differ between two machines, such as addresses.
#[derive(Debug, PartialEq, PartialOrd)]
struct MappingState {
    reservation: usize,
    offset: usize,
    /// The access of agents. Each agent has its index in the runtime's list.
    access: Vec<(usize, u32)>,
    /// Whether each GPU can access the mapping.
    gpu_access: [bool; 2],
}

fn mapping_states(fixture: &Fixture) -> Vec<MappingState> {
    let agents: Vec<_> = fixture.machine.runtime.agents().iter().map(|agent| agent.id()).collect();
    let state = |MappingInfo { address, access, .. }: MappingInfo| {
        let contains_address = |number: &usize| {
            let start = fixture.bases[*number].get();
            (start..start + GRANULES[*number] * fixture.granule).contains(&address.get())
        };
        let reservation = (0..2).find(contains_address).expect("an address of a reservation");
        let index = |agent| {
            agents.iter().position(|found| *found == agent).expect("an agent of the runtime")
        };
        MappingState {
            reservation,
            offset: address.get() - fixture.bases[reservation].get(),
            access: access
                .iter()
                .map(|&(agent, access)| (index(agent), access.to_bits()))
                .collect(),
            gpu_access: [0, 1]
                .map(|gpu| fixture.machine.simulation.page(gpu, address.get()).is_some()),
        }
    };
    let mut states: Vec<_> = fixture.machine.vmm.mappings().into_iter().map(state).collect();
    states.sort_by_key(|state| (state.reservation, state.offset));
    states
}

/// Runs random batches on one machine, and the equivalent single calls on another machine.
#[test]
fn batches_equal_single_calls() {
    for (generation, config) in machine::generations() {
        let [batch_fixture, single_fixture] = [0, 1].map(|_| Fixture::new(config.clone()));
        let mut seed = 1_u64;
        // A linear congruential generator, with the multiplier of Knuth's MMIX.
        let mut draw = |end: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % end
        };
        let mut mapped = [false; 9];
        for step in 0..150 {
            let chosen: Vec<usize> = (0..9).filter(|_| draw(3) > 0).collect();
            let [mapped_indices, unmapped_indices] = [true, false].map(|is_mapped| {
                chosen
                    .iter()
                    .copied()
                    .filter(|&index| mapped[index] == is_mapped)
                    .collect::<Vec<_>>()
            });
            // The call: 0 maps, 1 sets access, 2 unmaps.
            let (call, indices) =
                if draw(3) == 0 { (0, unmapped_indices) } else { (1 + draw(2), mapped_indices) };
            let choices = [Access::None, Access::Read, Access::ReadWrite];
            let drawn = [0, 1, 2].map(|_| choices[draw(3)]);
            let agent_count = 1 + draw(3);
            for (fixture, batch) in [(&batch_fixture, true), (&single_fixture, false)] {
                let machine = &fixture.machine;
                let agents = [machine.gpu(0), machine.cpu(0), machine.gpu(1)];
                let list = agents.into_iter().zip(drawn).map(|(agent, value)| access(agent, value));
                let list: Vec<_> = list.take(agent_count).collect();
                let mappings: Vec<_> =
                    indices.iter().map(|&index| fixture.mappings[index]).collect();
                let ranges: Vec<_> =
                    mappings.iter().map(|mapping| (mapping.address, mapping.size)).collect();
                let vmm = &machine.vmm;
                let result = match (call, batch) {
                    _ if indices.is_empty() => Ok(()),
                    (0, true) => vmm.map_many(&mappings, &list),
                    (1, true) => {
                        let changes: Vec<_> =
                            ranges.iter().map(|it| (it.0, it.1, &list[..])).collect();
                        vmm.set_access_many(&changes)
                    }
                    (_, true) => vmm.unmap_many(&ranges),
                    (0, false) => mappings.iter().try_for_each(|mapping| {
                        vmm.map(mapping.address, mapping.size, 0, mapping.handle)?;
                        vmm.set_access(mapping.address, mapping.size, &list)
                    }),
                    (1, false) => ranges
                        .iter()
                        .try_for_each(|&(address, size)| vmm.set_access(address, size, &list)),
                    (_, false) => {
                        ranges.iter().try_for_each(|&(address, size)| vmm.unmap(address, size))
                    }
                };
                result.unwrap_or_else(|error| panic!("{generation}, step {step}: {error}"));
            }
            if call != 1 {
                indices.iter().for_each(|&index| mapped[index] = call == 0);
            }
            assert_eq!(
                mapping_states(&batch_fixture),
                mapping_states(&single_fixture),
                "{generation}, step {step}"
            );
        }
        batch_fixture.machine.vmm.check().unwrap();
        assert_eq!(batch_fixture.machine.vmm.quarantined_ranges(), []);
    }
}

fn argument_and_problem(result: Result<(), Error>) -> (Argument, Problem) {
    let error = result.unwrap_err();
    error.argument().zip(error.problem()).unwrap_or_else(|| panic!("{error}"))
}

#[test]
fn lists_with_an_invalid_entry_change_nothing() {
    let fixture = Fixture::new(Config::mi300x(2));
    let (machine, granule, [base, second]) = (&fixture.machine, fixture.granule, fixture.bases);
    let (vmm, grants) = (&machine.vmm, read_write_for_gpus(machine));
    let valid = fixture.mappings[0];
    let released = machine.create(0, granule);
    vmm.release(released).unwrap();
    let small = machine.create(0, granule);
    machine.map(at(base, 4 * granule), granule, small);
    let taken = at(base, 4 * granule);
    let calls = || -> u64 { machine.simulation.all_calls().iter().map(|call| call.1).sum() };
    let (before, mappings) = (calls(), vmm.mappings());
    let not_aligned = Problem::NotAligned { granule };
    let too_large = Problem::TooLarge { maximum: granule, whole: Argument::Handle };
    for (invalid, expected) in [
        (new_mapping(Address::NULL, granule, small), (Argument::Address, Problem::Null)),
        (new_mapping(base, 0, small), (Argument::Size, Problem::Zero)),
        (new_mapping(base, usize::MAX, small), (Argument::Size, Problem::Overflow)),
        (new_mapping(valid.address, granule, small), (Argument::List, Problem::Overlapping)),
        (new_mapping(base, granule, released), (Argument::Handle, Problem::Released)),
        (new_mapping(taken, granule, small), (Argument::Address, Problem::AlreadyMapped(taken))),
        (
            new_mapping(at(second, 3 * granule), granule, small),
            (Argument::Address, Problem::NotReserved),
        ),
        (new_mapping(at(base, 5 * granule + 64), granule, small), (Argument::Address, not_aligned)),
        (new_mapping(at(base, 5 * granule), 2 * granule, small), (Argument::Size, too_large)),
    ] {
        for list in [[invalid, valid], [valid, invalid]] {
            assert_eq!(argument_and_problem(vmm.map_many(&list, &grants)), expected, "{invalid:?}");
        }
    }
    let empty_list = (Argument::List, Problem::Empty);
    assert_eq!(argument_and_problem(vmm.map_many(&[], &grants)), empty_list);
    assert_eq!(argument_and_problem(vmm.set_access_many(&[])), empty_list);
    assert_eq!(argument_and_problem(vmm.unmap_many(&[])), empty_list);
    let foreign_machine = Machine::new(Config::mi300x(1));
    let foreign_grants = [access(foreign_machine.gpu(0), Access::Read)];
    let reported = argument_and_problem(vmm.map_many(&[valid], &foreign_grants));
    assert_eq!(reported, (Argument::Agent, Problem::UnknownAgent));
    let range = (taken, granule);
    let with_grants = |(address, size)| (address, size, &grants[..]);
    let no_agents = (Argument::Descriptors, Problem::Empty);
    assert_eq!(argument_and_problem(vmm.set_access_many(&[(taken, granule, &[])])), no_agents);
    for (invalid, expected) in [
        (range, (Argument::List, Problem::Overlapping)),
        ((base, granule), (Argument::Address, Problem::NotMapped(base))),
        ((second, 4 * granule), (Argument::Address, Problem::NotReserved)),
    ] {
        assert_eq!(
            argument_and_problem(vmm.unmap_many(&[range, invalid])),
            expected,
            "{invalid:?}"
        );
        assert_eq!(
            argument_and_problem(vmm.set_access_many(&[invalid, range].map(with_grants))),
            expected,
            "{invalid:?}"
        );
    }
    assert_eq!(calls(), before, "no call of the runtime");
    assert_eq!(vmm.mappings(), mappings);
    vmm.check().unwrap();
    // A rejected call keeps no reference to the handle.
    vmm.release(valid.handle).unwrap();
    assert!(vmm.allocation_properties(valid.handle).is_err());
}

/// After a failed batch, releasing the handle frees its memory.
#[test]
fn failed_map_does_not_keep_memory() {
    let machine = Machine::new(Config::mi300x(2));
    let granule = machine.granule();
    let (base, handle) = (machine.reserve(2 * granule), machine.create(0, granule));
    let too_large = new_mapping(at(base, granule), 2 * granule, handle);
    machine.vmm.map_many(&[new_mapping(base, granule, handle), too_large], &[]).unwrap_err();
    machine.vmm.release(handle).unwrap();
    machine.vmm.address_free(base, 2 * granule).unwrap();
    machine.assert_empty();
}

/// Other threads see the mappings of a batch all at once, after the runtime has granted access to all of them.
#[test]
fn batches_are_atomic_to_other_threads() {
    let hostile = HostileRuntime::new();
    let (_runtime, vmm, gpu) = hostile.open();
    let size = 4096;
    let bases = [0, 1].map(|_| vmm.address_reserve(size, 0, None).unwrap());
    let handle = vmm.create(size, &AllocationProperties::on(gpu)).unwrap();
    hostile.set(c"hostile_delay_us", 20_000);
    let mappings = bases.map(|base| new_mapping(base, size, handle));
    let grants = [access(gpu, Access::ReadWrite)];
    let check_first_visible = |is_finished: &dyn Fn() -> bool| {
        let found = loop {
            let (finished, found) = (is_finished(), vmm.mappings());
            if finished || !found.is_empty() {
                break found;
            }
            thread::yield_now();
        };
        assert_eq!(found.len(), 2, "both mappings become visible at once");
        for mapping in found {
            assert_eq!(mapping.access, [(gpu, Access::ReadWrite)]);
        }
    };
    thread::scope(|scope| {
        let map = scope.spawn(|| vmm.map_many(&mappings, &grants));
        check_first_visible(&|| map.is_finished());
        assert_eq!(
            hostile.get(c"hostile_access_changes"),
            2,
            "the runtime has granted access to both"
        );
        map.join().unwrap().unwrap();
    });
    vmm.unmap_many(&bases.map(|base| (base, size))).unwrap();
    assert_eq!(vmm.mappings(), []);
}

/// Batches that name the same reservations in opposite order do not deadlock.
#[test]
fn batches_on_the_same_reservations_do_not_deadlock() {
    let fixture = Fixture::new(Config::mi300x(2));
    let (vmm, granule, [first, second]) = (&fixture.machine.vmm, fixture.granule, fixture.bases);
    let handle = fixture.machine.create(0, granule);
    thread::scope(|scope| {
        for thread in 0..3 {
            scope.spawn(move || {
                let addresses = [at(first, thread * granule), at(second, thread * granule)];
                let mut mappings = addresses.map(|address| new_mapping(address, granule, handle));
                if thread == 1 {
                    mappings.reverse();
                }
                let ranges = mappings.map(|mapping| (mapping.address, mapping.size));
                for _ in 0..100 {
                    vmm.map_many(&mappings, &[]).unwrap();
                    vmm.unmap_many(&ranges).unwrap();
                }
            });
        }
    });
    assert_eq!(vmm.usage().mappings, 0);
    vmm.check().unwrap();
}
