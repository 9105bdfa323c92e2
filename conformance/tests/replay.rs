//! Replaying the recorded traces.

use hsa_sim::{Config, Era};
use hsa_vmm::Runtime;
use hsa_vmm_conformance::replay::replay;
use hsa_vmm_conformance::trace::Reader;

const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/cuda_h200_traces_seed1.jsonl.gz");

#[test]
fn all() {
    for era in [Era::A, Era::B, Era::C, Era::D] {
        for granule in [4 << 10, 2 << 20] {
            let began = std::time::Instant::now();
            let runtime =
                Runtime::simulated(Config::mi300x(2).with_era(era).with_granule(granule)).unwrap();
            let report = replay(&runtime, Reader::open(RECORDED).unwrap(), &mut |_| ()).unwrap();
            eprintln!(
                "{era} {granule} {:?} {}",
                began.elapsed(),
                serde_json::to_string(&report).unwrap()
            );
        }
    }
}
