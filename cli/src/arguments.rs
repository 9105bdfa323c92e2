//! What the command understands.

use crate::choice::RuntimeOptions;
use crate::verbs::bench::Bench;
use crate::verbs::bringup::Bringup;
use crate::verbs::completions::{COMPLETIONS_EXAMPLES, Completions};
use crate::verbs::conform::Conform;
use crate::verbs::diff;
use crate::verbs::emulate::Emulate;
use crate::verbs::fuzz::arguments::Fuzz;
use crate::verbs::info::Info;
use crate::verbs::man::Man;
use crate::verbs::map::Map;
use crate::verbs::replay::Replay;
use crate::verbs::rocr::Rocr;
use crate::verbs::stress::Stress;
use clap::{Args, Parser, Subcommand, ValueEnum};
use hsa_vmm::hip::HipProfile;
use std::ffi::{OsStr, OsString};
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

/// What the verbs have that use the library on a runtime.
#[derive(Args, Clone, Debug)]
pub struct Common {
    #[command(flatten)]
    pub runtime: RuntimeOptions,
    /// Whose error codes and granularities: `hip6` or `hip7`
    #[arg(long, value_name = "PROFILE", env = "HSA_VMM_PROFILE",
          default_value_t = HipProfile::default(), help_heading = "Runtime")]
    pub profile: HipProfile,
    /// Log the library's work to standard error: error, warn, info, debug or trace
    #[arg(long = "log-level", value_name = "LEVEL", env = "HSA_VMM_LOG", help_heading = "Output")]
    pub log: Option<LevelFilter>,
}

impl Common {
    /// The words that ask for the same again.
    pub fn words(&self) -> Vec<OsString> {
        let mut words = self.runtime.words();
        words.push(word("--profile", self.profile.to_string()));
        words.extend(self.log.map(|level| word("--log-level", level.to_string())));
        words
    }
}

/// An option and its value in one word, so that a value that begins with `-` is no option.
pub fn word(option: &str, value: impl AsRef<OsStr>) -> OsString {
    let mut word = OsString::from(option);
    word.push("=");
    word.push(value);
    word
}

/// A time that is not zero: `500ms`, `20s`, `10min`, `8h`; a number alone is of seconds.
pub fn time(text: &str) -> Result<Duration, String> {
    let time = match text.parse() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?,
        Err(_) => humantime::parse_duration(text).map_err(|error| error.to_string())?,
    };
    if time.is_zero() {
        return Err("it must not be zero".to_owned());
    }
    Ok(time)
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
    #[command(after_help = crate::verbs::map::EXAMPLES)]
    Map(Map),
    /// Measure what each call costs: raw, through the library, through C, and through HIP itself
    ///
    /// The levels take turns in one run. With --runtime nothing the runtime's own functions do
    /// nothing, so that only this library's cost is left.
    Bench(Bench),
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
            | Self::Bench(Bench { common, .. })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_make_sense() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn what_is_asked_for_again_is_the_same() {
        for words in [
            &["--runtime", "./-odd name", "--profile", "hip6", "--log-level", "debug"][..],
            &["--runtime", "sim", "--gpus", "3", "--sim", "era=a"],
            &["--runtime", "auto"],
        ] {
            let parse = |words: &[OsString]| {
                let head = ["hsa-vmm", "conform"].map(OsString::from);
                let all = head.into_iter().chain(words.iter().cloned());
                match Arguments::parse_from(all).verb {
                    Verb::Conform(verb) => verb.common,
                    verb => panic!("{verb:?}"),
                }
            };
            let words: Vec<_> = words.iter().map(OsString::from).collect();
            let common = parse(&words);
            assert_eq!(format!("{common:?}"), format!("{:?}", parse(&common.words())));
        }
    }
}
