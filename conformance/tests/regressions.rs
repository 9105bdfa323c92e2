//! Failures that `hsa-vmm fuzz` found, saved as sequences. They must not occur again.

use hsa_vmm_conformance::fuzz::perform;
use hsa_vmm_conformance::trace::{Reader, Recorded};
use std::fs::read_dir;

#[test]
fn saved_sequences_pass() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/regressions/fuzz");
    let mut sequences = 0;
    for entry in read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        for recorded in Reader::open(&path).unwrap().with_sequences() {
            let Recorded::Sequence(sequence) = recorded.unwrap() else {
                panic!("{} has a trace", path.display());
            };
            let runtime = sequence.simulation().unwrap().expect("a simulation is named");
            let counts = perform(&runtime, &sequence, &mut |_| ())
                .unwrap_or_else(|found| panic!("{}: {found}", path.display()));
            assert!(counts.operations > 0, "{}", path.display());
            sequences += 1;
        }
    }
    assert!(sequences > 0, "no sequences found");
}
