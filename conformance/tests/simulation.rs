//! All cases on the simulation, as it is in every release of AMD's runtime.

use hsa_sim::{Config, Era};
use hsa_vmm::Runtime;
use hsa_vmm_conformance::{Options, Report, Status, run};

fn conform(config: Config) -> Report {
    let runtime = Runtime::simulated(config).unwrap();
    // Other tests of this process open and close descriptors meanwhile.
    let options = Options { count_descriptors: false, ..Options::default() };
    run(&runtime, &options, &mut |_| ())
}

fn failures(report: &Report) -> Vec<String> {
    let failed = report.cases.iter().filter(|case| case.status == Status::Fail);
    failed.map(|case| format!("{}: {}", case.name, case.detail)).collect()
}

#[test]
fn all() {
    for era in [Era::A, Era::B, Era::C, Era::D] {
        for granule in [4 << 10, 2 << 20] {
            let began = std::time::Instant::now();
            let report = conform(Config::mi300x(2).with_era(era).with_granule(granule));
            eprintln!("{era} {granule} {:?} {}", began.elapsed(), report.summary);
            for f in failures(&report) {
                eprintln!("   {f}");
            }
            for c in
                report.cases.iter().filter(|c| matches!(c.status, Status::Skip | Status::Known))
            {
                eprintln!("   {} {} {}", c.status, c.name, c.detail);
            }
        }
    }
}
