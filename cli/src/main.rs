//! The command `hsa-vmm`.

mod arguments;
mod bail_out;
mod choice;
mod descriptor_limit;
mod driver_log;
mod executor;
mod file_kind;
mod interrupt;
mod kernel_log;
mod last_call;
mod output;
mod planned_faults;
mod program;
mod progress;
mod provenance;
mod redaction;
mod screen;
mod standard_output;
mod subcommands;
mod table;

use anstyle::{AnsiColor, Style};
use arguments::{Arguments, Command};
use clap::Parser;
use hsa_vmm::error::Operation;
use hsa_vmm_conformance::contain::NotRun;
use hsa_vmm_conformance::printable;
use hsa_vmm_conformance::worker::LastCall;
use screen::{Screen, note};
use std::env;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use tracing_subscriber::prelude::*;

/// The result of a subcommand. It determines the exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Everything succeeded.
    Success,
    /// A test or a step of the subcommand failed, or a signal (SIGINT or SIGTERM) interrupted the run.
    Failure,
    /// There is no runtime, or it does not start. The reason has been printed.
    NoRuntime,
    /// A program has ended with this status.
    Program(u8),
}

/// Invalid usage: arguments that cannot be used together, that select nothing, or that name a file that cannot be read
/// or written. Also a closed standard output, and a limit of open file descriptors that is too low.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadUsage(pub String);

impl BadUsage {
    /// Returns the error for an input file that cannot be read, or that has other contents.
    pub fn cannot_read(file: &Path, cause: impl Into<anyhow::Error>) -> Self {
        Self::with_context(format!("cannot read {}", file.display()), cause)
    }

    /// Returns an error with its cause.
    pub fn with_context(context: String, cause: impl Into<anyhow::Error>) -> Self {
        Self(error_message(&cause.into().context(context)))
    }
}

/// The exit status after a failure.
const FAILED: u8 = 1;
/// The exit status after invalid usage, and if results cannot be written. clap uses this status, too.
const BAD_USAGE: u8 = 2;
/// The exit status if there is no runtime, or it does not start.
const NO_RUNTIME: u8 = 3;

fn main() -> ExitCode {
    if hsa_sys::library::is_privileged() {
        note!(
            "error: hsa-vmm does not run set-user-id, set-group-id or with file capabilities, because \
             its arguments choose code to run; run it as a user with access to the GPU"
        );
        return ExitCode::from(BAD_USAGE);
    }
    let arguments = Arguments::try_parse().unwrap_or_else(|error| print_and_exit(&error));
    if let Some(privacy) = arguments.command.privacy_of_stderr() {
        screen::clean_stderr_with(privacy);
    }
    start_logging(&arguments);
    let result = descriptor_limit::check(&arguments.command).and_then(|()| run(&arguments.command));
    match result {
        Ok(Exit::Success) => ExitCode::SUCCESS,
        Ok(Exit::Failure) => ExitCode::from(FAILED),
        Ok(Exit::NoRuntime) => ExitCode::from(NO_RUNTIME),
        Ok(Exit::Program(status)) => ExitCode::from(status),
        Err(error) => {
            let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
            let mut screen = Screen::stderr();
            // Ignore errors: standard error is the last resort.
            let _ = screen
                .write_styled(red, "error")
                .and_then(|()| writeln!(screen, ": {}", error_message(&error)));
            let not_started = error.downcast_ref::<program::NotStarted>();
            if error.is::<subcommands::vm::VmError>() {
                return ExitCode::from(subcommands::vm::FAILED);
            }
            if error.is::<subcommands::emulate::EmulationError>() {
                return ExitCode::from(subcommands::emulate::FAILED);
            }
            if error.is::<subcommands::record::RecordError>() {
                return ExitCode::from(subcommands::record::FAILED);
            }
            let status = match not_started {
                Some(program) => program.exit_status(),
                None if error.is::<BadUsage>() || output::has_failed() => BAD_USAGE,
                None if is_no_runtime(&error) => NO_RUNTIME,
                None => FAILED,
            };
            let bringup = arguments.command.bringup_command();
            if let Some(bringup) = bringup.filter(|_| status == NO_RUNTIME) {
                note!("To find the HSA call and kernel interface that fail: {bringup}");
            }
            ExitCode::from(status)
        }
    }
}

/// Runs a subcommand.
fn run(command: &Command) -> anyhow::Result<Exit> {
    match command {
        Command::Info(args) => subcommands::info::run(args),
        Command::Conform(args) => subcommands::conform::run(args),
        Command::Replay(args) => subcommands::replay::run(args),
        Command::Fuzz(args) => subcommands::fuzz::run(args),
        Command::Worker(common) => executor::serve(common),
        Command::Map(args) => subcommands::map::run(args),
        Command::Bench(args) => subcommands::bench::run(args),
        Command::Diff(args) => subcommands::diff::run(args),
        Command::Bringup(args) => subcommands::bringup::run(args),
        Command::Stress(args) => subcommands::stress::run(args),
        Command::Record(args) => subcommands::record::run(args),
        Command::Lint(args) => subcommands::lint::run(args),
        Command::Emulate(args) => subcommands::emulate::run(args),
        Command::KfdVersion(args) => subcommands::kfd_version::run(args),
        Command::Rocr(args) => subcommands::rocr::run(args),
        Command::Vm(args) => subcommands::vm::run(args),
        Command::VmGuest => subcommands::vm::run_guest(),
        Command::Man(args) => subcommands::man::run(args),
        Command::Completions(args) => subcommands::completions::run(args),
    }
}

/// Prints help or the error in the arguments, and exits.
fn print_and_exit(error: &clap::Error) -> ! {
    let is_printable = |text: OsString| {
        let text = text.to_string_lossy();
        printable(&text) == text
    };
    // clap does not escape control characters. Its errors contain arguments, and its errors and help contain
    // environment variables.
    let all_printable =
        env::args_os().chain(env::vars_os().map(|(_, value)| value)).all(is_printable);
    let result = if !error.use_stderr() && standard_output::is_closed() {
        Err(std::io::Error::other("it is closed"))
    } else if all_printable {
        error.print().and_then(|()| std::io::stdout().flush())
    } else {
        let text = error.to_string();
        let mut screen = if error.use_stderr() { Screen::stderr() } else { Screen::stdout() };
        write!(screen, "{text}").and_then(|()| screen.flush())
    };
    match result {
        Err(cause) if !error.use_stderr() && cause.kind() != std::io::ErrorKind::BrokenPipe => {
            note!("error: cannot write to standard output: {cause}");
            std::process::exit(BAD_USAGE.into())
        }
        // A failure to write to standard error cannot be reported.
        _ => std::process::exit(error.exit_code()),
    }
}

/// Formats an error with its causes. Omits causes that the text already contains.
pub fn error_message(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Returns whether the error means that there is no runtime, or that it does not start.
pub fn is_no_runtime(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let library_error = match cause.downcast_ref() {
            Some(hsa_vmm_bench::BenchError::Load(_)) => return true,
            Some(hsa_vmm_bench::BenchError::Library(error)) => Some(error),
            _ => cause.downcast_ref::<hsa_vmm::Error>(),
        };
        library_error.is_some_and(|error| {
            matches!(error.operation(), Operation::Load | Operation::Start | Operation::Discover)
        }) || cause.is::<hsa_rocr::FetchError>()
            || cause.is::<hsa_rocr::NotFetched>()
            || matches!(
                cause.downcast_ref::<NotRun>(),
                Some(NotRun::NoRuntime(_) | NotRun::LostAtStart(_))
            )
            || cause.is::<subcommands::stress::NoRuntime>()
    })
}

/// Starts logging to standard error at the requested level. The workers and peers of `conform`, and the workers of
/// `stress`, `fuzz` and `replay`, also record each runtime call in a page that they share with their parent.
fn start_logging(arguments: &Arguments) {
    let page = match &arguments.command {
        // Without the page, the worker runs, but its last call is not known.
        Command::Conform(args) if args.worker || args.peer => LastCall::open_in_worker().ok(),
        Command::Stress(args) if args.worker.is_some() => LastCall::open_in_worker().ok(),
        Command::Worker(_) => LastCall::open_in_worker().ok(),
        _ => None,
    };
    let level = arguments.command.log_level();
    if page.is_none() && level.is_none() {
        return;
    }
    let stderr_layer = level.map(|level| {
        tracing_subscriber::fmt::layer()
            .with_writer(Screen::stderr)
            .with_ansi(false)
            .with_filter(level)
    });
    tracing_subscriber::registry().with(stderr_layer).with(page.map(last_call::layer)).init();
}
