//! `hsa-vmm record`: runs a program and records its virtual memory calls.

use crate::screen::note;
use crate::{Exit, program, standard_output};
use anyhow::Context;
use clap::Args;
use hsa_rocr::{NoObject, Recording};
use hsa_vmm_conformance::hsa_trace;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
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
    #[error("cannot write {path}: {cause}")]
    Output { path: String, cause: io::Error },
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
    let _earlier = EarlierRecordings::set_aside(&file).map_err(failed)?;
    if file.exists() {
        return Err(RecordError::NotRecording(file.display().to_string()).into());
    }
    // Check before the program runs that the file can be created.
    fs::File::create_new(&file).and_then(|_| fs::remove_file(&file)).map_err(failed)?;
    let mut command = Command::new(name);
    command.args(arguments);
    Recording::new(&file)
        .with_stacks(args.stacks)
        .apply(&mut command)
        .map_err(RecordError::from)?;
    standard_output::keep_closed(&mut command);
    let child = command.spawn().map_err(|source| program::NotStarted::new(name, source))?;
    let status = wait(child)?;
    let ends_early =
        print_call_counts(&file).with_context(|| format!("cannot read {}", file.display()))?;
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
    fn set_aside(file: &Path) -> io::Result<Option<Self>> {
        let found = find_recordings(file)?;
        let Some(parent) = file.parent().filter(|_| !found.is_empty()) else { return Ok(None) };
        let folder = tempfile::Builder::new().prefix(".hsa-vmm-record-").tempdir_in(parent)?;
        let mut earlier = Self { file: file.to_owned(), folder, names: Vec::new() };
        for path in found {
            let Some(name) = path.file_name() else { continue };
            if let Err(error) = fs::rename(&path, earlier.folder.path().join(name)) {
                earlier.restore();
                return Err(error);
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

/// Waits for the program. Forwards SIGTERM and SIGHUP to the program, and ignores SIGINT and SIGQUIT.
fn wait(mut child: Child) -> io::Result<ExitStatus> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    let process = child.id() as libc::pid_t;
    for signal in [SIGTERM, SIGHUP] {
        // SAFETY: the handler only calls `kill`, which is async-signal-safe. The process ID is the program's until
        // `wait` below returns.
        unsafe {
            signal_hook::low_level::register(signal, move || {
                libc::kill(process, signal);
            })?;
        }
    }
    for signal in [SIGINT, SIGQUIT] {
        // The terminal also sends these signals to the program. The program decides whether to exit.
        // SAFETY: a handler that does nothing is async-signal-safe.
        unsafe { signal_hook::low_level::register(signal, || ()) }?;
    }
    child.wait()
}

/// Returns the exit status with which a shell reports the end of a program: 128 + N after signal N.
fn exit_status(status: ExitStatus) -> u8 {
    let number = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
    u8::try_from(number).unwrap_or(1)
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

/// Fails if the disk of a file is full.
fn check_space(file: &Path) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    tempfile::tempfile_in(folder).and_then(|mut file| file.write_all(&[0; 4096]))
}

/// Prints the number of calls in each recording. Returns whether a recording ends early.
fn print_call_counts(file: &Path) -> anyhow::Result<bool> {
    let files = find_recordings(file)?;
    let mut ends_early = false;
    for file in &files {
        let recording = hsa_trace::Recording::open(file)?;
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
    if files.is_empty() && file.exists() {
        // The recorder creates the file when the runtime starts, and then writes the first line.
        let cause =
            io::Error::other("the recorder could not write its first line; is the disk full?");
        return Err(RecordError::Output { path: file.display().to_string(), cause }.into());
    }
    if files.is_empty() {
        note!("nothing was recorded: the program has not started AMD's runtime");
    }
    Ok(ends_early)
}
