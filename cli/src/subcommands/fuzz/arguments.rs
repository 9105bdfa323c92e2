//! The arguments of `hsa-vmm fuzz`.

use crate::arguments::{CommonOptions, RunFormat};
use crate::arguments::{parse_time, parse_time_or_zero};
use crate::output::Output;
use crate::provenance::Privacy;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

pub const EXAMPLES: &str = "\
Examples:
  hsa-vmm fuzz                              a minute, on the default runtime
  hsa-vmm fuzz --faults --time 1h           with failing calls of the runtime
  hsa-vmm fuzz --sim era=c,gpus=8 --seed 7  one simulated machine, repeatable
  hsa-vmm emulate --rocr 6.4.3 -- hsa-vmm fuzz
                                            AMD's runtime on the emulated driver

A failing sequence is shrunk and saved; `hsa-vmm replay FILE` repeats it.
Ctrl-C ends the search or the shrinking early and prints the result.
Exit status: 0 no sequence failed, 1 a sequence failed.";

#[derive(Args, Debug)]
pub struct Fuzz {
    #[command(flatten)]
    pub common: CommonOptions,
    /// The seed of the sequences; a new one each time by default
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// How long to run: `60s`, `15m`, `8h`
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_time)]
    pub time: Duration,
    /// Stop after this number of sequences
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub sequences: Option<u64>,
    /// The number of worker processes; by default the number of processors
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub processes: Option<u16>,
    /// Make some calls of the simulation fail; the library must tolerate this
    #[arg(long)]
    pub faults: bool,
    /// The time limit of a sequence, and of each operation of a repeated sequence; a worker that exceeds it
    /// counts as hung: `500ms`, `20s`, `5m`
    #[arg(long, alias = "patience", value_name = "TIME", default_value = "20s", value_parser = parse_time)]
    pub time_limit: Duration,
    /// How long to shrink a failing sequence
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time_or_zero)]
    pub shrink: Duration,
    /// The file for the failing sequence, instead of fuzz-SEED-NUMBER.jsonl
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub save: Option<PathBuf>,
    /// The format of the result
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: RunFormat,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub privacy: Privacy,
}
