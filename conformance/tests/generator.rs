//! Drawn operations reach everything: a test that only asks for nonsense proves nothing.

use hsa_vmm::Runtime;
use hsa_vmm::simulation::Config;
use hsa_vmm_conformance::operations::{Operation, Trial};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::collections::BTreeMap;

/// How often an operation was done, and how often refused.
type Tally = BTreeMap<String, (u32, u32)>;

#[test]
fn generator_draws_valid_and_invalid_operations() {
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut tally = Tally::new();
    for _ in 0..12 {
        let runtime = Runtime::simulated(Config::mi300x(2)).unwrap();
        let mut trial = Trial::open(&runtime).unwrap();
        for _ in 0..150 {
            let mut bytes = [0; Operation::BYTES];
            random.fill_bytes(&mut bytes);
            let operation = Operation::drawn_from(&bytes, trial.stock());

            let done = trial.apply(&operation).unwrap();
            let name = serde_json::to_value(&operation).unwrap()["operation"].to_string();
            let (yes, no) = tally.entry(name).or_default();
            *if done { yes } else { no } += 1;
        }
        trial.finish().unwrap();
    }
    assert_eq!(tally.len(), 19, "{tally:#?}");
    for (name, (done, refused)) in &tally {
        let is_never_refused = ["\"shutdown\"", "\"close\""].contains(&name.as_str());
        assert!(*done >= 3 && (*refused >= 1 || is_never_refused), "{name}: {tally:#?}");
    }
}
