//! Work that may crash or hang, in a process of its own.
//!
//! The process is this very program once more ([`again`]). It dies with the one that started it
//! ([`begin`], the first thing it does), tells what it finds in lines of text, and may be given up
//! at any time; how it ended is known by name.

use rustix::process::{Pid, Signal};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use std::{env, fmt, thread};

/// In the processes that are contained: the number of the one that started them.
const STARTED_BY: &str = "HSA_VMM_STARTED_BY";
/// How much of what it printed is kept, from the end.
const KEPT: u64 = 1 << 20;
/// How long it may take to end once it has closed its output.
const LAST_BREATH: Duration = Duration::from_secs(2);

/// A command that starts this program again with these arguments.
pub fn again(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> io::Result<Command> {
    let mut command = hsa_rocr::again()?;
    command.args(arguments.into_iter().map(Into::into));
    command.env(STARTED_BY, std::process::id().to_string());
    Ok(command)
}

/// To be called first in a process that [`again`] started: from now on it dies with the *thread*
/// that started it. Returns an error if nobody is there any more, or nobody ever was.
pub fn begin() -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().to_string());
    if parent.is_none() || env::var(STARTED_BY).ok() != parent {
        return Err(io::Error::other("the process that started this one is gone"));
    }
    Ok(())
}

/// A process that works for this one, and does not outlive this value.
#[derive(Debug)]
pub struct Contained {
    child: Child,
    lines: Receiver<String>,
    said: File,
    ended: Option<ExitStatus>,
}

/// What a process said next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// A line.
    Line(String),
    /// Nothing more: it has ended, or closed its output.
    Nothing,
    /// Nothing within the time it had.
    Late,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself, with this status.
    Exited(i32),
    /// By a signal: a crash.
    Signal(i32),
    /// It had to be stopped.
    Stopped,
}

impl Contained {
    /// Starts it: in a process group of its own, its output in lines to this process, what it
    /// prints as errors into a file that has no name.
    pub fn start(mut command: Command) -> io::Result<Self> {
        // Appended to, so that what several processes print does not overwrite each other.
        let said = tempfile::tempfile()?;
        let appended = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&said));
        let appended = File::options().append(true).open(appended)?;
        command.process_group(0).stdout(Stdio::piped()).stderr(appended);
        let mut child = command.spawn()?;
        let (sender, lines) = channel();
        if let Some(output) = child.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(output).split(b'\n') {
                    let Ok(line) = line else { break };
                    if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                        break;
                    }
                }
            });
        }
        Ok(Self { child, lines, said, ended: None })
    }

    /// Waits for its next line, so long and no longer.
    pub fn next(&self, limit: Duration) -> Next {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Next::Line(line),
            Err(RecvTimeoutError::Disconnected) => Next::Nothing,
            Err(RecvTimeoutError::Timeout) => Next::Late,
        }
    }

    /// What it can be told: its input, if that is a pipe.
    pub fn input(&mut self) -> Option<std::process::ChildStdin> {
        self.child.stdin.take()
    }

    /// Whether it has ended, and how; without waiting.
    pub fn ended(&mut self) -> io::Result<Option<End>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended.map(End::of))
    }

    /// Waits for its end after it has said the last; one that does not end is stopped.
    pub fn finish(&mut self) -> io::Result<End> {
        let pause = Duration::from_millis(2);
        for _ in 0..LAST_BREATH.as_millis() / pause.as_millis() {
            if let Some(end) = self.ended()? {
                return Ok(end);
            }
            thread::sleep(pause);
        }
        self.stop()?;
        Ok(End::Stopped)
    }

    /// Ends it and whatever it started.
    pub fn stop(&mut self) -> io::Result<()> {
        if self.ended()?.is_none() {
            let group = Pid::from_raw(self.child.id().cast_signed());
            let killed = group
                .map_or(Ok(()), |group| rustix::process::kill_process_group(group, Signal::KILL));
            // It may not have come to be a group's leader.
            if killed.is_err() {
                self.child.kill()?;
            }
            self.ended = Some(self.child.wait()?);
        }
        Ok(())
    }

    /// What it has printed as errors so far, between these bytes; no more than the last 1 MiB.
    pub fn said(&self, from: u64, to: Option<u64>) -> String {
        let read = || {
            let mut file = &self.said;
            let end = to.unwrap_or(file.metadata()?.len());
            let start = from.max(end.saturating_sub(KEPT));
            file.seek(SeekFrom::Start(start))?;
            let mut bytes = Vec::new();
            file.take(end.saturating_sub(start)).read_to_end(&mut bytes)?;
            io::Result::Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        read().unwrap_or_else(|error| format!("(what it said cannot be read: {error})"))
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        // Nothing is left to be told to.
        let _ = self.stop();
    }
}

impl End {
    fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Stopped,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "ended with status {code}"),
            Self::Signal(number) => {
                let known = SIGNALS.iter().find(|signal| signal.0 == *number);
                match known {
                    Some((_, name, what)) => write!(f, "{name} ({what})"),
                    None => write!(f, "signal {number}"),
                }
            }
            Self::Stopped => f.write_str("stopped: it did not end"),
        }
    }
}

/// The signals that end programs, as `kill -l` names them, and what they mean.
const SIGNALS: &[(i32, &str, &str)] = &[
    (Signal::SEGV.as_raw(), "SIGSEGV", "an address that is not mapped, or not so"),
    (Signal::BUS.as_raw(), "SIGBUS", "a mapping with no memory behind it"),
    (Signal::ABORT.as_raw(), "SIGABRT", "it gave itself up: an assertion, or a GPU's fault"),
    (Signal::ILL.as_raw(), "SIGILL", "an instruction this processor has not"),
    (Signal::FPE.as_raw(), "SIGFPE", "a division by zero"),
    (Signal::TRAP.as_raw(), "SIGTRAP", "a breakpoint"),
    (Signal::SYS.as_raw(), "SIGSYS", "a system call that is forbidden"),
    (Signal::KILL.as_raw(), "SIGKILL", "killed; perhaps memory ran out"),
    (Signal::TERM.as_raw(), "SIGTERM", "it was asked to end"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Contained {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null());
        Contained::start(command).unwrap()
    }

    #[test]
    fn what_it_says_and_how_it_ends_is_known() {
        let mut process = shell("echo one; echo two; echo words >&2; exit 7");
        let limit = Duration::from_secs(10);
        assert_eq!(process.next(limit), Next::Line("one".into()));
        assert_eq!(process.next(limit), Next::Line("two".into()));
        assert_eq!(process.next(limit), Next::Nothing);
        assert_eq!(process.finish().unwrap(), End::Exited(7));
        assert_eq!(process.said(0, None), "words\n");
        assert_eq!(process.said(2, Some(4)), "rd");
    }

    #[test]
    fn a_crash_has_the_name_of_its_signal() {
        let mut process = shell("kill -SEGV $$");
        assert_eq!(process.next(Duration::from_secs(10)), Next::Nothing);
        let end = process.finish().unwrap();
        assert!(end.to_string().starts_with("SIGSEGV"), "{end}");
    }

    #[test]
    fn one_that_hangs_is_late_and_is_stopped_with_all_it_started() {
        let mut process = shell("sleep 1000 & echo $!; wait");
        let Next::Line(sleeper) = process.next(Duration::from_secs(10)) else { panic!("no line") };
        assert_eq!(process.next(Duration::from_millis(20)), Next::Late);
        process.stop().unwrap();
        assert_eq!(process.ended().unwrap(), Some(End::Signal(9)));
        let gone = || match std::fs::read_to_string(format!("/proc/{sleeper}/stat")) {
            // What waits to be collected by init is dead.
            Ok(stat) => stat.contains(") Z "),
            Err(_) => true,
        };
        let mut waits = 0;
        while !gone() {
            waits += 1;
            assert!(waits < 1000, "{sleeper} is still there");
            thread::sleep(Duration::from_millis(5));
        }
    }
}
