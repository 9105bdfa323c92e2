//! The folders through which the host and the virtual machine exchange a program and its results.

use hsa_sys::open_regular;
use rustix::fs::{FlockOperation, flock};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Variables whose files or folders do not exist in the virtual machine.
const NOT_INHERITED: [&str; 2] = ["LD_PRELOAD", "XDG_RUNTIME_DIR"];

/// The folder that the host writes to.
const HOST: &str = "job";
/// The folder that the guest writes to.
const GUEST: &str = "guest";

// The names of the host's files.

/// The program and its arguments.
pub(crate) const ARGUMENTS: &str = "arguments";
/// The program's environment variables.
pub(crate) const ENVIRONMENT: &str = "environment";
/// The path of the program's current folder.
pub(crate) const WORKING_DIRECTORY: &str = "directory";
/// Exists when the host has received as many bytes as [`WRITTEN`] says.
pub(crate) const RECEIVED: &str = "received";
/// Each exists when the reader of the host's standard output or standard error has closed the stream.
pub(crate) const CLOSED: [&str; 2] = ["output-closed", "errors-closed"];
/// The number of the job. The host writes this file last. The guest then starts the program.
const READY: &str = "ready";
/// The number of seconds for which an idle machine waits for the next program.
pub(crate) const KEEP: &str = "keep";
/// The function of amdgpu.ko that does nothing while the program runs (`--stub`).
pub(crate) const STUB: &str = "stub";
/// The plan of the engines' faults.
pub(crate) const FAULTS: &str = "faults";
/// The path of `hsa-vmm`, which the guest starts as `hsa-vmm vm-guest`.
const HSA_VMM: &str = "hsa-vmm";
/// The path of the folder that the program can write to.
const RESULTS: &str = "results";

// The names of the guest's files.

/// The program's exit status.
pub(crate) const STATUS: &str = "status";
/// The numbers of bytes that the program has written to standard output and to standard error. The
/// guest writes this file when the program has ended.
pub(crate) const WRITTEN: &str = "written";
/// Contains the job's number when the guest starts `hsa-vmm vm-guest`. No file of the previous job exists then.
const STARTED: &str = "started";
/// Contains the job's number when the program has ended and all other files of the job are written.
const ENDED: &str = "ended";
/// The kernel's log.
pub(crate) const DMESG: &str = "dmesg";

// The names of files in both folders. The host creates an empty file to request the guest's file.

/// The functions of amdgpu.ko that ran, and how often each was called (`--coverage`).
pub(crate) const COVERAGE: &str = "coverage";
/// The log of the calls of the kernel driver (`--log`). The program can write this file.
pub(crate) const LOG: &str = "log";
/// A dump of the GPUs' page tables (`--page-tables`). The program can write this file.
pub(crate) const PAGE_TABLES: &str = "page_tables";

// The names of files that only the host uses.

/// The output of the kernel's console.
const CONSOLE: &str = "console";
/// QEMU's standard error.
const QEMU_ERRORS: &str = "qemu";
/// Locked while the process that created a temporary folder runs.
const LOCK: &str = "lock";
/// The prefix of the names of temporary folders.
const PREFIX: &str = "hsa-vmm-vm-";
/// The maximum size of a file that is copied from the guest.
const MAX_COPY: u64 = 256 << 20;

/// The folders of a program to run in a virtual machine.
///
/// The host's folder is read-only in the guest. Otherwise, the guest could create a symbolic link
/// in this folder, and the host would follow the link. The program runs as root in the guest. It can
/// create any file in the guest's folder, and replace the files that `hsa-vmm vm-guest` writes.
#[derive(Debug)]
pub(crate) struct Job {
    /// Contains the host's folder, the guest's folder, and files that only the host uses.
    folder: PathBuf,
    /// The number in [`READY`].
    number: u64,
    /// The temporary folder and its lock. Dropping the job removes the folder.
    _temporary: Option<(TempDir, File)>,
}

impl Job {
    /// Creates a job in a temporary folder, which is locked while this process runs. Other users cannot read the
    /// folder, because it contains the environment of this process. Removes the job folders that killed processes have
    /// left.
    pub fn temporary() -> io::Result<Self> {
        remove_abandoned(&env::temp_dir());
        let (temporary, lock) = loop {
            let only_owner = fs::Permissions::from_mode(0o700);
            let temporary =
                tempfile::Builder::new().prefix(PREFIX).permissions(only_owner).tempdir()?;
            let lock = File::create(temporary.path().join(LOCK))?;
            flock(&lock, FlockOperation::LockShared)?;
            // Before this process took the lock, another process may have taken the folder for an abandoned one.
            if lock.metadata()?.nlink() > 0 {
                break (temporary, lock);
            }
        };
        let job = Self::open(temporary.path().to_owned())?;
        Ok(Self { _temporary: Some((temporary, lock)), ..job })
    }

    /// Creates a job in an existing folder, such as the folder of a machine that keeps running. Only this user must be
    /// able to write to the folder. Creates the missing subfolders.
    pub fn open(folder: PathBuf) -> io::Result<Self> {
        let job = Self { folder, number: 0, _temporary: None };
        fs::create_dir_all(job.host_folder())?;
        fs::create_dir_all(job.guest_folder())?;
        Ok(Self { number: job.started_number().unwrap_or(0), ..job })
    }

    /// Returns the folder that the host writes to and the guest can only read.
    pub fn host_folder(&self) -> PathBuf {
        self.folder.join(HOST)
    }

    /// Returns the folder that the guest writes to.
    pub fn guest_folder(&self) -> PathBuf {
        self.folder.join(GUEST)
    }

    /// Replaces the guest's folder with an empty folder, before a machine boots.
    pub fn renew_guest_folder(&self) -> io::Result<()> {
        let folder = self.guest_folder();
        // The previous guest can have created folders that cannot be removed: too deep, or without permissions. Such
        // folders must not prevent this machine from booting.
        if fs::remove_dir_all(&folder).is_err() && folder.exists() {
            let aside = tempfile::Builder::new().prefix("left-").tempdir_in(&self.folder)?;
            fs::rename(&folder, aside.keep())?;
        }
        fs::create_dir_all(&folder)
    }

    /// Removes the host's files of the previous job. Writes a command, its current folder and its environment, the path
    /// of this program, and `results`, the path of the folder that the command can write to.
    ///
    /// The environment is that of this process without [`NOT_INHERITED`], with the changes of the command.
    pub fn prepare(&self, command: &Command, results: Option<&Path>) -> io::Result<()> {
        for entry in fs::read_dir(self.host_folder())? {
            let entry = entry?;
            // Keep this file: the guest and other processes compare its number with the next one.
            if entry.file_name() != READY {
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
        self.write(WORKING_DIRECTORY, directory.as_os_str().as_bytes())?;
        self.write(HSA_VMM, env::current_exe()?.as_os_str().as_bytes())?;
        if let Some(results) = results {
            self.write(RESULTS, results.as_os_str().as_bytes())?;
        }
        Ok(())
    }

    /// Writes a file for the guest.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> io::Result<()> {
        fs::write(self.host_folder().join(name), contents)
    }

    /// Lets the guest start the program. All other files of the job must have been written.
    pub fn start(&mut self) -> io::Result<()> {
        self.number += 1;
        // Rename the complete file, so that the guest never reads a part of the number.
        let partial = self.host_folder().join("ready.part");
        fs::write(&partial, self.number.to_string())?;
        fs::rename(partial, self.host_folder().join(READY))
    }

    /// Returns the number of the last job that was started in this folder.
    fn started_number(&self) -> Option<u64> {
        fs::read_to_string(self.host_folder().join(READY)).ok()?.parse().ok()
    }

    /// Returns the job's folder, which contains the host's folder and the guest's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of the file with the output of the kernel's console.
    pub fn console(&self) -> PathBuf {
        self.folder.join(CONSOLE)
    }

    /// Returns the path of the file with QEMU's standard error.
    pub fn qemu_errors(&self) -> PathBuf {
        self.folder.join(QEMU_ERRORS)
    }

    /// Returns whether the guest has finished this job. Before [`Self::start`], returns whether the
    /// guest has finished the previous job in this folder.
    pub fn has_ended(&self) -> bool {
        self.is_marked(ENDED)
    }

    /// Returns whether the guest has removed the files of the previous job and started `hsa-vmm vm-guest`.
    pub fn has_started(&self) -> bool {
        self.is_marked(STARTED)
    }

    /// Returns whether a file of the guest contains the number of this job.
    fn is_marked(&self, name: &str) -> bool {
        self.read(name).is_some_and(|text| text.trim().parse() == Ok(self.number))
    }

    /// Returns the numbers of bytes that the program has written to standard output and to standard
    /// error, if the program has ended.
    pub fn written(&self) -> Option<[u64; 2]> {
        let text = self.read_of_this_job(WRITTEN)?;
        // The guest may have written a part of the file.
        let (output, errors) = text.strip_suffix('\n')?.split_once(' ')?;
        Some([output.parse().ok()?, errors.parse().ok()?])
    }

    /// Returns the program's exit status, if the program has ended.
    pub fn status(&self) -> Option<u8> {
        self.read_of_this_job(STATUS)?.trim().parse().ok()
    }

    fn read_of_this_job(&self, name: &str) -> Option<String> {
        self.has_started().then(|| self.read(name)).flatten()
    }

    /// Reads a file of the guest that contains numbers.
    fn read(&self, name: &str) -> Option<String> {
        let mut text = String::new();
        // The longest file has two numbers of 20 digits. The guest can make any file endless.
        self.open_file(name).ok()?.take(64).read_to_string(&mut text).ok()?;
        Some(text)
    }

    fn open_file(&self, name: &str) -> io::Result<File> {
        open_regular(&self.guest_folder().join(name), File::options().read(true))
    }

    /// Copies a file of the guest. Rejects a file of [`MAX_COPY`] bytes or more. Otherwise, a program could make the
    /// host copy for a long time after the time limit.
    pub fn copy(&self, name: &str, target: &Path) -> io::Result<()> {
        let source = self.open_file(name).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => not_written(name),
            _ => error,
        })?;
        // A file with holes can be larger than the disk. Check before creating the target.
        if source.metadata()?.len() >= MAX_COPY {
            return Err(too_large(name));
        }
        let mut target = File::create(target)?;
        // In a kept machine, the file can grow during the copy.
        if io::copy(&mut source.take(MAX_COPY), &mut target)? >= MAX_COPY {
            return Err(too_large(name));
        }
        Ok(())
    }
}

fn not_written(name: &str) -> io::Error {
    let message = format!("the virtual machine has not written its {name}");
    io::Error::new(io::ErrorKind::NotFound, message)
}

fn too_large(name: &str) -> io::Error {
    let message = format!("{name} of the virtual machine has {} MiB or more", MAX_COPY >> 20);
    io::Error::new(io::ErrorKind::FileTooLarge, message)
}

/// Removes the job folders that killed processes of this user have left.
fn remove_abandoned(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.filter_map(Result::ok) {
        // Another user can create a folder of this name in `/tmp`, with any contents. `DirEntry::metadata` does
        // not follow a symbolic link.
        let is_job = entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes())
            && entry.metadata().is_ok_and(|found| {
                found.is_dir() && found.uid() == rustix::process::geteuid().as_raw()
            });
        let open = || open_regular(&entry.path().join(LOCK), File::options().read(true)).ok();
        let lock = is_job.then(open).flatten();
        let Some(lock) = lock else { continue };
        // Keeps the lock until the folder is removed: a process that creates the folder waits for the lock, and then
        // looks whether the folder still exists.
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // Fails if another process removes the folder.
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
mod tests;
