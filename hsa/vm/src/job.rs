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

// The names of the files in the folder.

/// The program and its arguments.
pub(crate) const ARGUMENTS: &str = "arguments";
/// The program's environment variables.
pub(crate) const ENVIRONMENT: &str = "environment";
/// The path of the program's current folder.
pub(crate) const DIRECTORY: &str = "directory";
/// The program's exit status.
pub(crate) const STATUS: &str = "status";
/// The numbers of bytes that the program has written to its output and to its errors, at its end.
pub(crate) const WRITTEN: &str = "written";
/// Exists when the host has received the numbers of bytes in [`WRITTEN`].
pub(crate) const RECEIVED: &str = "received";
/// The file that the host writes last. The guest then starts the program.
pub(crate) const READY: &str = "ready";
/// The number of seconds for which an idle machine waits for the next program.
pub(crate) const KEEP: &str = "keep";
/// Exists when the program has ended and all other files of the job are written.
pub(crate) const ENDED: &str = "ended";
/// The name of the function of amdgpu.ko that does nothing while the program runs.
pub(crate) const STUB: &str = "stub";
/// The plan of the engines' faults.
pub(crate) const FAULTS: &str = "faults";
/// The functions of amdgpu.ko that ran. If the file exists before the program starts, calls are counted.
pub(crate) const COVERAGE: &str = "coverage";
/// The kernel's log.
pub(crate) const DMESG: &str = "dmesg";
/// A log that the program can write.
pub(crate) const LOG: &str = "log";
/// Page tables that the program can write.
pub(crate) const PAGE_TABLES: &str = "page_tables";
/// The path of `hsa-vmm`, which the guest starts as `hsa-vmm vm-guest`.
const HSA_VMM: &str = "program";
/// Exists when the guest starts `hsa-vmm vm-guest`.
const BOOTED: &str = "booted";
/// The path of the folder that the program can write to.
const RESULTS: &str = "results";
/// The output of the kernel's console.
const CONSOLE: &str = "console";
/// QEMU's standard error.
const QEMU_ERRORS: &str = "qemu";
/// Locked while the process that created a temporary folder runs.
const LOCK: &str = "lock";
/// The prefix of the names of temporary folders.
const PREFIX: &str = "hsa-vmm-vm-";

/// A program to run in a virtual machine.
#[derive(Debug)]
pub(crate) struct Job {
    folder: PathBuf,
    /// The folder of QEMU's own output.
    qemu: PathBuf,
    /// The temporary folder, which is removed when the job is dropped, and its lock.
    _temporary: Option<(TempDir, File)>,
}

impl Job {
    /// Creates a temporary folder, which is locked while this process runs.
    pub fn temporary() -> io::Result<Self> {
        remove_abandoned(&env::temp_dir());
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        let lock = File::create(folder.path().join(LOCK))?;
        flock(&lock, FlockOperation::LockShared)?;
        let path = folder.path().to_owned();
        Ok(Self { folder: path.clone(), qemu: path, _temporary: Some((folder, lock)) })
    }

    /// Uses the folder of a machine that keeps running. QEMU's own output is beside the folder.
    pub fn in_folder(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        let qemu = folder.parent().unwrap_or(&folder).to_owned();
        Ok(Self { folder, qemu, _temporary: None })
    }

    /// Removes the files of the previous job. Writes a command, its current folder and this process's environment.
    pub fn prepare(&self, command: &Command, results: Option<&Path>) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let outlives_job =
                [LOCK, CONSOLE, QEMU_ERRORS].iter().any(|name| entry.file_name() == *name);
            if !outlives_job {
                fs::remove_file(entry.path())?;
            }
        }
        let words = [command.get_program()].into_iter().chain(command.get_args());
        self.write(ARGUMENTS, join_words(words.map(OsStr::to_owned)))?;
        let mut variables: Vec<(OsString, OsString)> = env::vars_os().collect();
        variables.retain(|(name, _)| !NOT_INHERITED.iter().any(|excluded| name == excluded));
        for (name, value) in command.get_envs() {
            variables.retain(|(existing, _)| existing != name);
            variables.extend(value.map(|value| (name.to_owned(), value.to_owned())));
        }
        // AMD's legacy mode of IPC needs AMD's own package of the kernel driver.
        if !variables.iter().any(|(name, _)| name == "HSA_ENABLE_IPC_MODE_LEGACY") {
            variables.push(("HSA_ENABLE_IPC_MODE_LEGACY".into(), "0".into()));
        }
        let variables = variables.into_iter().map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            name
        });
        self.write(ENVIRONMENT, join_words(variables))?;
        let current = env::current_dir()?;
        let directory = command.get_current_dir().unwrap_or(&current);
        self.write(DIRECTORY, directory.as_os_str().as_bytes())?;
        self.write(HSA_VMM, env::current_exe()?.as_os_str().as_bytes())?;
        if let Some(results) = results {
            self.write(RESULTS, results.as_os_str().as_bytes())?;
        }
        Ok(())
    }

    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> io::Result<()> {
        fs::write(self.folder().join(name), contents)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the file of the kernel's console.
    pub fn console(&self) -> PathBuf {
        self.qemu.join(CONSOLE)
    }

    /// Returns the file of QEMU's standard error.
    pub fn qemu_errors(&self) -> PathBuf {
        self.qemu.join(QEMU_ERRORS)
    }

    /// Returns whether the guest has finished the job.
    pub fn has_ended(&self) -> bool {
        self.folder().join(ENDED).exists()
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

/// Removes the job folders that killed processes have left.
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
    use super::{ARGUMENTS, ENVIRONMENT, Job, LOCK, PREFIX, STATUS, remove_abandoned, split_words};
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
        let job = Job::temporary().unwrap();
        job.write(STATUS, "1").unwrap();
        job.prepare(&command, None).unwrap();
        assert_eq!(job.status(), None, "of a previous job");
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
