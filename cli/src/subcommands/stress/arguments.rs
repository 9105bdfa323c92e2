//! The arguments of `hsa-vmm stress`.

use super::scenario::Scenario;
use crate::arguments::parse_time;
use crate::arguments::{CommonOptions, RunFormat};
use crate::output::Output;
use crate::provenance::Privacy;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub const ABOUT: &str = "\
Examples:
  hsa-vmm stress                          all scenarios, for a minute in total
  hsa-vmm stress --time 8h --processes 4  overnight
  hsa-vmm stress --scene vram --seed 7    one scenario, repeatable

Ctrl-C ends the test early and prints the report.
Exit status: 0 success, 1 a leak or an unexpected error, 3 no runtime.";

#[derive(Args, Clone, Debug)]
pub struct Stress {
    #[command(flatten)]
    pub common: CommonOptions,
    /// The total time of all scenarios, without the cleanup that follows: `60s`, `10min`, `8h`
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "60s")]
    pub time: Duration,
    /// Kill a process in which no operation ends for this time
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "120s")]
    pub time_limit: Duration,
    /// The number of threads in each process
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: u32,
    /// The number of processes that run each scenario at once
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub processes: u32,
    /// Run only this scenario; can be repeated
    #[arg(long = "scene", value_name = "SCENARIO", value_enum)]
    pub scenario: Vec<Scenario>,
    /// The seed of the random choices; a new one each time by default
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// The format of the report
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: RunFormat,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub privacy: Privacy,
    /// Run one process of a scenario; used by `stress` itself
    #[arg(long, value_name = "TASK", value_parser = parse_task, hide = true)]
    pub worker: Option<WorkerTask>,
    /// Leak a resource on purpose, for tests
    #[arg(long, value_enum, hide = true)]
    pub leak: Option<DeliberateLeak>,
}

/// The work of one worker process. It is passed to the process as JSON.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct WorkerTask {
    /// The number of the process, from 1.
    pub number: u32,
    pub scenario: Scenario,
    /// How long the process runs the scenario.
    pub milliseconds: u64,
    pub seed: u64,
}

fn parse_task(text: &str) -> Result<WorkerTask, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// A resource that `stress` leaks on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeliberateLeak {
    /// A `Vmm` with a mapping
    Vmm,
    /// A mapping of the process's `Vmm`
    Mapping,
    /// A descriptor that is not closed
    Descriptor,
    /// Addresses that are not freed
    Addresses,
    /// A descriptor that is opened once in a process and kept, which is not a leak
    OpenedOnce,
}
