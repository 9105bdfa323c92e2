//! `hsa-vmm record`: runs a program and records its virtual memory calls.

use crate::screen::note;
use crate::{Exit, output, program, standard_output};
use clap::Args;
use hsa_rocr::{NoObject, Recording};
use hsa_vmm_conformance::hsa_trace;
use rustix::io::retry_on_intr;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::low_level;
use std::ffi::{OsString, c_int};
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use tempfile::TempDir;

pub const ABOUT: &str = "\
Examples:
  hsa-vmm record -- python train.py
  hsa-vmm record -o grow.jsonl --stacks -- ./grow
  hsa-vmm record -- hsa-vmm emulate --rocr 6.4 -- ./grow
  hsa-vmm lint hsa-calls.jsonl
  hsa-vmm replay hsa-calls.jsonl --program again.c

The program needs AMD's runtime, which loads the recorder (HSA_TOOLS_LIB); the
simulation does not load it. Another process that the program starts records
into FILE.PID. docs/record.md describes the format.

Exit status: the program's; 125 if the recording failed, 126 if the program is
not executable, 127 if it was not found, 128 + N if signal N ended it.";

/// The exit status of failures of the recording itself.
pub const FAILED: u8 = 125;

/// A failure of the recording, not of the program.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error(transparent)]
    NoObject(#[from] NoObject),
    #[error("{0} exists and is not a recording; choose another file with -o")]
    NotRecording(String),
    #[error(
        "process {process} still writes {path}; wait until it ends, or choose another file with -o"
    )]
    InUse { path: String, process: u64 },
    #[error("cannot write {path}: {cause}")]
    Output { path: String, cause: io::Error },
    #[error("cannot read {path}: {cause}")]
    Unreadable { path: String, cause: anyhow::Error },
}

#[derive(Args, Debug)]
pub struct Record {
    /// Write the calls to this file; a new recording replaces an earlier one
    #[arg(short, long, value_name = "FILE", default_value = "hsa-calls.jsonl")]
    pub output: PathBuf,
    /// Record the call stack of each call
    #[arg(long)]
    pub stacks: bool,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

pub fn run(args: &Record) -> anyhow::Result<Exit> {
    let (name, arguments) = program::split_command_line(&args.program)?;
    let failed = |cause| RecordError::Output { path: args.output.display().to_string(), cause };
    let file = std::path::absolute(&args.output).map_err(failed)?;
    let signals = Signals::handle()?;
    let earlier = EarlierRecordings::set_aside(&file)?;
    if file.exists() {
        return Err(RecordError::NotRecording(file.display().to_string()).into());
    }
    // Check before the program runs that the file can be created.
    let created = fs::File::create_new(&file).map_err(failed)?;
    output::note_if_lost(&created, &file, &args.output);
    fs::remove_file(&file).map_err(failed)?;
    let mut command = Command::new(name);
    command.args(arguments);
    Recording::new(&file)
        .with_stacks(args.stacks)
        .apply(&mut command)
        .map_err(RecordError::from)?;
    standard_output::keep_closed(&mut command);
    if let Some(signal) = signals.arrived() {
        return Ok(Exit::Program(status_of_signal(signal)));
    }
    let child = command.spawn().map_err(|source| program::NotStarted::new(name, source))?;
    let status = signals.wait(child)?;
    let recordings = find_recordings(&file).map_err(|cause| unreadable(&file, cause))?;
    let is_created = file.exists();
    // From here on, a signal ends this process at once, so move or remove the earlier recordings now.
    drop(earlier);
    if let Some(signal) = signals.stop_handling() {
        return Ok(Exit::Program(status_of_signal(signal)));
    }
    let ends_early = print_call_counts(&recordings, is_created, &file)?;
    if ends_early && status.code().is_some() {
        check_space(&file).map_err(failed)?;
    }
    Ok(Exit::Program(exit_status(status)))
}

/// The earlier recordings of a file name, moved to a temporary folder. They are removed when this value is dropped. If
/// there is no new recording then, they are moved back instead.
struct EarlierRecordings {
    file: PathBuf,
    folder: TempDir,
    names: Vec<OsString>,
}

impl EarlierRecordings {
    fn set_aside(file: &Path) -> Result<Option<Self>, RecordError> {
        let failed = |cause| RecordError::Output { path: file.display().to_string(), cause };
        let found = find_recordings(file).map_err(failed)?;
        for path in &found {
            if let Some(process) = writing_process(path) {
                return Err(RecordError::InUse { path: path.display().to_string(), process });
            }
        }
        let Some(parent) = file.parent().filter(|_| !found.is_empty()) else { return Ok(None) };
        let folder = tempfile::Builder::new().prefix(".hsa-vmm-record-").tempdir_in(parent);
        let folder = folder.map_err(failed)?;
        let mut earlier = Self { file: file.to_owned(), folder, names: Vec::new() };
        for path in found {
            let Some(name) = path.file_name() else { continue };
            if let Err(error) = fs::rename(&path, earlier.folder.path().join(name)) {
                earlier.restore();
                return Err(failed(error));
            }
            earlier.names.push(name.to_owned());
        }
        Ok(Some(earlier))
    }

    fn restore(&mut self) {
        for name in self.names.drain(..) {
            let (from, to) = (self.folder.path().join(&name), self.file.with_file_name(&name));
            if let Err(error) = fs::rename(&from, &to) {
                note!("cannot restore the earlier recording {}: {error}", to.display());
            }
        }
    }
}

impl Drop for EarlierRecordings {
    fn drop(&mut self) {
        if find_recordings(&self.file).is_ok_and(|new| new.is_empty()) {
            self.restore();
        }
    }
}

/// The handlers of the signals that end programs. SIGTERM and SIGHUP are forwarded to the program. The terminal also
/// sends SIGINT and SIGQUIT to the program, which decides whether to exit.
#[derive(Clone)]
struct Signals {
    /// The program's process ID while the program runs, or [`NO_PROGRAM`] or [`DEFAULT`].
    process: Arc<AtomicI32>,
    /// The last signal that arrived while there was no program, or 0.
    arrived: Arc<AtomicI32>,
    /// The last signal that was forwarded to the program, or 0. Later, this signal is ignored once: GNU `timeout` sends a
    /// signal to the process that it runs, and then to the process group, so that the process receives it twice.
    forwarded: Arc<AtomicI32>,
}

/// A value of [`Signals::process`]: the program has not started yet, or has ended. Signals are stored.
const NO_PROGRAM: libc::pid_t = 0;
/// A value of [`Signals::process`]: signals end this process.
const DEFAULT: libc::pid_t = -1;

impl Signals {
    /// Handles signals from now on. Signals that this process ignores (`nohup`) stay ignored, also in the program.
    fn handle() -> io::Result<Self> {
        let [process, arrived, forwarded] = [(); 3].map(|()| Arc::default());
        let signals = Self { process, arrived, forwarded };
        for signal in [SIGTERM, SIGHUP, SIGINT, SIGQUIT] {
            if is_ignored(signal) {
                continue;
            }
            let copy = signals.clone();
            // SAFETY: `receive` is async-signal-safe.
            unsafe { low_level::register(signal, move || copy.receive(signal)) }?;
        }
        Ok(signals)
    }

    /// Handles the arrival of a signal. Only uses atomics, `kill` and `emulate_default_handler`, so it is
    /// async-signal-safe.
    fn receive(&self, signal: c_int) {
        match self.process.load(Ordering::SeqCst) {
            NO_PROGRAM | DEFAULT if self.forwarded.swap(0, Ordering::SeqCst) == signal => {}
            NO_PROGRAM => self.arrived.store(signal, Ordering::SeqCst),
            // Ends this process, unless the signal is unknown.
            DEFAULT => drop(low_level::emulate_default_handler(signal)),
            process if signal == SIGTERM || signal == SIGHUP => {
                self.forwarded.store(signal, Ordering::SeqCst);
                // SAFETY: the process ID is the program's: `wait` changes the value before it reaps the program.
                unsafe { libc::kill(process, signal) };
            }
            _ => {}
        }
    }

    /// Returns the last signal that arrived while there was no program.
    fn arrived(&self) -> Option<c_int> {
        Some(self.arrived.swap(0, Ordering::SeqCst)).filter(|signal| *signal != 0)
    }

    /// Waits for the program.
    fn wait(&self, mut child: Child) -> io::Result<ExitStatus> {
        let process = Pid::from_child(&child);
        self.process.store(process.as_raw_nonzero().get(), Ordering::SeqCst);
        if let Some(signal) = self.arrived() {
            // SAFETY: the process ID is the program's.
            unsafe { libc::kill(process.as_raw_nonzero().get(), signal) };
        }
        // Do not reap the program while the handlers can send it signals.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        retry_on_intr(|| waitid(WaitId::Pid(process), options))?;
        self.process.store(NO_PROGRAM, Ordering::SeqCst);
        child.wait()
    }

    /// Makes further signals end this process. Returns the last signal that arrived since the program ended.
    fn stop_handling(&self) -> Option<c_int> {
        self.process.store(DEFAULT, Ordering::SeqCst);
        self.arrived()
    }
}

/// Returns whether this process ignores a signal.
fn is_ignored(signal: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: `sigaction` only writes `action`, which is valid if it is zero, too.
    let action = unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}

/// Returns the exit status with which a shell reports the end of a program: 128 + N after signal N.
fn exit_status(status: ExitStatus) -> u8 {
    let code = status.code().map(|code| u8::try_from(code).unwrap_or(1));
    code.or_else(|| status.signal().map(status_of_signal)).unwrap_or(1)
}

fn status_of_signal(signal: c_int) -> u8 {
    u8::try_from(128 + signal).unwrap_or(1)
}

/// Returns the recordings of this file name: `FILE`, `FILE.PID`, `FILE.PID.2`.
fn find_recordings(file: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else {
        return Ok(Vec::new());
    };
    let name = name.as_encoded_bytes();
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let entry_name = entry.file_name();
        let Some(suffix) = entry_name.as_encoded_bytes().strip_prefix(name) else { continue };
        let is_number = suffix.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
        let is_suffix = suffix.is_empty() || (suffix.starts_with(b".") && is_number);
        if is_suffix && entry.path().is_file() && hsa_trace::Recording::is_recording(&entry.path())
        {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the process that a recording describes, if this process still has the file open.
fn writing_process(recording: &Path) -> Option<u64> {
    let mut line = String::new();
    BufReader::new(fs::File::open(recording).ok()?).read_line(&mut line).ok()?;
    let header: serde_json::Value = serde_json::from_str(&line).ok()?;
    let process = header["pid"].as_u64()?;
    let file = recording.canonicalize().ok()?;
    let mut descriptors = fs::read_dir(format!("/proc/{process}/fd")).ok()?.flatten();
    let is_open = descriptors.any(|it| fs::read_link(it.path()).is_ok_and(|path| path == file));
    is_open.then_some(process)
}

fn unreadable(file: &Path, cause: impl Into<anyhow::Error>) -> RecordError {
    RecordError::Unreadable { path: file.display().to_string(), cause: cause.into() }
}

/// Fails if the disk of a file is full.
fn check_space(file: &Path) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    tempfile::tempfile_in(folder).and_then(|mut file| file.write_all(&[0; 4096]))
}

/// Prints the number of calls in each of the new recordings. Returns whether a recording ends early. `is_created` is
/// whether the program has created `file`.
fn print_call_counts(
    recordings: &[PathBuf],
    is_created: bool,
    file: &Path,
) -> Result<bool, RecordError> {
    let mut ends_early = false;
    for file in recordings {
        let opened = hsa_trace::Recording::open(file);
        let recording = opened.map_err(|cause| unreadable(file, cause))?;
        let count = recording.calls.len();
        let calls = if count == 1 { "call" } else { "calls" };
        note!("recorded {count} {calls} of {}: {}", recording.header.program, file.display());
        ends_early |= !recording.complete;
        if !recording.complete {
            note!(
                "this recording ends early, because the program crashed or was killed, or because the disk was full"
            );
        }
    }
    if recordings.is_empty() && is_created {
        // The recorder creates the file when the runtime starts, and then writes the first line.
        let cause =
            io::Error::other("the recorder could not write its first line; is the disk full?");
        return Err(RecordError::Output { path: file.display().to_string(), cause });
    }
    if recordings.is_empty() {
        note!("nothing was recorded: the program has not started AMD's runtime");
    }
    Ok(ends_early)
}
