//! The arguments of `hsa-vmm conform`.

use crate::arguments::Common;
use crate::arguments::time;
use crate::output::Output;
use crate::provenance::Privacy;
use clap::{Args, ValueEnum};
use hsa_vmm_conformance::KnownFailures;
use std::num::NonZeroUsize;
use std::time::Duration;

#[derive(Args, Debug)]
pub struct Conform {
    #[command(flatten)]
    pub common: Common,
    /// Run only cases whose name contains this, or matches it with `*`; can be repeated
    #[arg(long, value_name = "PATTERN")]
    pub filter: Vec<String>,
    /// List the cases with their sources; run none
    #[arg(long)]
    pub list: bool,
    /// Run all cases this number of times
    #[arg(long, value_name = "N", default_value = "1")]
    pub repeat: NonZeroUsize,
    /// Run in random order; the same seed gives the same order
    #[arg(long, value_name = "SEED", num_args = 0..=1)]
    pub shuffle: Option<Option<u64>>,
    /// Stop after the first case that fails
    #[arg(long)]
    pub fail_fast: bool,
    /// A TOML file of known failures: case, runtime, version and agent, with reason and source
    #[arg(long, value_name = "FILE", value_parser = known)]
    pub known: Vec<KnownFailures>,
    /// The time limit of a case; one that exceeds it counts as hung and is killed: `500ms`, `20s`, `5m`
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub time_limit: Duration,
    /// Run the cases in this process, for a debugger: crashes and hangs are not contained
    #[arg(long, conflicts_with = "time_limit")]
    pub in_process: bool,
    /// Be the worker process; used by `conform` itself
    #[arg(long, hide = true)]
    pub worker: bool,
    /// Be the second process of a case that needs two; used by `conform` itself
    #[arg(long = "partner", hide = true)]
    pub peer: bool,
    /// The format of the results
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: ReportFormat,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub privacy: Privacy,
}

/// Reads a list of known failures.
fn known(file: &str) -> Result<KnownFailures, String> {
    KnownFailures::read(file).map_err(|error| error.to_string())
}

/// The format of the results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// A table
    #[default]
    Table,
    /// JSON
    Json,
    /// JUnit XML
    Junit,
    /// A page for a browser, in a single file
    Html,
}
