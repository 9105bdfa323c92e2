//! The command `hsa-vmm`.

mod arguments;
mod choice;
mod last_call;
mod output;
mod performer;
mod program;
mod progress;
mod screen;
mod table;
mod verbs;

use anstyle::{AnsiColor, Style};
use arguments::{Arguments, Verb};
use clap::Parser;
use hsa_vmm::error::Operation;
use hsa_vmm_conformance::contain::NotRun;
use hsa_vmm_conformance::printable;
use hsa_vmm_conformance::worker::LastCall;
use screen::{Screen, note};
use std::env;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use tracing_subscriber::prelude::*;

/// How a run of the command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All well.
    Well,
    /// Something that was tested failed.
    Failed,
    /// There is no runtime to test, or it does not start; what was found out has been said.
    NoRuntime,
}

const FAILED: u8 = 1;
/// As clap answers, too.
const BAD_USAGE: u8 = 2;
const NO_RUNTIME: u8 = 3;

fn main() -> ExitCode {
    if hsa_sys::library::is_privileged() {
        note!(
            "error: hsa-vmm cannot run set-user-id, set-group-id or with file capabilities: its \
             arguments choose code that it runs; run it as the user who may use the GPU"
        );
        return ExitCode::from(BAD_USAGE);
    }
    let arguments = Arguments::try_parse().unwrap_or_else(|error| refuse(&error));
    log(&arguments);
    let ending = match &arguments.verb {
        Verb::Info(verb) => verbs::info::run(verb),
        Verb::Conform(verb) => verbs::conform::run(verb),
        Verb::Replay(verb) => verbs::replay::run(verb),
        Verb::Fuzz(verb) => verbs::fuzz::run(verb),
        Verb::Worker(common) => performer::serve(common),
        Verb::Map(verb) => verbs::map::run(verb),
        Verb::Bench(verb) => verbs::bench::run(verb),
        Verb::Diff(verb) => verbs::diff::run(verb),
        Verb::Bringup(verb) => verbs::bringup::run(verb),
        Verb::Stress(verb) => verbs::stress::run(verb),
        Verb::Emulate(verb) => verbs::emulate::run(verb),
        Verb::Rocr(verb) => verbs::rocr::run(verb),
        Verb::Man(verb) => verbs::man::run(verb),
        Verb::Completions(verb) => verbs::completions::run(verb),
    };
    match ending {
        Ok(Ending::Well) => ExitCode::SUCCESS,
        Ok(Ending::Failed) => ExitCode::from(FAILED),
        Ok(Ending::NoRuntime) => ExitCode::from(NO_RUNTIME),
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
            let mut screen = Screen::stderr();
            // Nobody reads what cannot be written.
            let _ = screen.styled(red, "error").and_then(|()| writeln!(screen, ": {error:#}"));
            ExitCode::from(if is_no_runtime(&error) { NO_RUNTIME } else { FAILED })
        }
    }
}

/// Prints help, or what is wrong with the arguments, and ends the process.
fn refuse(error: &clap::Error) -> ! {
    let is_printable = |text: OsString| {
        let text = text.to_string_lossy();
        printable(&text) == text
    };
    // Errors show arguments, and both errors and help show variables.
    let all_printable =
        env::args_os().chain(env::vars_os().map(|(_, value)| value)).all(is_printable);
    let printed = if all_printable {
        error.print().and_then(|()| std::io::stdout().flush())
    } else {
        let text = error.to_string();
        let mut screen = if error.use_stderr() { Screen::stderr() } else { Screen::stdout() };
        write!(screen, "{text}").and_then(|()| screen.flush())
    };
    match printed {
        // Errors go to standard error: without it there is nowhere to say more.
        Err(cannot) if !error.use_stderr() && cannot.kind() != std::io::ErrorKind::BrokenPipe => {
            note!("error: cannot write to standard output: {cannot}");
            std::process::exit(FAILED.into())
        }
        _ => std::process::exit(error.exit_code()),
    }
}

/// Whether there is no runtime to work with, or it does not start.
fn is_no_runtime(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let library = match cause.downcast_ref() {
            Some(hsa_vmm_bench::BenchError::Load(_)) => return true,
            Some(hsa_vmm_bench::BenchError::Library(error)) => Some(error),
            _ => cause.downcast_ref::<hsa_vmm::Error>(),
        };
        library.is_some_and(|error| {
            matches!(error.operation(), Operation::Load | Operation::Start | Operation::Discover)
        }) || cause.is::<hsa_rocr::FetchError>()
            || cause.is::<hsa_rocr::NotInstalled>()
            || matches!(
                cause.downcast_ref::<NotRun>(),
                Some(NotRun::NoRuntime(_) | NotRun::LostAtStart(_))
            )
            || cause.is::<verbs::stress::NoRuntime>()
    })
}

/// Whoever read the output has read enough (`hsa-vmm info | head -1`).
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let kind = match cause.downcast_ref::<std::io::Error>() {
            Some(error) => Some(error.kind()),
            None => cause.downcast_ref().and_then(serde_json::Error::io_error_kind),
        };
        kind == Some(std::io::ErrorKind::BrokenPipe)
    })
}

fn log(arguments: &Arguments) {
    let page = match &arguments.verb {
        // One that cannot note its calls works without.
        Verb::Conform(verb) if verb.worker => LastCall::of_this_worker().ok(),
        _ => None,
    };
    let level = arguments.verb.log();
    if page.is_none() && level.is_none() {
        return;
    }
    let printed = level.map(|level| {
        tracing_subscriber::fmt::layer()
            .with_writer(Screen::stderr)
            .with_ansi(false)
            .with_filter(level)
    });
    tracing_subscriber::registry().with(printed).with(page.map(last_call::layer)).init();
}
