//! What `hsa-vmm bringup` understands.

use super::level::Level;
use crate::arguments::Format;
use crate::choice::{Choice, RuntimeOptions};
use clap::Args;
use hsa_sys::Search;
use hsa_vmm::simulation::Config;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const ABOUT: &str = "\
Examples:
  hsa-vmm bringup                     the machine's runtime and driver
  hsa-vmm bringup --until mapped      only so far
  hsa-vmm bringup --program repeat.c  and what failed, as a program in C
  hsa-vmm emulate --fault GEM_VA=EINVAL -- hsa-vmm bringup
                                      when a call of the driver fails

Nothing is simulated unless --runtime says `sim`: `auto` is the machine's own.
Exit status: 0 every level was reached or does not apply, 1 one was not, 3 there
is no library or it does not start.";

#[derive(Args, Clone, Debug)]
pub struct Bringup {
    #[command(flatten)]
    pub runtime: RuntimeOptions,
    /// The last level to climb
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = Level::Load)]
    pub until: Level,
    /// How long a level may take before it counts as hung: `500ms`, `20s`, `5m`
    #[arg(long, alias = "limit", value_name = "TIME", value_parser = crate::arguments::time,
          default_value = "20s")]
    pub time_limit: Duration,
    /// How to print it
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: Format,
    /// Write all calls of all levels to this file, with what the driver and the runtime said
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub log: Option<PathBuf>,
    /// Write a program in C to this file that repeats the level that failed
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub program: Option<PathBuf>,
    /// Climb this level, in this process, for the one that started it
    #[arg(long, value_enum, hide = true)]
    pub climb: Option<Level>,
    /// Be the other process of the level "shared"
    #[arg(long, hide = true)]
    pub other_process: bool,
}

impl Bringup {
    /// The simulation, if that is what is asked for.
    pub fn simulation(&self) -> anyhow::Result<Option<Config>> {
        let asked_for = self.runtime.choice == Choice::Simulation;
        asked_for.then(|| self.runtime.config()).transpose()
    }

    /// Where to look for the library, if not.
    pub fn search(&self) -> Search {
        match &self.runtime.choice {
            Choice::Library(path) => Search::only(path),
            Choice::Auto | Choice::Simulation => {
                Search::usual(option_env!("HSA_VMM_ROCM_LIBRARIES").map(Path::new))
            }
        }
    }
}
