//! Runs saved sequences with which `hsa-vmm fuzz` once found a failure.

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
                panic!("{} contains a trace, not a sequence", path.display());
            };
            let runtime = sequence.simulation().unwrap().expect("the sequence names a simulation");
            let counts = perform(&runtime, &sequence, &mut |_| ())
                .unwrap_or_else(|failure| panic!("{}: {failure}", path.display()));
            assert!(counts.operations > 0, "{}", path.display());
            sequences += 1;
        }
    }
    assert!(sequences > 0, "no sequences found");
}
