//! The parent's side: starts, watches and kills a worker process.

use super::{End, LastCall, WORKS_FOR};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{RecvFlags, recv};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The maximum length of a line. A drawing of an address space takes about ten thousand bytes.
const MAX_LINE: usize = 64 << 20;
/// The number of bytes of an invalid line that are reported.
const SHOWN_BYTES: usize = 80;
/// The maximum size of the captured output, so that hours of output do not fill the memory.
const MAX_OUTPUT: u64 = 64 << 20;
/// The interval of checks whether the worker has exited. The socket does not report the exit while
/// another process holds the socket.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The interval of these checks after the worker has closed the socket, when the worker will exit soon.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The time within which a worker must end after SIGKILL ([`Worker::kill`]).
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// A worker process. Dropping a `Worker` kills the worker's process group.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    /// The ID of the process and of its process group.
    pid: Option<Pid>,
    socket: UnixStream,
    last_call: LastCall,
    output: Option<File>,
    /// The number of bytes of the output that [`Worker::new_output`] has returned.
    output_read: u64,
    /// Bytes that were read from the socket and not returned as lines yet.
    buffer: Vec<u8>,
    /// Whether the socket is closed, so that no more messages arrive.
    closed: bool,
    ended: Option<End>,
    is_unkillable: bool,
}

/// The destination of the output of a worker and its runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// To this process's standard error.
    Inherit,
    /// To memory: see [`Worker::captured_output`].
    Capture,
}

/// The result of [`Worker::receive`].
#[derive(Debug, PartialEq, Eq)]
pub enum Received<A> {
    /// A message from the worker.
    Message(A),
    /// The beginning of a line that is not a valid message.
    Invalid(String),
    /// Nothing arrived within the time limit.
    Timeout,
    /// All messages were received, and the worker has exited.
    Exited(End),
}

impl Worker {
    /// Starts a worker. Replaces the command's standard input, output and error.
    ///
    /// # Errors
    /// Returns the error of the system.
    pub fn start(mut command: Command, output: Output) -> io::Result<Self> {
        let last_call = LastCall::new()?;
        let (socket, worker_socket) = UnixStream::pair()?;
        let mut captured = None;
        let stdout = match output {
            Output::Inherit => io::stderr().as_fd().try_clone_to_owned().ok(),
            Output::Capture => {
                let file = memfd_create("hsa-vmm output", MemfdFlags::CLOEXEC)?;
                let file = captured.insert(File::from(file));
                // In append mode, several processes do not overwrite each other's output.
                let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
                Some(File::options().append(true).open(path)?.into())
            }
        };
        let stderr = stdout.as_ref().map(OwnedFd::try_clone).transpose()?;
        let stdio = |fd: Option<OwnedFd>| fd.map_or_else(Stdio::null, Stdio::from);
        command.env(WORKS_FOR, format!("{}:{}", std::process::id(), last_call.descriptor_number()));
        command.stdin(OwnedFd::from(worker_socket)).stdout(stdio(stdout)).stderr(stdio(stderr));
        let child = command.process_group(0).spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        Ok(Self {
            child,
            pid,
            socket,
            last_call,
            output: captured,
            output_read: 0,
            buffer: Vec::new(),
            closed: false,
            ended: None,
            is_unkillable: false,
        })
    }

    /// Sends a request. If the worker has exited, [`receive`](Self::receive) reports the exit.
    pub fn send(&mut self, request: &impl Serialize) {
        let mut line = serde_json::to_vec(request).unwrap_or_default();
        line.push(b'\n');
        let _ = self.socket.write_all(&line);
    }

    /// Closes the requests, so that the worker reads the end of its input.
    pub fn close_requests(&self) {
        // The call fails only if the worker has exited.
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Waits up to `limit` for the next message. Returns a message that has arrived even after the limit, because this
    /// process may have been paused (SIGSTOP) while it waited.
    pub fn receive<A: DeserializeOwned>(&mut self, limit: Duration) -> Received<A> {
        let begun = Instant::now();
        loop {
            if let Some(line) = self.take_line() {
                return serde_json::from_slice(&line)
                    .map_or_else(|_| invalid_message(&line), Received::Message);
            }
            let remaining = limit.saturating_sub(begun.elapsed());
            if self.closed {
                return self.wait(remaining).map_or(Received::Timeout, Received::Exited);
            }
            if self.read(remaining.min(POLL_INTERVAL)) {
                continue;
            }
            if self.try_reap() {
                // Messages may still be unread if another process holds the socket open.
                self.closed |= !self.read(Duration::ZERO);
            } else if remaining.is_zero() {
                return Received::Timeout;
            }
        }
    }

    /// Returns the last native call that the worker has noted.
    pub fn last_call(&self) -> Option<String> {
        self.last_call.read()
    }

    /// Returns the captured output. Only the end of a very long output is available.
    pub fn captured_output(&self) -> String {
        let read = || {
            let Some(mut file) = self.output.as_ref() else { return Ok(String::new()) };
            file.seek(SeekFrom::Start(0))?;
            let mut bytes = Vec::new();
            file.take(2 * MAX_OUTPUT).read_to_end(&mut bytes)?;
            io::Result::Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        read().unwrap_or_else(|error| format!("(cannot read the captured output: {error})"))
    }

    /// Returns the output that was captured since the last call of this function.
    pub fn new_output(&mut self) -> String {
        let Some(file) = &self.output else { return String::new() };
        match read_from(file, self.output_read) {
            Ok((end, bytes)) => {
                self.output_read = end;
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Err(error) => format!("(cannot read the captured output: {error})"),
        }
    }

    /// Kills the worker's process group. Messages that the worker sent before can still be received. If a driver keeps
    /// the worker in the kernel, returns after 10 s.
    pub fn kill(&mut self) {
        if self.try_reap() {
            return;
        }
        self.kill_group();
        let _ = self.child.kill();
        self.is_unkillable = self.wait(KILL_LIMIT).is_none();
        self.ended = Some(End::Killed);
    }

    /// Returns the worker's process ID if [`kill`](Self::kill) did not end the worker, because it waits in the kernel.
    pub fn unkillable_process(&self) -> Option<u32> {
        self.is_unkillable.then(|| self.child.id())
    }

    /// Takes the next line, if a complete line has been read.
    fn take_line(&mut self) -> Option<Vec<u8>> {
        let end = self.buffer.iter().position(|&byte| byte == b'\n');
        let too_long = self.buffer.len().checked_sub(MAX_LINE).map(|_| self.buffer.len() - 1);
        end.or(too_long).map(|end| self.buffer.drain(..=end).collect())
    }

    /// Waits up to `wait` and reads from the socket. Returns whether there was data or end of file. Discards captured
    /// output that is too long.
    fn read(&mut self, wait: Duration) -> bool {
        wait_for(&mut [PollFd::new(&self.socket, PollFlags::IN)], wait);
        if let Some(output) = &self.output
            && output.metadata().is_ok_and(|it| it.len() > MAX_OUTPUT)
        {
            let _ = output.set_len(0);
        }
        let mut bytes = [0; 1 << 14];
        match recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((count, _)) if count > 0 => self.buffer.extend_from_slice(&bytes[..count]),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return false,
            // The worker has closed the socket, so the worker has exited or will exit soon.
            Ok(_) | Err(_) => self.closed = true,
        }
        true
    }

    /// Waits up to `limit` for the worker's exit.
    fn wait(&mut self, limit: Duration) -> Option<End> {
        let begun = Instant::now();
        while !self.try_reap() {
            if begun.elapsed() >= limit {
                return None;
            }
            std::thread::sleep(EXIT_POLL_INTERVAL.min(limit));
        }
        self.ended
    }

    /// If the worker has exited, reaps it and kills the rest of its process group. Returns whether the worker has
    /// exited.
    fn try_reap(&mut self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let ended = |pid| matches!(waitid(WaitId::Pid(pid), options), Ok(Some(_)));
        if self.ended.is_none() && self.pid.is_some_and(ended) {
            // The kernel does not reuse the ID of the process group before the call of `wait`.
            self.kill_group();
            self.ended = Some(self.child.wait().map_or(End::Killed, End::of));
        }
        self.ended.is_some()
    }

    fn kill_group(&self) {
        if let Some(group) = self.pid {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the socket. Descriptors can be sent through the socket, too.
impl AsFd for Worker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Waits up to `limit` until one of several workers sends a message or exits. May return early.
pub fn wait_for_any<'a>(workers: impl IntoIterator<Item = &'a Worker>, limit: Duration) {
    let (mut sockets, mut limit) = (Vec::new(), limit);
    for worker in workers {
        match worker.closed {
            // `poll` does not report the exit of this worker.
            true => limit = limit.min(EXIT_POLL_INTERVAL),
            false => sockets.push(PollFd::new(&worker.socket, PollFlags::IN)),
        }
    }
    wait_for(&mut sockets, limit);
}

fn wait_for(sockets: &mut [PollFd<'_>], limit: Duration) {
    let limit = Timespec::try_from(limit).ok();
    // Ignore the result: the caller checks each worker.
    let _ = poll(sockets, limit.as_ref());
}

/// Reads captured output from an offset on. Returns the offset of the end of the output, and the output.
fn read_from(mut file: &File, offset: u64) -> io::Result<(u64, Vec<u8>)> {
    // If the file is shorter than `offset`, `Worker::read` has truncated the file, so the whole content is new.
    let offset = if file.metadata()?.len() < offset { 0 } else { offset };
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(2 * MAX_OUTPUT).read_to_end(&mut bytes)?;
    Ok((offset + bytes.len() as u64, bytes))
}

fn invalid_message<A>(line: &[u8]) -> Received<A> {
    let shown = line.get(..SHOWN_BYTES).unwrap_or(line);
    Received::Invalid(String::from_utf8_lossy(shown).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const LONG: Duration = Duration::from_secs(10);

    fn shell(script: &str) -> Worker {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Worker::start(command, Output::Capture).unwrap()
    }

    fn next(worker: &mut Worker) -> Received<u32> {
        worker.receive(LONG)
    }

    #[test]
    fn receive_returns_messages_and_exit() {
        let mut worker = shell("read x; echo words >&2; echo 1 >&0; echo $x >&0; echo no; exit 7");
        assert_eq!(worker.receive::<u32>(Duration::ZERO), Received::Timeout);
        worker.send(&5);
        assert_eq!(next(&mut worker), Received::Message(1));
        assert_eq!(next(&mut worker), Received::Message(5));
        assert_eq!(next(&mut worker), Received::Exited(End::Exited(7)));
        assert_eq!(next(&mut worker), Received::Exited(End::Exited(7)));
        assert_eq!(worker.captured_output(), "words\nno\n");
        assert_eq!(worker.new_output(), "words\nno\n");
        assert_eq!(worker.new_output(), "");
        worker.send(&5);
    }

    #[test]
    fn receive_continues_after_invalid_line() {
        let mut worker = shell("echo nonsense >&0; echo 3 >&0; printf half >&0; kill -SEGV $$");
        assert_eq!(next(&mut worker), Received::Invalid("nonsense".into()));
        assert_eq!(next(&mut worker), Received::Message(3));
        let Received::Exited(end) = next(&mut worker) else { panic!("the worker did not exit") };
        assert!(end.to_string().starts_with("SIGSEGV ("), "{end}");
    }

    #[test]
    fn close_requests_ends_the_workers_input() {
        let mut worker = shell("read x || echo 9 >&0");
        worker.close_requests();
        assert_eq!(next(&mut worker), Received::Message(9));
    }

    #[test]
    fn kill_ends_a_hung_worker_and_its_children() {
        let mut worker = shell("sleep 1000 & echo $! >&0; echo 8 >&0; wait");
        let Received::Message(sleeper) = next(&mut worker) else { panic!("no line") };
        assert_eq!(next(&mut worker), Received::Message(8));
        assert_eq!(worker.receive::<u32>(Duration::from_millis(20)), Received::Timeout);
        worker.kill();
        assert_eq!(next(&mut worker), Received::Exited(End::Killed));
        assert_gone(sleeper);
    }

    #[test]
    fn exit_kills_children_of_the_worker() {
        // The child holds the socket, too.
        let mut worker = shell("exec 3<&0; sleep 1000 & echo $! >&0; exit 0");
        let Received::Message(sleeper) = next(&mut worker) else { panic!("no line") };
        assert_eq!(next(&mut worker), Received::Exited(End::Exited(0)));
        assert_gone(sleeper);
    }

    #[test]
    fn receive_reports_exit_while_socket_is_held() {
        // The child has its own process group, so it outlives the worker.
        let mut worker = shell("exec 3<&0; setsid sleep 10 & echo 4 >&0; exit 0");
        let begun = Instant::now();
        assert_eq!(next(&mut worker), Received::Message(4));
        assert_eq!(next(&mut worker), Received::Exited(End::Exited(0)));
        assert!(begun.elapsed() < LONG / 2);
    }

    #[test]
    fn wait_for_any_reports_each_worker() {
        let mut workers = [shell("read x; echo 1 >&0"), shell("exec <&-; sleep 0.05")];
        let begun = Instant::now();
        while workers[1].receive::<u32>(Duration::ZERO) == Received::Timeout {
            wait_for_any(&workers, LONG);
            assert!(begun.elapsed() < LONG, "the exit of a worker was not reported");
        }
        workers[0].send(&0);
        let mut received = Received::Timeout;
        while received == Received::Timeout && begun.elapsed() < LONG {
            wait_for_any(&workers, LONG);
            received = workers[0].receive(Duration::ZERO);
        }
        assert_eq!(received, Received::Message(1));
    }

    fn assert_gone(process: u32) {
        let is_gone = || match std::fs::read_to_string(format!("/proc/{process}/stat")) {
            // A zombie has exited.
            Ok(stat) => stat.contains(") Z "),
            Err(_) => true,
        };
        let mut waits = 0;
        while !is_gone() {
            waits += 1;
            assert!(waits < 1000, "process {process} still exists");
            thread::sleep(Duration::from_millis(5));
        }
    }
}
