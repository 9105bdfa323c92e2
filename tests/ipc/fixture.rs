//! The runtimes that tests run on: the simulation, and AMD's releases.

use crate::process::{Child, End};
use hsa_rocr::{Emulation, Release};
use hsa_vmm::Runtime;
use hsa_vmm::simulation::Config;
use std::path::PathBuf;
use std::time::Duration;

/// The runtime of a test.
#[derive(Clone, Debug)]
pub enum Fixture {
    Simulation,
    Amd { release: Release, runtime: PathBuf, mode: Mode },
}

/// The way in which AMD's runtime shares memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By the kernel driver of AMD's own package: the only mode of ROCm 6.1.
    Kernel,
    /// By dma-buf, through the exporter's server: the default since ROCm 7.
    Server,
}

impl Mode {
    fn of(release: Release) -> &'static [Self] {
        match release {
            Release::R6_1_2 => &[Self::Kernel],
            _ => &[Self::Kernel, Self::Server],
        }
    }
}

impl Fixture {
    /// Opens a runtime with two GPUs.
    pub fn open(&self) -> Runtime {
        let opened = match self {
            Self::Simulation => {
                // As AMD's releases: the runtime accepts any length, so the library has to check it.
                let mut config = Config::mi300x(2);
                config.believes_ipc_lengths = true;
                Runtime::simulated(config)
            }
            Self::Amd { runtime, mode, .. } => {
                let legacy = if *mode == Mode::Kernel { "1" } else { "0" };
                // SAFETY: a forked child has one thread, and the runtime is not loaded yet.
                unsafe { std::env::set_var("HSA_ENABLE_IPC_MODE_LEGACY", legacy) };
                // SAFETY: AMD's own runtime.
                unsafe { Runtime::load_from(runtime) }
            }
        };
        opened.expect("a runtime")
    }

    /// A defect of AMD's runtime 6.1: each attach creates a socket that is neither used nor closed.
    pub fn leaves_a_socket(&self) -> bool {
        matches!(self, Self::Amd { release: Release::R6_1_2, .. })
    }

    /// A defect of AMD's runtime 7.2: it opens a device handle for memory that it shares by dma-buf, to record
    /// the owner, and never closes it. The memory is not freed before the process ends.
    pub fn keeps_what_was_exported(&self) -> bool {
        matches!(self, Self::Amd { release: Release::R7_2_4, mode: Mode::Server, .. })
    }

    /// Returns whether the exporter has a server.
    pub fn has_server(&self) -> bool {
        matches!(self, Self::Amd { mode: Mode::Server, .. })
    }
}

#[track_caller]
fn assert_well(patience: Duration, fixture: &Fixture, act: impl Fn(&Fixture)) {
    let child = Child::start(|| {
        act(fixture);
        0
    });
    assert_eq!(child.wait_for(patience), End::Success, "{fixture:?}");
}

/// Runs a test on the simulation, in a process that has no runtime.
pub fn on_simulation(act: impl Fn(&Fixture)) {
    if crate::process::ran_alone() {
        return;
    }
    assert_well(Duration::from_secs(300), &Fixture::Simulation, act);
}

/// Runs a test on each release of AMD's runtime and in each of its modes,
/// in a process that has no runtime.
#[track_caller]
pub fn on_amd(test: &str, act: impl Fn(&Fixture)) {
    let emulation = Emulation::gpus(2).vram("1GiB");
    hsa_rocr::test::on_each_release(test, &emulation, |fixture| {
        let (release, runtime) = (fixture.release(), fixture.runtime());
        for &mode in Mode::of(release) {
            let fixture = Fixture::Amd { release, runtime: runtime.clone(), mode };
            assert_well(Duration::from_secs(300), &fixture, &act);
        }
    });
}

/// Defines tests that run on the simulation, and on each release of AMD's; some need privileges.
macro_rules! on_all_fixtures {
    ($($(#[$doc:meta])* $name:ident($fixture:ident) $(needs $need:ident)? $body:block)*) => {
        $(
            $(#[$doc])*
            mod $name {
                use super::*;

                fn run($fixture: &crate::fixture::Fixture) $body

                #[test]
                fn on_the_simulation() {
                    $(if !may(Need::$need, stringify!($name)) {
                        return;
                    })?
                    crate::fixture::on_simulation(run);
                }

                #[test]
                fn on_amds_runtime() {
                    let test = concat!(module_path!(), "::on_amds_runtime");
                    let test = test.split_once("::").expect("the crate's name comes first").1;
                    $(if !may(Need::$need, test) {
                        return;
                    })?
                    crate::fixture::on_amd(test, run);
                }
            }
        )*
    };
}
pub(crate) use on_all_fixtures;
