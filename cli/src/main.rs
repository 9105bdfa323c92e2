//! The command `hsa-vmm`.

mod arguments;
mod choice;
mod last_call;
mod output;
mod performer;
mod program;
mod progress;
mod table;
mod verbs;

use anstyle::{AnsiColor, Style};
use arguments::{Arguments, Verb};
use clap::Parser;
use hsa_vmm_conformance::contain::NotRun;
use hsa_vmm_conformance::worker::LastCall;
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
// 2 is bad usage, which clap answers by itself.
const NO_RUNTIME: u8 = 3;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
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
            anstream::eprintln!("{red}error{red:#}: {error:#}");
            ExitCode::from(if is_no_runtime(&error) { NO_RUNTIME } else { FAILED })
        }
    }
}

/// There is no runtime to work with, or it does not start.
fn is_no_runtime(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<hsa_vmm::RuntimeError>()
            || matches!(cause.downcast_ref(), Some(hsa_vmm_bench::BenchError::Runtime(_)))
            || cause.is::<hsa_rocr::FetchError>()
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
            .with_writer(std::io::stderr)
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .with_filter(level)
    });
    tracing_subscriber::registry().with(printed).with(page.map(last_call::layer)).init();
}
