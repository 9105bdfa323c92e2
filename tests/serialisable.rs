//! Random operations of eight threads have the results and the final state of a serial order.

mod machine;
mod process;
mod serial;

use hsa_vmm::simulation::Generation;
use machine::{Machine, without_cpu_mapping};
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(600);

#[test]
fn eight_threads_have_a_serial_order_in_every_generation() {
    process::within(PATIENCE, || {
        let generations = machine::generations();
        for (generation, config) in &generations {
            let machine = Machine::new(config.clone());
            serial::stress::stress(generation, &machine, generations.len() as u32);
            machine.close();
        }
    });
}

/// Not in generation A, where other threads may map memory in holes that the runtime leaves.
#[test]
fn threads_have_a_serial_order_with_runtime_cpu_access() {
    process::within(PATIENCE, || {
        for (generation, config) in machine::generations() {
            if config.generation != Generation::A {
                let machine = Machine::new(without_cpu_mapping(config));
                serial::stress::stress(generation, &machine, 3);
                machine.close();
            }
        }
    });
}
