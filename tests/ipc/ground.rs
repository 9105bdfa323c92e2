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
    Amd { release: Release, runtime: PathBuf, way: Way },
}

/// How AMD's runtime shares memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By the kernel driver of AMD's own package: the only way of ROCm 6.1.
    Kernel,
    /// By dma-buf, through a server of the exporter's: the usual way since ROCm 7.
    Server,
}

impl Way {
    fn of(release: Release) -> &'static [Self] {
        match release {
            Release::R6_1_2 => &[Self::Kernel],
            _ => &[Self::Kernel, Self::Server],
        }
    }
}

impl Ground {
    /// Opens a runtime with two GPUs.
    pub fn open(&self) -> Runtime {
        let opened = match self {
            Self::Simulation => {
                // As AMD's releases do: what is wrong with a length, the library has to find out.
                let mut config = Config::mi300x(2);
                config.believes_ipc_lengths = true;
                Runtime::simulated(config)
            }
            Self::Amd { runtime, way, .. } => {
                let legacy = if *way == Way::Kernel { "1" } else { "0" };
                // SAFETY: a forked child has one thread, and the runtime is not loaded yet.
                unsafe { std::env::set_var("HSA_ENABLE_IPC_MODE_LEGACY", legacy) };
                // SAFETY: AMD's own runtime.
                unsafe { Runtime::load_from(runtime) }
            }
        };
        opened.expect("a runtime")
    }

    /// A defect of AMD's runtime 6.1: each attach makes a socket that it does not use and does not
    /// close.
    pub fn leaves_a_socket(&self) -> bool {
        matches!(self, Self::Amd { release: Release::R6_1_2, .. })
    }

    /// A defect of AMD's runtime 7.2: it opens a handle of the device's for memory that it shares
    /// by dma-buf, to write on it whose it is, and never closes it, so that the memory is not
    /// freed before the process ends.
    pub fn keeps_what_was_exported(&self) -> bool {
        matches!(self, Self::Amd { release: Release::R7_2_4, way: Way::Server, .. })
    }

    /// Whether a server of the exporter's takes part.
    pub fn has_server(&self) -> bool {
        matches!(self, Self::Amd { way: Way::Server, .. })
    }
}

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
    if crate::process::ran_alone() {
        return;
    }
    assert_well(Duration::from_secs(300), &Ground::Simulation, act);
}

/// Runs a test on each release of AMD's runtime and in each way it shares memory, in a process that has no runtime.
#[track_caller]
pub fn on_amd(test: &str, act: impl Fn(&Ground)) {
    let emulation = Emulation::gpus(2).vram("1GiB");
    hsa_rocr::test::on_each_release(test, &emulation, |ground| {
        let (release, runtime) = (ground.release(), ground.runtime());
        for &way in Way::of(release) {
            let ground = Ground::Amd { release, runtime: runtime.clone(), way };
            assert_well(Duration::from_secs(300), &ground, &act);
        }
    });
}

/// A test that runs on the simulation, and on each release of AMD's; some need more of the system
/// than every process may have.
macro_rules! plays {
    ($($(#[$doc:meta])* $name:ident($ground:ident) $(needs $need:ident)? $body:block)*) => {
        $(
            $(#[$doc])*
            mod $name {
                use super::*;

                fn play($ground: &crate::ground::Ground) $body

                #[test]
                fn on_the_simulation() {
                    $(if !may(Need::$need, stringify!($name)) {
                        return;
                    })?
                    crate::ground::on_simulation(play);
                }

                #[test]
                fn on_amds_runtime() {
                    let test = concat!(module_path!(), "::on_amds_runtime");
                    let test = test.split_once("::").expect("the crate's name comes first").1;
                    $(if !may(Need::$need, test) {
                        return;
                    })?
                    crate::ground::on_amd(test, play);
                }
            }
        )*
    };
}
pub(crate) use plays;
