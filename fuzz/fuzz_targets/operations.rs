//! Any sequence of operations on the simulation: the library does what the reference model says,
//! and nothing is left behind.
#![no_main]

use hsa_vmm::Runtime;
use hsa_vmm::simulation::{Config, Era};
use hsa_vmm_conformance::operations::{Operation, Trial};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&machine, operations)) = data.split_first() else { return };
    let era = [Era::A, Era::B, Era::C, Era::D][usize::from(machine % 4)];
    let mut config = Config::mi300x(1 + usize::from(machine >> 2 & 1)).with_era(era);
    config.dmabuf_cpu_mapping = machine >> 3 & 1 == 0;
    let runtime = Runtime::simulated(config).expect("a slot is free");
    let mut trial = Trial::open(&runtime).unwrap_or_else(|difference| panic!("{difference}"));
    for bytes in operations.chunks(Operation::BYTES).take(64) {
        let operation = Operation::drawn_from(bytes, trial.stock());
        if let Err(difference) = trial.apply(&operation) {
            panic!("{operation:?}: {difference}");
        }
    }
    trial.finish().unwrap_or_else(|difference| panic!("at the end: {difference}"));
});
