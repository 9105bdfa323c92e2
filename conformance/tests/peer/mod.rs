//! The second process of cases that need two processes. The second process runs the same test binary.

use hsa_rocr::{Emulation, test};
use hsa_vmm::Runtime;
use hsa_vmm::simulation::Config;
use hsa_vmm_conformance::peer::serve;
use std::ffi::OsString;

/// The runtime of the second process.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "not every test binary runs on AMD's runtime")]
pub enum PeerRuntime {
    Simulation,
    Amd,
}

/// The variable that configures the second process's simulation.
#[allow(dead_code, reason = "not every test binary configures the simulation")]
pub const CONFIG: &str = "HSA_SIM";

/// Returns the program and the arguments that start the second process.
pub fn peer_command(runtime: PeerRuntime) -> Vec<OsString> {
    let name = match runtime {
        PeerRuntime::Simulation => "peer::on_the_simulation",
        PeerRuntime::Amd => "peer::on_amds_runtime",
    };
    let mut command = hsa_rocr::restart_command().unwrap();
    command.args([name, "--exact", "--ignored", "--nocapture"]);
    [command.get_program()].into_iter().chain(command.get_args()).map(Into::into).collect()
}

#[test]
#[ignore = "not a test: cases that need two processes start their second process by this name"]
fn on_the_simulation() {
    // The error is ignored, because a run of all ignored tests has no parent.
    let config = std::env::var(CONFIG).map(|text| text.parse::<Config>().unwrap());
    let _ = serve(|| Ok(Runtime::simulated(config.unwrap_or(Config::mi300x(2))).unwrap()));
}

#[test]
#[ignore = "not a test: cases that need two processes start their second process by this name"]
fn on_amds_runtime() {
    test::run_on_releases("peer::on_amds_runtime", &Emulation::with_gpus(2), |setup| {
        // SAFETY: the library is AMD's own runtime.
        let _ = serve(|| Ok(unsafe { Runtime::load_from(setup.runtime()) }.unwrap()));
    });
}
