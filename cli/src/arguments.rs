//! What the command understands.

use crate::choice::Choice;
use clap::{Args, Parser, Subcommand, ValueEnum};
use hsa_vmm::HipProfile;
use std::path::PathBuf;
use tracing::level_filters::LevelFilter;

/// Shows and tests the virtual-memory management of an HSA runtime.
///
/// Without --runtime, AMD's runtime is used where there is one and a /dev/kfd, else a simulation
/// of it; the first line says which.
#[derive(Debug, Parser)]
#[command(name = "hsa-vmm", version, max_term_width = 100, after_help = ENDINGS)]
pub struct Arguments {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    pub verb: Verb,
}

const ENDINGS: &str = "\
Results go to standard output, notes and progress to standard error.
Exit status: 0 all well, 1 something failed, 2 bad usage, 3 no runtime.";

/// What all verbs have.
#[derive(Args, Debug)]
pub struct Common {
    /// The runtime: `auto`, `sim`, or the path of a libhsa-runtime64.so.1
    #[arg(
        long,
        global = true,
        value_name = "RUNTIME",
        env = "HSA_VMM_RUNTIME",
        default_value = "auto",
        help_heading = "Runtime"
    )]
    pub runtime: Choice,
    /// How many GPUs the simulation has
    #[arg(long, global = true, value_name = "N", help_heading = "Runtime",
          value_parser = clap::value_parser!(u8).range(1..=8))]
    pub gpus: Option<u8>,
    /// The simulation in detail, as in HSA_SIM: `era=a,granule=2m,vram=1g,…`
    #[arg(long, global = true, value_name = "CONFIG", env = "HSA_SIM", help_heading = "Runtime",
          value_parser = simulation)]
    pub sim: Option<String>,
    /// Whose error codes and granularities: `hip6` or `hip7`
    #[arg(long, global = true, value_name = "PROFILE", env = "HSA_VMM_PROFILE",
          default_value_t = HipProfile::default(), help_heading = "Runtime")]
    pub profile: HipProfile,
    /// Log the library's work to standard error: error, warn, info, debug or trace
    #[arg(long, global = true, value_name = "LEVEL", env = "HSA_VMM_LOG", help_heading = "Output")]
    pub log: Option<LevelFilter>,
}

/// A simulation's description, if it is understood. It is kept as text because `--gpus` may add to
/// it.
fn simulation(text: &str) -> Result<String, String> {
    text.parse::<hsa_vmm::simulation::Config>()
        .map(|_| text.to_owned())
        .map_err(|error| error.to_string())
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Show agents, pools, granules and features
    Info(Info),
    /// Run the conformance cases: every call's documented success and errors
    Conform(Conform),
    /// Run recorded traces and compare the verdicts
    Replay(Replay),
}

/// A table for people or JSON for programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table
    #[default]
    Table,
    /// JSON
    Json,
}

/// The same, and what continuous integration reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// A table
    #[default]
    Table,
    /// JSON
    Json,
    /// JUnit's XML
    Junit,
}

#[derive(Args, Debug)]
pub struct Info {
    /// How to print it
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: Format,
}

#[derive(Args, Debug)]
pub struct Conform {
    /// Only the cases whose name contains this, or matches it with `*`
    #[arg(long, value_name = "PATTERN")]
    pub filter: Option<String>,
    /// Name the cases and what they rest on; run none
    #[arg(long)]
    pub list: bool,
    /// How to print the results
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: ReportFormat,
}

#[derive(Args, Debug)]
pub struct Replay {
    /// The traces: one JSON object a line, plain or gzip
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// End well with up to this many divergent operations
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub tolerate: u64,
    /// How to print the result
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: Format,
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_arguments_make_sense() {
        use clap::CommandFactory;
        super::Arguments::command().debug_assert();
    }
}
