//! Batch calls: they have the effect of single calls, all or nothing, with the fewest runtime calls.

mod hostile;
mod machine;

use hostile::Hostile;
use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::simulation::Config;
use hsa_vmm::vmm::{MappingInfo, NewMapping};
use hsa_vmm::{Access, AccessDescriptor, Address, AllocationProperties, Error, Handle};
use machine::{Machine, access, at};
use std::thread;

fn new(address: Address, size: usize, handle: Handle) -> NewMapping {
    NewMapping { address, size, handle }
}

/// Returns read and write access for both GPUs.
fn gpus(machine: &Machine) -> [AccessDescriptor; 2] {
    [0, 1].map(|gpu| access(machine.gpu(gpu), Access::ReadWrite))
}

/// Nine mappings in two reservations: four and two adjacent ones of the first GPU's memory, and three of
/// the other's, unordered.
struct Nine {
    machine: Machine,
    granule: usize,
    bases: [Address; 2],
    wanted: Vec<NewMapping>,
}

impl Nine {
    fn on(config: Config) -> Self {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let bases = [8, 3].map(|pages| machine.reserve(pages * granule));
        let [near, far] = [0, 1].map(|gpu| machine.create(gpu, granule));
        let page =
            |base: Address, page: usize, handle| new(at(base, page * granule), granule, handle);
        let mut wanted: Vec<_> = [3, 0, 7, 2, 1, 6].map(|it| page(bases[0], it, near)).to_vec();
        wanted.extend([2, 0, 1].map(|it| page(bases[1], it, far)));
        Self { machine, granule, bases, wanted }
    }

    fn ranges(&self) -> [(Address, usize); 3] {
        let [one, other] = self.bases;
        let range = |base, from, pages| (at(base, from * self.granule), pages * self.granule);
        [range(other, 0, 3), range(one, 6, 2), range(one, 0, 4)]
    }

    fn map(&self, access: &[AccessDescriptor]) {
        self.machine.vmm.map_many(&self.wanted, access).unwrap();
    }
}

#[test]
fn adjacent_mappings_take_one_runtime_call() {
    for (release, config) in machine::releases() {
        let minor = config.extension_minor;
        let nine = Nine::on(config);
        let (vmm, all) = (&nine.machine.vmm, gpus(&nine.machine));
        let calls = |act: &dyn Fn()| nine.machine.calls(act);
        // One call for adjacent mappings; before ROCm 6.4 for each mapping.
        let granted = if minor >= 7 { 3 } else { 9 };
        let unmapped = if minor >= 9 { 3 } else { 9 };
        assert_eq!(calls(&|| nine.map(&all)), [("map", 9), ("set_access", granted)], "{release}");
        let grant = |access: &[_]| vmm.set_access_many(&nine.ranges(), access).unwrap();
        assert_eq!(calls(&|| grant(&all)), [], "{release}: known already");
        let less = all.map(|it| AccessDescriptor { access: Access::Read, ..it });
        assert_eq!(calls(&|| grant(&less)), [("set_access", granted)], "{release}");
        let unmap = || vmm.unmap_many(&nine.ranges()).unwrap();
        assert_eq!(calls(&unmap), [("unmap", unmapped)], "{release}");
        assert_eq!(calls(&|| nine.map(&[])), [("map", 9)], "{release}: without agents");
        assert_eq!(calls(&unmap), [("unmap", unmapped)], "{release}");
        assert_eq!(vmm.usage().mappings, 0, "{release}");
        assert_eq!(vmm.quarantine(), []);
    }
}

/// Two adjacent reservations take two calls of the runtime.
#[test]
fn adjacent_reservations_take_two_runtime_calls() {
    for (generation, config) in machine::generations() {
        let machine = Machine::new(config);
        let (granule, handle) = (machine.granule(), machine.create(0, machine.granule()));
        let bases = machine.two_that_touch(granule);
        let two = bases.map(|base| new(base, granule, handle));
        let map = || machine.vmm.map_many(&two, &gpus(&machine)).unwrap();
        assert_eq!(machine.calls(map), [("map", 2), ("set_access", 2)], "{generation}");
        let unmap = || machine.vmm.unmap_many(&bases.map(|base| (base, granule))).unwrap();
        assert_eq!(machine.calls(unmap), [("unmap", 2)], "{generation}");
    }
}

/// A mapping, described by what is equal on two machines.
#[derive(Debug, PartialEq, PartialOrd)]
struct MappingState {
    reservation: usize,
    offset: usize,
    /// Agents by index.
    access: Vec<(usize, u32)>,
    /// Whether each GPU can access it.
    reached: [bool; 2],
}

fn mapping_states(nine: &Nine) -> Vec<MappingState> {
    let agents: Vec<_> = nine.machine.runtime.agents().iter().map(|agent| agent.id()).collect();
    let state = |MappingInfo { address, access, .. }: MappingInfo| {
        let inside = |number: &usize| {
            let start = nine.bases[*number].get();
            (start..start + [8, 3][*number] * nine.granule).contains(&address.get())
        };
        let reservation = (0..2).find(inside).expect("one of the two");
        let place = |agent| agents.iter().position(|it| *it == agent).expect("one of these");
        MappingState {
            reservation,
            offset: address.get() - nine.bases[reservation].get(),
            access: access.iter().map(|&(agent, it)| (place(agent), it.to_bits())).collect(),
            reached: [0, 1].map(|gpu| nine.machine.simulation.page(gpu, address.get()).is_some()),
        }
    };
    let mut all: Vec<_> = nine.machine.vmm.mappings().into_iter().map(state).collect();
    all.sort_by_key(|state| (state.reservation, state.offset));
    all
}

/// Runs random batches on one machine, and the same calls one by one on another.
#[test]
fn batches_equal_single_calls() {
    for (generation, config) in machine::generations() {
        let [at_once, one_by_one] = [0, 1].map(|_| Nine::on(config.clone()));
        let mut seed = 1_u64;
        let mut draw = |end: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % end
        };
        let mut mapped = [false; 9];
        for step in 0..150 {
            let chosen: Vec<usize> = (0..9).filter(|_| draw(3) > 0).collect();
            let [down, up] = [true, false].map(|state| {
                chosen.iter().copied().filter(|&it| mapped[it] == state).collect::<Vec<_>>()
            });
            let (act, which) = if draw(3) == 0 { (0, up) } else { (1 + draw(2), down) };
            let kinds = [Access::None, Access::Read, Access::ReadWrite];
            let drawn = [0, 1, 2].map(|_| kinds[draw(3)]);
            let named = 1 + draw(3);
            for (nine, batch) in [(&at_once, true), (&one_by_one, false)] {
                let machine = &nine.machine;
                let agents = [machine.gpu(0), machine.cpu(0), machine.gpu(1)];
                let list = agents.into_iter().zip(drawn).map(|(agent, it)| access(agent, it));
                let list: Vec<_> = list.take(named).collect();
                let wanted: Vec<_> = which.iter().map(|&it| nine.wanted[it]).collect();
                let runs: Vec<_> = wanted.iter().map(|it| (it.address, it.size)).collect();
                let vmm = &machine.vmm;
                let answer = match (act, batch) {
                    _ if which.is_empty() => Ok(()),
                    (0, true) => vmm.map_many(&wanted, &list),
                    (1, true) => vmm.set_access_many(&runs, &list),
                    (_, true) => vmm.unmap_many(&runs),
                    (0, false) => wanted.iter().try_for_each(|it| {
                        vmm.map(it.address, it.size, 0, it.handle)?;
                        vmm.set_access(it.address, it.size, &list)
                    }),
                    (1, false) => {
                        runs.iter().try_for_each(|&(at, size)| vmm.set_access(at, size, &list))
                    }
                    (_, false) => runs.iter().try_for_each(|&(at, size)| vmm.unmap(at, size)),
                };
                answer.unwrap_or_else(|error| panic!("{generation}, step {step}: {error}"));
            }
            if act != 1 {
                which.iter().for_each(|&it| mapped[it] = act == 0);
            }
            assert_eq!(
                mapping_states(&at_once),
                mapping_states(&one_by_one),
                "{generation}, step {step}"
            );
        }
        at_once.machine.vmm.check().unwrap();
        assert_eq!(at_once.machine.vmm.quarantine(), []);
    }
}

fn problem(answer: Result<(), Error>) -> (Argument, Problem) {
    let error = answer.unwrap_err();
    error.argument().zip(error.problem()).unwrap_or_else(|| panic!("{error}"))
}

#[test]
fn lists_with_an_invalid_entry_change_nothing() {
    let nine = Nine::on(Config::mi300x(2));
    let (machine, granule, [base, other]) = (&nine.machine, nine.granule, nine.bases);
    let (vmm, all) = (&machine.vmm, gpus(machine));
    let good = nine.wanted[0];
    let released = machine.create(0, granule);
    vmm.release(released).unwrap();
    let small = machine.create(0, granule);
    machine.map(at(base, 4 * granule), granule, small);
    let taken = at(base, 4 * granule);
    let calls = || -> u64 { machine.simulation.all_calls().iter().map(|call| call.1).sum() };
    let (before, mappings) = (calls(), vmm.mappings());
    let not_aligned = Problem::NotAligned { granule };
    let beyond = Problem::TooLarge { maximum: granule, whole: Argument::Handle };
    for (bad, expected) in [
        (new(Address::NULL, granule, small), (Argument::Address, Problem::Null)),
        (new(base, 0, small), (Argument::Size, Problem::Zero)),
        (new(base, usize::MAX, small), (Argument::Size, Problem::Overflow)),
        (new(good.address, granule, small), (Argument::List, Problem::Overlapping)),
        (new(base, granule, released), (Argument::Handle, Problem::Released)),
        (new(taken, granule, small), (Argument::Address, Problem::AlreadyMapped(taken))),
        (new(at(other, 3 * granule), granule, small), (Argument::Address, Problem::NotReserved)),
        (new(at(base, 5 * granule + 64), granule, small), (Argument::Address, not_aligned)),
        (new(at(base, 5 * granule), 2 * granule, small), (Argument::Size, beyond)),
    ] {
        for list in [[bad, good], [good, bad]] {
            assert_eq!(problem(vmm.map_many(&list, &all)), expected, "{bad:?}");
        }
    }
    let nothing = (Argument::List, Problem::Empty);
    assert_eq!(problem(vmm.map_many(&[], &all)), nothing);
    assert_eq!(problem(vmm.set_access_many(&[], &all)), nothing);
    assert_eq!(problem(vmm.unmap_many(&[])), nothing);
    let foreign = Machine::new(Config::mi300x(1));
    let foreign = [access(foreign.gpu(0), Access::Read)];
    let refused = problem(vmm.map_many(&[good], &foreign));
    assert_eq!(refused, (Argument::Agent, Problem::UnknownAgent));
    let there = (taken, granule);
    let none = (Argument::Descriptors, Problem::Empty);
    assert_eq!(problem(vmm.set_access_many(&[there], &[])), none);
    for (bad, expected) in [
        (there, (Argument::List, Problem::Overlapping)),
        ((base, granule), (Argument::Address, Problem::NotMapped(base))),
        ((other, 4 * granule), (Argument::Address, Problem::NotReserved)),
    ] {
        assert_eq!(problem(vmm.unmap_many(&[there, bad])), expected, "{bad:?}");
        assert_eq!(problem(vmm.set_access_many(&[bad, there], &all)), expected, "{bad:?}");
    }
    assert_eq!(calls(), before, "the runtime was called");
    assert_eq!(vmm.mappings(), mappings);
    vmm.check().unwrap();
    // A rejected call keeps nothing alive.
    vmm.release(good.handle).unwrap();
    assert!(vmm.allocation_properties(good.handle).is_err());
}

/// The memory of a failed map is released with its last reference.
#[test]
fn failed_map_does_not_keep_memory() {
    let machine = Machine::new(Config::mi300x(2));
    let granule = machine.granule();
    let (base, handle) = (machine.reserve(2 * granule), machine.create(0, granule));
    let wrong = new(at(base, granule), 2 * granule, handle);
    machine.vmm.map_many(&[new(base, granule, handle), wrong], &[]).unwrap_err();
    machine.vmm.release(handle).unwrap();
    machine.vmm.address_free(base, 2 * granule).unwrap();
    machine.assert_empty();
}

/// The change is visible for all mappings at once, after the runtime has granted access everywhere.
#[test]
fn batches_are_atomic_to_other_threads() {
    let hostile = Hostile::new();
    let (_runtime, vmm, gpu) = hostile.open();
    let size = 4096;
    let bases = [0, 1].map(|_| vmm.address_reserve(size, 0, None).unwrap());
    let handle = vmm.create(size, &AllocationProperties::on(gpu)).unwrap();
    hostile.set(c"hostile_linger", 20_000);
    let wanted = bases.map(|base| new(base, size, handle));
    let all = [access(gpu, Access::ReadWrite)];
    let reported = |thread: &dyn Fn() -> bool| {
        let found = loop {
            let (over, found) = (thread(), vmm.mappings());
            if over || !found.is_empty() {
                break found;
            }
            thread::yield_now();
        };
        assert_eq!(found.len(), 2, "half of the batch is visible");
        for mapping in found {
            assert_eq!(mapping.access, [(gpu, Access::ReadWrite)]);
        }
    };
    thread::scope(|scope| {
        let map = scope.spawn(|| vmm.map_many(&wanted, &all));
        reported(&|| map.is_finished());
        assert_eq!(
            hostile.get(c"hostile_access_changes"),
            2,
            "the runtime has not granted access yet"
        );
        map.join().unwrap().unwrap();
    });
    vmm.unmap_many(&bases.map(|base| (base, size))).unwrap();
    assert_eq!(vmm.mappings(), []);
}

/// Two batches that name the same reservations in opposite order do not deadlock.
#[test]
fn batches_on_the_same_reservations_do_not_deadlock() {
    let nine = Nine::on(Config::mi300x(2));
    let (vmm, granule, [one, other]) = (&nine.machine.vmm, nine.granule, nine.bases);
    let handle = nine.machine.create(0, granule);
    thread::scope(|scope| {
        for thread in 0..3 {
            scope.spawn(move || {
                let pages = [at(one, thread * granule), at(other, thread * granule)];
                let mut wanted = pages.map(|page| new(page, granule, handle));
                if thread == 1 {
                    wanted.reverse();
                }
                let runs = wanted.map(|it| (it.address, it.size));
                for _ in 0..100 {
                    vmm.map_many(&wanted, &[]).unwrap();
                    vmm.unmap_many(&runs).unwrap();
                }
            });
        }
    });
    assert_eq!(vmm.usage().mappings, 0);
    vmm.check().unwrap();
}
