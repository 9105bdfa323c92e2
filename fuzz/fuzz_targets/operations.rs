//! Runs arbitrary sequences of operations on arbitrary simulations, with and without failing calls of the runtime.
//! Checks that the library behaves like the reference model and leaks nothing.
#![no_main]

use hsa_vmm_conformance::fuzz::{Sequence, perform};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // Compare the complete state after every 16 operations.
    let sequence = Sequence { every: Some(16), ..Sequence::from_bytes(bytes) };
    // Skip slow inputs: large granules and long sequences.
    let config = sequence.machine.as_deref().unwrap_or_default();
    if config.contains("granule") || sequence.operations.len() > 64 {
        return;
    }
    let runtime = sequence.simulation().expect("a valid configuration").expect("a simulation");
    if let Err(found) = perform(&runtime, &sequence, &mut |_| ()) {
        // `hsa-vmm replay` reads this format.
        panic!("{found}\n{}", serde_json::to_string(&sequence).expect("JSON"));
    }
});
