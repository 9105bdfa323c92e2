//! Where players open their runtimes: the simulation, or a release of AMD's.

use crate::process::{Child, End};
use hsa_rocr::{Emulation, Release};
use hsa_vmm::Runtime;
use hsa_vmm::simulation::Config;
use std::path::PathBuf;
use std::time::Duration;

/// What a test runs on.
#[derive(Clone, Debug)]
pub enum Ground {
    Simulation,
    Amd(Release, PathBuf),
}

impl Ground {
    /// Opens a runtime with two GPUs.
    pub fn open(&self) -> Runtime {
        let opened = match self {
            Self::Simulation => Runtime::simulated(Config::mi300x(2)),
            Self::Amd(release, path) => {
                if *release != Release::R6_1_2 {
                    // SAFETY: a forked child has one thread, and the runtime is not loaded yet.
                    unsafe { std::env::set_var("HSA_ENABLE_IPC_MODE_LEGACY", "0") };
                }
                Runtime::load_from(path)
            }
        };
        opened.expect("a runtime")
    }

    /// Whether the runtime shares memory by dma-buf, through a server of the exporter's.
    pub fn has_server(&self) -> bool {
        matches!(self, Self::Amd(release, _) if *release != Release::R6_1_2)
    }
}

/// Releases of AMD's runtime on which a test is run.
pub const AMD: [Release; 3] = Release::ALL;

#[track_caller]
fn assert_well(patience: Duration, ground: &Ground, act: impl Fn(&Ground)) {
    let child = Child::start(|| {
        act(ground);
        0
    });
    assert_eq!(child.wait_for(patience), End::Well, "{ground:?}");
}

/// Runs a test on the simulation, in a process that has no runtime.
pub fn on_simulation(act: impl Fn(&Ground)) {
    let _alone = crate::process::alone();
    assert_well(Duration::from_secs(300), &Ground::Simulation, act);
}

/// Runs a test on each release of AMD's runtime, in a process that has no runtime.
#[track_caller]
pub fn on_amd(test: &str, act: impl Fn(&Ground)) {
    let emulation = Emulation::gpus(2).vram("1GiB");
    hsa_rocr::test::on(&AMD, test, &emulation, |ground| {
        let ground = Ground::Amd(ground.release(), ground.runtime());
        assert_well(Duration::from_secs(600), &ground, &act);
    });
}

/// A test that runs on the simulation, and on each release of AMD's.
macro_rules! plays {
    ($($(#[$doc:meta])* $name:ident($ground:ident) $body:block)*) => {
        $(
            $(#[$doc])*
            mod $name {
                use super::*;

                fn play($ground: &crate::ground::Ground) $body

                #[test]
                fn on_the_simulation() {
                    crate::ground::on_simulation(play);
                }

                #[test]
                fn on_amds_runtime() {
                    let test = concat!(module_path!(), "::on_amds_runtime");
                    let test = test.split_once("::").expect("the crate's name comes first").1;
                    crate::ground::on_amd(test, play);
                }
            }
        )*
    };
}
pub(crate) use plays;
