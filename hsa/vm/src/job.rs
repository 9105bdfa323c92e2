//! The folder through which the host and the virtual machine exchange a program and its results.

use rustix::fs::{FlockOperation, flock};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Variables whose files or folders do not exist in the virtual machine.
const NOT_INHERITED: [&str; 2] = ["LD_PRELOAD", "XDG_RUNTIME_DIR"];

/// The names of the files in the folder.
pub(crate) const ARGUMENTS: &str = "arguments";
pub(crate) const ENVIRONMENT: &str = "environment";
pub(crate) const DIRECTORY: &str = "directory";
pub(crate) const STATUS: &str = "status";
/// The numbers of bytes that the program has written to its output and to its errors, at its end.
pub(crate) const WRITTEN: &str = "written";
/// Exists when the host has received these bytes.
pub(crate) const RECEIVED: &str = "received";
pub(crate) const STUB: &str = "stub";
pub(crate) const FAULTS: &str = "faults";
pub(crate) const COVERAGE: &str = "coverage";
pub(crate) const DMESG: &str = "dmesg";
pub(crate) const LOG: &str = "log";
pub(crate) const PAGE_TABLES: &str = "page_tables";
const PROGRAM: &str = "program";
const BOOTED: &str = "booted";
const RESULTS: &str = "results";
const CONSOLE: &str = "console";
const LOCK: &str = "lock";
const PREFIX: &str = "hsa-vmm-vm-";

/// A program to run in a virtual machine.
#[derive(Debug)]
pub(crate) struct Job {
    folder: TempDir,
    /// Locked while this process runs.
    _lock: File,
}

impl Job {
    /// Creates the folder, with a command, its current folder and this process's environment.
    pub fn new(command: &Command, results: Option<&Path>) -> io::Result<Self> {
        remove_abandoned(&env::temp_dir());
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        let lock = File::create(folder.path().join(LOCK))?;
        flock(&lock, FlockOperation::LockShared)?;
        let job = Self { folder, _lock: lock };
        let words = [command.get_program()].into_iter().chain(command.get_args());
        job.write(ARGUMENTS, join_words(words.map(OsStr::to_owned)))?;
        let mut variables: Vec<(OsString, OsString)> = env::vars_os().collect();
        variables.retain(|(name, _)| !NOT_INHERITED.iter().any(|excluded| name == excluded));
        for (name, value) in command.get_envs() {
            variables.retain(|(existing, _)| existing != name);
            variables.extend(value.map(|value| (name.to_owned(), value.to_owned())));
        }
        // The legacy mode needs AMD's own package of the kernel driver.
        if !variables.iter().any(|(name, _)| name == "HSA_ENABLE_IPC_MODE_LEGACY") {
            variables.push(("HSA_ENABLE_IPC_MODE_LEGACY".into(), "0".into()));
        }
        let variables = variables.into_iter().map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            name
        });
        job.write(ENVIRONMENT, join_words(variables))?;
        let current = env::current_dir()?;
        let directory = command.get_current_dir().unwrap_or(&current);
        job.write(DIRECTORY, directory.as_os_str().as_bytes())?;
        job.write(PROGRAM, env::current_exe()?.as_os_str().as_bytes())?;
        if let Some(results) = results {
            job.write(RESULTS, results.as_os_str().as_bytes())?;
        }
        Ok(job)
    }

    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> io::Result<()> {
        fs::write(self.folder().join(name), contents)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn console(&self) -> PathBuf {
        self.folder().join(CONSOLE)
    }

    pub fn has_booted(&self) -> bool {
        self.folder().join(BOOTED).exists()
    }

    /// Returns the numbers of bytes that the program has written to its output and to its errors, if it has ended.
    pub fn written(&self) -> Option<[u64; 2]> {
        let text = fs::read_to_string(self.folder().join(WRITTEN)).ok()?;
        // The guest may have written a part of the file.
        let (output, errors) = text.strip_suffix('\n')?.split_once(' ')?;
        Some([output.parse().ok()?, errors.parse().ok()?])
    }

    /// Returns the program's exit status, if it has ended.
    pub fn status(&self) -> Option<u8> {
        fs::read_to_string(self.folder().join(STATUS)).ok()?.trim().parse().ok()
    }
}

/// Removes the folders of killed processes.
fn remove_abandoned(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.filter_map(Result::ok) {
        let is_job = entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes())
            && entry.file_type().is_ok_and(|kind| kind.is_dir());
        let lock = is_job.then(|| File::open(entry.path().join(LOCK)).ok()).flatten();
        let is_abandoned =
            lock.is_some_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok());
        if is_abandoned {
            // Fails if another process removes the folder, or it belongs to another user.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Joins words, each followed by a NUL.
fn join_words(words: impl Iterator<Item = OsString>) -> Vec<u8> {
    words.flat_map(|word| [word.into_vec(), vec![0]].concat()).collect()
}

/// Splits the words that [`join_words`] has joined.
pub(crate) fn split_words(bytes: &[u8]) -> Vec<OsString> {
    let words = bytes.split(|&byte| byte == 0).map(<[u8]>::to_vec).map(OsString::from_vec);
    let mut words: Vec<_> = words.collect();
    words.pop();
    words
}

#[cfg(test)]
mod tests {
    use super::{ARGUMENTS, ENVIRONMENT, Job, LOCK, PREFIX, remove_abandoned, split_words};
    use std::fs;
    use std::process::Command;

    #[test]
    fn folders_of_killed_processes_are_removed() {
        let temporary = tempfile::tempdir().unwrap();
        let [abandoned, foreign] = [format!("{PREFIX}abandoned"), "foreign".into()]
            .map(|name| temporary.path().join(name));
        for folder in [&abandoned, &foreign] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join(LOCK), "").unwrap();
        }
        let lock = fs::File::open(abandoned.join(LOCK)).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockShared).unwrap();
        remove_abandoned(temporary.path());
        assert!(abandoned.exists(), "its process runs");
        drop(lock);
        remove_abandoned(temporary.path());
        assert!(!abandoned.exists() && foreign.exists());
    }

    #[test]
    fn job_contains_arguments_and_environment() {
        let mut command = Command::new("program");
        command.args(["", "two words", "line\nend"]).env("HSA_VM_TEST", "a=b").env_remove("PATH");
        let job = Job::new(&command, None).unwrap();
        let read = |name: &str| split_words(&fs::read(job.folder().join(name)).unwrap());
        assert_eq!(read(ARGUMENTS), ["program", "", "two words", "line\nend"]);
        assert!(read(ENVIRONMENT).contains(&"HSA_VM_TEST=a=b".into()));
        assert!(
            !read(ENVIRONMENT)
                .iter()
                .any(|variable| variable.to_string_lossy().starts_with("PATH="))
        );
    }
}
