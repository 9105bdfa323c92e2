//! Checks that the generator makes enough valid and invalid operations of each kind.

use hsa_vmm::Runtime;
use hsa_vmm::simulation::Config;
use hsa_vmm_conformance::operations::{DifferentialTest, Operation};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::collections::BTreeMap;

/// For each operation, how often it succeeded, and how often it was rejected.
type Counts = BTreeMap<String, (u32, u32)>;

#[test]
fn generator_makes_valid_and_invalid_operations() {
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut counts = Counts::new();
    for _ in 0..12 {
        let runtime = Runtime::simulated(Config::mi300x(2)).unwrap();
        let mut test = DifferentialTest::open(&runtime).unwrap();
        for _ in 0..150 {
            let mut bytes = [0; Operation::BYTES];
            random.fill_bytes(&mut bytes);
            let operation = Operation::from_bytes(&bytes, test.object_counts());
            let is_success = test.apply(&operation).unwrap();
            let name = serde_json::to_value(&operation).unwrap()["operation"].to_string();
            let (succeeded, rejected) = counts.entry(name).or_default();
            *if is_success { succeeded } else { rejected } += 1;
        }
        test.finish().unwrap();
    }
    assert_eq!(counts.len(), 19, "{counts:#?}");
    for (name, (succeeded, rejected)) in &counts {
        let is_never_rejected = ["\"shutdown\"", "\"close\""].contains(&name.as_str());
        assert!(*succeeded >= 3 && (*rejected >= 1 || is_never_rejected), "{name}: {counts:#?}");
    }
}
