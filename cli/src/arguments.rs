//! What the command understands.

use crate::choice::Choice;
use crate::output::Output;
use crate::verbs::bringup::Bringup;
use crate::verbs::completions::{COMPLETIONS_EXAMPLES, Completions};
use crate::verbs::diff;
use crate::verbs::fuzz::arguments::Fuzz;
use crate::verbs::man::Man;
use crate::verbs::stress::Stress;
use clap::{Args, Parser, Subcommand, ValueEnum};
use hsa_rocr::{Release, UnknownRelease};
use hsa_vmm::HipProfile;
use hsa_vmm_conformance::KnownFailures;
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use tracing::level_filters::LevelFilter;

/// Shows and tests the virtual-memory management of an HSA runtime.
///
/// Without --runtime, AMD's runtime is used where there is one and a /dev/kfd, else a simulation
/// of it; the first line says which.
#[derive(Debug, Parser)]
#[command(name = "hsa-vmm", version, max_term_width = 100, after_help = ENDINGS)]
pub struct Arguments {
    #[command(subcommand)]
    pub verb: Verb,
}

const ENDINGS: &str = "\
Results go to standard output, notes and progress to standard error.
Exit status: 0 all well, 1 something failed, 2 bad usage, 3 no runtime.";

const MAP_EXAMPLES: &str = "\
Examples:
  hsa-vmm map                                  the example, as text
  hsa-vmm map --format svg -o map.svg          as a picture, light and dark
  hsa-vmm map --trace 3 --until 40 FILE        the fourth trace, 40 operations
  hsa-vmm map --format json FILE | jq .memory  for programs

In the text, `r (can write)` and `none (can read and write)` are GPUs: what they
are forbidden is only remembered.
Exit status 1: a verdict was not the recorded one; shown is what there was then.";

/// What the verbs have that use a runtime.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// The runtime: `auto`, `sim`, or the path of a libhsa-runtime64.so.1
    #[arg(
        long,
        value_name = "RUNTIME",
        env = "HSA_VMM_RUNTIME",
        default_value = "auto",
        help_heading = "Runtime"
    )]
    pub runtime: Choice,
    /// How many GPUs the simulation has
    #[arg(long, value_name = "N", help_heading = "Runtime",
          value_parser = clap::value_parser!(u8).range(1..=8))]
    pub gpus: Option<u8>,
    /// The simulation in detail, as in HSA_SIM: `era=a,granule=2m,vram=1g,…`
    #[arg(long, value_name = "CONFIG", env = "HSA_SIM", help_heading = "Runtime",
          value_parser = simulation)]
    pub sim: Option<String>,
    /// Whose error codes and granularities: `hip6` or `hip7`
    #[arg(long, value_name = "PROFILE", env = "HSA_VMM_PROFILE",
          default_value_t = HipProfile::default(), help_heading = "Runtime")]
    pub profile: HipProfile,
    /// Log the library's work to standard error: error, warn, info, debug or trace
    #[arg(long = "log-level", value_name = "LEVEL", env = "HSA_VMM_LOG", help_heading = "Output")]
    pub log: Option<LevelFilter>,
}

/// A simulation's description, if it is understood. It is kept as text because `--gpus` may add to
/// it.
fn simulation(text: &str) -> Result<String, String> {
    text.parse::<hsa_vmm::simulation::Config>()
        .map(|_| text.to_owned())
        .map_err(|error| error.to_string())
}

/// A list of known failures, if it can be read.
fn known(file: &str) -> Result<KnownFailures, String> {
    KnownFailures::read(file).map_err(|error| error.to_string())
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Show agents, pools, granules and features
    Info(Info),
    /// Run the conformance cases: every call's documented success and errors
    Conform(Conform),
    /// Run recorded traces and compare the verdicts, or what `fuzz` has found once more
    Replay(Replay),
    /// Perform random sequences of operations and hold each against the reference model
    ///
    /// Processes of their own perform them, so that what crashes or hangs is found, too.
    #[command(after_help = crate::verbs::fuzz::arguments::EXAMPLES)]
    Fuzz(Fuzz),
    /// Perform sequences for another process of this command
    #[command(hide = true)]
    Worker(Common),
    /// Show the address space that a recorded trace leaves: reservations, mappings, who may use them
    ///
    /// Performs a trace, or its beginning, and shows what is then reserved, mapped, held and of no
    /// use to anybody, with the reservations and memory named after the trace's slots (r1, h2).
    /// Without a file, an example is shown: weights, a cache of pages, room to grow, a ring.
    #[command(after_help = MAP_EXAMPLES)]
    Map(Map),
    /// Measure what each call costs: raw, through the library, through C, and through HIP itself
    ///
    /// The levels take turns in one run. With --runtime nothing the runtime's own functions do
    /// nothing, so that only this library's cost is left.
    Bench(crate::verbs::bench::Bench),
    /// Compare two reports: two runtimes, two versions, two machines
    ///
    /// Says in words and in tables what the runtimes and their agents differ in, which cases end
    /// otherwise, and which take another time.
    #[command(after_help = diff::ABOUT)]
    Diff(diff::Arguments),
    /// Climb from "the library loads" to "under load", and say where and why it stops
    ///
    /// For those who bring up a driver or a GPU: each level is the fewest calls of HSA that it takes,
    /// in a process of its own, so that a crash or a hang is contained and named. Of the first level
    /// that fails it says which call, what it was asked and answered, which interface of the kernel
    /// it rests on, what runtime, driver and kernel logged meanwhile, and what to try next.
    #[command(after_help = crate::verbs::bringup::ABOUT)]
    Bringup(Bringup),
    /// Press a runtime with threads and processes near every limit, and look what it loses
    ///
    /// Scenes, one after another: everything in small; nearly all memory of the GPUs; nearly all
    /// descriptors; nearly all mappings a process may have. What was written is read again, and in
    /// the end nothing may be held any more, whoever counts it: the library, the runtime, the driver
    /// or the kernel.
    #[command(after_help = crate::verbs::stress::ABOUT)]
    Stress(Stress),
    /// Run a program on an emulated kernel driver, where it finds AMD GPUs
    ///
    /// Neither root nor anything of the kernel is needed: the driver is emulated inside the
    /// program. Memory, page tables, copies and signals are real; kernels of the GPU do not run.
    Emulate(Emulate),
    /// Fetch AMD's own runtime, and run programs with it
    #[command(subcommand)]
    Rocr(Rocr),
    /// Write the manual pages, one for the command and one for each verb
    Man(Man),
    /// Print what makes a shell complete this command's words
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(Completions),
}

impl Verb {
    /// What to log, of the verbs that log.
    pub fn log(&self) -> Option<LevelFilter> {
        match self {
            Self::Info(Info { common, .. })
            | Self::Conform(Conform { common, .. })
            | Self::Replay(Replay { common, .. })
            | Self::Fuzz(Fuzz { common, .. })
            | Self::Worker(common)
            | Self::Map(Map { common, .. })
            | Self::Bench(crate::verbs::bench::Bench { common, .. })
            | Self::Stress(Stress { common, .. }) => common.log,
            Self::Bringup(_)
            | Self::Diff(_)
            | Self::Emulate(_)
            | Self::Rocr(_)
            | Self::Man(_)
            | Self::Completions(_) => None,
        }
    }
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
    /// A page for a browser, in one file
    Html,
}

#[derive(Args, Debug)]
pub struct Info {
    #[command(flatten)]
    pub common: Common,
    /// How to print it
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: Format,
}

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
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = crate::verbs::time)]
    pub time_limit: Duration,
    /// Run the cases in this process, for a debugger: a crash ends it, a hang is waited for
    #[arg(long, conflicts_with = "time_limit")]
    pub in_process: bool,
    /// Be the process that has the runtime; started by `conform` itself
    #[arg(long, value_name = "TOKEN", hide = true)]
    pub worker: Option<String>,
    /// How to print the results
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: ReportFormat,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Replay {
    #[command(flatten)]
    pub common: Common,
    /// The traces, or sequences of `fuzz`: one JSON object a line, plain or gzip
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// End well with up to this many divergent operations
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub tolerate: u64,
    /// How to print the result
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: Format,
}

/// How an address space is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum MapFormat {
    /// Text
    #[default]
    Table,
    /// JSON
    Json,
    /// A picture
    Svg,
}

#[derive(Args, Debug)]
pub struct Map {
    #[command(flatten)]
    pub common: Common,
    /// The traces: one JSON object a line, plain or gzip; without one, an example
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Which trace of the file, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub trace: usize,
    /// Perform only the first operations
    #[arg(long, value_name = "OPERATIONS")]
    pub until: Option<usize>,
    /// How to show it
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: MapFormat,
    #[command(flatten)]
    pub output: Output,
}

/// Whose GPUs are emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// MI300X: CDNA 3, all memory visible to the CPU
    Mi300x,
    /// MI210: CDNA 2
    Mi210,
    /// A consumer card of RDNA 3: the CPU sees a part of its memory
    Rdna3,
    /// A CPU and GPU in one, which share memory
    Apu,
}

#[derive(Args, Debug)]
pub struct Emulate {
    /// How many GPUs there are
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub gpus: Option<u8>,
    /// Which machine it is
    #[arg(long, value_enum)]
    pub machine: Option<Profile>,
    /// How much memory each has: `64GiB`, `256MiB`
    #[arg(long, value_name = "SIZE")]
    pub vram: Option<String>,
    /// Write a line for each call of the driver to this file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Write the GPUs' page tables to this file when a process ends
    #[arg(long, value_name = "FILE")]
    pub page_tables: Option<PathBuf>,
    /// Have calls go wrong: `GEM_VA#3=ENOMEM` fails, `GEM_VA=5ms` lasts, `GEM_VA.MAP=lost` lies
    ///
    /// CALL=EFFECT is for every such call, CALL#3=EFFECT for the third, #3-5 and #3- for several;
    /// calls are named as in the log, and besides them there are MMAP, COPY and FILL (what a GPU's
    /// engines do). A call fails with an error (`ENOMEM`), lasts (`5ms`), is performed after it has
    /// answered (`late:5ms`), is not performed at all (`lost`), never returns (`hang`), ends the
    /// process (`crash`); it allows too much or too little (`wide`, `narrow`), shows memory a page
    /// further on or other memory (`shifted`, `other`), keeps what is given back (`leak`), turns a
    /// bit round (`garbled`), or has sizes wrong (`half`, `double`). What a call cannot do is
    /// refused, with the calls that can.
    #[arg(long, value_name = "PLAN")]
    pub fault: Vec<String>,
    /// Give the program this release of AMD's runtime, which `rocr fetch` got
    #[arg(long, value_name = "VERSION")]
    pub rocr: Option<Release>,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// What to do with AMD's runtime.
#[derive(Debug, Subcommand)]
pub enum Rocr {
    /// Get releases from this machine's package mirror; nothing is installed
    ///
    /// They go to `rocr` in cargo's build folder, or to the user's cache, or to HSA_VMM_ROCR.
    /// apt-get gets them from the mirror that the machine already uses, or from HSA_VMM_MIRROR,
    /// and checks the archive's signatures.
    Fetch(RocrFetch),
    /// Show what was fetched
    List,
    /// Run a program with a fetched release, its loader and its C library
    ///
    /// The program is an executable of the machine, or `rocminfo` of the release. It finds the
    /// runtime as libhsa-runtime64.so.1, and in HSA_VMM_RUNTIME.
    Run(RocrRun),
}

#[derive(Args, Debug)]
pub struct RocrFetch {
    /// Which release: 6.1.2, 6.4.3, 7.2.4 or all
    #[arg(long, value_name = "VERSION", default_value = "all")]
    pub version: Releases,
    /// HIP, too, to be measured with `bench --hip`; there is one for 6.4.3 and 7.2.4 (0.3 GB each)
    #[arg(long)]
    pub hip: bool,
}

#[derive(Args, Debug)]
pub struct RocrRun {
    /// Which release: 6.1.2, 6.4.3 or 7.2.4; the newest of those that were fetched, if none is said
    #[arg(long, value_name = "VERSION")]
    pub version: Option<Release>,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// One release, or all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Releases(pub Vec<Release>);

impl FromStr for Releases {
    type Err = UnknownRelease;

    fn from_str(text: &str) -> Result<Self, UnknownRelease> {
        if text == "all" {
            return Ok(Self(Release::ALL.to_vec()));
        }
        Ok(Self(vec![text.parse()?]))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_arguments_make_sense() {
        use clap::CommandFactory;
        super::Arguments::command().debug_assert();
    }
}
