//! The arguments of `hsa-vmm bringup`.

use super::level::Level;
use crate::arguments::{RunFormat, is_in_virtual_machine};
use crate::choice::{RuntimeChoice, RuntimeOptions};
use crate::output::Output;
use crate::provenance::Privacy;
use clap::Args;
use hsa_sys::Search;
use hsa_vmm::simulation::Config;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const ABOUT: &str = "\
Examples:
  hsa-vmm bringup                     test the machine's runtime and driver
  hsa-vmm bringup --until mapped      stop after the level `mapped`
  hsa-vmm bringup --program repeat.c  write a C program that repeats a failure
  hsa-vmm emulate --fault GEM_VA=EINVAL -- hsa-vmm bringup
                                      see the report of a failed driver call

The simulation needs --runtime sim; `auto` means the machine's own runtime.
Ctrl-C ends the test early and prints the levels that have run.
Exit status: 0 every level was reached or does not apply, 1 a level failed
or the test was interrupted, 2 invalid usage, results that cannot be
written or an incomplete log of the emulated driver, 3 the library is missing
or does not start.";

/// Returns the default time limit of a level.
pub fn default_time_limit() -> &'static str {
    if is_in_virtual_machine() { "80s" } else { "20s" }
}

#[derive(Args, Clone, Debug)]
pub struct Bringup {
    #[command(flatten)]
    pub runtime: RuntimeOptions,
    /// The last level to run
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = Level::Killed)]
    pub until: Level,
    /// The time limit of a level; a level that exceeds it counts as hung: `500ms`, `20s`, `5m`
    ///
    /// In the virtual machine of `hsa-vmm vm`, which is slow without KVM, the default is 80s.
    #[arg(long, alias = "limit", value_name = "TIME", value_parser = crate::arguments::parse_time,
          default_value = default_time_limit())]
    pub time_limit: Duration,
    /// The format of the report
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: RunFormat,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub privacy: Privacy,
    /// Write all calls of all levels to this file, with the logs of driver and runtime
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub log: Option<PathBuf>,
    /// Write to this file a C program that repeats the level that failed
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub program: Option<PathBuf>,
    /// Run this level in this process; used by `bringup` itself
    #[arg(long, value_enum, hide = true)]
    pub run_level: Option<Level>,
    /// Run as another process of the level, with this number; used by `bringup` itself
    #[arg(long, hide = true)]
    pub other_process: Option<u8>,
}

impl Bringup {
    /// Returns the simulation's configuration if `--runtime sim` was given.
    pub fn simulation_config(&self) -> anyhow::Result<Option<Config>> {
        let is_simulation = self.runtime.choice == RuntimeChoice::Simulation;
        is_simulation.then(|| self.runtime.config()).transpose()
    }

    /// Returns where to search for the library. Unused with the simulation.
    pub fn search(&self) -> Search {
        match &self.runtime.choice {
            RuntimeChoice::Library(path) => Search::only(path),
            RuntimeChoice::Auto | RuntimeChoice::Simulation => {
                Search::usual(option_env!("HSA_VMM_ROCM_LIBRARIES").map(Path::new))
            }
        }
    }
}
