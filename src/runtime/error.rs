//! Why there is no runtime.

use super::DriverState;
use crate::native::{Failure, Status};
use core::fmt;
use hsa_sys::{LoadError, printable};
use std::path::PathBuf;

/// Why a runtime could not be opened.
///
/// Its `Debug` is its `Display`: a `main` that returns it shows the words, and what to do, to whoever
/// has started the program.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// No library was found, or none that exports what is needed.
    #[error(
        "{0}\ninstall ROCm's runtime, or name the library in HSA_VMM_RUNTIME \
         (`sim` for the simulation)"
    )]
    Load(LoadError),

    /// The library is there but did not start.
    #[error("hsa_init answered {status} ({})\n{driver}", printable(&path.to_string_lossy()))]
    Start {
        /// The library.
        path: PathBuf,
        /// What it answered.
        status: Status,
        /// What was found where the kernel driver should be.
        driver: DriverState,
    },

    /// A started runtime did not say what it has.
    #[error(
        "the runtime did not describe its agents: {call} answered {status}; \
         `rocminfo` should fail the same way, and the driver's log may say why"
    )]
    Discovery {
        /// The runtime's function.
        call: &'static str,
        /// What it answered.
        status: Status,
    },

    /// The runtime has no CPU agent, which HSA promises.
    #[error("the runtime has no CPU agent; its kernel topology is incomplete")]
    NoCpu,

    /// The simulation could not be started.
    #[error("the simulation could not be started: {0}")]
    Simulation(String),
}

impl fmt::Debug for RuntimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// Not by `#[from]`: the text above already says all of it, and a source would say it again.
impl From<LoadError> for RuntimeError {
    fn from(error: LoadError) -> Self {
        Self::Load(error)
    }
}

impl From<Failure> for RuntimeError {
    fn from(Failure { call, status }: Failure) -> Self {
        Self::Discovery { call, status }
    }
}
