//! A virtual machine that runs one program.

use crate::accelerator::Accelerator;
use crate::detached::DetachedMachine;
use crate::job::{self, Job};
use crate::qemu;
use crate::running::{Limits, RunningMachine, Stream, WaitEnd};
use crate::{EngineFaults, Kernel};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

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
    idle_timeout: Option<Duration>,
}

/// The outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The program's exit status. After a signal, the sum of 128 and the signal's number.
    pub status: u8,
}

/// A file that could not be written: coverage, a log, or page tables.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}: {cause}", path = path.display())]
pub struct NotWritten {
    /// The path.
    pub path: PathBuf,
    /// The reason.
    pub cause: io::Error,
}

/// Why a run of a program failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// QEMU is missing.
    #[error(
        "cannot start {program}: {0}; as root, run `apt-get install --no-install-recommends {package}`",
        program = qemu::PROGRAM, package = qemu::PACKAGE
    )]
    NoQemu(io::Error),
    /// A file of the run could not be read or written.
    #[error("cannot prepare the virtual machine: {path}: {cause}", path = path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// A file for the results cannot be written. The machine was not booted.
    #[error(transparent)]
    NotWritten(#[from] NotWritten),
    /// The virtual machine did not boot, or ended before the program.
    #[error(
        "the virtual machine ended before the program ({accelerator}{}){}",
        status_suffix(*qemu), log_suffix(log)
    )]
    QemuEnded {
        /// QEMU's accelerator.
        accelerator: String,
        /// How QEMU ended. `None` if this is not known, or if QEMU ran until the time limit for booting.
        qemu: Option<ExitStatus>,
        /// The last lines of QEMU's output and of the kernel's log.
        log: String,
    },
    /// Another program used the kept machine until the time limit expired.
    #[error(
        "cannot start the program: another program used the kept virtual machine for {limit:?}; see --time-limit, \
         or omit --keep"
    )]
    InUse {
        /// The time limit.
        limit: Duration,
    },
    /// The time limit expired before the machine started the program.
    #[error(
        "the virtual machine had not started the program after {limit:?} and was stopped; --time-limit includes the \
         boot: extend it"
    )]
    NotStarted {
        /// The time limit.
        limit: Duration,
    },
    /// The time limit expired while the program ran.
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

fn status_suffix(qemu: Option<ExitStatus>) -> String {
    qemu.map_or_else(String::new, |status| format!("; QEMU: {status}"))
}

fn log_suffix(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!(":\n{log}") }
}

pub(crate) fn file_error(path: &Path) -> impl FnOnce(io::Error) -> RunError + use<> {
    let path = path.to_owned();
    move |cause| RunError::File { path, cause }
}

impl Machine {
    /// Creates the configuration of a machine with two GPUs of 1 GiB each.
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
            idle_timeout: None,
        }
    }

    /// Sets the number of GPUs, one to eight.
    #[must_use]
    pub fn with_gpus(mut self, number: u8) -> Self {
        self.gpus = number;
        self
    }

    /// Sets the memory of each GPU in MiB, a power of two.
    #[must_use]
    pub fn with_vram_mib(mut self, size: u64) -> Self {
        self.vram_mib = size;
        self
    }

    /// Sets the machine's own memory in MiB.
    #[must_use]
    pub fn with_memory_mib(mut self, size: u64) -> Self {
        self.memory_mib = size;
        self
    }

    /// Adds a word of the kernel's command line, such as `amdgpu.vm_update_mode=0`.
    #[must_use]
    pub fn with_parameter(mut self, word: impl Into<String>) -> Self {
        self.parameters.push(word.into());
        self
    }

    /// Sets a folder of the host that the program can write to. The folder has the same path in the machine.
    #[must_use]
    pub fn with_results(mut self, folder: impl Into<PathBuf>) -> Self {
        self.results = Some(folder.into());
        self
    }

    /// Sets the time limit for the boot and the program together, after which the machine is killed.
    #[must_use]
    pub fn with_time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Makes a function of amdgpu.ko do nothing while the program runs.
    #[must_use]
    pub fn with_stub(mut self, function: impl Into<String>) -> Self {
        self.stub = Some(function.into());
        self
    }

    /// Plans faults of the GPUs' engines while the program runs.
    #[must_use]
    pub fn with_faults(mut self, plan: EngineFaults) -> Self {
        self.faults = Some(plan);
        self
    }

    /// Sets the file to which the names of the functions of amdgpu.ko that ran are written, each with its number of
    /// calls.
    #[must_use]
    pub fn with_coverage(mut self, file: impl Into<PathBuf>) -> Self {
        self.coverage = Some(file.into());
        self
    }

    /// Sets the file to which the log of the machine's kernel is written after the program has ended.
    #[must_use]
    pub fn with_dmesg(mut self, file: impl Into<PathBuf>) -> Self {
        self.dmesg = Some(file.into());
        self
    }

    /// Sets the file to which the machine's file [`Self::GUEST_LOG`] is copied after the program or the machine has
    /// ended.
    #[must_use]
    pub fn with_log(mut self, file: impl Into<PathBuf>) -> Self {
        self.log = Some(file.into());
        self
    }

    /// Sets the file to which the machine's file [`Self::GUEST_PAGE_TABLES`] is copied after the program or the machine
    /// has ended.
    #[must_use]
    pub fn with_page_tables(mut self, file: impl Into<PathBuf>) -> Self {
        self.page_tables = Some(file.into());
        self
    }

    /// Keeps the machine running for the next program with the same configuration, until the machine has been idle for
    /// this time.
    ///
    /// The program runs in a kept machine of this user with the same configuration, if there is such a machine. A
    /// machine whose kernel has warned or crashed is not used again. The processes and files of the previous program
    /// are removed first. Programs for the same machine wait for each other. The time is rounded down to whole seconds,
    /// and is at least one second.
    ///
    /// Do not combine with [`with_stub`](Self::with_stub), [`with_faults`](Self::with_faults) or
    /// [`with_coverage`](Self::with_coverage): the stub, the faults and the counters stay active in a kept machine.
    #[must_use]
    pub fn with_idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = Some(timeout);
        self
    }

    /// The path in the machine to which the program can write a log.
    pub const GUEST_LOG: &str = "/run/hsa-vmm/log";
    /// The path in the machine to which the program can write page tables.
    pub const GUEST_PAGE_TABLES: &str = "/run/hsa-vmm/page_tables";

    /// Runs a command in the machine. Copies the command's standard output to `output` and its
    /// standard error to `errors`.
    ///
    /// Empties the files of the results before the machine boots. Calls `report` for each of these files that could not
    /// be written after the program had started.
    ///
    /// SIGINT, SIGTERM and SIGHUP end the machine. If this process is killed, the host's kernel
    /// kills QEMU. In both cases, a machine that is [kept](Self::with_idle_timeout) kills its program
    /// instead, and becomes idle. The handlers of these signals stay installed (crate `signal-hook`): after this call,
    /// the signals do not end this process unless it registers other actions for them.
    ///
    /// # Errors
    /// QEMU is missing, a file cannot be read or written, the time limit expires, or the machine ends before the
    /// program.
    pub fn run(
        &self,
        command: &Command,
        output: impl Write + Send + 'static,
        errors: impl Write + Send + 'static,
        report: impl FnMut(NotWritten),
    ) -> Result<Outcome, RunError> {
        self.clear_files()?;
        let signal = Arc::new(AtomicUsize::new(0));
        let mut registrations = Registrations(Vec::new());
        for (number, value) in [(SIGINT, 2), (SIGTERM, 15), (SIGHUP, 1)] {
            let registered = signal_hook::flag::register_usize(number, Arc::clone(&signal), value);
            registrations.0.push(registered.map_err(file_error(Path::new("signals")))?);
        }
        let limits = Limits { signal, deadline: Instant::now() + self.time_limit };
        let lock = |_| DetachedMachine::lock(self, &limits);
        let detached = match self.idle_timeout.map(lock).transpose()? {
            None => None,
            Some(Ok(detached)) => Some(detached),
            Some(Err(WaitEnd::TimeOut)) => return Err(RunError::InUse { limit: self.time_limit }),
            Some(Err(end)) => return self.outcome(end, "kept", None, String::new),
        };
        let job = match &detached {
            Some(detached) => Job::open(detached.folder().to_owned()),
            None => Job::temporary(),
        };
        let mut job = job.map_err(file_error(Path::new("job")))?;
        let mut streams: [Stream; 2] = [Box::new(output), Box::new(errors)];
        let mut idle_machine =
            detached.as_ref().and_then(|detached| detached.connect(&job, &limits));
        if let Some(end) = limits.reached() {
            return self.outcome(end, "kept", None, String::new);
        }
        let mut accelerators = Accelerator::candidates().into_iter();
        loop {
            self.prepare(&mut job, command).map_err(file_error(job.folder()))?;
            let (mut running, name) = if let Some(connection) = idle_machine.take() {
                (RunningMachine::reuse(connection, streams)?, "kept".to_owned())
            } else if let Some(accelerator) = accelerators.next() {
                let name = accelerator.to_string();
                let started =
                    RunningMachine::boot(self, &job, detached.as_ref(), accelerator, streams);
                (started?, name)
            } else {
                return self.outcome(WaitEnd::QemuEnded, "no accelerator", None, String::new);
            };
            let mut end = running.wait(&job, &limits);
            let qemu = running.exit_status();
            let finished = running.finish(&end, &limits);
            if finished.iter().any(Option::is_none) {
                // The output of a program that ended in time is incomplete.
                end = limits.reached().unwrap_or(end);
            }
            streams = finished.map(|stream| stream.unwrap_or_else(|| Box::new(io::sink())));
            if matches!(end, WaitEnd::NotBooted) && accelerators.len() > 0 {
                continue;
            }
            // Before the start, the files in the guest's folder are those of the previous job.
            if job.has_started() {
                self.copy_files(&job, report);
            } else if matches!(end, WaitEnd::TimeOut) {
                return Err(RunError::NotStarted { limit: self.time_limit });
            }
            return self.outcome(end, &name, qemu, || console_log(&job));
        }
    }

    /// Writes the job's files: the program, the settings of the run (such as planned faults of the engines), and an
    /// empty file for each file that the host requests from the guest. Writing the last file starts the program.
    fn prepare(&self, job: &mut Job, command: &Command) -> io::Result<()> {
        job.prepare(command, self.results.as_deref())?;
        if let Some(function) = &self.stub {
            job.write(job::STUB, function)?;
        }
        if let Some(plan) = &self.faults {
            job.write(job::FAULTS, plan.text())?;
        }
        for (name, file) in [
            (job::COVERAGE, &self.coverage),
            (job::LOG, &self.log),
            (job::PAGE_TABLES, &self.page_tables),
        ] {
            if file.is_some() {
                job.write(name, "")?;
            }
        }
        if let Some(idle) = self.idle_timeout {
            job.write(job::KEEP, idle.as_secs().max(1).to_string())?;
        }
        job.start()
    }

    /// Converts the end of a wait to the result of a run. `qemu` is how QEMU ended, if it has ended. `log` returns the
    /// log for an error.
    fn outcome(
        &self,
        end: WaitEnd,
        accelerator: &str,
        qemu: Option<ExitStatus>,
        log: impl FnOnce() -> String,
    ) -> Result<Outcome, RunError> {
        match end {
            WaitEnd::Status(status) => Ok(Outcome { status }),
            WaitEnd::Signal(number) => Ok(Outcome { status: SIGNAL_BASE + number }),
            WaitEnd::TimeOut => Err(RunError::TimeOut { limit: self.time_limit, log: log() }),
            WaitEnd::NotBooted | WaitEnd::QemuEnded => {
                Err(RunError::QemuEnded { accelerator: accelerator.to_owned(), qemu, log: log() })
            }
        }
    }

    /// Returns the files of the results: the name of the guest's file, and the path.
    fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let files = [
            (job::COVERAGE, &self.coverage),
            (job::DMESG, &self.dmesg),
            (job::LOG, &self.log),
            (job::PAGE_TABLES, &self.page_tables),
        ];
        files.into_iter().filter_map(|(name, file)| Some((name, file.as_deref()?)))
    }

    /// Creates or empties the files of the results. If the machine then ends early, these files do not contain the
    /// results of an earlier run.
    fn clear_files(&self) -> Result<(), NotWritten> {
        for (_, path) in self.files() {
            // Opening a FIFO would block until another process opens it, too.
            if fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
                continue;
            }
            File::create(path).map_err(|cause| NotWritten { path: path.to_owned(), cause })?;
        }
        Ok(())
    }

    /// Copies the files that the guest has written. After an error, continues with the next file.
    fn copy_files(&self, job: &Job, mut report: impl FnMut(NotWritten)) {
        for (name, path) in self.files() {
            if let Err(cause) = job.copy(name, path) {
                report(NotWritten { path: path.to_owned(), cause });
            }
        }
    }
}

/// Registrations of signals, which dropping removes.
struct Registrations(Vec<signal_hook::SigId>);

impl Drop for Registrations {
    fn drop(&mut self) {
        for registration in self.0.drain(..) {
            low_level::unregister(registration);
        }
    }
}

/// Returns the last lines of QEMU's standard error, followed by the output of the kernel's console.
fn console_log(job: &Job) -> String {
    let read = |path: PathBuf| read_end(&path).unwrap_or_default();
    let log = [read(job.qemu_errors()), read(job.console())].join(&b'\n');
    last_lines(&String::from_utf8_lossy(&log))
}

/// Reads the last bytes of a file, but not the whole file, because the guest can write any number of bytes to its
/// console.
fn read_end(path: &Path) -> io::Result<Vec<u8>> {
    const SIZE: u64 = 64 << 10;
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(SIZE)))?;
    let mut bytes = Vec::new();
    file.take(SIZE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the last lines that are not empty.
fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}
