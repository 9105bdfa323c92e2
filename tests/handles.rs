//! The library rejects stale, foreign and invented handles and agents, even if a handle's slot was reused often, and if
//! many handles exist.

mod machine;

use hsa_vmm::error::{Problem, Rejected};
use hsa_vmm::simulation::{Config, Generation};
use hsa_vmm::{Access, Address, AgentId, Allocation, Error, Handle, HandleType, Reservation, Vmm};
use machine::{KIB, Machine, access, at};
use std::collections::HashSet;

/// Makes calls that take a handle, with this handle. Returns the results.
fn call_results(vmm: &Vmm, handle: Handle, address: Address) -> [Result<(), Error>; 5] {
    [
        vmm.map(address, 4 * KIB, 0, handle),
        vmm.allocation_properties(handle).map(drop),
        vmm.allocation_size(handle).map(drop),
        vmm.export_to_shareable_handle(handle, HandleType::POSIX_FILE_DESCRIPTOR).map(drop),
        vmm.release(handle),
    ]
}

#[track_caller]
fn assert_rejected(vmm: &Vmm, handle: Handle, address: Address, problem: Problem) {
    for result in call_results(vmm, handle, address) {
        assert_eq!(result.unwrap_err().problem(), Some(problem), "{handle}");
    }
}

#[test]
fn released_handles_stay_invalid() {
    let machine = Machine::new(Config::mi300x(1));
    let base = machine.reserve(4 * KIB);
    let first = machine.create(0, 4 * KIB);
    machine.vmm.release(first).unwrap();
    let mut handles = HashSet::from([first]);
    let mut released = vec![first];
    for round in 0..5000 {
        let handle = machine.create(0, 4 * KIB);
        assert!(handles.insert(handle), "{handle} was returned before");
        assert_rejected(&machine.vmm, first, base, Problem::Released);
        if round % 500 == 0 {
            released.push(handle);
            for &stale in &released[..released.len() - 1] {
                assert_rejected(&machine.vmm, stale, base, Problem::Released);
            }
        }
        assert_eq!(machine.vmm.allocation_size(handle).unwrap(), 4 * KIB);
        machine.vmm.release(handle).unwrap();
    }
    machine.vmm.address_free(base, 4 * KIB).unwrap();
    machine.assert_empty();
}

#[test]
fn handles_differ_from_the_runtimes_values() {
    for (generation, config) in machine::generations() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let base = machine.reserve(granule);
        let handle = machine.create(0, granule);
        machine.map(base, granule, handle);
        machine.grant(base, granule, machine.gpu(0), Access::Read);
        let native = machine.simulation.page(0, base.get()).unwrap().handle;
        assert_ne!(native, handle.to_bits(), "{generation}");
        let calls = machine.simulation.all_calls();
        for bits in [native, 0, 1, u64::MAX, base.get() as u64] {
            for result in call_results(&machine.vmm, Handle::from_bits(bits), base) {
                assert!(result.is_err(), "{generation}: {bits:#x}");
            }
        }
        assert_eq!(machine.simulation.all_calls(), calls, "{generation}");
    }
}

#[test]
fn handles_with_a_changed_bit_are_rejected() {
    let machine = Machine::new(Config::mi300x(1));
    let base = machine.reserve(4 * KIB);
    let handle = machine.create(0, 4 * KIB);
    for bit in 0..64 {
        let invented = Handle::from_bits(handle.to_bits() ^ 1 << bit);
        for result in call_results(&machine.vmm, invented, base) {
            let problem = result.unwrap_err().problem().unwrap();
            let expected = [Problem::UnknownHandle, Problem::Released, Problem::ForeignHandle];
            assert!(expected.contains(&problem), "bit {bit}: {problem}");
        }
    }
    machine.vmm.release(handle).unwrap();
}

#[test]
fn handles_belong_to_one_vmm() {
    let machine = Machine::new(Config::mi300x(1));
    let second_vmm = Vmm::open(&machine.runtime).unwrap();
    let base = machine.reserve(4 * KIB);
    let [own, foreign] =
        [machine.create(0, 4 * KIB), second_vmm.create(4 * KIB, &machine.shareable_on(0)).unwrap()];
    assert_ne!(own, foreign);
    // A `Vmm` accepts only its own handles.
    assert_rejected(&machine.vmm, foreign, base, Problem::ForeignHandle);
    assert_rejected(&second_vmm, own, base, Problem::ForeignHandle);
    second_vmm.release(foreign).unwrap();
    assert_rejected(&machine.vmm, foreign, base, Problem::ForeignHandle);
    // A `Vmm` also accepts only its own addresses.
    machine.map(base, 4 * KIB, own);
    assert!(second_vmm.unmap(base, 4 * KIB).is_err());
    assert!(second_vmm.address_free(base, 4 * KIB).is_err());
    assert!(second_vmm.retain_allocation_handle(base).is_err());
}

#[test]
fn handles_stay_distinct_over_70000_vmms() {
    let machine = Machine::new(Config::mi300x(1));
    let handle = machine.create(0, 4 * KIB);
    for number in 0..70_000 {
        let vmm = Vmm::open(&machine.runtime).unwrap();
        let problem = vmm.allocation_size(handle).unwrap_err().problem();
        assert_eq!(problem, Some(Problem::ForeignHandle), "after {number} other `Vmm`s");
    }
    machine.vmm.release(handle).unwrap();
}

#[test]
fn handles_live_while_referenced_or_mapped() {
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let base = machine.reserve(2 * granule);
        let handle = machine.create(0, granule);
        machine.map(base, granule, handle);
        for _ in 0..100 {
            assert_eq!(machine.vmm.retain_allocation_handle(at(base, granule - 1)), Ok(handle));
        }
        for _ in 0..101 {
            machine.vmm.release(handle).unwrap();
        }
        let second_granule = at(base, granule);
        assert_rejected(&machine.vmm, handle, second_granule, Problem::Released);
        assert_eq!(machine.vmm.usage().handles, 1, "{release}: the mapping keeps the memory");
        // The mapping can be retained, which returns the same handle.
        assert_eq!(machine.vmm.retain_allocation_handle(base), Ok(handle), "{release}");
        machine.map(second_granule, granule, handle);
        machine.vmm.release(handle).unwrap();
        machine.vmm.unmap(base, 2 * granule).unwrap();
        assert_eq!(machine.vmm.usage().handles, 0, "{release}");
        assert_rejected(&machine.vmm, handle, second_granule, Problem::Released);
        machine.vmm.address_free(base, 2 * granule).unwrap();
        machine.assert_empty();
    }
}

#[test]
fn agents_belong_to_one_runtime() {
    let [first, second] = [Machine::new(Config::mi300x(2)), Machine::new(Config::mi300x(2))];
    let base = first.reserve(4 * KIB);
    let handle = first.create(0, 4 * KIB);
    first.map(base, 4 * KIB, handle);
    let next = AgentId::from_bits(first.gpu(1).to_bits() + 1);
    let far = AgentId::from_bits(first.gpu(1).to_bits() | 0xffff);
    let cases = [
        (second.gpu(0), Problem::UnknownAgent),
        (second.cpu(0), Problem::UnknownAgent),
        (AgentId::from_bits(0), Problem::UnknownAgent),
        (AgentId::from_bits(u64::MAX), Problem::UnknownAgent),
        (next, Problem::UnknownAgent),
        (far, Problem::UnknownAgent),
    ];
    for (agent, problem) in cases {
        assert!(first.runtime.agent(agent).is_none());
        let vmm = &first.vmm;
        let results = [
            vmm.set_access(base, 4 * KIB, &[access(agent, Access::Read)]),
            vmm.set_access(base, 4 * KIB, &[access(agent, Access::None)]),
            vmm.get_access(agent, base).map(drop),
            vmm.revoke(base, 4 * KIB, &[agent]),
            vmm.copy(agent, base, base, 4),
            vmm.create(4 * KIB, &hsa_vmm::AllocationProperties::on(agent)).map(drop),
        ];
        for result in results {
            assert_eq!(result.unwrap_err().problem(), Some(problem), "{agent:?}");
        }
    }
    assert_eq!(first.runtime.agent(first.gpu(1)).unwrap().id(), first.gpu(1));
}

#[test]
fn hundred_thousand_handles_are_distinct() {
    for generation in [Generation::B, Generation::D] {
        let machine = Machine::new(Config::mi300x(1).with_generation(generation));
        let count = 100_000;
        let handles: Vec<Handle> = (0..count).map(|_| machine.create(0, 4 * KIB)).collect();
        assert_eq!(machine.vmm.usage().handles, count);
        assert_eq!(handles.iter().collect::<HashSet<_>>().len(), count);
        machine.vmm.check().unwrap();
        for handle in handles {
            machine.vmm.release(handle).unwrap();
        }
        machine.assert_empty();
    }
}

#[test]
fn million_mappings_can_be_looked_up() {
    let machine = Machine::new(Config::mi300x(1).with_generation(Generation::D));
    let count = if cfg!(debug_assertions) { 300_000 } else { 1_000_000 };
    let base = machine.reserve(count * 4 * KIB);
    let handle = machine.create(0, 4 * KIB);
    for number in 0..count {
        machine.map(at(base, number * 4 * KIB), 4 * KIB, handle);
    }
    assert_eq!(machine.vmm.usage().mappings, count);
    assert_eq!(machine.simulation.usage().mappings, count);
    machine.vmm.release(handle).unwrap();
    let middle = at(base, count / 2 * 4 * KIB);
    assert_eq!(machine.vmm.get_access(machine.gpu(0), middle), Ok(Access::None));
    let retained = machine.vmm.retain_allocation_handle(middle).unwrap();
    machine.vmm.release(retained).unwrap();
    machine.vmm.check().unwrap();
    // Unmaps one mapping, then all others in one call.
    machine.vmm.unmap(base, 4 * KIB).unwrap();
    machine.vmm.unmap(at(base, 4 * KIB), (count - 1) * 4 * KIB).unwrap();
    machine.vmm.address_free(base, count * 4 * KIB).unwrap();
    machine.assert_empty();
}

#[test]
fn release_by_handle_invalidates_the_allocation() {
    let machine = Machine::new(Config::mi300x(1));
    let new =
        || Allocation::create(&machine.vmm, machine.granule(), &machine.shareable_on(0)).unwrap();
    let memory = new();
    machine.vmm.release(memory.handle()).unwrap();
    let successor = new();
    let reservation = Reservation::builder(machine.granule()).reserve(&machine.vmm).unwrap();
    let [export, map] = [memory.export().map(drop), reservation.map(0, &memory).map(drop)];
    for error in [export.unwrap_err(), map.unwrap_err()] {
        assert_eq!(error.problem(), Some(Problem::Released), "{error}");
    }
    let Rejected { value: memory, error } = memory.release().unwrap_err();
    assert_eq!(error.problem(), Some(Problem::Released), "{error}");
    drop(memory);
    let mapping = reservation.map(0, &successor).unwrap();
    // `successor` and `second` each own one reference. The call of `release` releases one of these references, and the
    // drop of `successor` releases the other.
    let second = Allocation::at(&machine.vmm, mapping.address()).unwrap();
    drop(mapping);
    machine.vmm.release(successor.handle()).unwrap();
    drop(successor);
    assert_eq!(second.export().unwrap_err().problem(), Some(Problem::Released));
}

#[test]
fn exhausted_memory_names_its_agent() {
    let machine = Machine::new(Config::mi300x(2).with_vram(64 << 10));
    let error = Allocation::create(&machine.vmm, 128 * KIB, &machine.shareable_on(1)).unwrap_err();
    let message = error.to_string();
    assert!(message.starts_with("cannot create physical memory on GPU 1: "), "{message}");
}
