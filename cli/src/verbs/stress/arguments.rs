//! What `hsa-vmm stress` understands.

use super::scene::Scene;
use crate::arguments::time;
use crate::arguments::{Common, Format};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub const ABOUT: &str = "\
Examples:
  hsa-vmm stress                          all scenes, a minute together
  hsa-vmm stress --time 8h --processes 4  over night
  hsa-vmm stress --scene vram --seed 7    one scene, the same choices again

Ctrl-C ends it early, with its report.
Exit status: 0 all well, 1 a leak or an unexpected error, 3 there is no runtime.";

#[derive(Args, Clone, Debug)]
pub struct Stress {
    #[command(flatten)]
    pub common: Common,
    /// How long all scenes take together, `60s`, `10min`, `8h`; without giving everything back, which
    /// comes after
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "60s")]
    pub time: Duration,
    /// How many threads each process has
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: u32,
    /// How many processes do the same at once
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub processes: u32,
    /// Only this scene; may be said several times
    #[arg(long, value_name = "SCENE", value_enum)]
    pub scene: Vec<Scene>,
    /// What the choices are drawn from; without it, one that is new each time
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// How to print the results
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: Format,
    /// Be a process of a scene, for the one that started it
    #[arg(long, value_name = "PART", value_parser = part, hide = true)]
    pub worker: Option<Part>,
    /// Leak something on purpose, to see that it is found
    #[arg(long, value_enum, hide = true)]
    pub plant: Option<Plant>,
}

/// What a process is to do, as JSON.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Part {
    /// Which of the scene's processes it is.
    pub number: u32,
    pub scene: Scene,
    pub milliseconds: u64,
    pub seed: u64,
}

fn part(text: &str) -> Result<Part, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// What is leaked on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Plant {
    /// A `Vmm` with a mapping, forgotten
    Vmm,
    /// A mapping of this `Vmm`, forgotten
    Mapping,
    /// A descriptor that is not closed
    Descriptor,
    /// Addresses that are not freed
    Addresses,
    /// A descriptor that is opened once in a process and kept: no leak
    Kept,
}
