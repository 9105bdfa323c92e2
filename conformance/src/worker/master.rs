//! The process that started this one, as a worker hears and tells it.

use super::WORKS_FOR;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::env;
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

/// A process that was not started as a worker, or has lost who started it.
#[derive(Debug, thiserror::Error)]
#[error("this is for workers, which hsa-vmm starts by itself")]
pub struct NotAWorker(#[from] io::Error);

/// What this process is told to do.
#[derive(Debug)]
pub struct Orders(BufReader<UnixStream>);

/// What this process says of it. Several threads may.
#[derive(Debug)]
pub struct Answers(Mutex<UnixStream>);

/// To be called first in a process that [`Worker::start`](super::Worker::start) started: from now
/// on it dies with the *thread* that started it, and has nothing as its standard input.
///
/// # Errors
/// [`NotAWorker`] if nobody has started this process as a worker, or went away.
pub fn begin() -> Result<(Orders, Answers), NotAWorker> {
    let (parent, _) = master()?;
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)?;
    // It may have gone before that.
    if getppid().map(Pid::as_raw_pid) != Some(parent) {
        return Err(io::Error::new(io::ErrorKind::NotFound, "who started it is gone").into());
    }
    let socket = take_socket()?;
    Ok((Orders(BufReader::new(socket.try_clone()?)), Answers(Mutex::new(socket))))
}

/// Who started this process, and the number of the page there.
pub(super) fn master() -> io::Result<(i32, i32)> {
    let told = env::var(WORKS_FOR).unwrap_or_default();
    let numbers = told.split_once(':');
    let numbers = numbers.and_then(|(one, other)| Some((one.parse().ok()?, other.parse().ok()?)));
    numbers.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "nobody has started it"))
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

impl Orders {
    /// Waits for the next order. `None` if there will be none any more: who gave them wants no
    /// more, or is gone.
    ///
    /// # Errors
    /// What the system answers; [`io::ErrorKind::InvalidData`] for a line that is no such order.
    pub fn hear<O: DeserializeOwned>(&mut self) -> io::Result<Option<O>> {
        let mut line = String::new();
        match self.0.read_line(&mut line)? {
            0 => Ok(None),
            _ => Ok(Some(serde_json::from_str(&line)?)),
        }
    }
}

/// The socket: also descriptors may come through it, where no orders do.
impl AsFd for Orders {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

impl Answers {
    /// Tells something, in a line that does not mix with another thread's.
    ///
    /// # Errors
    /// What the system answers, such as [`io::ErrorKind::BrokenPipe`] if nobody listens any more.
    pub fn tell(&self, answer: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(answer)?;
        line.push(b'\n');
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)
    }
}
