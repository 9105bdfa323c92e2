//! A virtual machine that runs one program.

use crate::accelerator::Accelerator;
use crate::job::{self, Job};
use crate::qemu;
use crate::{EngineFaults, Kernel};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The polling interval.
const PAUSE: Duration = Duration::from_millis(20);
/// The time limit for booting. Without KVM, booting takes 16 s on an idle machine, and more than five minutes if eight
/// processes wait for each processor. A kernel that panics ends QEMU at once.
const BOOT_LIMIT: Duration = Duration::from_secs(10 * 60);
/// The time limit for booting with KVM, after which QEMU emulates the processor instead.
const KVM_BOOT_LIMIT: Duration = Duration::from_secs(30);
/// A shell reports this number plus the signal's number as the exit status of a killed program.
const SIGNAL_BASE: u8 = 128;

/// The configuration of a virtual machine.
#[derive(Clone, Debug)]
pub struct Machine {
    pub(crate) kernel: Kernel,
    pub(crate) gpus: u8,
    pub(crate) vram_mib: u64,
    pub(crate) memory_mib: u64,
    pub(crate) processors: u8,
    pub(crate) parameters: Vec<String>,
    pub(crate) results: Option<PathBuf>,
    time_limit: Duration,
    stub: Option<String>,
    faults: Option<EngineFaults>,
    coverage: Option<PathBuf>,
    dmesg: Option<PathBuf>,
    log: Option<PathBuf>,
    page_tables: Option<PathBuf>,
}

/// The outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The program's exit status; after a signal, 128 and the signal's number.
    pub status: u8,
}

/// Why a program could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// QEMU is missing.
    #[error(
        "cannot start {program}: {0}; as root, run `apt-get install --no-install-recommends {package}`",
        program = qemu::PROGRAM, package = qemu::PACKAGE
    )]
    NoQemu(io::Error),
    /// A file of the run could not be written.
    #[error("cannot prepare the virtual machine: {path}: {cause}", path = path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The virtual machine did not boot, or ended before the program.
    #[error("the virtual machine ended before the program ({accelerator}){}", log_suffix(log))]
    Lost {
        /// QEMU's accelerator.
        accelerator: String,
        /// The last lines of QEMU's output and of the kernel's log.
        log: String,
    },
    /// The time limit has expired.
    #[error(
        "the program did not end within {limit:?} and was killed with its virtual machine; see --time-limit{}",
        log_suffix(log)
    )]
    TimeOut {
        /// The time limit.
        limit: Duration,
        /// The last lines of QEMU's output and of the kernel's log, such as reports of tasks that hang.
        log: String,
    },
}

fn log_suffix(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!(":\n{log}") }
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> RunError + use<> {
    let path = path.to_owned();
    move |cause| RunError::File { path, cause }
}

impl Machine {
    /// Returns a machine with two GPUs of 1 GiB.
    #[must_use]
    pub fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            gpus: 2,
            vram_mib: 1024,
            memory_mib: 4096,
            processors: 2,
            parameters: Vec::new(),
            results: None,
            time_limit: Duration::from_secs(30 * 60),
            stub: None,
            faults: None,
            coverage: None,
            dmesg: None,
            log: None,
            page_tables: None,
        }
    }

    /// Sets the number of GPUs, one to eight.
    #[must_use]
    pub fn gpus(mut self, number: u8) -> Self {
        self.gpus = number;
        self
    }

    /// Sets the memory of each GPU in MiB, a power of two.
    #[must_use]
    pub fn vram_mib(mut self, size: u64) -> Self {
        self.vram_mib = size;
        self
    }

    /// Sets the machine's own memory in MiB.
    #[must_use]
    pub fn memory_mib(mut self, size: u64) -> Self {
        self.memory_mib = size;
        self
    }

    /// Adds a word of the kernel's command line, such as `amdgpu.vm_update_mode=0`.
    #[must_use]
    pub fn parameter(mut self, word: impl Into<String>) -> Self {
        self.parameters.push(word.into());
        self
    }

    /// Sets a folder that the program can write to, under the same path.
    #[must_use]
    pub fn results(mut self, folder: impl Into<PathBuf>) -> Self {
        self.results = Some(folder.into());
        self
    }

    /// Sets the time after which the machine is killed.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Makes a function of amdgpu.ko do nothing while the program runs.
    #[must_use]
    pub fn stub(mut self, function: impl Into<String>) -> Self {
        self.stub = Some(function.into());
        self
    }

    /// Plans faults of the GPUs' engines while the program runs.
    #[must_use]
    pub fn faults(mut self, plan: EngineFaults) -> Self {
        self.faults = Some(plan);
        self
    }

    /// Writes the functions of amdgpu.ko that ran, with their numbers of calls, to a file.
    #[must_use]
    pub fn coverage(mut self, file: impl Into<PathBuf>) -> Self {
        self.coverage = Some(file.into());
        self
    }

    /// Writes the kernel's log to a file.
    #[must_use]
    pub fn dmesg(mut self, file: impl Into<PathBuf>) -> Self {
        self.dmesg = Some(file.into());
        self
    }

    /// Copies what the program writes to [`Self::GUEST_LOG`] to a file.
    #[must_use]
    pub fn log(mut self, file: impl Into<PathBuf>) -> Self {
        self.log = Some(file.into());
        self
    }

    /// Copies what the program writes to [`Self::GUEST_PAGE_TABLES`] to a file.
    #[must_use]
    pub fn page_tables(mut self, file: impl Into<PathBuf>) -> Self {
        self.page_tables = Some(file.into());
        self
    }

    /// The path of the log in the machine.
    pub const GUEST_LOG: &str = "/run/hsa-vmm/log";
    /// The path of the page tables in the machine.
    pub const GUEST_PAGE_TABLES: &str = "/run/hsa-vmm/page_tables";

    /// Runs a command in the machine. Copies its standard output to `output` and its standard error to `errors`.
    ///
    /// SIGINT, SIGTERM and SIGHUP end the machine. If this process is killed, the kernel kills QEMU.
    ///
    /// # Errors
    /// QEMU is missing, or the machine ends or is killed before the program has ended.
    pub fn run(
        &self,
        command: &Command,
        output: impl Write + Send + 'static,
        errors: impl Write + Send + 'static,
    ) -> Result<Outcome, RunError> {
        let job =
            Job::new(command, self.results.as_deref()).map_err(file_error(Path::new("job")))?;
        if let Some(function) = &self.stub {
            job.write(job::STUB, function).map_err(file_error(job.folder()))?;
        }
        if let Some(plan) = &self.faults {
            job.write(job::FAULTS, plan.text()).map_err(file_error(job.folder()))?;
        }
        for (name, file) in [
            (job::COVERAGE, &self.coverage),
            (job::LOG, &self.log),
            (job::PAGE_TABLES, &self.page_tables),
        ] {
            if file.is_some() {
                job.write(name, "").map_err(file_error(job.folder()))?;
            }
        }
        let signal = Arc::new(AtomicUsize::new(0));
        for (number, value) in [(SIGINT, 2), (SIGTERM, 15), (SIGHUP, 1)] {
            signal_hook::flag::register_usize(number, Arc::clone(&signal), value)
                .map_err(file_error(job.folder()))?;
        }
        let started = Instant::now();
        let mut streams: [Box<dyn Write + Send>; 2] = [Box::new(output), Box::new(errors)];
        let mut candidates = Accelerator::candidates().into_iter().peekable();
        while let Some(accelerator) = candidates.next() {
            let mut running = RunningMachine::start(self, &job, accelerator, streams)?;
            let end = running.wait(&job, &signal, started + self.time_limit);
            let (returned, errors) = running.finish();
            streams = returned;
            match end {
                End::NotBooted if candidates.peek().is_some() => {}
                End::NotBooted | End::Lost => {
                    let log = console_log(&job, &errors);
                    return Err(RunError::Lost { accelerator: accelerator.to_string(), log });
                }
                End::TimeOut => {
                    let log = console_log(&job, &errors);
                    return Err(RunError::TimeOut { limit: self.time_limit, log });
                }
                End::Signal(number) => return Ok(Outcome { status: SIGNAL_BASE + number }),
                End::Status(status) => {
                    self.copy_files(&job)?;
                    return Ok(Outcome { status });
                }
            }
        }
        Err(RunError::Lost { accelerator: "no accelerator".to_owned(), log: String::new() })
    }

    /// Copies the coverage and the logs to the configured files.
    fn copy_files(&self, job: &Job) -> Result<(), RunError> {
        for (name, file) in [
            (job::COVERAGE, &self.coverage),
            (job::DMESG, &self.dmesg),
            (job::LOG, &self.log),
            (job::PAGE_TABLES, &self.page_tables),
        ] {
            if let Some(file) = file {
                fs::copy(job.folder().join(name), file).map_err(file_error(file))?;
            }
        }
        Ok(())
    }
}

/// Returns the last lines of QEMU's standard error and the kernel's console.
fn console_log(job: &Job, errors: &str) -> String {
    let console = fs::read(job.console()).unwrap_or_default();
    last_lines(&format!("{errors}\n{}", String::from_utf8_lossy(&console)))
}

/// Returns the last lines that are not empty.
fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

/// Why the wait for QEMU has ended.
enum End {
    /// The program has ended.
    Status(u8),
    /// The kernel has not booted.
    NotBooted,
    /// QEMU has ended before the program.
    Lost,
    TimeOut,
    /// This process has received a signal.
    Signal(u8),
}

type Stream = Box<dyn Write + Send>;

/// A QEMU process, and the threads that copy its output.
struct RunningMachine {
    qemu: Child,
    accelerator: Accelerator,
    started: Instant,
    copies: [JoinHandle<Stream>; 2],
    /// The numbers of bytes that were copied.
    received: [Arc<AtomicU64>; 2],
    errors: JoinHandle<String>,
}

impl RunningMachine {
    fn start(
        machine: &Machine,
        job: &Job,
        accelerator: Accelerator,
        streams: [Stream; 2],
    ) -> Result<Self, RunError> {
        let pipe = || io::pipe().map_err(file_error(job.folder()));
        let ((output, output_end), (errors, errors_end)) = (pipe()?, pipe()?);
        // QEMU inherits these descriptors, and opens them again by their numbers.
        for end in [&output_end, &errors_end] {
            rustix::io::fcntl_setfd(end, rustix::io::FdFlags::empty())
                .map_err(|error| file_error(job.folder())(error.into()))?;
        }
        let ends = [output_end.as_raw_fd(), errors_end.as_raw_fd()];
        let mut command = qemu::command(machine, job, accelerator, ends);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        let parent = rustix::process::getpid();
        // SAFETY: between fork and exec, the closure makes only system calls.
        unsafe {
            command.pre_exec(move || {
                set_parent_process_death_signal(Some(Signal::KILL))?;
                // The parent may have ended before the call.
                if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
            });
        }
        let mut qemu = command.spawn().map_err(RunError::NoQemu)?;
        let [first, second] = streams;
        let received = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let copies = [copy(output, first, &received[0]), copy(errors, second, &received[1])];
        let stderr = qemu.stderr.take();
        let errors = thread::spawn(move || {
            let mut bytes = Vec::new();
            // After a read error, only the message is incomplete.
            stderr.map(|mut stderr| stderr.read_to_end(&mut bytes));
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Ok(Self { qemu, accelerator, started: Instant::now(), copies, received, errors })
    }

    /// Waits until QEMU has ended, or must be killed.
    fn wait(&mut self, job: &Job, signal: &AtomicUsize, deadline: Instant) -> End {
        let boot_limit = match self.accelerator {
            Accelerator::Kvm => KVM_BOOT_LIMIT,
            Accelerator::Tcg => BOOT_LIMIT,
        };
        let mut is_confirmed = false;
        loop {
            if !is_confirmed && self.has_received_all(job) {
                // After an error, the guest waits for its time limit.
                is_confirmed = job.write(job::RECEIVED, "").is_ok();
            }
            if let Ok(Some(_)) = self.qemu.try_wait() {
                return match job.status() {
                    Some(status) => End::Status(status),
                    None if job.has_booted() => End::Lost,
                    None => End::NotBooted,
                };
            }
            let number = signal.load(Ordering::Relaxed);
            let end = if number != 0 {
                End::Signal(u8::try_from(number).unwrap_or(0))
            } else if Instant::now() > deadline {
                End::TimeOut
            } else if self.started.elapsed() > boot_limit && !job.has_booted() {
                End::NotBooted
            } else {
                thread::sleep(PAUSE);
                continue;
            };
            return end;
        }
    }

    /// Returns whether the program has ended and all of its output was received.
    fn has_received_all(&self, job: &Job) -> bool {
        let received = self.received.iter().map(|bytes| bytes.load(Ordering::Relaxed));
        job.written().is_some_and(|written| received.zip(written).all(|(has, all)| has >= all))
    }

    /// Ends QEMU, if it still runs; returns the streams, and QEMU's standard error.
    fn finish(mut self) -> ([Stream; 2], String) {
        // QEMU may have ended already.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        let streams =
            self.copies.map(|thread| thread.join().unwrap_or_else(|_| Box::new(io::sink())));
        (streams, self.errors.join().unwrap_or_default())
    }
}

/// Copies a pipe to a stream until all writers have closed it. Counts the bytes in `received`.
fn copy(mut from: io::PipeReader, mut to: Stream, received: &Arc<AtomicU64>) -> JoinHandle<Stream> {
    let received = Arc::clone(received);
    thread::spawn(move || {
        let mut buffer = [0; 64 << 10];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            // A closed output must not stop the program.
            let _ = to.write_all(&buffer[..read]).and_then(|()| to.flush());
            received.fetch_add(read as u64, Ordering::Relaxed);
        }
        to
    })
}
