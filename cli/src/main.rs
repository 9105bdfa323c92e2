//! The command `hsa-vmm`.

mod arguments;
mod choice;
mod progress;
mod verbs;

use anstyle::{AnsiColor, Style};
use arguments::{Arguments, Verb};
use clap::Parser;
use std::process::ExitCode;

/// How a run of the command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All well.
    Well,
    /// Something that was tested failed.
    Failed,
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
        Verb::Map(verb) => verbs::map::run(verb),
        Verb::Bench(verb) => verbs::bench::run(verb),
        Verb::Emulate(verb) => verbs::emulate::run(verb),
        Verb::Rocr(verb) => verbs::rocr::run(verb),
    };
    match ending {
        Ok(Ending::Well) => ExitCode::SUCCESS,
        Ok(Ending::Failed) => ExitCode::from(FAILED),
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
    if let Some(level) = arguments.verb.log() {
        tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .init();
    }
}
