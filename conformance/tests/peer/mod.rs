//! The second process of cases that take two: this program once more.

use hsa_rocr::{Emulation, test};
use hsa_vmm::Runtime;
use hsa_vmm::simulation::Config;
use hsa_vmm_conformance::peer::serve;
use std::ffi::OsString;

/// Where the second process opens its runtime.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "not every test binary runs on AMD's runtime")]
pub enum On {
    Simulation,
    Amd,
}

/// The words that start it.
pub fn words(on: On) -> Vec<OsString> {
    let name = match on {
        On::Simulation => "peer::on_the_simulation",
        On::Amd => "peer::on_amds_runtime",
    };
    let mut command = hsa_rocr::again().unwrap();
    command.args([name, "--exact", "--ignored", "--nocapture"]);
    [command.get_program()].into_iter().chain(command.get_args()).map(Into::into).collect()
}

#[test]
#[ignore = "no test, but the second process of cases that take two, which start it by this name"]
fn on_the_simulation() {
    // Whoever runs all that is ignored has not started a peer.
    let _ = serve(|| Ok(Runtime::simulated(Config::mi300x(2)).unwrap()));
}

#[test]
#[ignore = "no test, as above"]
fn on_amds_runtime() {
    test::on_each_release("peer::on_amds_runtime", &Emulation::gpus(2), |setup| {
        // SAFETY: AMD's own runtime.
        let _ = serve(|| Ok(unsafe { Runtime::load_from(setup.runtime()) }.unwrap()));
    });
}
