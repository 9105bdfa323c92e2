//! Invalid agents and addresses in calls that change or query access.

use crate::machine::{Machine, access, at};
use crate::setup::{check_rejections, invented_agent, last_page, no_agent, state};
use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::simulation::Config;
use hsa_vmm::{Access, Address, Allocation};

#[test]
fn set_access_and_revoke_reject_bad_agents() {
    check_rejections(&[
        (
            "an empty list",
            |s| s.machine.vmm.set_access(s.used, s.granule, &[]),
            Argument::Descriptors,
            |_| Problem::Empty,
        ),
        (
            "an agent of another runtime, last",
            |s| {
                let list = [s.machine.gpu(0), s.foreign_machine.gpu(0)]
                    .map(|a| access(a, Access::ReadWrite));
                s.machine.vmm.set_access(s.used, s.granule, &list)
            },
            Argument::Agent,
            |_| Problem::UnknownAgent,
        ),
        (
            "an invented agent, last",
            |s| {
                let list = [s.machine.gpu(0), invented_agent(s)];
                let list = list.map(|a| access(a, Access::ReadWrite));
                s.machine.vmm.set_access(s.used, s.granule, &list)
            },
            Argument::Agent,
            |_| Problem::UnknownAgent,
        ),
        (
            "an invented agent, without access",
            |s| {
                let list = [access(invented_agent(s), Access::None)];
                s.machine.vmm.set_access(s.used, s.granule, &list)
            },
            Argument::Agent,
            |_| Problem::UnknownAgent,
        ),
        (
            "revoke from an empty list",
            |s| s.machine.vmm.revoke(s.used, s.granule, &[]),
            Argument::Descriptors,
            |_| Problem::Empty,
        ),
        (
            "revoke from an agent of another runtime",
            |s| {
                s.machine.vmm.revoke(
                    s.used,
                    s.granule,
                    &[s.machine.gpu(0), s.foreign_machine.cpu(0)],
                )
            },
            Argument::Agent,
            |_| Problem::UnknownAgent,
        ),
        (
            "revoke from no agent",
            |s| s.machine.vmm.revoke(s.used, s.granule, &[no_agent()]),
            Argument::Agent,
            |_| Problem::UnknownAgent,
        ),
    ]);
}

#[test]
fn set_access_rejects_agents_without_peer_access() {
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
    // The GPU can get access to the first mapping, which is in its own memory, but not to the second.
    let list = [access(machine.gpu(0), Access::ReadWrite)];
    let error = machine.vmm.set_access(address, 2 * granule, &list).unwrap_err();
    let owner = machine.gpu(1);
    assert_eq!(error.problem(), Some(Problem::NoPeerAccess(owner)));
    assert_eq!(error.argument(), Some(Argument::Agent));
    assert_eq!(state(&machine), before);
    let none = [access(machine.gpu(0), Access::None)];
    machine
        .vmm
        .set_access(address, 2 * granule, &none)
        .expect("setting access to none needs no peer access");
}

#[test]
fn get_access_and_retain_reject_bad_input() {
    check_rejections(&[
        (
            "null",
            |s| s.machine.vmm.get_access(s.machine.gpu(0), Address::NULL).map(drop),
            Argument::Address,
            |_| Problem::Null,
        ),
        (
            "the address after a mapping",
            |s| s.machine.vmm.get_access(s.machine.gpu(0), s.granule_at(4)).map(drop),
            Argument::Address,
            |s| Problem::NotMapped(s.granule_at(4)),
        ),
        (
            "an invented address",
            |s| s.machine.vmm.get_access(s.machine.gpu(0), last_page()).map(drop),
            Argument::Address,
            |_| Problem::NotMapped(last_page()),
        ),
        (
            "an agent of another runtime",
            |s| s.machine.vmm.get_access(s.foreign_machine.gpu(0), s.used).map(drop),
            Argument::Agent,
            |_| Problem::UnknownAgent,
        ),
        (
            "an invented agent",
            |s| s.machine.vmm.get_access(invented_agent(s), s.used).map(drop),
            Argument::Agent,
            |_| Problem::UnknownAgent,
        ),
        (
            "retain at null",
            |s| s.machine.vmm.retain_allocation_handle(Address::NULL).map(drop),
            Argument::Address,
            |_| Problem::Null,
        ),
        (
            "retain after a mapping",
            |s| s.machine.vmm.retain_allocation_handle(s.granule_at(4)).map(drop),
            Argument::Address,
            |s| Problem::NotMapped(s.granule_at(4)),
        ),
        (
            "retain at an invented address",
            |s| Allocation::at(&s.machine.vmm, last_page()).map(drop),
            Argument::Address,
            |_| Problem::NotMapped(last_page()),
        ),
        (
            "retain at the last address",
            |s| s.machine.vmm.retain_allocation_handle(Address::new(usize::MAX)).map(drop),
            Argument::Address,
            |_| Problem::NotMapped(Address::new(usize::MAX)),
        ),
    ]);
}
