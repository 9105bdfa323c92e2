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

/// How AMD's runtime shares memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By a call that only the kernel driver of AMD's own package has. ROCm 6.1 has only this mode.
    Kernel,
    /// By dma-buf, through a server in the exporter. This is the default in ROCm 7.2.
    Server,
}

impl Mode {
    fn all_of(release: Release) -> &'static [Self] {
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
                // As in AMD's releases, the simulation accepts any length, so the library must check the length.
                let mut config = Config::mi300x(2);
                config.accepts_any_ipc_length = true;
                Runtime::simulated(config)
            }
            Self::Amd { runtime, mode, release } => {
                let name = "HSA_ENABLE_IPC_MODE_LEGACY";
                let legacy = match mode {
                    Mode::Kernel => Some("1"),
                    // The server is the default of this release.
                    Mode::Server if *release == Release::R7_2_4 => None,
                    Mode::Server => Some("0"),
                };
                match legacy {
                    // SAFETY: a forked child has one thread, and the runtime is not loaded yet.
                    Some(value) => unsafe { std::env::set_var(name, value) },
                    // SAFETY: as above.
                    None => unsafe { std::env::remove_var(name) },
                }
                // SAFETY: the file is a fetched release of AMD's runtime.
                unsafe { Runtime::load_from(runtime) }
            }
        };
        opened.expect("the runtime starts")
    }

    /// Returns whether each attach leaks a socket: a defect of AMD's runtime 6.1.
    pub fn leaks_sockets(&self) -> bool {
        matches!(self, Self::Amd { release: Release::R6_1_2, .. })
    }

    /// Returns whether exported memory is freed only when the process ends: a defect of AMD's runtime 7.2.
    ///
    /// When this runtime shares memory by dma-buf, it opens a device handle to record the memory's owner. The runtime
    /// never closes the device handle.
    pub fn leaks_exported_memory(&self) -> bool {
        matches!(self, Self::Amd { release: Release::R7_2_4, mode: Mode::Server, .. })
    }

    /// Returns whether an exporter's runtime has a server that sends the exported memory.
    pub fn has_server(&self) -> bool {
        matches!(self, Self::Amd { mode: Mode::Server, .. })
    }
}

const TIME_LIMIT: Duration = Duration::from_secs(300);

/// Runs a test in a child. Fails unless the child succeeds in time.
#[track_caller]
fn assert_passes(fixture: &Fixture, test: impl Fn(&Fixture)) {
    let child = Child::start(|| {
        test(fixture);
        0
    });
    assert_eq!(child.wait_for(TIME_LIMIT), End::Success, "{fixture:?}");
}

/// Runs a test on the simulation, in a process that has no runtime.
pub fn on_simulation(test: impl Fn(&Fixture)) {
    if crate::process::rerun_in_own_process() {
        return;
    }
    assert_passes(&Fixture::Simulation, test);
}

/// Runs a test on each release of AMD's runtime and in each of its modes, in a process that has no runtime.
#[track_caller]
pub fn on_amd(name: &str, test: impl Fn(&Fixture)) {
    let emulation = Emulation::with_gpus(2).with_vram("1GiB");
    hsa_rocr::test::run_on_releases(name, &emulation, |fixture| {
        let (release, runtime) = (fixture.release(), fixture.runtime());
        for &mode in Mode::all_of(release) {
            let fixture = Fixture::Amd { release, runtime: runtime.clone(), mode };
            assert_passes(&fixture, &test);
        }
    });
}

/// Defines tests that run on the simulation and on each release of AMD's runtime. `needs` names a privilege that a test
/// needs.
macro_rules! on_all_fixtures {
    ($($(#[$doc:meta])* $name:ident($fixture:ident) $(needs $need:ident)? $body:block)*) => {
        $(
            $(#[$doc])*
            mod $name {
                use super::*;

                fn run($fixture: &crate::fixture::Fixture) $body

                #[test]
                fn on_the_simulation() {
                    $(if !has_privilege(Need::$need, stringify!($name)) {
                        return;
                    })?
                    crate::fixture::on_simulation(run);
                }

                #[test]
                fn on_amds_runtime() {
                    let path = concat!(module_path!(), "::on_amds_runtime");
                    let name = path.split_once("::").expect("the path begins with the crate").1;
                    $(if !has_privilege(Need::$need, name) {
                        return;
                    })?
                    crate::fixture::on_amd(name, run);
                }
            }
        )*
    };
}
pub(crate) use on_all_fixtures;
