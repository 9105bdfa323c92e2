//! Bad input to any call gives an error that names the argument; nothing else changes, and the
//! runtime is not even asked.

mod machine;

use hsa_vmm::simulation::{Config, Usage as RuntimeUsage};
use hsa_vmm::vmm::{Argument as A, HandleTypes, Location, MappingInfo, Problem as P, Usage};
use hsa_vmm::{
    Access, Address, AgentId, Allocation, AllocationProperties, Granularity, Handle, HandleType,
    Mapping, Reservation, VmmError,
};
use machine::{MIB, Machine, access, at};
use std::fs::File;

/// Some of everything, of two machines that know nothing of each other.
struct Scene {
    machine: Machine,
    other: Machine,
    granule: usize,
    /// Eight granules; mapped are the first (by `handle`), the second and third (by `double`).
    used: Address,
    /// Directly behind it, nothing mapped.
    next: Address,
    handle: Handle,
    double: Handle,
    /// Not shareable.
    private: Handle,
    /// Released, and mapped nowhere.
    stale: Handle,
    /// Released, and still mapped in the fourth granule.
    dying: Handle,
    foreign: Handle,
    mapping: Mapping,
}

const ANY: HandleType = HandleType::PosixFileDescriptor;

impl Scene {
    fn new() -> Self {
        let [machine, other] = [Machine::new(Config::mi300x(2)), Machine::new(Config::mi300x(1))];
        let granule = machine.granule();
        let (used, next) = adjacent(&machine, 8 * granule);
        let handle = machine.create(0, granule);
        let double = machine.create(0, 2 * granule);
        let private = machine.vmm.create(granule, &AllocationProperties::on(machine.gpu(0)), 0);
        let stale = machine.create(0, granule);
        machine.vmm.release(stale).unwrap();
        let dying = machine.create(1, granule);
        machine.map(used, granule, handle);
        machine.map(at(used, granule), 2 * granule, double);
        machine.map(at(used, 3 * granule), granule, dying);
        machine.vmm.release(dying).unwrap();
        machine.grant(used, granule, machine.cpu(0), Access::Read);
        machine.grant(used, granule, machine.gpu(0), Access::Read);
        let foreign = other.create(0, granule);
        let reservation = Reservation::of(2 * granule).reserve(&machine.vmm).unwrap();
        let memory = Allocation::create(&machine.vmm, granule, &machine.on(0)).unwrap();
        let mapping = reservation.map(0, &memory).unwrap();
        let private = private.unwrap();
        Self {
            machine,
            other,
            granule,
            used,
            next,
            handle,
            double,
            private,
            stale,
            dying,
            foreign,
            mapping,
        }
    }

    /// The address of a granule of the first reservation.
    fn granule_at(&self, number: usize) -> Address {
        at(self.used, number * self.granule)
    }
}

/// Two reservations, one directly behind the other.
fn adjacent(machine: &Machine, size: usize) -> (Address, Address) {
    let exactly = |address| Reservation::of(size).exactly_at(address).reserve(&machine.vmm);
    for _ in 0..1000 {
        let both = machine.reserve(2 * size);
        machine.vmm.address_free(both, 2 * size).unwrap();
        // Another thread may take some of it meanwhile.
        if let (Ok(first), Ok(second)) = (exactly(both), exactly(at(both, size))) {
            std::mem::forget((first, second));
            return (both, at(both, size));
        }
    }
    panic!("no two adjacent reservations are to be had");
}

/// What must stay as it is.
#[derive(Debug, PartialEq)]
struct State {
    usage: Usage,
    mappings: Vec<MappingInfo>,
    reservations: Vec<(Address, usize)>,
    quarantine: usize,
    runtime: RuntimeUsage,
    calls: Vec<(&'static str, u64)>,
}

fn state(machine: &Machine) -> State {
    machine.vmm.check().unwrap();
    State {
        usage: machine.vmm.usage(),
        mappings: machine.vmm.mappings(),
        reservations: machine.vmm.reservations(),
        quarantine: machine.vmm.quarantine().len(),
        runtime: machine.simulation.usage(),
        calls: machine.simulation.all_calls(),
    }
}

/// A case: what is done, and which argument is found to be wrong in which way.
type Case = (&'static str, fn(&Scene) -> Result<(), VmmError>, A, fn(&Scene) -> P);

fn check(cases: &[Case]) {
    let scene = Scene::new();
    for (name, act, argument, problem) in cases {
        let before = (state(&scene.machine), state(&scene.other));
        let answer = act(&scene);
        let after = (state(&scene.machine), state(&scene.other));
        let Err(VmmError::InvalidArgument { argument: found, problem: found_problem, .. }) = answer
        else {
            panic!("{name}: {answer:?}")
        };
        assert_eq!((found, found_problem), (*argument, problem(&scene)), "{name}");
        assert_eq!(before, after, "{name}");
        let text = answer.unwrap_err().to_string();
        assert!(text.contains(&argument.to_string()), "{name}: {text}");
    }
}

fn top() -> Address {
    Address::new(usize::MAX & !0xfff)
}

fn invented_agent(s: &Scene) -> AgentId {
    AgentId::from_bits(s.machine.gpu(1).to_bits() + 1)
}

fn no_agent() -> AgentId {
    AgentId::from_bits(0)
}

fn invented_handle(s: &Scene) -> Handle {
    Handle::from_bits(s.handle.to_bits() | 0xff_ffff)
}

/// The same slot, a generation that has not come yet.
fn future_handle(s: &Scene) -> Handle {
    Handle::from_bits(s.handle.to_bits() + (1 << 24))
}

/// The same slot, a generation that never was.
fn zeroth_handle(s: &Scene) -> Handle {
    Handle::from_bits(s.handle.to_bits() & !(0xff_ffff << 24))
}

#[test]
fn address_reserve_refuses_bad_input() {
    check(&[
        (
            "no size",
            |s| s.machine.vmm.address_reserve(0, 0, None, 0).map(drop),
            A::Size,
            |_| P::Zero,
        ),
        (
            "one byte",
            |s| s.machine.vmm.address_reserve(1, 0, None, 0).map(drop),
            A::Size,
            |s| P::NotAligned { value: 1, granule: s.granule },
        ),
        (
            "every byte",
            |s| s.machine.vmm.address_reserve(usize::MAX, 0, None, 0).map(drop),
            A::Size,
            |s| P::NotAligned { value: usize::MAX, granule: s.granule },
        ),
        (
            "an alignment of three",
            |s| s.machine.vmm.address_reserve(s.granule, 3, None, 0).map(drop),
            A::Alignment,
            |_| P::NotPowerOfTwo(3),
        ),
        (
            "the greatest alignment",
            |s| s.machine.vmm.address_reserve(s.granule, usize::MAX, None, 0).map(drop),
            A::Alignment,
            |_| P::NotPowerOfTwo(usize::MAX),
        ),
        (
            "a flag",
            |s| s.machine.vmm.address_reserve(s.granule, 0, None, 1).map(drop),
            A::Flags,
            |_| P::NoFlags(1),
        ),
        (
            "all flags",
            |s| s.machine.vmm.address_reserve(s.granule, 0, None, u64::MAX).map(drop),
            A::Flags,
            |_| P::NoFlags(u64::MAX),
        ),
        (
            "exactly nowhere",
            |s| {
                let options = Reservation::of(s.granule).exactly_at(Address::NULL);
                options.reserve(&s.machine.vmm).map(drop)
            },
            A::Address,
            |_| P::Null,
        ),
        (
            "exactly beside the granule",
            |s| {
                let options = Reservation::of(s.granule).exactly_at(at(s.used, 1));
                options.reserve(&s.machine.vmm).map(drop)
            },
            A::Address,
            |_| P::AddressTaken,
        ),
        (
            "exactly beside the alignment",
            |s| {
                let beside = at(Address::new(1 << 40), s.granule);
                let options = Reservation::of(s.granule).aligned_to(2 * MIB).exactly_at(beside);
                options.reserve(&s.machine.vmm).map(drop)
            },
            A::Address,
            |_| P::AddressTaken,
        ),
        (
            "exactly at the end of all addresses",
            |s| {
                let options = Reservation::of(2 * s.granule).exactly_at(top());
                options.reserve(&s.machine.vmm).map(drop)
            },
            A::Size,
            |_| P::Overflow,
        ),
    ]);
}

#[test]
fn address_free_refuses_bad_input() {
    check(&[
        ("null", |s| s.machine.vmm.address_free(Address::NULL, s.granule), A::Address, |_| P::Null),
        ("no size", |s| s.machine.vmm.address_free(s.used, 0), A::Size, |_| P::Zero),
        (
            "an overflow",
            |s| s.machine.vmm.address_free(s.used, usize::MAX),
            A::Size,
            |_| P::Overflow,
        ),
        (
            "an invented address",
            |s| s.machine.vmm.address_free(Address::new(1 << 40), s.granule),
            A::Address,
            |_| P::NotAReservation,
        ),
        (
            "an inner address",
            |s| s.machine.vmm.address_free(s.granule_at(1), s.granule),
            A::Address,
            |_| P::NotAReservation,
        ),
        (
            "a byte further",
            |s| s.machine.vmm.address_free(at(s.used, 1), 8 * s.granule),
            A::Address,
            |_| P::NotAReservation,
        ),
        (
            "a part",
            |s| s.machine.vmm.address_free(s.next, s.granule),
            A::Size,
            |s| P::WrongSize { expected: 8 * s.granule },
        ),
        (
            "two at once",
            |s| s.machine.vmm.address_free(s.used, 16 * s.granule),
            A::Size,
            |s| P::WrongSize { expected: 8 * s.granule },
        ),
        (
            "what is mapped",
            |s| s.machine.vmm.address_free(s.used, 8 * s.granule),
            A::Address,
            |_| P::StillMapped { mappings: 3 },
        ),
        (
            "another's",
            |s| s.other.vmm.address_free(s.next, 8 * s.granule),
            A::Address,
            |_| P::NotAReservation,
        ),
    ]);
}

fn create(s: &Scene, size: usize, agent: AgentId, flags: u64) -> Result<(), VmmError> {
    s.machine.vmm.create(size, &AllocationProperties::on(agent), flags).map(drop)
}

#[test]
fn create_refuses_bad_input() {
    check(&[
        ("no size", |s| create(s, 0, s.machine.gpu(0), 0), A::Size, |_| P::Zero),
        (
            "one byte",
            |s| create(s, 1, s.machine.gpu(0), 0),
            A::Size,
            |s| P::NotAligned { value: 1, granule: s.granule },
        ),
        (
            "every byte",
            |s| create(s, usize::MAX, s.machine.gpu(0), 0),
            A::Size,
            |s| P::NotAligned { value: usize::MAX, granule: s.granule },
        ),
        ("a flag", |s| create(s, s.granule, s.machine.gpu(0), 2), A::Flags, |_| P::NoFlags(2)),
        (
            "a GPU of another runtime",
            |s| create(s, s.granule, s.other.gpu(0), 0),
            A::Location,
            |_| P::ForeignAgent,
        ),
        (
            "an invented GPU",
            |s| create(s, s.granule, invented_agent(s), 0),
            A::Location,
            |_| P::UnknownAgent,
        ),
        ("no agent", |s| create(s, s.granule, no_agent(), 0), A::Location, |_| P::ForeignAgent),
        (
            "nowhere",
            |s| {
                let mut nowhere = s.machine.on(0);
                nowhere.location = Location::Unknown;
                s.machine.vmm.create(s.granule, &nowhere, 0).map(drop)
            },
            A::Location,
            |_| P::NoLocation,
        ),
        (
            "the granularity of an invented GPU",
            |s| {
                let properties = AllocationProperties::on(invented_agent(s));
                s.machine.vmm.allocation_granularity(&properties, Granularity::Minimum).map(drop)
            },
            A::Location,
            |_| P::UnknownAgent,
        ),
        (
            "the granularity of a GPU of another runtime",
            |s| {
                let properties = AllocationProperties::on(s.other.gpu(0));
                let vmm = &s.machine.vmm;
                vmm.allocation_granularity(&properties, Granularity::Recommended).map(drop)
            },
            A::Location,
            |_| P::ForeignAgent,
        ),
    ]);
}

/// A call that takes nothing but a handle.
type ByHandle = fn(&Scene, Handle) -> Result<(), VmmError>;

#[test]
fn every_call_that_takes_a_handle_refuses_one_that_is_none() {
    let calls: &[(&str, ByHandle)] = &[
        ("release", |s, handle| s.machine.vmm.release(handle)),
        ("map", |s, handle| s.machine.vmm.map(s.next, s.granule, 0, handle, 0)),
        // The handle is told first, whatever the range.
        ("map nowhere", |s, handle| s.machine.vmm.map(top(), 7, 0, handle, 0)),
        ("properties", |s, handle| s.machine.vmm.allocation_properties(handle).map(drop)),
        ("size", |s, handle| s.machine.vmm.allocation_size(handle).map(drop)),
        ("export", |s, handle| s.machine.vmm.export_to_shareable_handle(handle, ANY, 0).map(drop)),
    ];
    let scene = Scene::new();
    let bad = [
        ("zero", Handle::from_bits(0), P::NoHandle),
        ("released", scene.stale, P::Released),
        ("released and still mapped", scene.dying, P::Released),
        ("another's", scene.foreign, P::ForeignHandle),
        ("all ones", Handle::from_bits(u64::MAX), P::ForeignHandle),
        ("one", Handle::from_bits(1), P::ForeignHandle),
        ("a slot that never was", invented_handle(&scene), P::UnknownHandle),
        ("a time to come", future_handle(&scene), P::UnknownHandle),
        ("a time before all", zeroth_handle(&scene), P::UnknownHandle),
    ];
    for (call, act) in calls {
        for (kind, handle, problem) in bad {
            let before = (state(&scene.machine), state(&scene.other));
            let error = act(&scene, handle).expect_err(kind);
            assert_eq!(error.argument(), Some(A::Handle), "{call}, {kind}: {error}");
            assert_eq!(error.problem(), Some(problem), "{call}, {kind}");
            assert_eq!(before, (state(&scene.machine), state(&scene.other)), "{call}, {kind}");
        }
    }
}

fn map(s: &Scene, address: Address, size: usize, handle: Handle) -> Result<(), VmmError> {
    s.machine.vmm.map(address, size, 0, handle, 0)
}

#[test]
fn map_refuses_bad_input() {
    check(&[
        ("null", |s| map(s, Address::NULL, s.granule, s.handle), A::Address, |_| P::Null),
        ("no size", |s| map(s, s.next, 0, s.handle), A::Size, |_| P::Zero),
        ("an overflow", |s| map(s, top(), 2 * s.granule, s.handle), A::Size, |_| P::Overflow),
        ("every byte", |s| map(s, s.next, usize::MAX, s.handle), A::Size, |_| P::Overflow),
        (
            "an offset",
            |s| s.machine.vmm.map(s.next, s.granule, s.granule, s.double, 0),
            A::Offset,
            |s| P::NotZero(s.granule),
        ),
        (
            "an offset that overflows",
            |s| s.machine.vmm.map(s.next, s.granule, usize::MAX, s.double, 0),
            A::Offset,
            |_| P::NotZero(usize::MAX),
        ),
        (
            "a flag",
            |s| s.machine.vmm.map(s.next, s.granule, 0, s.handle, 8),
            A::Flags,
            |_| P::NoFlags(8),
        ),
        (
            "an address beside the granule",
            |s| map(s, at(s.next, 1), s.granule, s.handle),
            A::Address,
            |s| P::NotAligned { value: s.next.get() + 1, granule: s.granule },
        ),
        (
            "half a granule",
            |s| map(s, s.next, s.granule / 2, s.handle),
            A::Size,
            |s| P::NotAligned { value: s.granule / 2, granule: s.granule },
        ),
        (
            "more than there is",
            |s| map(s, s.next, 2 * s.granule, s.handle),
            A::Size,
            |s| P::BeyondHandle { handle: s.granule },
        ),
        (
            "an address that is not reserved",
            |s| map(s, Address::new(1 << 40), s.granule, s.handle),
            A::Address,
            |_| P::NotReserved,
        ),
        (
            "another's reservation",
            |s| {
                let stranger = s.other.vmm.reservations();
                assert!(stranger.is_empty());
                s.other.vmm.map(s.next, s.granule, 0, s.foreign, 0)
            },
            A::Address,
            |_| P::NotReserved,
        ),
        (
            "two adjacent reservations",
            |s| map(s, s.granule_at(7), 2 * s.granule, s.double),
            A::Address,
            |_| P::NotReserved,
        ),
        (
            "the end of a reservation",
            |s| map(s, at(s.next, 7 * s.granule), 2 * s.granule, s.double),
            A::Address,
            |_| P::NotReserved,
        ),
        (
            "what is mapped",
            |s| map(s, s.used, s.granule, s.handle),
            A::Address,
            |s| P::AlreadyMapped { at: s.used },
        ),
        (
            "the inside of a mapping",
            |s| map(s, s.granule_at(2), s.granule, s.handle),
            A::Address,
            |s| P::AlreadyMapped { at: s.granule_at(1) },
        ),
    ]);
}

#[test]
fn unmap_set_access_and_revoke_refuse_a_range_that_is_no_run_of_whole_mappings() {
    type OnRange = fn(&Scene, Address, usize) -> Result<(), VmmError>;
    let calls: &[(&str, OnRange)] = &[
        ("unmap", |s, address, size| s.machine.vmm.unmap(address, size)),
        ("set_access", |s, address, size| {
            let all = [access(s.machine.gpu(0), Access::ReadWrite)];
            s.machine.vmm.set_access(address, size, &all)
        }),
        ("revoke", |s, address, size| s.machine.vmm.revoke(address, size, &[s.machine.gpu(0)])),
    ];
    let s = Scene::new();
    let g = s.granule;
    let bad: &[(&str, Address, usize, A, P)] = &[
        ("null", Address::NULL, g, A::Address, P::Null),
        ("no size", s.used, 0, A::Size, P::Zero),
        ("an overflow", s.used, usize::MAX, A::Size, P::Overflow),
        ("the end of all addresses", top(), 4096, A::Size, P::Overflow),
        ("nothing reserved", Address::new(1 << 40), g, A::Address, P::NotReserved),
        ("nothing mapped", s.next, g, A::Address, P::NotMapped { at: s.next }),
        (
            "less than a mapping",
            s.granule_at(1),
            g,
            A::Size,
            P::CutsMapping { at: s.granule_at(1) },
        ),
        ("a byte less", s.used, g - 1, A::Size, P::CutsMapping { at: s.used }),
        ("a byte more", s.used, g + 1, A::Size, P::CutsMapping { at: s.granule_at(1) }),
        ("a byte further", at(s.used, 1), g, A::Address, P::CutsMapping { at: s.used }),
        ("half a mapping", s.granule_at(2), g, A::Address, P::CutsMapping { at: s.granule_at(1) }),
        ("one and a half", s.used, 2 * g, A::Size, P::CutsMapping { at: s.granule_at(1) }),
        ("a hole behind", s.used, 5 * g, A::Address, P::NotMapped { at: s.granule_at(4) }),
        ("all of it", s.used, 8 * g, A::Address, P::NotMapped { at: s.granule_at(4) }),
        ("more than the reservation", s.used, 9 * g, A::Address, P::NotReserved),
        ("a hole before", s.granule_at(7), g, A::Address, P::NotMapped { at: s.granule_at(7) }),
    ];
    for (call, act) in calls {
        for &(kind, address, size, argument, problem) in bad {
            let before = (state(&s.machine), state(&s.other));
            let error = act(&s, address, size).expect_err(kind);
            assert_eq!(error.argument(), Some(argument), "{call}, {kind}: {error}");
            assert_eq!(error.problem(), Some(problem), "{call}, {kind}");
            assert_eq!(before, (state(&s.machine), state(&s.other)), "{call}, {kind}");
        }
    }
}

#[test]
fn set_access_and_revoke_refuse_bad_agents_before_the_first_takes_effect() {
    check(&[
        (
            "nobody",
            |s| s.machine.vmm.set_access(s.used, s.granule, &[]),
            A::Descriptors,
            |_| P::Zero,
        ),
        (
            "an agent of another runtime, last",
            |s| {
                let list = [s.machine.gpu(0), s.other.gpu(0)].map(|a| access(a, Access::ReadWrite));
                s.machine.vmm.set_access(s.used, s.granule, &list)
            },
            A::Agent,
            |_| P::ForeignAgent,
        ),
        (
            "an invented agent, last",
            |s| {
                let list = [s.machine.gpu(0), invented_agent(s)];
                let list = list.map(|a| access(a, Access::ReadWrite));
                s.machine.vmm.set_access(s.used, s.granule, &list)
            },
            A::Agent,
            |_| P::UnknownAgent,
        ),
        (
            "an invented agent that is forbidden everything",
            |s| {
                let list = [access(invented_agent(s), Access::None)];
                s.machine.vmm.set_access(s.used, s.granule, &list)
            },
            A::Agent,
            |_| P::UnknownAgent,
        ),
        (
            "from nobody",
            |s| s.machine.vmm.revoke(s.used, s.granule, &[]),
            A::Descriptors,
            |_| P::Zero,
        ),
        (
            "from an agent of another runtime",
            |s| s.machine.vmm.revoke(s.used, s.granule, &[s.machine.gpu(0), s.other.cpu(0)]),
            A::Agent,
            |_| P::ForeignAgent,
        ),
        (
            "from an invented agent",
            |s| s.machine.vmm.revoke(s.used, s.granule, &[no_agent()]),
            A::Agent,
            |_| P::ForeignAgent,
        ),
    ]);
}

#[test]
fn set_access_refuses_agents_out_of_reach_before_the_first_takes_effect() {
    let mut config = Config::mi300x(2);
    config.peer_access = false;
    let machine = Machine::new(config);
    let granule = machine.granule();
    let address = machine.reserve(2 * granule);
    for gpu in [0, 1] {
        let handle = machine.create(gpu, granule);
        machine.map(at(address, gpu * granule), granule, handle);
    }
    let before = state(&machine);
    // The first mapping could be granted; the second could not.
    let list = [access(machine.gpu(0), Access::ReadWrite)];
    let error = machine.vmm.set_access(address, 2 * granule, &list).unwrap_err();
    let (agent, owner) = (machine.gpu(0), machine.gpu(1));
    assert_eq!(error.problem(), Some(P::Unreachable { agent, owner }));
    assert_eq!(error.argument(), Some(A::Agent));
    assert_eq!(state(&machine), before);
    let nothing = [access(machine.gpu(0), Access::None)];
    machine.vmm.set_access(address, 2 * granule, &nothing).expect("forbidding needs no reach");
}

#[test]
fn get_access_and_retain_refuse_bad_input() {
    check(&[
        (
            "null",
            |s| s.machine.vmm.get_access(s.machine.gpu(0), Address::NULL).map(drop),
            A::Address,
            |_| P::Null,
        ),
        (
            "the address behind a mapping",
            |s| s.machine.vmm.get_access(s.machine.gpu(0), s.granule_at(4)).map(drop),
            A::Address,
            |s| P::NotMapped { at: s.granule_at(4) },
        ),
        (
            "an invented address",
            |s| s.machine.vmm.get_access(s.machine.gpu(0), top()).map(drop),
            A::Address,
            |_| P::NotMapped { at: top() },
        ),
        (
            "an agent of another runtime",
            |s| s.machine.vmm.get_access(s.other.gpu(0), s.used).map(drop),
            A::Agent,
            |_| P::ForeignAgent,
        ),
        (
            "an invented agent",
            |s| s.machine.vmm.get_access(invented_agent(s), s.used).map(drop),
            A::Agent,
            |_| P::UnknownAgent,
        ),
        (
            "retain at null",
            |s| s.machine.vmm.retain_allocation_handle(Address::NULL).map(drop),
            A::Address,
            |_| P::Null,
        ),
        (
            "retain behind a mapping",
            |s| s.machine.vmm.retain_allocation_handle(s.granule_at(4)).map(drop),
            A::Address,
            |s| P::NotMapped { at: s.granule_at(4) },
        ),
        (
            "retain at an invented address",
            |s| Allocation::at(&s.machine.vmm, top()).map(drop),
            A::Address,
            |_| P::NotMapped { at: top() },
        ),
        (
            "retain at the last address",
            |s| s.machine.vmm.retain_allocation_handle(Address::new(usize::MAX)).map(drop),
            A::Address,
            |_| P::NotMapped { at: Address::new(usize::MAX) },
        ),
    ]);
}

#[test]
fn sharing_refuses_bad_input() {
    check(&[
        (
            "a flag",
            |s| s.machine.vmm.export_to_shareable_handle(s.handle, ANY, 1).map(drop),
            A::Flags,
            |_| P::NoFlags(1),
        ),
        (
            "a type that was not asked for",
            |s| s.machine.vmm.export_to_shareable_handle(s.private, ANY, 0).map(drop),
            A::HandleType,
            |_| P::NotRequested(ANY),
        ),
        (
            "another type that was not asked for",
            |s| {
                let fabric = HandleType::Fabric;
                s.machine.vmm.export_to_shareable_handle(s.handle, fabric, 0).map(drop)
            },
            A::HandleType,
            |_| P::NotRequested(HandleType::Fabric),
        ),
        (
            "a descriptor of nothing",
            |s| {
                let null = File::open("/dev/null").unwrap();
                s.machine.vmm.import_from_shareable_handle(null, ANY).map(drop)
            },
            A::Descriptor,
            |_| P::NotImportable,
        ),
        (
            "a pipe",
            |s| {
                let (pipe, _) = std::io::pipe().unwrap();
                s.machine.vmm.import_from_shareable_handle(pipe, ANY).map(drop)
            },
            A::Descriptor,
            |_| P::NotImportable,
        ),
        (
            "a file of an odd size",
            |s| {
                let file = File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
                s.machine.vmm.import_from_shareable_handle(file.unwrap(), ANY).map(drop)
            },
            A::Descriptor,
            |_| P::NotImportable,
        ),
        ("no arrays", |s| s.machine.vmm.map_array_async(0), A::List, |_| P::Zero),
    ]);
}

#[test]
fn reading_and_writing_refuse_bad_input() {
    fn read(s: &Scene, address: Address, size: usize) -> Result<(), VmmError> {
        s.machine.vmm.read(address, &mut vec![0; size])
    }
    fn write(s: &Scene, address: Address, size: usize) -> Result<(), VmmError> {
        s.machine.vmm.write(address, &vec![0; size])
    }
    check(&[
        ("read null", |s| read(s, Address::NULL, 1), A::Address, |_| P::Null),
        (
            "read what is not mapped",
            |s| read(s, s.next, 1),
            A::Address,
            |s| P::NotMapped { at: s.next },
        ),
        (
            "read what is not reserved",
            |s| read(s, Address::new(1 << 40), 1),
            A::Address,
            |_| P::NotReserved,
        ),
        ("read beyond all addresses", |s| read(s, top(), 8192), A::Size, |_| P::Overflow),
        (
            "read beyond what is granted",
            |s| read(s, s.used, s.granule + 1),
            A::Address,
            |s| P::NotGranted { at: s.granule_at(1), agent: s.machine.cpu(0), verb: "read" },
        ),
        (
            "write what may be read",
            |s| write(s, s.used, 1),
            A::Address,
            |s| P::NotGranted { at: s.used, agent: s.machine.cpu(0), verb: "write" },
        ),
        (
            "write across reservations",
            |s| write(s, s.granule_at(7), 2 * s.granule),
            A::Address,
            |_| P::NotReserved,
        ),
        (
            "read beyond the mapping",
            |s| s.mapping.read(s.granule - 1, &mut [0; 2]),
            A::Offset,
            |_| P::Overflow,
        ),
        ("write far beyond", |s| s.mapping.write(usize::MAX, &[0; 2]), A::Offset, |_| P::Overflow),
        (
            "map beyond the reservation",
            |s| s.mapping.reservation().map(2 * s.granule, s.mapping.allocation()).map(drop),
            A::Address,
            |_| P::NotReserved,
        ),
        (
            "map far beyond",
            |s| {
                let far = usize::MAX & !(s.granule - 1);
                s.mapping.reservation().map(far, s.mapping.allocation()).map(drop)
            },
            A::Address,
            |_| P::Overflow,
        ),
    ]);
}

#[test]
fn a_reservation_refuses_the_memory_of_another() {
    let s = Scene::new();
    let theirs = Allocation::create(&s.other.vmm, s.granule, &s.other.on(0)).unwrap();
    let before = state(&s.machine);
    let error = s.mapping.reservation().map(s.granule, &theirs).unwrap_err();
    assert_eq!((error.argument(), error.problem()), (Some(A::Handle), Some(P::ForeignHandle)));
    assert_eq!(state(&s.machine), before);
}

#[test]
fn copy_and_fill_refuse_bad_input() {
    fn copy(s: &Scene, to: Address, from: Address, size: usize) -> Result<(), VmmError> {
        s.machine.vmm.copy(s.machine.gpu(0), to, from, size)
    }
    check(&[
        ("to null", |s| copy(s, Address::NULL, s.used, 8), A::Destination, |_| P::Null),
        ("from null", |s| copy(s, s.used, Address::NULL, 8), A::Source, |_| P::Null),
        ("nothing", |s| copy(s, s.used, s.used, 0), A::Size, |_| P::Zero),
        ("to everything", |s| copy(s, top(), s.used, 8192), A::Size, |_| P::Overflow),
        ("from everything", |s| copy(s, s.used, top(), 8192), A::Size, |_| P::Overflow),
        (
            "to what is not reserved",
            |s| copy(s, Address::new(1 << 40), s.used, 8),
            A::Destination,
            |_| P::NotReserved,
        ),
        (
            "from what is not reserved",
            |s| copy(s, s.used, Address::new(1 << 40), 8),
            A::Source,
            |_| P::NotReserved,
        ),
        (
            "between what is not reserved",
            |s| copy(s, Address::new(1 << 40), Address::new(1 << 41), 8),
            A::Destination,
            |_| P::NotReserved,
        ),
        (
            "to what is not mapped",
            |s| copy(s, s.next, s.used, 8),
            A::Destination,
            |s| P::NotMapped { at: s.next },
        ),
        (
            "beyond the reservation",
            |s| copy(s, s.granule_at(7), s.used, 2 * s.granule),
            A::Destination,
            |_| P::NotReserved,
        ),
        (
            "to what may be read",
            |s| copy(s, s.used, s.used, 8),
            A::Destination,
            |s| P::NotGranted { at: s.used, agent: s.machine.gpu(0), verb: "write" },
        ),
        (
            "by an agent of another runtime",
            |s| s.machine.vmm.copy(s.other.gpu(0), s.used, s.used, 8),
            A::Agent,
            |_| P::ForeignAgent,
        ),
        (
            "by an invented agent",
            |s| s.machine.vmm.copy(invented_agent(s), s.used, s.used, 8),
            A::Agent,
            |_| P::UnknownAgent,
        ),
        ("fill null", |s| s.machine.vmm.fill(Address::NULL, 1, 4), A::Address, |_| P::Null),
        ("fill nothing", |s| s.machine.vmm.fill(s.used, 1, 0), A::Size, |_| P::Zero),
        ("fill half a word", |s| s.machine.vmm.fill(s.used, 1, 6), A::Size, |_| P::NotWords),
        (
            "fill between words",
            |s| s.machine.vmm.fill(at(s.used, 2), 1, 4),
            A::Address,
            |_| P::NotWords,
        ),
        (
            "fill everything",
            |s| s.machine.vmm.fill(s.used, 1, usize::MAX - 3),
            A::Size,
            |_| P::Overflow,
        ),
        (
            "fill what is not mapped",
            |s| s.machine.vmm.fill(s.next, 1, 4),
            A::Address,
            |s| P::NotMapped { at: s.next },
        ),
        (
            "fill what may be read",
            |s| s.machine.vmm.fill(s.used, 1, 4),
            A::Address,
            |s| P::NotGranted { at: s.used, agent: s.machine.gpu(0), verb: "write" },
        ),
        (
            "fill what nobody may use",
            |s| s.machine.vmm.fill(s.granule_at(1), 1, 4),
            A::Address,
            |s| P::NotGranted { at: s.granule_at(1), agent: s.machine.gpu(0), verb: "write" },
        ),
    ]);
}

#[test]
fn what_is_not_supported_says_so_before_the_runtime_is_asked() {
    let s = Scene::new();
    type Act = fn(&Scene) -> Result<(), VmmError>;
    let acts: &[(&str, Act)] = &[
        ("memory of the CPU", |s| create(s, s.granule, s.machine.cpu(0), 0)),
        ("the granularity of the CPU", |s| {
            let properties = AllocationProperties::on(s.machine.cpu(0));
            s.machine.vmm.allocation_granularity(&properties, Granularity::Minimum).map(drop)
        }),
        ("memory to be shared on Windows", |s| {
            let properties = s.machine.on(0).shareable_as(HandleType::Win32);
            s.machine.vmm.create(s.granule, &properties, 0).map(drop)
        }),
        ("memory to be shared on Windows otherwise", |s| {
            let properties = s.machine.on(0).shareable_as(HandleType::Win32Kmt);
            s.machine.vmm.create(s.granule, &properties, 0).map(drop)
        }),
        ("memory to be shared over a fabric", |s| {
            let properties = s.machine.on(0).shareable_as(HandleType::Fabric);
            s.machine.vmm.create(s.granule, &properties, 0).map(drop)
        }),
        ("memory to be shared in unheard-of ways", |s| {
            let mut properties = s.machine.on(0);
            properties.handle_types = HandleTypes::from_bits_retain(1 << 20);
            s.machine.vmm.create(s.granule, &properties, 0).map(drop)
        }),
        ("an import from Windows", |s| {
            let file = File::open("/dev/null").unwrap();
            s.machine.vmm.import_from_shareable_handle(file, HandleType::Win32).map(drop)
        }),
        ("an import from a fabric", |s| {
            let file = File::open("/dev/null").unwrap();
            s.machine.vmm.import_from_shareable_handle(file, HandleType::Fabric).map(drop)
        }),
        ("uncached memory before extension 1.18", |s| {
            let mut properties = s.machine.on(0);
            properties.kind = hsa_vmm::vmm::AllocationKind::Uncached;
            s.machine.vmm.create(s.granule, &properties, 0).map(drop)
        }),
        ("sparse arrays", |s| s.machine.vmm.map_array_async(1)),
    ];
    for (name, act) in acts {
        let before = state(&s.machine);
        let answer = act(&s);
        assert!(matches!(answer, Err(VmmError::NotSupported { .. })), "{name}: {answer:?}");
        assert_eq!(state(&s.machine), before, "{name}");
    }
}

#[test]
fn more_memory_than_there_is_is_out_of_memory() {
    let s = Scene::new();
    let gpu = s.machine.gpu(0);
    let all = s.machine.simulation.config().gpus[0].vram as usize;
    for size in [all, all + s.granule, 1 << 60, usize::MAX & !(s.granule - 1)] {
        let before = (s.machine.vmm.usage(), s.machine.simulation.usage());
        let answer = create(&s, size, gpu, 0);
        assert!(matches!(answer, Err(VmmError::OutOfMemory { .. })), "{size:#x}: {answer:?}");
        assert_eq!((s.machine.vmm.usage(), s.machine.simulation.usage()), before, "{size:#x}");
    }
}

#[test]
fn more_addresses_than_there_are_is_out_of_memory() {
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let sizes = [1 << 47, 1 << 62, usize::MAX & !(granule - 1)];
        let cases = sizes.map(|size| (size, 0)).into_iter().chain([(granule, 1 << 63)]);
        for (size, alignment) in cases {
            let answer = machine.vmm.address_reserve(size, alignment, None, 0);
            let out = matches!(answer, Err(VmmError::OutOfMemory { .. }));
            assert!(out, "{release}: {size:#x} at {alignment:#x}: {answer:?}");
        }
        machine.assert_empty();
    }
}

/// AMD's runtime would reserve them, and never free them.
#[test]
fn addresses_below_those_of_gpus_are_not_reserved() {
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let low = Address::new(8 << 20);
        let got = machine.vmm.address_reserve(granule, 0, Some(low), 0).unwrap();
        assert!(got.get() >= 16 << 20, "{release}: {got}");
        machine.vmm.address_free(got, granule).unwrap();
        let refused = machine.vmm.address_reserve_at(low, granule).unwrap_err();
        let taken = matches!(refused, VmmError::InvalidArgument { problem: P::AddressTaken, .. });
        assert!(taken, "{release}: {refused}");
        machine.assert_empty();
    }
}

#[test]
fn a_bad_hint_is_no_error() {
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let taken = machine.reserve(granule);
        for hint in [Address::NULL, Address::new(1), top(), taken, at(taken, 1)] {
            for alignment in [0, 1, granule, 2 * MIB] {
                let got = machine.vmm.address_reserve(granule, alignment, Some(hint), 0);
                let got = got.unwrap_or_else(|error| panic!("{release}: {hint}: {error}"));
                assert_eq!(got.get() % alignment.max(granule), 0, "{release}: {hint}");
                machine.vmm.address_free(got, granule).unwrap();
            }
        }
        machine.vmm.address_free(taken, granule).unwrap();
        machine.assert_empty();
    }
}
