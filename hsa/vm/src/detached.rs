//! Machines that keep running for the next program.
//!
//! Each machine has a folder that only the current user can open. The folder contains the job's folders, and the
//! sockets through which QEMU sends the program's output. The folder's name is a hash of the configuration. A process
//! locks the folder while the process uses the machine.

use crate::job::Job;
use crate::machine::{Machine, RunError, file_error};
use crate::running::{Limits, POLLING_INTERVAL, WaitEnd};
use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, geteuid, kill_process, setsid, test_kill_process};
use std::collections::hash_map::DefaultHasher;
use std::env;
use std::fs::{self, DirBuilder, File};
use std::hash::{Hash, Hasher};
use std::io;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

const LOCK: &str = "lock";
/// The file with the process ID of QEMU.
const PROCESS: &str = "process";
/// The sockets for the program's standard output and standard error.
const SOCKETS: [&str; 2] = ["output", "errors"];
/// The time limit for a machine to become idle after the process that used the machine was killed.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// The locked folder of a machine that keeps running. Dropping this value releases the lock.
pub(crate) struct DetachedMachine {
    folder: PathBuf,
    _lock: File,
}

/// The connection to a QEMU process.
pub(crate) struct Connection {
    streams: [UnixStream; 2],
    process: Pid,
}

impl DetachedMachine {
    /// Locks the folder of the machine with this configuration. Waits while another process uses the
    /// machine. Returns the limit if a limit ends the wait.
    pub fn lock(machine: &Machine, limits: &Limits) -> Result<Result<Self, WaitEnd>, RunError> {
        let parent = user_folder().map_err(|(path, cause)| RunError::File { path, cause })?;
        let folder = parent.join(format!("{:016x}", configuration_hash(machine)));
        create_private(&folder).map_err(file_error(&folder))?;
        let path = folder.join(LOCK);
        let lock = File::create(&path).map_err(file_error(&path))?;
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Ok(Self { folder, _lock: lock })),
                Err(Errno::WOULDBLOCK) => {}
                Err(error) => return Err(file_error(&path)(error.into())),
            }
            if let Some(end) = limits.reached() {
                return Ok(Err(end));
            }
            thread::sleep(POLLING_INTERVAL);
        }
    }

    /// Returns the folder of the machine, which also contains the job's folders.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Waits until the machine is idle, then connects to it. Returns `None` if the machine does not run, or if a limit
    /// is reached. Kills the machine and returns `None` if the machine does not become idle within [`IDLE_LIMIT`].
    pub fn connect(&self, job: &Job, limits: &Limits) -> Option<Connection> {
        let text = fs::read_to_string(self.folder.join(PROCESS)).ok()?;
        let process = Pid::from_raw(text.trim().parse().ok()?)?;
        let connect = || Some(Connection { streams: self.open_streams().ok()?, process });
        let started = Instant::now();
        // Connect only after the previous job has ended: an earlier connection would hide from the guest that the
        // previous process has disconnected. `job` has not started, so `has_ended` is about the previous job.
        while !job.has_ended() {
            test_kill_process(process).ok()?;
            if limits.reached().is_some() {
                return None;
            }
            if started.elapsed() > IDLE_LIMIT {
                // A successful connection shows that the process is still QEMU.
                connect()?.kill();
                return None;
            }
            thread::sleep(POLLING_INTERVAL);
        }
        connect()
    }

    /// Boots a machine. `command` receives QEMU's character devices for the program's output and errors, and returns
    /// the command that starts QEMU.
    pub fn boot(
        &self,
        command: impl FnOnce([String; 2]) -> io::Result<Command>,
    ) -> Result<Connection, RunError> {
        let to_error = || file_error(&self.folder);
        let listeners = SOCKETS.map(|name| self.listen(name));
        let [first, second] = listeners;
        let listeners = [first.map_err(to_error())?, second.map_err(to_error())?];
        let port = |listener: &UnixListener| {
            format!("socket,fd={},server=on,wait=off", listener.as_raw_fd())
        };
        let mut command = command(listeners.each_ref().map(port)).map_err(to_error())?;
        command.current_dir("/");
        // SAFETY: between fork and exec, the closure only calls `setsid`: it neither allocates memory nor takes a lock.
        unsafe { command.pre_exec(|| setsid().map(drop).map_err(io::Error::from)) };
        // QEMU accepts these connections later. If QEMU ends before that, the connections end, too.
        let streams = self.open_streams().map_err(to_error())?;
        let child = command.spawn().map_err(RunError::NoQemu)?;
        let process = Pid::from_child(&child);
        let path = self.folder.join(PROCESS);
        fs::write(&path, child.id().to_string()).map_err(file_error(&path))?;
        Ok(Connection { streams, process })
    }

    /// Creates a socket that QEMU inherits.
    fn listen(&self, name: &str) -> io::Result<UnixListener> {
        let path = self.folder.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        fcntl_setfd(&listener, FdFlags::empty())?;
        Ok(listener)
    }

    fn open_streams(&self) -> io::Result<[UnixStream; 2]> {
        let [output, errors] = SOCKETS.map(|name| UnixStream::connect(self.folder.join(name)));
        Ok([output?, errors?])
    }
}

impl Connection {
    /// Returns the ends that receive the program's output and errors.
    pub fn readers(&self) -> Result<[UnixStream; 2], RunError> {
        let [output, errors] = self.streams.each_ref().map(UnixStream::try_clone);
        let to_error = || file_error(Path::new("socket"));
        Ok([output.map_err(to_error())?, errors.map_err(to_error())?])
    }

    /// Kills QEMU.
    pub fn kill(&self) {
        // QEMU may have ended already.
        let _ = kill_process(self.process, Signal::KILL);
    }

    /// Ends the connection, so that the machine kills its program.
    pub fn shut_down(&self) {
        for stream in &self.streams {
            // Fails if QEMU has ended.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Returns a hash of the settings that cannot change while a machine runs.
fn configuration_hash(machine: &Machine) -> u64 {
    let mut hasher = DefaultHasher::new();
    let Machine { gpus, vram_mib, memory_mib, processors, parameters, results, .. } = machine;
    (gpus, vram_mib, memory_mib, processors, parameters, results).hash(&mut hasher);
    // Include the file's identity, because `vm fetch` replaces the file.
    let initramfs = machine.kernel.initramfs();
    let changed =
        fs::metadata(&initramfs).map(|file| (file.ino(), file.mtime(), file.mtime_nsec())).ok();
    (initramfs, changed).hash(&mut hasher);
    hasher.finish()
}

/// Returns the folder of this user's machines.
fn user_folder() -> Result<PathBuf, (PathBuf, io::Error)> {
    let runtime = env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    let parent = runtime.map_or_else(env::temp_dir, PathBuf::from);
    let folder = parent.join(format!("hsa-vmm-machines-{}", geteuid().as_raw()));
    create_private(&folder).map(|()| folder.clone()).map_err(|error| (folder, error))
}

/// Creates a folder that only this user can open. Accepts an existing folder, unless another user can open it.
fn create_private(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(folder)?;
    let is_private =
        found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0;
    let problem = "another user can open it, or it is not a folder; remove it";
    if is_private { Ok(()) } else { Err(io::Error::new(io::ErrorKind::PermissionDenied, problem)) }
}

#[cfg(test)]
mod tests {
    use super::create_private;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn folder_that_others_can_open_is_rejected() {
        let temporary = tempfile::tempdir().unwrap();
        let [folder, link] = ["folder", "link"].map(|name| temporary.path().join(name));
        create_private(&folder).unwrap();
        create_private(&folder).unwrap();
        symlink(&folder, &link).unwrap();
        create_private(&link).unwrap_err();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o750)).unwrap();
        create_private(&folder).unwrap_err();
    }
}
