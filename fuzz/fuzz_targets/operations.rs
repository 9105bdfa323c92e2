//! Any sequence of operations on any simulation, with calls of it failing or not: the library does
//! what the reference model says, and nothing is left behind.
#![no_main]

use hsa_vmm_conformance::fuzz::{Sequence, perform};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let sequence = Sequence { every: Some(16), ..Sequence::drawn_from(bytes) };
    // Large granules take long.
    let machine = sequence.machine.as_deref().unwrap_or_default();
    if machine.contains("granule") || sequence.operations.len() > 64 {
        return;
    }
    let runtime = sequence.simulation().expect("a machine that can be").expect("a simulation");
    if let Err(found) = perform(&runtime, &sequence, &mut |_| ()) {
        // As `hsa-vmm replay` reads it.
        panic!("{found}\n{}", serde_json::to_string(&sequence).expect("JSON"));
    }
});
