//! Another thread cannot map memory in a reservation. The tests use the simulation of every ROCm generation, but leave
//! out generation A if the runtime maps memory for the CPU.

mod foreign_mapper;
mod machine;
mod process;

use hsa_vmm::simulation::Generation;
use machine::{Machine, without_cpu_mapping};

#[test]
fn foreign_mappings_stay_outside() {
    for (generation, config) in machine::generations() {
        let machine = Machine::new(config);
        foreign_mapper::map_during_changes(&machine, generation);
        machine.close();
    }
}

/// Leaves out generation A, where the runtime makes holes. `tests/address_space.rs` tests foreign mappings in holes.
#[test]
fn foreign_mappings_stay_out_with_runtime_cpu_access() {
    for (generation, config) in machine::generations() {
        if config.generation != Generation::A {
            let machine = Machine::new(without_cpu_mapping(config));
            foreign_mapper::map_during_changes(&machine, generation);
            machine.close();
        }
    }
}
