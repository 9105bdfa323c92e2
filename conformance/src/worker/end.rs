//! How a process ended.

use rustix::process::Signal;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself, with this status.
    Exited(i32),
    /// By this signal: a crash.
    Signal(i32),
    /// It did not end, and was stopped.
    Stopped,
}

impl End {
    pub(super) fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Stopped,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Exited(code) => write!(f, "ended with status {code}"),
            Self::Signal(signal) => match meaning(signal) {
                Some(meaning) => write!(f, "{} ({meaning})", name(signal)),
                None => f.write_str(&name(signal)),
            },
            Self::Stopped => f.write_str("stopped: it did not end"),
        }
    }
}

/// The signals that end programs, as `kill -l` names them, and what they mean.
const SIGNALS: &[(Signal, &str, &str)] = &[
    (Signal::SEGV, "SIGSEGV", "an address that is not mapped, or not so"),
    (Signal::BUS, "SIGBUS", "a mapping with no memory behind it"),
    (Signal::ABORT, "SIGABRT", "it gave itself up: an assertion, or a GPU's fault"),
    (Signal::ILL, "SIGILL", "an instruction this processor has not"),
    (Signal::FPE, "SIGFPE", "a division by zero"),
    (Signal::TRAP, "SIGTRAP", "a breakpoint"),
    (Signal::SYS, "SIGSYS", "a system call that is forbidden"),
    (Signal::KILL, "SIGKILL", "not from here; the kernel ends processes when memory is short"),
    (Signal::TERM, "SIGTERM", "it was asked to end"),
    (Signal::PIPE, "SIGPIPE", "nobody reads what it writes"),
    (Signal::XCPU, "SIGXCPU", "more time than it may have"),
    (Signal::XFSZ, "SIGXFSZ", "a file longer than it may write"),
];

/// A signal's name, as `SIGSEGV`.
pub(crate) fn name(signal: i32) -> String {
    let known = SIGNALS.iter().find(|(known, ..)| known.as_raw() == signal);
    known.map_or_else(|| format!("signal {signal}"), |(_, name, _)| (*name).to_owned())
}

fn meaning(signal: i32) -> Option<&'static str> {
    let known = SIGNALS.iter().find(|(known, ..)| known.as_raw() == signal);
    known.map(|(_, _, meaning)| *meaning)
}
