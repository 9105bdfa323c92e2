//! The arguments of the command.

use crate::choice::RuntimeOptions;
use crate::provenance::Privacy;
use crate::subcommands::bench::Bench;
use crate::subcommands::bringup::Bringup;
use crate::subcommands::completions::{COMPLETIONS_EXAMPLES, Completions};
use crate::subcommands::conform::Conform;
use crate::subcommands::diff;
use crate::subcommands::emulate::Emulate;
use crate::subcommands::fuzz::arguments::Fuzz;
use crate::subcommands::info::Info;
use crate::subcommands::kfd_version::KfdVersion;
use crate::subcommands::lint::Lint;
use crate::subcommands::man::Man;
use crate::subcommands::map::Map;
use crate::subcommands::record::Record;
use crate::subcommands::replay::Replay;
use crate::subcommands::rocr::Rocr;
use crate::subcommands::stress::Stress;
use crate::subcommands::vm::Vm;
use clap::{Args, Parser, Subcommand, ValueEnum};
use hsa_vmm::runtime::DriverState;
use std::ffi::{OsStr, OsString};
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;
use tracing::level_filters::LevelFilter;

/// Shows and tests the virtual memory management of an HSA runtime.
///
/// Without --runtime, uses AMD's runtime if it is installed and /dev/kfd exists, and a simulation
/// otherwise. `bringup` uses a simulation only with --runtime sim. The first line of output names the runtime.
#[derive(Debug, Parser)]
#[command(name = "hsa-vmm", version, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Results go to standard output, notes and progress to standard error.
Exit status: 0 success, 1 something failed, 2 invalid usage or
results that cannot be written, 3 no runtime.";

/// The options of all subcommands that use the library on a runtime.
#[derive(Args, Clone, Debug)]
pub struct CommonOptions {
    #[command(flatten)]
    pub runtime: RuntimeOptions,
    /// Log the library's operations to standard error: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", env = "HSA_VMM_LOG", help_heading = "Output")]
    pub log_level: Option<LevelFilter>,
}

impl CommonOptions {
    /// Returns the arguments that start a worker with the same options.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let mut arguments = self.runtime.to_arguments();
        arguments.extend(
            self.log_level.map(|level| option_with_value("--log-level", level.to_string())),
        );
        arguments
    }
}

/// Returns the single argument `option=value`, so that a value with a leading `-` is not parsed as an option.
pub fn option_with_value(option: &str, value: impl AsRef<OsStr>) -> OsString {
    let mut argument = OsString::from(option);
    argument.push("=");
    argument.push(value);
    argument
}

/// The times that [`parse_time`] and [`parse_time_or_zero`] accept.
const ALLOWED_TIMES: &str = "allowed are numbers with a unit, such as 500ms, 20s, 10min or 8h, and numbers of seconds without a unit";

/// Parses a duration other than zero: `500ms`, `20s`, `10min`, `8h`. A plain number means seconds.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    match parse_time_or_zero(text)? {
        Duration::ZERO => Err("the time must be longer than zero".to_owned()),
        time => Ok(time),
    }
}

/// Parses a duration as [`parse_time`] does, but also accepts zero.
pub fn parse_time_or_zero(text: &str) -> Result<Duration, String> {
    let time = match text.parse() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => humantime::parse_duration(text).ok(),
    };
    time.ok_or_else(|| ALLOWED_TIMES.to_owned())
}

/// Parses a number of at least 1.
pub fn parse_count(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "allowed are whole numbers from 1 on".to_owned())
}

/// Returns whether this process runs in the virtual machine of `hsa-vmm vm`: whether the kernel module of the software
/// GPUs is loaded.
pub fn is_in_virtual_machine() -> bool {
    Path::new("/sys/module/hsa_vmm").exists()
}

/// Returns the arguments that set a time limit, for a command that a user can copy. Returns no arguments if the limit
/// is the default.
pub fn typed_time_limit(limit: Duration, default: &str) -> Vec<String> {
    match parse_time(default) {
        Ok(default) if default == limit => Vec::new(),
        // Without spaces, the time needs no quotes.
        _ => {
            let limit = humantime::format_duration(limit).to_string().replace(' ', "");
            vec!["--time-limit".to_owned(), limit]
        }
    }
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show agents, pools, granules and features
    Info(Info),
    /// Run the conformance cases, which check the documented results and errors of each call
    Conform(Conform),
    /// Replay recorded traces and compare the verdicts, or repeat a failure that `fuzz` has found
    ///
    /// Also repeats, on another runtime, the calls that `record` has recorded, and compares the statuses.
    #[command(after_help = crate::subcommands::replay::EXAMPLES)]
    Replay(Replay),
    /// Run a program and record its virtual memory calls
    ///
    /// Records the calls of AMD's runtime that manage, copy or fill memory, with their arguments and results: calls by
    /// the program, by HIP and by other libraries.
    #[command(after_help = crate::subcommands::record::ABOUT)]
    Record(Record),
    /// Find mistakes in a recording of `record`
    ///
    /// Finds memory that is used after it was unmapped, mappings that no agent can access, access granted in an
    /// order that some releases reject, ranges that split a mapping, leaks, and virtual memory in IPC handles.
    #[command(after_help = crate::subcommands::lint::ABOUT)]
    Lint(Lint),
    /// Run random sequences of operations and compare each result with the reference model
    ///
    /// Worker processes run the sequences, so that crashes and hangs are found, too.
    #[command(after_help = crate::subcommands::fuzz::arguments::EXAMPLES)]
    Fuzz(Fuzz),
    /// Run sequences for another process of this command
    #[command(hide = true)]
    Worker(CommonOptions),
    /// Print the version of /dev/kfd's interface for another process of this command
    #[command(hide = true)]
    KfdVersion(KfdVersion),
    /// Show the address space at the end of a recorded trace: reservations, mappings, access
    ///
    /// Replays a trace, or its beginning, and shows the reservations, mappings, memory and leaks at the
    /// end. Reservations and memory are named after the trace's slots (r1, h2). Without a file,
    /// shows an example.
    #[command(after_help = crate::subcommands::map::EXAMPLES)]
    Map(Map),
    /// Measure the cost of each call: raw HSA, the library, its C interface, and HIP itself
    ///
    /// One run measures the calls of all levels alternately. With --runtime nothing, the runtime's
    /// functions do nothing, so that only this library's cost is measured.
    Bench(Bench),
    /// Compare two reports: two runtimes, two versions, two machines
    ///
    /// Prints sentences and tables: the differences of the runtimes and their agents, cases with different
    /// results, and cases with different times.
    #[command(after_help = diff::ABOUT)]
    Diff(diff::Arguments),
    /// Test a driver or GPU level by level, from "library loads" to "process killed"
    ///
    /// Each level makes the minimal HSA calls in a process of its own, so that crashes and hangs are
    /// contained. For the first level that fails, prints the call with its arguments and status, and the
    /// kernel interfaces of the call. Then prints the logs of runtime, driver and kernel, and advice.
    #[command(after_help = crate::subcommands::bringup::ABOUT)]
    Bringup(Bringup),
    /// Run threads and processes near every limit of a runtime, and look for leaks
    ///
    /// Runs scenarios one after another: small mappings; nearly all memory of the GPUs; nearly all
    /// descriptors; nearly all mappings that the kernel allows. Checks the contents of memory. At
    /// the end, checks that library, runtime, driver and kernel count no more resources than before.
    #[command(after_help = crate::subcommands::stress::ABOUT)]
    Stress(Stress),
    /// Run a program on an emulated kernel driver with AMD GPUs
    ///
    /// Needs neither root nor kernel support: the driver is emulated inside the program. Memory, page
    /// tables, copies and signals work; GPU kernels do not run.
    Emulate(Emulate),
    /// Run a program on AMD's own kernel driver, in a virtual machine with software GPUs
    ///
    /// Boots Debian's kernel with its unmodified amdgpu.ko in QEMU. The program, and the files that the program
    /// sees, are this machine's. The program's changes to files are lost, except in the folder of
    /// --results. Memory, page tables, copies and signals work; GPU kernels do not run. `vm fetch`
    /// downloads the kernel.
    #[command(after_help = crate::subcommands::vm::ABOUT)]
    Vm(Vm),
    /// Run the program inside the virtual machine; used by `vm` itself
    #[command(hide = true)]
    VmGuest,
    /// Fetch AMD's own runtime, and run programs with it
    #[command(subcommand)]
    Rocr(Rocr),
    /// Write the manual pages, one for the command and one for each subcommand
    Man(Man),
    /// Print the completion script for a shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(Completions),
}

impl Command {
    /// Returns the log level; `None` if it was not given, or for subcommands without the option.
    pub fn log_level(&self) -> Option<LevelFilter> {
        self.common()?.log_level
    }

    /// Returns the `bringup` command that shows why a runtime does not start. Returns `None` for workers, for `map`,
    /// and for subcommands without [`CommonOptions`], such as `bringup` itself.
    pub fn bringup_command(&self) -> Option<String> {
        match self {
            Self::Worker(_) | Self::Map(_) => None,
            _ => {
                // Without /dev/kfd, `auto` chooses the simulation.
                let is_simulation = DriverState::probe() == DriverState::Missing;
                Some(self.common()?.runtime.bringup_command(is_simulation))
            }
        }
    }

    /// Returns how to remove private data from standard error, or `None` if nothing is removed. `conform` always
    /// removes private data, because its reports include standard error. Other subcommands remove private data only
    /// with `--redact`, so that commands can be copied from their messages.
    pub fn privacy_of_stderr(&self) -> Option<&Privacy> {
        match self {
            Self::Conform(Conform { privacy, .. }) => Some(privacy),
            Self::Bringup(Bringup { privacy, .. })
            | Self::Fuzz(Fuzz { privacy, .. })
            | Self::Stress(Stress { privacy, .. }) => Some(privacy).filter(|it| it.is_redacting()),
            _ => None,
        }
    }

    /// Returns the options of a subcommand that uses the library on a runtime, and `None` for other subcommands.
    fn common(&self) -> Option<&CommonOptions> {
        match self {
            Self::Info(Info { common, .. })
            | Self::Conform(Conform { common, .. })
            | Self::Replay(Replay { common, .. })
            | Self::Fuzz(Fuzz { common, .. })
            | Self::Worker(common)
            | Self::Map(Map { common, .. })
            | Self::Bench(Bench { common, .. })
            | Self::Stress(Stress { common, .. }) => Some(common),
            Self::Bringup(_)
            | Self::Diff(_)
            | Self::Emulate(_)
            | Self::Lint(_)
            | Self::Record(_)
            | Self::KfdVersion(_)
            | Self::Rocr(_)
            | Self::Vm(_)
            | Self::VmGuest
            | Self::Man(_)
            | Self::Completions(_) => None,
        }
    }
}

/// The format of the results of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RunFormat {
    /// A table
    #[default]
    Table,
    /// JSON
    Json,
    /// KTAP, the format of the Linux kernel's tests; written while the tests run
    Ktap,
}

/// The format of results: a table for people or JSON for programs.
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
    fn arguments_pass_the_checks_of_clap() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn invalid_values_name_what_is_allowed() {
        for invalid in ["abc", "", "-1", "nan", "1e30", "5 parsecs"] {
            let message = parse_time(invalid).unwrap_err();
            assert!(message.contains("500ms, 20s, 10min or 8h"), "{invalid}: {message}");
        }
        assert!(parse_time("0s").unwrap_err().contains("longer than zero"));
        assert_eq!(parse_time_or_zero("0").unwrap(), Duration::ZERO);
        assert_eq!(parse_time("1.5").unwrap(), Duration::from_millis(1500));
        for invalid in ["0", "-1", "two"] {
            assert!(parse_count(invalid).unwrap_err().contains("from 1 on"), "{invalid}");
        }
    }

    #[test]
    fn to_arguments_parses_to_the_same_options() {
        for arguments in [
            &["--runtime", "./-odd name", "--log-level", "debug"][..],
            &["--runtime", "sim", "--gpus", "3", "--sim", "era=a"],
            &["--runtime", "auto"],
        ] {
            let parse = |arguments: &[OsString]| {
                let head = ["hsa-vmm", "conform"].map(OsString::from);
                let all = head.into_iter().chain(arguments.iter().cloned());
                match Arguments::parse_from(all).command {
                    Command::Conform(args) => args.common,
                    command => panic!("{command:?}"),
                }
            };
            let arguments: Vec<_> = arguments.iter().map(OsString::from).collect();
            let common = parse(&arguments);
            assert_eq!(format!("{common:?}"), format!("{:?}", parse(&common.to_arguments())));
        }
    }
}
