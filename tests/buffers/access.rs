//! Access of agents to buffers, including memory that is added later.

use crate::machine::{KIB, Machine, generations, with_two_cpus};
use hsa_vmm::Error;
use hsa_vmm::buffer::{PagedBuffer, PausableBuffer, PauseMode, RingBuffer};
use hsa_vmm::error::{Argument, ErrorKind, Feature, Operation, Problem};
use hsa_vmm::simulation::Config;
use hsa_vmm::{Access, AgentId, GrowableBuffer};

/// A query of an agent's access to a buffer.
type AccessQuery<'a> = &'a dyn Fn(AgentId) -> Result<Access, Error>;
/// A call that revokes the access of agents to a buffer.
type Revoke<'a> = &'a dyn Fn(&[AgentId]) -> Result<(), Error>;

const STEP: usize = 16 * KIB;

fn new_buffer(machine: &Machine) -> GrowableBuffer {
    let options = GrowableBuffer::builder(64 * STEP).with_step(STEP);
    options.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap()
}

#[test]
fn grants_hold_for_memory_added_later() {
    for (generation, config) in generations() {
        let machine = Machine::new(with_two_cpus(config));
        let agents = [machine.cpu(0), machine.cpu(1), machine.gpu(0), machine.gpu(1)];
        let mut buffer = new_buffer(&machine);
        let check = |buffer: &GrowableBuffer, expected: [Access; 4], context: &str| {
            for (agent, expected) in agents.into_iter().zip(expected) {
                assert_eq!(buffer.access(agent), Ok(expected), "{generation}, {context}: {agent}");
                for mapping in machine.vmm.mappings() {
                    let found = machine.vmm.get_access(agent, mapping.address);
                    assert_eq!(
                        found,
                        Ok(expected),
                        "{generation}, {context}: {agent} at {mapping:?}"
                    );
                }
            }
        };
        use Access::{None, Read, ReadWrite};
        buffer.grow(STEP).unwrap();
        check(&buffer, [None; 4], "no agent yet");
        buffer.grant(&[machine.gpu(0)], ReadWrite).unwrap();
        buffer.grow(3 * STEP).unwrap();
        check(&buffer, [None, None, ReadWrite, None], "the owner");
        buffer.grant(&[machine.cpu(1), machine.gpu(1)], Read).unwrap();
        check(&buffer, [None, Read, ReadWrite, Read], "two more agents");
        buffer.grow(5 * STEP).unwrap();
        check(&buffer, [None, Read, ReadWrite, Read], "grown again");
        buffer.grant(&[machine.gpu(1)], None).unwrap();
        buffer.grow(STEP).unwrap();
        check(&buffer, [None, Read, ReadWrite, None], "one agent fewer");
        buffer.grant(&[machine.gpu(1), machine.gpu(1)], ReadWrite).unwrap();
        buffer.revoke(&[machine.gpu(0), machine.cpu(1)]).unwrap();
        buffer.grow(STEP).unwrap();
        check(&buffer, [None, None, None, ReadWrite], "revoked");
        for part in 0..buffer.mapped_size() / STEP {
            let address = buffer.address().get() + part * STEP;
            assert!(
                machine.simulation.page(0, address).is_none(),
                "{generation}: page table, {part}"
            );
            assert!(machine.simulation.page(1, address).is_some(), "{generation}: {part}");
        }
        buffer.resize(0).unwrap();
        buffer.grow(2 * STEP).unwrap();
        check(&buffer, [None, None, None, ReadWrite], "emptied and grown again");
    }
}

/// `access` of every kind of buffer returns the access that the caller has granted.
#[test]
fn access_returns_what_was_granted() {
    let foreign_gpu = Machine::new(Config::mi300x(1)).gpu(0);
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let [owner, peer] = [0, 1].map(|gpu| machine.gpu(gpu));
        let (vmm, properties) = (&machine.vmm, machine.shareable_on(0));
        let mut growable = new_buffer(&machine);
        let paged =
            PagedBuffer::builder(4 * STEP).with_page_size(STEP).reserve(vmm, &properties).unwrap();
        let pausable = PausableBuffer::create(vmm, STEP, &properties).unwrap();
        let ring = RingBuffer::create(vmm, STEP, 2, &properties).unwrap();
        growable.grow(STEP).unwrap();
        paged.map(1..3).unwrap();
        for agents in [&[owner, peer][..], &[peer]] {
            growable.grant(agents, Access::ReadWrite).unwrap();
            paged.grant(agents, Access::ReadWrite).unwrap();
            pausable.grant(agents, Access::ReadWrite).unwrap();
            ring.grant(agents, Access::ReadWrite).unwrap();
        }
        growable.revoke(&[peer]).unwrap();
        paged.revoke(&[peer]).unwrap();
        pausable.revoke(&[peer]).unwrap();
        ring.revoke(&[peer]).unwrap();
        let queries: [(&str, AccessQuery<'_>); 4] = [
            ("growable", &|agent| growable.access(agent)),
            ("paged", &|agent| paged.access(agent)),
            ("pausable", &|agent| pausable.access(agent)),
            ("ring", &|agent| ring.access(agent)),
        ];
        for (name, access) in queries {
            assert_eq!(access(owner), Ok(Access::ReadWrite), "{generation}: {name}");
            assert_eq!(access(peer), Ok(Access::None), "{generation}: {name}");
            assert_eq!(access(machine.cpu(0)), Ok(Access::None), "{generation}: {name}");
            let Err(error) = access(foreign_gpu) else { panic!("{generation}: {name}") };
            let reported = (error.operation(), error.problem());
            assert_eq!(
                reported,
                (Operation::GetAccess, Some(Problem::UnknownAgent)),
                "{generation}: {name}"
            );
        }
        let mappings = machine.vmm.mappings();
        assert_eq!(mappings.len(), 1 + 2 + 1 + 2, "{generation}");
        for mapping in mappings {
            let pages = [0, 1].map(|gpu| machine.simulation.page(gpu, mapping.address.get()));
            assert!(
                pages[0].is_some() && pages[1].is_none(),
                "{generation}, page table: {mapping:?}"
            );
        }
    }
}

#[test]
fn concurrent_changes_keep_access_consistent() {
    let machine = Machine::new(Config::mi300x(2));
    let ring = RingBuffer::create(&machine.vmm, STEP, 2, &machine.shareable_on(0)).unwrap();
    let agents = [machine.gpu(0)];
    for round in 0..50 {
        std::thread::scope(|scope| {
            for access in [Access::Read, Access::ReadWrite, Access::None] {
                let (ring, agents) = (&ring, &agents);
                scope.spawn(move || match access {
                    Access::None => ring.revoke(agents).unwrap(),
                    access => ring.grant(agents, access).unwrap(),
                });
            }
        });
        let recorded = machine.vmm.get_access(agents[0], ring.address());
        assert_eq!(ring.access(agents[0]), recorded, "round {round}");
    }
}

#[test]
fn invalid_grants_are_rejected_without_memory() {
    let machine = Machine::new(Config::mi300x(2));
    let foreign_machine = Machine::new(Config::mi300x(1));
    let buffer = new_buffer(&machine);
    for (agents, problem) in [
        (vec![foreign_machine.gpu(0)], Problem::UnknownAgent),
        (vec![machine.gpu(0), foreign_machine.cpu(0)], Problem::UnknownAgent),
        (vec![], Problem::Empty),
    ] {
        let error = buffer.grant(&agents, Access::Read).expect_err("the agents do not exist");
        assert_eq!(error.problem(), Some(problem));
        assert_eq!(
            buffer.access(machine.gpu(0)),
            Ok(Access::None),
            "a rejected grant changes nothing"
        );
    }
    let mut config = Config::mi300x(2);
    config.peer_access = false;
    let machine = Machine::new(config);
    let buffer = new_buffer(&machine);
    let error = buffer.grant(&[machine.gpu(0), machine.gpu(1)], Access::Read).expect_err("no peer");
    assert_eq!(error.argument(), Some(Argument::Agent), "{error}");
    let machine = Machine::new(Config::consumer());
    let mut buffer = new_buffer(&machine);
    let error = buffer.grant(&[machine.cpu(0)], Access::Read).expect_err("no large BAR");
    let feature = Feature::CpuAccess;
    assert!(matches!(error.kind(), ErrorKind::NotSupported(found) if *found == feature), "{error}");
    buffer.grant(&[machine.gpu(0)], Access::ReadWrite).unwrap();
    buffer.grow(1).expect("the rejected grant is not retried");
}

#[test]
fn cpu_access_beyond_its_grant_is_an_error() {
    let machine = Machine::new(Config::mi300x(1));
    let mut buffer = new_buffer(&machine);
    buffer.grow(2 * STEP).unwrap();
    assert!(buffer.read(0, &mut [0]).is_err(), "no agent has access");
    buffer.grant(&[machine.cpu(0)], Access::Read).unwrap();
    buffer.read(STEP - 1, &mut [0; 2]).unwrap();
    assert!(buffer.write(STEP - 1, &[0; 2]).is_err(), "access is read-only");
    let ring = RingBuffer::create(&machine.vmm, 1, 2, &machine.shareable_on(0)).unwrap();
    assert!(ring.read(0, &mut [0]).is_err());
    ring.grant(&[machine.cpu(0)], Access::Read).unwrap();
    assert!(ring.write(0, &[0]).is_err());
}

#[test]
fn revoke_rejects_unknown_agents_without_memory() {
    let machine = Machine::new(Config::mi300x(1));
    let foreign_gpu = Machine::new(Config::mi300x(2)).gpu(1);
    let (vmm, properties) = (&machine.vmm, machine.shareable_on(0));
    let growable = new_buffer(&machine);
    let mut paused = PausableBuffer::create(vmm, STEP, &properties).unwrap();
    paused.pause(PauseMode::Discard).unwrap();
    let paged = PagedBuffer::builder(4 * STEP).with_page_size(STEP).reserve(vmm, &properties);
    let paged = paged.unwrap();
    let revokes: [(&str, Revoke<'_>); 3] = [
        ("growable", &|agents| growable.revoke(agents)),
        ("paused", &|agents| paused.revoke(agents)),
        ("paged", &|agents| paged.revoke(agents)),
    ];
    for (name, revoke) in revokes {
        for (agents, argument, problem) in [
            (&[foreign_gpu][..], Argument::Agent, Problem::UnknownAgent),
            (&[], Argument::Descriptors, Problem::Empty),
        ] {
            let error = revoke(agents).expect_err(name);
            let found = (error.operation(), error.argument(), error.problem());
            assert_eq!(found, (Operation::Revoke, Some(argument), Some(problem)), "{name}");
        }
        revoke(&[machine.gpu(0)]).unwrap();
    }
}
