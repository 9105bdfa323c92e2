//! A reservation stays whole, whoever maps memory meanwhile: on the simulation, in every era.

mod machine;
mod process;
mod stranger;

use hsa_vmm::simulation::Era;
use machine::{Machine, without_cpu_mapping};

#[test]
fn strangers_are_never_let_in() {
    for (era, config) in machine::eras() {
        let machine = Machine::new(config);
        stranger::besiege(&machine, era);
        machine.close();
    }
}

/// In era A the runtime leaves holes then: tests/address_space.rs shows what becomes of strangers.
#[test]
fn nor_where_the_runtime_gives_the_cpu_its_access() {
    for (era, config) in machine::eras() {
        if config.era != Era::A {
            let machine = Machine::new(without_cpu_mapping(config));
            stranger::besiege(&machine, era);
            machine.close();
        }
    }
}
