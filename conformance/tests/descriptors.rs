//! All cases with open file descriptors counted. Alone in its process: nobody else opens any.

use hsa_sim::{Config, Era};
use hsa_vmm::Runtime;
use hsa_vmm_conformance::{Options, Status, run};

#[test]
fn no_case_leaves_a_descriptor_open() {
    for era in [Era::A, Era::B, Era::C, Era::D] {
        let runtime = Runtime::simulated(Config::mi300x(2).with_era(era)).unwrap();
        let report = run(&runtime, &Options::default(), &mut |_| ());
        let failed: Vec<_> =
            report.cases.iter().filter(|case| case.status == Status::Fail).collect();
        assert!(failed.is_empty(), "era {era}: {failed:#?}");
    }
}
