//! What `hsa-vmm fuzz` understands.

use crate::arguments::time;
use crate::arguments::{Common, Format};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

pub const EXAMPLES: &str = "\
Examples:
  hsa-vmm fuzz                              a minute on the runtime or simulated
  hsa-vmm fuzz --faults --time 1h           with calls of the runtime that fail
  hsa-vmm fuzz --sim era=c,gpus=8 --seed 7  one machine, the same sequences
  hsa-vmm emulate --rocr 6.4.3 -- hsa-vmm fuzz
                                            AMD's runtime on the emulated driver

What is found is made small and saved; `hsa-vmm replay FILE` performs it again.
Exit status: 0 nothing was found, 1 something was found.";

#[derive(Args, Debug)]
pub struct Fuzz {
    #[command(flatten)]
    pub common: Common,
    /// What the sequences depend on: the same seed, the same sequences; a fresh one if none is said
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// How long to go on: `60s`, `15m`, `8h`
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    pub time: Duration,
    /// End after so many sequences
    #[arg(long, value_name = "N")]
    pub sequences: Option<u64>,
    /// How many processes perform them; as many as there are processors if nothing is said
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub processes: Option<u16>,
    /// The most operations in a sequence
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub operations: u32,
    /// Let calls of the simulation fail now and then, as the library must live with
    #[arg(long)]
    pub faults: bool,
    /// How long an operation may take before it counts as hung: `500ms`, `20s`, `5m`
    #[arg(long, alias = "patience", value_name = "TIME", default_value = "20s", value_parser = time)]
    pub time_limit: Duration,
    /// How long what was found is made smaller
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    pub shrink: Duration,
    /// The file for what is found, instead of fuzz-SEED-NUMBER.jsonl
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub save: Option<PathBuf>,
    /// How to print the result
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: Format,
}
