//! The arguments of `hsa-vmm conform`.

use crate::arguments::{
    CommonOptions, is_in_virtual_machine, option_with_value, parse_count, parse_time,
};
use crate::output::Output;
use crate::provenance::Privacy;
use clap::{Args, ValueEnum};
use hsa_vmm::hip::HipProfile;
use hsa_vmm_conformance::{KnownFailures, Shard};
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::time::Duration;

/// Returns the default time limit of a case.
pub fn default_time_limit() -> &'static str {
    if is_in_virtual_machine() { "2min" } else { "30s" }
}

#[derive(Args, Debug)]
pub struct Conform {
    #[command(flatten)]
    pub common: CommonOptions,
    /// Run only cases whose name contains PATTERN; a PATTERN with `*` must match the whole name; can be repeated
    ///
    /// The whole name of a case selects only this case.
    #[arg(long, value_name = "PATTERN")]
    pub filter: Vec<String>,
    /// List the cases with their sources; run none
    #[arg(long)]
    pub list: bool,
    /// Run all cases this number of times
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_count)]
    pub repeat: NonZeroUsize,
    /// Run in random order; the same seed gives the same order
    #[arg(long, value_name = "SEED", num_args = 0..=1)]
    pub shuffle: Option<Option<u64>>,
    /// Stop after the first case that fails
    #[arg(long, conflicts_with = "max_fail")]
    pub fail_fast: bool,
    /// Stop after this number of cases has failed
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub max_fail: Option<NonZeroUsize>,
    /// Run a part of the cases: `2/5` is the second of five parts
    #[arg(long, value_name = "N/M")]
    pub shard: Option<Shard>,
    /// A TOML file with the expected outcome of cases: `fail`, `flake(N)` or `skip`; docs/conformance.md has an example
    #[arg(long, visible_alias = "known", value_name = "FILE", value_parser = read_known_failures)]
    pub expect: Vec<KnownFailures>,
    /// Continue an interrupted run: cases with a result in `FILE.partial` beside the output are not run again
    ///
    /// `FILE.partial` is not redacted. With `--redact`, the report of the continued run is redacted.
    #[arg(long, requires = "output", conflicts_with_all = ["repeat", "in_process"])]
    pub resume: bool,
    /// The time limit of a case; a case that exceeds it counts as hung and is killed: `500ms`, `20s`, `5m`
    ///
    /// In the virtual machine of `hsa-vmm vm`, which is slow without KVM, the default is 2min.
    #[arg(long, value_name = "TIME", default_value = default_time_limit(), value_parser = parse_time)]
    pub time_limit: Duration,
    /// Run the cases in this process, for a debugger: crashes and hangs are not contained
    #[arg(long, conflicts_with = "time_limit")]
    pub in_process: bool,
    /// The HIP version whose error codes and granularities the cases expect: `hip6` or `hip7`
    #[arg(long, value_name = "PROFILE", env = "HSA_VMM_PROFILE",
          default_value_t = HipProfile::default(), help_heading = "Runtime")]
    pub profile: HipProfile,
    /// Control the GPUs' page tables, to enforce permissions and to allow mapping memory from an offset
    #[arg(long, help_heading = "Runtime")]
    pub page_tables: bool,
    /// Run as the worker process; used by `conform` itself
    #[arg(long, hide = true)]
    pub worker: bool,
    /// Run as the second process of a case; used by `conform` itself
    #[arg(long, hide = true)]
    pub peer: bool,
    /// The format of the results
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: ReportFormat,
    /// Show only cases that failed
    #[arg(long, help_heading = "Output")]
    pub failures_only: bool,
    /// The identifier of the kernel's build in KCIDB: `ORIGIN:ID`
    #[arg(long, value_name = "ORIGIN:ID", value_parser = check_build_id, required_if_eq("format", "kcidb"),
          help_heading = "Output")]
    pub build_id: Option<String>,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub privacy: Privacy,
}

impl Conform {
    /// Returns the options that change results and differ from the default, for the command that repeats the run.
    pub fn arguments_to_repeat(&self) -> Vec<String> {
        let mut arguments = self.common.runtime.arguments_to_repeat();
        if self.profile != HipProfile::default() {
            arguments.extend(["--profile".to_owned(), self.profile.to_string()]);
        }
        if self.page_tables {
            arguments.push("--page-tables".to_owned());
        }
        arguments
    }

    /// Returns the options that select cases and their order. `seed` is the seed of a random order.
    pub fn selection(&self, seed: Option<u64>) -> Vec<String> {
        let option = |name: &str, value: String| [name.to_owned(), value];
        let filters = self.filter.iter().flat_map(|filter| option("--filter", filter.clone()));
        let shard = self.shard.into_iter().flat_map(|it| option("--shard", it.to_string()));
        let seed = seed.into_iter().flat_map(|seed| option("--shuffle", seed.to_string()));
        let repeat = Some(self.repeat.get()).filter(|repeat| *repeat > 1);
        let repeat = repeat.into_iter().flat_map(|it| option("--repeat", it.to_string()));
        filters.chain(shard).chain(seed).chain(repeat).collect()
    }

    /// Returns the arguments that start a worker with the same options. Names the default profile, too, because
    /// the worker inherits HSA_VMM_PROFILE.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let mut arguments = self.common.to_arguments();
        arguments.push(option_with_value("--profile", self.profile.to_string()));
        if self.page_tables {
            arguments.push("--page-tables".into());
        }
        // The worker derives the time limit of the peers from this limit.
        let time_limit = humantime::format_duration(self.time_limit).to_string();
        arguments.push(option_with_value("--time-limit", time_limit));
        arguments
    }
}

fn read_known_failures(file: &str) -> Result<KnownFailures, String> {
    KnownFailures::read(file).map_err(|error| error.to_string())
}

/// Checks an identifier of a build in KCIDB.
fn check_build_id(text: &str) -> Result<String, String> {
    let is_origin =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    match text.split_once(':') {
        Some((origin, id))
            if !origin.is_empty() && origin.chars().all(is_origin) && !id.is_empty() =>
        {
            Ok(text.to_owned())
        }
        _ => {
            Err("expected an origin (lower-case letters, digits and _), a colon and an identifier"
                .to_owned())
        }
    }
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
    /// KTAP, the format of the Linux kernel's tests; written while the cases run
    Ktap,
    /// JSON for KCIDB, the database of the Linux kernel's test results
    Kcidb,
    /// A page for a browser, in a single file
    Html,
}
