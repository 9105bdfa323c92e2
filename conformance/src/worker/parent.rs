//! The connection to the parent, in the worker: receives requests and sends messages.

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

/// The error of a process that was not started as a worker, or whose connection to the parent failed.
#[derive(Debug, thiserror::Error)]
#[error("only hsa-vmm can start worker processes")]
pub struct NotAWorker(#[from] io::Error);

/// Receives requests from the parent.
#[derive(Debug)]
pub struct Requests(BufReader<UnixStream>);

/// Sends messages to the parent. Several threads can send at the same time.
#[derive(Debug)]
pub struct Messages(Mutex<UnixStream>);

/// Connects to the parent. A process that [`Worker::start`](super::Worker::start) started must call this function
/// first. Afterwards, the worker's standard input is `/dev/null`. The kernel kills the worker when the *thread* that
/// started the worker exits.
///
/// # Errors
/// [`NotAWorker`] if this process was not started as a worker, or its parent has exited.
pub fn connect_to_parent() -> Result<(Requests, Messages), NotAWorker> {
    let (parent, _) = parent_ids()?;
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)?;
    // The parent may have exited before the signal was set.
    if getppid().map(Pid::as_raw_pid) != Some(parent) {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the parent process has exited").into());
    }
    let socket = take_socket()?;
    Ok((Requests(BufReader::new(socket.try_clone()?)), Messages(Mutex::new(socket))))
}

/// Returns the parent's process ID, and the number of the parent's descriptor of the [`LastCall`] page.
///
/// [`LastCall`]: super::LastCall
pub(super) fn parent_ids() -> io::Result<(i32, i32)> {
    let value = env::var(WORKS_FOR).unwrap_or_default();
    let numbers = value.split_once(':');
    let numbers = numbers.and_then(|(pid, fd)| Some((pid.parse().ok()?, fd.parse().ok()?)));
    numbers.ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, "this process was not started by hsa-vmm")
    })
}

/// Takes the socket from standard input, and replaces standard input by `/dev/null`, so that the runtime cannot read
/// from the socket.
fn take_socket() -> io::Result<UnixStream> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // This call fails if standard input is not a connected socket.
    socket.peer_addr()?;
    let null = OpenOptions::new().read(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(socket)
}

impl Requests {
    /// Waits for the next request. Returns `None` if the parent sends no more requests or has exited.
    ///
    /// # Errors
    /// Returns the error of the system, or [`io::ErrorKind::InvalidData`] for an invalid request.
    pub fn receive<R: DeserializeOwned>(&mut self) -> io::Result<Option<R>> {
        let mut line = String::new();
        match self.0.read_line(&mut line)? {
            0 => Ok(None),
            _ => Ok(Some(serde_json::from_str(&line)?)),
        }
    }
}

/// Returns the socket. Descriptors can be received through the socket, too.
impl AsFd for Requests {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

impl Messages {
    /// Sends a message. Messages of several threads do not mix.
    ///
    /// # Errors
    /// Returns the error of the system, such as [`io::ErrorKind::BrokenPipe`] if the parent has exited.
    pub fn send(&self, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)
    }
}
