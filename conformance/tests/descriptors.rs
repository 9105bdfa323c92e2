//! Runs all cases with the usual limit of file descriptors, and checks that no descriptor is left open. Also checks
//! which generations keep a descriptor for each handle. This file has only one test, so that no other thread of the
//! process opens descriptors.

use hsa_sim::{Config, Generation};
use hsa_vmm::{AllocationProperties, Error, Runtime, Vmm};
use hsa_vmm_conformance::{Options, Status, run};
use rustix::process::{Resource, Rlimit, setrlimit};

/// The usual limit of open descriptors of a process.
const USUAL_LIMIT: u64 = 1024;

#[test]
fn cases_leak_no_descriptors() {
    setrlimit(Resource::Nofile, Rlimit { current: Some(USUAL_LIMIT), maximum: Some(USUAL_LIMIT) })
        .unwrap();
    for generation in Generation::ALL {
        let runtime = Runtime::simulated(Config::mi300x(2).with_generation(generation)).unwrap();
        let report = run(&runtime, &Options::default(), &mut |_| ());
        let failed: Vec<_> =
            report.cases.iter().filter(|case| case.status == Status::Fail).collect();
        assert!(failed.is_empty(), "generation {generation}: {failed:#?}");
        let last = create_1100_handles(&runtime);
        // Generations C (ROCm 7.14) and E (AMD's runtime on rocddi) keep a descriptor for each handle
        // (reference 6.2 #62). The error must report the lack of descriptors.
        let out_of_descriptors =
            matches!(&last, Err(error) if *error.kind() == hsa_vmm::ErrorKind::OutOfDescriptors);
        assert_eq!(
            out_of_descriptors,
            [Generation::C, Generation::E].contains(&generation),
            "generation {generation}: {last:?}"
        );
        assert!(last.is_ok() || out_of_descriptors, "generation {generation}: {last:?}");
    }
}

/// Creates 1100 handles, or fewer if one fails. Returns the last result.
fn create_1100_handles(runtime: &Runtime) -> Result<(), Error> {
    let vmm = Vmm::open(runtime)?;
    let gpu = runtime.gpus().next().unwrap();
    let properties = AllocationProperties::on(gpu.id());
    (0..1100).try_for_each(|_| vmm.create(2 << 20, &properties).map(|_| ()))
}
