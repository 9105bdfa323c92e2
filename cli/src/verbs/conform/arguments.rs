//! What `hsa-vmm conform` understands.

use crate::arguments::Common;
use crate::arguments::time;
use crate::output::Output;
use clap::{Args, ValueEnum};
use hsa_vmm_conformance::KnownFailures;
use std::num::NonZeroUsize;
use std::time::Duration;

#[derive(Args, Debug)]
pub struct Conform {
    #[command(flatten)]
    pub common: Common,
    /// Only the cases whose name contains this, or matches it with `*`; again: those, too
    #[arg(long, value_name = "PATTERN")]
    pub filter: Vec<String>,
    /// Name the cases and what they rest on; run none
    #[arg(long)]
    pub list: bool,
    /// Run all of them so many times in turn
    #[arg(long, value_name = "N", default_value = "1")]
    pub repeat: NonZeroUsize,
    /// In an order drawn at random, another each time; the same seed is the same order
    #[arg(long, value_name = "SEED", num_args = 0..=1)]
    pub shuffle: Option<Option<u64>>,
    /// End with the first case that fails
    #[arg(long)]
    pub fail_fast: bool,
    /// Failures that are known, as TOML: by case, runtime, version and agent, with reason and source
    #[arg(long, value_name = "FILE", value_parser = known)]
    pub known: Vec<KnownFailures>,
    /// How long a case may take before it counts as hung: `500ms`, `20s`, `5m`; its process is killed
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub time_limit: Duration,
    /// Run the cases in this process, for a debugger: a crash ends it, a hang is waited for
    #[arg(long, conflicts_with = "time_limit")]
    pub in_process: bool,
    /// Be the process that has the runtime; started by `conform` itself
    #[arg(long, hide = true)]
    pub worker: bool,
    /// Be the second process of a case that takes two; started by that one's
    #[arg(long, hide = true)]
    pub partner: bool,
    /// How to print the results
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: ReportFormat,
    #[command(flatten)]
    pub output: Output,
}

/// A list of known failures, if it can be read.
fn known(file: &str) -> Result<KnownFailures, String> {
    KnownFailures::read(file).map_err(|error| error.to_string())
}

/// For people, programs, continuous integration, and browsers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// A table
    #[default]
    Table,
    /// JSON
    Json,
    /// JUnit's XML
    Junit,
    /// A page for a browser, in one file
    Html,
}
