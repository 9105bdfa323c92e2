//! The arguments for tests of invalid input, and the check of the errors.

use crate::machine::{Machine, at};
use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::simulation::{Config, Usage as RuntimeUsage};
use hsa_vmm::vmm::{MappingInfo, Usage};
use hsa_vmm::{
    Access, Address, AgentId, Allocation, AllocationProperties, Error, Handle, HandleType, Mapping,
    Reservation,
};

pub const DESCRIPTOR: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;

/// Valid and invalid arguments, of two independent simulated machines.
pub struct Setup {
    pub machine: Machine,
    pub foreign_machine: Machine,
    pub granule: usize,
    /// A reservation of eight granules. `handle` is mapped in the first granule, `two_granule_handle` in the next two,
    /// and `released_mapped_handle` in the fourth.
    pub used: Address,
    /// The adjacent reservation after `used`, in which nothing is mapped.
    pub empty: Address,
    pub handle: Handle,
    pub two_granule_handle: Handle,
    /// Not shareable.
    pub private_handle: Handle,
    /// Released, and mapped nowhere.
    pub released_handle: Handle,
    /// Released, and still mapped in the fourth granule.
    pub released_mapped_handle: Handle,
    /// A handle of `foreign_machine`.
    pub foreign_handle: Handle,
    /// A mapping in a reservation of its own. No agent has access.
    pub mapping: Mapping,
}

impl Setup {
    pub fn new() -> Self {
        let [machine, foreign_machine] =
            [Machine::new(Config::mi300x(2)), Machine::new(Config::mi300x(1))];
        let granule = machine.granule();
        let (used, empty) = adjacent_reservations(&machine, 8 * granule);
        let handle = machine.create(0, granule);
        let two_granule_handle = machine.create(0, 2 * granule);
        let private_handle = machine.vmm.create(granule, &AllocationProperties::on(machine.gpu(0)));
        let released_handle = machine.create(0, granule);
        machine.vmm.release(released_handle).unwrap();
        let released_mapped_handle = machine.create(1, granule);
        machine.map(used, granule, handle);
        machine.map(at(used, granule), 2 * granule, two_granule_handle);
        machine.map(at(used, 3 * granule), granule, released_mapped_handle);
        machine.vmm.release(released_mapped_handle).unwrap();
        machine.grant(used, granule, machine.cpu(0), Access::Read);
        machine.grant(used, granule, machine.gpu(0), Access::Read);
        let foreign_handle = foreign_machine.create(0, granule);
        let reservation = Reservation::builder(2 * granule).reserve(&machine.vmm).unwrap();
        let memory = Allocation::create(&machine.vmm, granule, &machine.shareable_on(0)).unwrap();
        let mapping = reservation.map(0, &memory).unwrap();
        let private_handle = private_handle.unwrap();
        Self {
            machine,
            foreign_machine,
            granule,
            used,
            empty,
            handle,
            two_granule_handle,
            private_handle,
            released_handle,
            released_mapped_handle,
            foreign_handle,
            mapping,
        }
    }

    /// Returns the address of a granule of the reservation `used`.
    pub fn granule_at(&self, number: usize) -> Address {
        at(self.used, number * self.granule)
    }
}

pub fn adjacent_reservations(machine: &Machine, size: usize) -> (Address, Address) {
    let reserve_at = |address| Reservation::builder(size).exactly_at(address).reserve(&machine.vmm);
    for _ in 0..1000 {
        let base = machine.reserve(2 * size);
        machine.vmm.address_free(base, 2 * size).unwrap();
        // Another thread may have taken some of the freed addresses.
        if let (Ok(first), Ok(second)) = (reserve_at(base), reserve_at(at(base, size))) {
            std::mem::forget((first, second));
            return (base, at(base, size));
        }
    }
    panic!("two adjacent reservations are not available");
}

/// The state that a rejected call must not change.
#[derive(Debug, PartialEq)]
pub struct State {
    usage: Usage,
    mappings: Vec<MappingInfo>,
    reservations: Vec<(Address, usize)>,
    quarantine: usize,
    runtime: RuntimeUsage,
    calls: Vec<(&'static str, u64)>,
}

pub fn state(machine: &Machine) -> State {
    machine.vmm.check().unwrap();
    State {
        usage: machine.vmm.usage(),
        mappings: machine.vmm.mappings(),
        reservations: machine.vmm.reservations(),
        quarantine: machine.vmm.quarantined_ranges().len(),
        runtime: machine.simulation.usage(),
        calls: machine.simulation.all_calls(),
    }
}

/// A case: its name, the call, and the expected argument and problem.
pub type Case = (&'static str, fn(&Setup) -> Result<(), Error>, Argument, fn(&Setup) -> Problem);

/// Makes each call, and checks that it fails with the expected error and changes nothing.
pub fn check_rejections(cases: &[Case]) {
    let setup = Setup::new();
    for (name, function, argument, problem) in cases {
        let before = (state(&setup.machine), state(&setup.foreign_machine));
        let result = function(&setup);
        let after = (state(&setup.machine), state(&setup.foreign_machine));
        let Err(error) = result else { panic!("{name}: the call succeeded") };
        let reported = (error.argument(), error.problem());
        assert_eq!(reported, (Some(*argument), Some(problem(&setup))), "{name}: {error}");
        assert_eq!(before, after, "{name}");
        let text = error.to_string();
        assert!(text.contains(&argument.to_string()), "{name}: {text}");
    }
}

/// Returns the start of the last page of the address space.
pub fn last_page() -> Address {
    Address::new(usize::MAX & !0xfff)
}

pub fn invented_agent(s: &Setup) -> AgentId {
    AgentId::from_bits(s.machine.gpu(1).to_bits() + 1)
}

pub fn no_agent() -> AgentId {
    AgentId::from_bits(0)
}
