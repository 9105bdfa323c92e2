//! The process that has the runtime.

use super::protocol::{Answer, Order};
use crate::attempt::attempt;
use crate::describe::describe_with;
use crate::{Options, cases};
use hsa_vmm::Runtime;
use hsa_vmm::vmm::Quirks;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// Why there is no runtime to work with.
#[derive(Clone, Debug)]
pub struct NotOpened {
    /// What to tell.
    pub error: String,
    /// Whether the runtime is to blame, and not what was asked for.
    pub no_runtime: bool,
}

/// A process that was not started as a worker, or has lost who started it.
#[derive(Debug, thiserror::Error)]
#[error("this is for workers, which `hsa-vmm conform` starts by itself")]
pub struct NotAWorker(#[from] io::Error);

/// The parent and its page.
pub(super) fn parse(token: &str) -> io::Result<(i32, i32)> {
    let numbers = token.split_once(':');
    let numbers = numbers.and_then(|(one, other)| Some((one.parse().ok()?, other.parse().ok()?)));
    numbers.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no token of a worker"))
}

/// Works for the process that has started this one: opens the runtime, says so, and puts to it what
/// it is told to, until that process asks for an end or is gone.
///
/// `open` gives the runtime and what a person should know of it. Of the options, only those about
/// a single case matter here.
///
/// # Errors
/// [`NotAWorker`] if no one has started this process with this token, or went away.
pub fn serve(
    token: &str,
    open: impl FnOnce() -> Result<(Runtime, String), NotOpened>,
    options: &Options,
) -> Result<(), NotAWorker> {
    let (parent, _) = parse(token)?;
    let stay = set_parent_process_death_signal(Some(Signal::KILL));
    stay.map_err(io::Error::from)?;
    // It may have gone before that.
    if getppid().map(Pid::as_raw_pid) != Some(parent) {
        return Err(io::Error::new(io::ErrorKind::NotFound, "who started it is gone").into());
    }
    let socket = take_socket()?;
    let mut line = Lines { to: socket.try_clone()?, from: BufReader::new(socket) };
    let runtime = match open() {
        Ok((runtime, note)) => {
            let known = || Quirks::of_extension(runtime.info().extension);
            let description = describe_with(&runtime, options.quirks.unwrap_or_else(known));
            line.answer(&Answer::Started { note, runtime: Box::new(description) })?;
            runtime
        }
        Err(NotOpened { error, no_runtime }) => {
            return Ok(line.answer(&Answer::NotStarted { error, no_runtime })?);
        }
    };
    let cases = cases();
    while let Some(Order::Run(name)) = line.order()? {
        let Some(case) = cases.iter().find(|case| case.name == name) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no case has that name").into());
        };
        line.answer(&Answer::Ended(attempt(&runtime, options, case)))?;
    }
    drop(runtime);
    Ok(line.answer(&Answer::Stopped)?)
}

/// Takes the socket that is the standard input, so that the runtime does not have it there.
fn take_socket() -> io::Result<UnixStream> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // Anything else is not a socket with a peer.
    socket.peer_addr()?;
    let nothing = OpenOptions::new().read(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    Ok(socket)
}

struct Lines {
    from: BufReader<UnixStream>,
    to: UnixStream,
}

impl Lines {
    fn answer(&mut self, answer: &Answer) -> io::Result<()> {
        let mut line = serde_json::to_vec(answer)?;
        line.push(b'\n');
        self.to.write_all(&line)
    }

    /// The next order; `None` if who gave them is gone.
    fn order(&mut self) -> io::Result<Option<Order>> {
        let mut line = String::new();
        match self.from.read_line(&mut line)? {
            0 => Ok(None),
            _ => Ok(Some(serde_json::from_str(&line)?)),
        }
    }
}
