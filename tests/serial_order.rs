//! Random operations of eight threads have the results and the final state of some serial order.

mod machine;
mod process;
mod serial;

use hsa_vmm::simulation::Generation;
use machine::{Machine, without_cpu_mapping};
use std::thread;
use std::time::Duration;

const TIME_LIMIT: Duration = Duration::from_secs(600);

#[test]
fn serial_order_exists_in_every_generation() {
    process::within(TIME_LIMIT, || {
        let generations = machine::generations();
        for (generation, config) in &generations {
            let machine = Machine::new(config.clone());
            serial::stress::stress(generation, &machine, generations.len() as u32);
            machine.close();
        }
    });
}

/// Leaves out generation A, whose runtime makes address-space holes in which other threads may map memory.
#[test]
fn serial_order_exists_with_runtime_cpu_access() {
    process::within(TIME_LIMIT, || {
        for (generation, config) in machine::generations() {
            if config.generation != Generation::A {
                let machine = Machine::new(without_cpu_mapping(config));
                serial::stress::stress(generation, &machine, 3);
                machine.close();
            }
        }
    });
}
