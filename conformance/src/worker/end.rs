//! How a worker process ended.

use rustix::process::Signal;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// How a worker process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Exited with this status.
    Exited(i32),
    /// Killed by this signal: a crash.
    Signal(i32),
    /// Killed by this library, for example because the worker did not exit in time.
    Killed,
}

impl End {
    pub(super) fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Killed,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Exited(code) => write!(f, "ended with status {code}"),
            Self::Signal(signal) => match signal_meaning(signal) {
                Some(meaning) => write!(f, "{} ({meaning})", signal_name(signal)),
                None => f.write_str(&signal_name(signal)),
            },
            Self::Killed => f.write_str("killed: it did not end"),
        }
    }
}

/// Signals that often end programs, with their names as in `kill -l` and their meanings.
const SIGNALS: &[(Signal, &str, &str)] = &[
    (Signal::SEGV, "SIGSEGV", "access to an address that is not mapped, or not permitted"),
    (Signal::BUS, "SIGBUS", "access to a mapping without memory"),
    (Signal::ABORT, "SIGABRT", "aborted: a failed assertion, or a GPU fault"),
    (Signal::ILL, "SIGILL", "invalid instruction"),
    (Signal::FPE, "SIGFPE", "division by zero"),
    (Signal::TRAP, "SIGTRAP", "breakpoint"),
    (Signal::SYS, "SIGSYS", "forbidden system call"),
    (Signal::KILL, "SIGKILL", "not sent by hsa-vmm; perhaps the kernel was out of memory"),
    (Signal::TERM, "SIGTERM", "request to terminate"),
    (Signal::PIPE, "SIGPIPE", "write to a closed pipe"),
    (Signal::XCPU, "SIGXCPU", "CPU time limit exceeded"),
    (Signal::XFSZ, "SIGXFSZ", "file size limit exceeded"),
];

/// Returns a signal's name, such as `SIGSEGV`.
pub(crate) fn signal_name(signal: i32) -> String {
    let entry = SIGNALS.iter().find(|(number, ..)| number.as_raw() == signal);
    entry.map_or_else(|| format!("signal {signal}"), |(_, name, _)| (*name).to_owned())
}

fn signal_meaning(signal: i32) -> Option<&'static str> {
    let entry = SIGNALS.iter().find(|(number, ..)| number.as_raw() == signal);
    entry.map(|(_, _, meaning)| *meaning)
}
