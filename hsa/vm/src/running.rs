//! A running QEMU, and the wait for its program.

use crate::accelerator::Accelerator;
use crate::detached::{Connection, DetachedMachine};
use crate::job::{self, Job};
use crate::machine::{Machine, RunError, file_error};
use crate::qemu;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub(crate) const POLLING_INTERVAL: Duration = Duration::from_millis(20);
/// The time limit for booting without KVM. Booting takes 6 s on an idle host, and more than five minutes if eight
/// processes wait for each processor. A kernel that panics ends QEMU at once.
const BOOT_LIMIT: Duration = Duration::from_secs(10 * 60);
/// The time limit for booting with KVM, after which QEMU emulates the processor instead.
const KVM_BOOT_LIMIT: Duration = Duration::from_secs(30);
/// The time limit for a kept machine to start a program, after which another machine is booted.
const REUSE_LIMIT: Duration = Duration::from_secs(60);
/// How long [`RunningMachine::finish`] waits, once a limit is reached, until the output that was received is written. A
/// stream whose reader does not read would otherwise block forever.
const STREAM_LIMIT: Duration = Duration::from_secs(2);

/// The destination of a copy of the program's output or errors.
pub(crate) type Stream = Box<dyn Write + Send>;

/// The limits of a wait. The wait ends at the deadline, or when this process has received a
/// signal.
pub(crate) struct Limits {
    /// The number of the received signal, or 0.
    pub signal: Arc<AtomicUsize>,
    pub deadline: Instant,
}

impl Limits {
    /// Returns the limit that has been reached, if any.
    pub fn reached(&self) -> Option<WaitEnd> {
        match self.signal.load(Ordering::Relaxed) {
            0 => (Instant::now() > self.deadline).then_some(WaitEnd::TimeOut),
            number => Some(WaitEnd::Signal(u8::try_from(number).unwrap_or(0))),
        }
    }
}

/// Why a wait has ended.
#[derive(Debug)]
pub(crate) enum WaitEnd {
    /// The program has ended with this exit status.
    Status(u8),
    /// The kernel has not booted, or the machine has not started the program in time.
    NotBooted,
    /// QEMU has ended before the program.
    QemuEnded,
    /// The deadline has passed.
    TimeOut,
    /// This process has received this signal.
    Signal(u8),
}

/// A QEMU process, and the threads that copy its program's output.
pub(crate) struct RunningMachine {
    qemu: Qemu,
    /// The time limit for the machine to start the program.
    boot_limit: Duration,
    started: Instant,
    copies: [JoinHandle<Stream>; 2],
    /// The numbers of bytes that were copied.
    received: [Arc<AtomicU64>; 2],
    /// Whether the reader of each stream has closed the stream, and the guest does not know this yet.
    closed: [Arc<AtomicBool>; 2],
}

enum Qemu {
    /// A child that ends with this process.
    Child(Child),
    /// A process that may run longer than this process.
    Detached(Connection),
}

impl RunningMachine {
    /// Boots a machine. If `detached` is the folder of a kept machine, the machine outlives this process.
    pub fn boot(
        machine: &Machine,
        job: &Job,
        detached: Option<&DetachedMachine>,
        accelerator: Accelerator,
        streams: [Stream; 2],
    ) -> Result<Self, RunError> {
        job.renew_guest_folder().map_err(file_error(job.folder()))?;
        let boot_limit = match accelerator {
            Accelerator::Kvm => KVM_BOOT_LIMIT,
            Accelerator::Tcg => BOOT_LIMIT,
        };
        let start = |ports: [String; 2]| -> io::Result<Command> {
            let mut command = qemu::command(machine, job, accelerator, ports);
            let errors = File::create(job.qemu_errors())?;
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
            Ok(command)
        };
        if let Some(detached) = detached {
            let connection = detached.boot(start)?;
            return Self::connected(connection, boot_limit, streams);
        }
        let to_error = || file_error(job.folder());
        let ((output, output_end), (errors, errors_end)) =
            (io::pipe().map_err(to_error())?, io::pipe().map_err(to_error())?);
        // QEMU inherits these descriptors, and opens them again by their numbers.
        let ports = [&output_end, &errors_end].map(|end| {
            fcntl_setfd(end, FdFlags::empty())?;
            Ok(format!("file,path=/proc/self/fd/{},append=on", end.as_raw_fd()))
        });
        let [first, second] = ports;
        let ports = [first.map_err(to_error())?, second.map_err(to_error())?];
        let mut command = start(ports).map_err(to_error())?;
        command.process_group(0);
        let parent = rustix::process::getpid();
        // SAFETY: between fork and exec, the closure makes only system calls. It neither allocates memory nor
        // takes a lock.
        unsafe {
            command.pre_exec(move || {
                set_parent_process_death_signal(Some(Signal::KILL))?;
                // The parent may have ended before the call.
                if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
            });
        }
        let qemu = Qemu::Child(command.spawn().map_err(RunError::NoQemu)?);
        Ok(Self::new(qemu, boot_limit, [Box::new(output), Box::new(errors)], streams))
    }

    /// Uses an idle kept machine.
    pub fn reuse(connection: Connection, streams: [Stream; 2]) -> Result<Self, RunError> {
        Self::connected(connection, REUSE_LIMIT, streams)
    }

    fn connected(
        connection: Connection,
        boot_limit: Duration,
        streams: [Stream; 2],
    ) -> Result<Self, RunError> {
        let [output, errors] = connection.readers()?;
        let readers: [Box<dyn Read + Send>; 2] = [Box::new(output), Box::new(errors)];
        Ok(Self::new(Qemu::Detached(connection), boot_limit, readers, streams))
    }

    fn new(
        qemu: Qemu,
        boot_limit: Duration,
        [output, errors]: [Box<dyn Read + Send>; 2],
        [first, second]: [Stream; 2],
    ) -> Self {
        let received = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let closed = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let copies = [
            copy(output, first, &received[0], &closed[0]),
            copy(errors, second, &received[1], &closed[1]),
        ];
        Self { qemu, boot_limit, started: Instant::now(), copies, received, closed }
    }

    /// Waits until the program or the machine has ended, or a limit is reached. Informs the guest when the output was
    /// received, and when the reader of a stream has closed the stream.
    pub fn wait(&mut self, job: &Job, limits: &Limits) -> WaitEnd {
        let mut is_confirmed = false;
        loop {
            if !is_confirmed && self.has_received_all(job) {
                // If writing fails, this loop tries again. The guest stops waiting after a time limit.
                is_confirmed = job.write(job::RECEIVED, "").is_ok();
            }
            for (name, closed) in job::CLOSED.iter().zip(&self.closed) {
                // If writing fails, this loop tries again.
                if closed.load(Ordering::Relaxed) && job.write(name, "").is_ok() {
                    closed.store(false, Ordering::Relaxed);
                }
            }
            if self.has_ended(job) {
                return match job.status() {
                    Some(status) => WaitEnd::Status(status),
                    None if job.has_started() => WaitEnd::QemuEnded,
                    None => WaitEnd::NotBooted,
                };
            }
            if let Some(end) = limits.reached() {
                return end;
            }
            if self.started.elapsed() > self.boot_limit && !job.has_started() {
                return WaitEnd::NotBooted;
            }
            thread::sleep(POLLING_INTERVAL);
        }
    }

    /// Returns how QEMU has ended. Returns `None` if QEMU runs, or is not a child of this process.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        match &mut self.qemu {
            Qemu::Child(child) => child.try_wait().ok().flatten(),
            Qemu::Detached(_) => None,
        }
    }

    /// Returns whether the machine has ended, or, if it is kept, has become idle after the program.
    fn has_ended(&mut self, job: &Job) -> bool {
        match &mut self.qemu {
            Qemu::Child(child) => matches!(child.try_wait(), Ok(Some(_))),
            // The connection ends with QEMU.
            Qemu::Detached(_) => job.has_ended() || self.copies.iter().any(JoinHandle::is_finished),
        }
    }

    /// Returns whether the program has ended and all of its output was received.
    fn has_received_all(&self, job: &Job) -> bool {
        let received = self.received.iter().map(|bytes| bytes.load(Ordering::Relaxed));
        job.written().is_some_and(|written| {
            received.zip(written).all(|(received, written)| received >= written)
        })
    }

    /// Ends QEMU. If the machine is kept, and its program or a signal ended the wait, the machine
    /// becomes idle instead. Returns the streams, or `None` for a stream whose output is not written completely.
    ///
    /// Waits for the threads that copy the output, but once a limit is reached, for at most [`STREAM_LIMIT`].
    pub fn finish(self, end: &WaitEnd, limits: &Limits) -> [Option<Stream>; 2] {
        match self.qemu {
            Qemu::Child(mut child) => {
                // QEMU may have ended already.
                let _ = child.kill();
                let _ = child.wait();
            }
            Qemu::Detached(connection) => {
                let is_reusable = matches!(end, WaitEnd::Status(_) | WaitEnd::Signal(_));
                if !is_reusable {
                    connection.kill();
                }
                // The guest then kills a program that still runs.
                connection.shut_down();
            }
        }
        let mut reached = None;
        self.copies.map(|thread| {
            while !thread.is_finished() {
                if limits.reached().is_some()
                    && reached.get_or_insert_with(Instant::now).elapsed() > STREAM_LIMIT
                {
                    return None;
                }
                thread::sleep(POLLING_INTERVAL);
            }
            thread.join().ok()
        })
    }
}

/// Starts a thread that copies from a pipe or socket to a stream, until QEMU closes its end. Counts the bytes in
/// `received`. Sets `closed` if the stream's reader has closed the stream.
fn copy(
    mut reader: Box<dyn Read + Send>,
    mut stream: Stream,
    received: &Arc<AtomicU64>,
    closed: &Arc<AtomicBool>,
) -> JoinHandle<Stream> {
    let (received, closed) = (Arc::clone(received), Arc::clone(closed));
    thread::spawn(move || {
        let mut buffer = [0; 64 << 10];
        while let Ok(read @ 1..) = reader.read(&mut buffer) {
            // Keep reading after an error: the guest waits until the host has received all of the output.
            let written = stream.write_all(&buffer[..read]).and_then(|()| stream.flush());
            if written.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
                closed.store(true, Ordering::Relaxed);
            }
            received.fetch_add(read as u64, Ordering::Relaxed);
        }
        stream
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    /// A stream whose reader does not read.
    struct BlockedStream(Receiver<()>);

    impl Write for BlockedStream {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn blocked_stream_does_not_outlast_the_limit() {
        let (release, blocked) = channel();
        let reader = || Box::new(&b"text"[..]) as Box<dyn Read + Send>;
        let streams: [Stream; 2] = [Box::new(BlockedStream(blocked)), Box::new(io::sink())];
        let qemu = Qemu::Child(Command::new("true").spawn().unwrap());
        let running = RunningMachine::new(qemu, BOOT_LIMIT, [reader(), reader()], streams);
        let limits = Limits { signal: Arc::default(), deadline: Instant::now() };
        let [output, errors] = running.finish(&WaitEnd::Status(0), &limits);
        assert!(output.is_none() && errors.is_some());
        drop(release);
    }
}
