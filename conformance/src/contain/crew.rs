//! The worker, as the process that started it sees it.

use super::LastCall;
use super::protocol::{Answer, Order};
use crate::attempt::{Ended, Lost};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a line may be; a picture of an address space is some ten thousand bytes.
const LONGEST: usize = 64 << 20;
/// How much of what makes no sense is shown.
const SHOWN: usize = 80;
/// How often it is looked whether the worker still lives, if its end is not heard because others
/// hold the socket.
const LOOK: Duration = Duration::from_millis(100);

/// A worker. Dropped, it is killed with all that it has started.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    /// Of the process, and of its group.
    pid: Option<Pid>,
    socket: UnixStream,
    last_call: LastCall,
    /// What was read and is no whole line yet.
    rest: Vec<u8>,
    ended: Option<ExitStatus>,
}

impl Worker {
    /// Starts one.
    pub fn start(command: &mut dyn FnMut(&str) -> io::Result<Command>) -> io::Result<Self> {
        let last_call = LastCall::blank()?;
        let (socket, theirs) = UnixStream::pair()?;
        let token = format!("{}:{}", std::process::id(), last_call.number());
        let printed = match io::stderr().as_fd().try_clone_to_owned() {
            Ok(to) => Stdio::from(to),
            Err(_) => Stdio::null(),
        };
        let mut command = command(&token)?;
        command.stdin(OwnedFd::from(theirs)).stdout(printed).process_group(0);
        let child = command.spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        Ok(Self { child, pid, socket, last_call, rest: Vec::new(), ended: None })
    }

    /// Tells it something, and waits for the answer.
    pub fn ask(&mut self, order: &Order, limit: Duration) -> Result<Answer, Lost> {
        let mut line = serde_json::to_vec(order).unwrap_or_default();
        line.push(b'\n');
        // Who does not hear it any more is found out by the answer.
        let _ = self.socket.write_all(&line);
        self.answer(limit)
    }

    /// Waits for an answer. Without one, the worker is gone, and it is said how.
    pub fn answer(&mut self, limit: Duration) -> Result<Answer, Lost> {
        let begun = Instant::now();
        loop {
            if let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(|_| self.is_garbage(&line));
            }
            if self.rest.len() > LONGEST {
                let line = std::mem::take(&mut self.rest);
                return Err(self.is_garbage(&line));
            }
            let left = limit.saturating_sub(begun.elapsed());
            // Zero would be for ever.
            let wait = left.min(LOOK).max(Duration::from_millis(1));
            let mut bytes = [0; 1 << 14];
            let read = self.socket.set_read_timeout(Some(wait));
            match read.and_then(|()| self.socket.read(&mut bytes)) {
                // An answer is taken however late it is: this process may have been stopped.
                Ok(count) if count > 0 => self.rest.extend_from_slice(&bytes[..count]),
                Err(error) if is_passing(&error) && left > Duration::ZERO => {
                    if let Some(status) = self.reap() {
                        // What it said before it ended is still to be read, if others hold the
                        // socket open.
                        if self.rest.is_empty() && !self.has_more() {
                            return Err(self.lost(status));
                        }
                    }
                }
                Err(error) if is_passing(&error) => return Err(self.is_late(limit)),
                // It has closed the socket, which is its end, or will be.
                Ok(_) | Err(_) => {
                    return Err(match self.wait(limit.saturating_sub(begun.elapsed())) {
                        Some(status) => self.lost(status),
                        None => self.is_late(limit),
                    });
                }
            }
        }
    }

    /// Waits until it has ended well.
    pub fn end(&mut self, limit: Duration) -> Result<(), Lost> {
        match self.wait(limit) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(self.lost(status)),
            None => Err(self.is_late(limit)),
        }
    }

    /// Whether something is there to be read at once.
    fn has_more(&mut self) -> bool {
        let mut bytes = [0; 1 << 14];
        if self.socket.set_nonblocking(true).is_err() {
            return false;
        }
        let count = self.socket.read(&mut bytes).unwrap_or(0);
        self.rest.extend_from_slice(&bytes[..count]);
        self.socket.set_nonblocking(false).is_ok() && count > 0
    }

    /// How it ended, if it did in this time.
    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let begun = Instant::now();
        let mut pause = Duration::from_micros(100);
        loop {
            let ended = self.reap();
            if ended.is_some() || begun.elapsed() >= limit {
                return ended;
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(Duration::from_millis(10));
        }
    }

    fn lost(&self, status: ExitStatus) -> Lost {
        let how = match status.signal() {
            Some(signal) => Ended::Signal(name(signal)),
            None => Ended::Exit(status.code().unwrap_or_default()),
        };
        Lost { how, last_call: self.last_call.read() }
    }

    fn is_late(&mut self, limit: Duration) -> Lost {
        let last_call = self.last_call.read();
        self.kill();
        let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        Lost { how: Ended::TimeLimit(limit), last_call }
    }

    fn is_garbage(&mut self, line: &[u8]) -> Lost {
        let last_call = self.last_call.read();
        self.kill();
        let text = String::from_utf8_lossy(line.get(..SHOWN).unwrap_or(line)).trim().to_owned();
        Lost { how: Ended::Garbage(text), last_call }
    }

    /// How it ended, if it has. What it has started ends with it.
    fn reap(&mut self) -> Option<ExitStatus> {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if self.ended.is_none() && matches!(waitid(WaitId::Pid(self.pid?), look), Ok(Some(_))) {
            self.kill();
        }
        self.ended
    }

    /// Ends it and what it has started.
    fn kill(&mut self) {
        if self.ended.is_some() {
            return;
        }
        if let Some(group) = self.pid {
            // As long as it is not waited for, its number is nobody else's.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.kill();
        self.ended = self.child.wait().ok();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Nothing yet.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

/// A signal's name, as `SIGSEGV`.
fn name(signal: i32) -> String {
    let named = [
        (Signal::SEGV, "SIGSEGV"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::ILL, "SIGILL"),
        (Signal::FPE, "SIGFPE"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::SYS, "SIGSYS"),
        (Signal::TERM, "SIGTERM"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::XFSZ, "SIGXFSZ"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::KILL, "SIGKILL, not from here; the kernel ends processes when memory is short"),
    ];
    let found = named.iter().find(|(known, _)| known.as_raw() == signal);
    found.map_or_else(|| format!("signal {signal}"), |(_, name)| (*name).to_owned())
}
