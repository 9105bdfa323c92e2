//! Runs the job's program, inside the virtual machine.

use crate::job::{self, split_words};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The mount point of the folder that the host writes to.
const JOB: &str = "/run/hsa-vmm-job";
/// The mount point of the folder that the guest can write to.
const GUEST: &str = "/run/hsa-vmm";
/// The folder of the kernel module's files in debugfs.
const DEBUGFS: &str = "/sys/kernel/debug/hsa_vmm";
/// The folder of the virtio ports.
const PORTS: &str = "/sys/class/virtio-ports";

/// The time limit for the host to receive the program's last output.
const RECEIVE_LIMIT: Duration = Duration::from_secs(60);
const POLLING_INTERVAL: Duration = Duration::from_millis(10);
/// The interval at which [`copy`] checks whether the host's reader has closed a stream.
const CLOSED_INTERVAL: Duration = Duration::from_millis(100);

// Exit statuses: 125 as in `env`, the others as in shells.

const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
const SIGNAL_BASE: u8 = 128;

/// Runs the program of the job and writes the program's exit status into the guest's folder. If the program cannot be
/// run, writes the error to the standard error of the job, and 125, 126 or 127 as the exit status.
///
/// # Errors
/// The process is not in a virtual machine of [`crate::Machine`], or the error or the exit status cannot be written.
pub fn run() -> io::Result<()> {
    let (job, guest) = (Path::new(JOB), Path::new(GUEST));
    let (mut output, mut errors) = (Port::open("output")?, Port::open("errors")?);
    let status = match run_job(job, guest, &mut output, &mut errors) {
        Ok(status) => status,
        Err(error) => {
            writeln!(errors, "hsa-vmm vm: {error}")?;
            FAILED
        }
    };
    wait_until_received(job, guest, &output, &errors)?;
    fs::write(guest.join(job::STATUS), status.to_string())
}

/// A virtio port to the host. A write can return before QEMU has received the bytes.
struct Port {
    file: File,
    /// The number of bytes that were written.
    written: u64,
}

impl Port {
    fn open(name: &str) -> io::Result<Self> {
        Ok(Self { file: File::create(port(name)?)?, written: 0 })
    }
}

impl Write for Port {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Tells the host the numbers of written bytes. Waits until the host has received all of them, but for at most
/// [`RECEIVE_LIMIT`]. When the machine ends, QEMU discards the bytes that the host has not received.
fn wait_until_received(job: &Path, guest: &Path, output: &Port, errors: &Port) -> io::Result<()> {
    fs::write(guest.join(job::WRITTEN), format!("{} {}\n", output.written, errors.written))?;
    let started = Instant::now();
    while !job.join(job::RECEIVED).exists() && started.elapsed() < RECEIVE_LIMIT {
        thread::sleep(POLLING_INTERVAL);
    }
    Ok(())
}

/// Runs the program of the job. Returns the program's exit status.
fn run_job(job: &Path, guest: &Path, output: &mut Port, errors: &mut Port) -> io::Result<u8> {
    let read = |name: &str| fs::read(job.join(name));
    check_parameters(&fs::read_to_string("/proc/cmdline")?, Path::new("/sys/module"))?;
    for name in [job::LOG, job::PAGE_TABLES] {
        if job.join(name).exists() {
            fs::write(guest.join(name), "")?;
        }
    }
    let counts_calls = job.join(job::COVERAGE).exists();
    if counts_calls {
        start_coverage()?;
    }
    if let Ok(function) = fs::read(job.join(job::STUB)) {
        let stub_error = |error: io::Error| {
            let function = String::from_utf8_lossy(&function);
            io::Error::new(
                error.kind(),
                format!("cannot stub {function}: not a function of amdgpu.ko"),
            )
        };
        fs::write(Path::new(DEBUGFS).join("stub"), &function).map_err(stub_error)?;
    }
    if let Ok(plan) = read(job::FAULTS) {
        fs::write(Path::new(DEBUGFS).join("faults"), plan)?;
    }
    let arguments = split_words(&read(job::ARGUMENTS)?);
    let Some((program, arguments)) = arguments.split_first() else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the job has no program"));
    };
    let mut command = Command::new(program);
    command.args(arguments).env_clear().stdin(Stdio::null());
    for variable in split_words(&read(job::ENVIRONMENT)?) {
        if let Some((name, value)) = split_variable(&variable) {
            command.env(name, value);
        }
    }
    command.current_dir(PathBuf::from(OsString::from_vec(read(job::WORKING_DIRECTORY)?)));
    let mut child = match command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => {
            writeln!(errors, "hsa-vmm vm: cannot start {}: {error}", program.display())?;
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            return Ok(if is_missing { NOT_FOUND } else { NOT_EXECUTABLE });
        }
    };
    let (program_output, program_errors) = (child.stdout.take(), child.stderr.take());
    let host = job.join(job::KEEP).exists().then(|| output.file.try_clone()).transpose()?;
    let status = thread::scope(|scope| {
        let [output_closed, errors_closed] = job::CLOSED.map(|name| job.join(name));
        scope.spawn(move || copy(program_output, output, &output_closed));
        scope.spawn(move || copy(program_errors, errors, &errors_closed));
        wait(&mut child, host.as_ref())
    })?;
    if counts_calls {
        fs::write(guest.join(job::COVERAGE), fs::read(Path::new(DEBUGFS).join("coverage"))?)?;
    }
    Ok(exit_status(status))
}

/// Waits until a program has ended. If `host` is a port, and the host closes its end of the port, ends this process and
/// thus the job.
fn wait(child: &mut Child, host: Option<&File>) -> io::Result<ExitStatus> {
    let Some(host) = host else { return child.wait() };
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if is_disconnected(host)? {
            std::process::exit(FAILED.into());
        }
        thread::sleep(POLLING_INTERVAL);
    }
}

fn is_disconnected(port: &File) -> io::Result<bool> {
    let mut ports = [PollFd::new(port, PollFlags::empty())];
    poll(&mut ports, Some(&Timespec::default()))?;
    Ok(ports[0].revents().contains(PollFlags::HUP))
}

/// Fails if the kernel's command line has a parameter that no module has, or for which its module was not loaded. Linux
/// ignores the former. `modules` is the folder of the modules in sysfs.
fn check_parameters(command_line: &str, modules: &Path) -> io::Result<()> {
    for word in command_line.split_whitespace() {
        // hsa_vmm.ko reads this word itself.
        if word.starts_with("hsa_vmm.vm=") {
            continue;
        }
        let name = word.split_once('=').map_or("", |(name, _)| name);
        let Some((module, parameter)) = name.split_once('.') else { continue };
        // Every module has these parameters, but no files for them.
        let is_common = ["dyndbg", "async_probe"].contains(&parameter);
        // Linux treats `-` and `_` as the same letter, but `init` compares the module's name.
        let folder = modules.join(module);
        let file = folder.join("parameters").join(parameter.replace('-', "_"));
        let problem = if !folder.exists() {
            format!("there is no module {module}, or it rejects the value of a parameter")
        } else if !file.exists() && !is_common {
            format!("unknown parameter {name}")
        } else {
            continue;
        };
        let message = format!("{problem} (--parameter {word})");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(())
}

fn split_variable(variable: &OsStr) -> Option<(&OsStr, &OsStr)> {
    let bytes = variable.as_bytes();
    let end = bytes.iter().skip(1).position(|&byte| byte == b'=')? + 1;
    Some((OsStr::from_bytes(&bytes[..end]), OsStr::from_bytes(&bytes[end + 1..])))
}

fn exit_status(status: ExitStatus) -> u8 {
    let signal = || status.signal().and_then(|number| u8::try_from(number).ok()).unwrap_or(0);
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.unwrap_or_else(|| SIGNAL_BASE.saturating_add(signal()))
}

/// Returns the path of the device of the virtio port with this name.
fn port(name: &str) -> io::Result<PathBuf> {
    for entry in fs::read_dir(PORTS)? {
        let entry = entry?;
        let port_name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if port_name.trim() == name {
            return Ok(Path::new("/dev").join(entry.file_name()));
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "this is not a virtual machine of hsa-vmm"))
}

/// Copies from a pipe of the program to the host, until the program closes the pipe. Closes the pipe if the file
/// `closed` exists, so that the program's next write raises SIGPIPE, as outside of a virtual machine.
fn copy(reader: Option<impl Read>, mut writer: impl Write, closed: &Path) {
    let mut buffer = [0; 16 << 10];
    let Some(mut reader) = reader else { return };
    let mut checked = Instant::now();
    while let Ok(read @ 1..) = reader.read(&mut buffer) {
        if writer.write_all(&buffer[..read]).is_err() {
            return;
        }
        if checked.elapsed() > CLOSED_INTERVAL {
            checked = Instant::now();
            if closed.exists() {
                return;
            }
        }
    }
}

/// Makes the kernel module count the calls of all functions of amdgpu.ko that the kernel can trace.
fn start_coverage() -> io::Result<()> {
    let traced = fs::read_to_string("/sys/kernel/debug/tracing/available_filter_functions_addrs")?;
    let addresses = traced.lines().filter(|line| line.ends_with("[amdgpu]"));
    let addresses: Vec<_> = addresses.filter_map(|line| line.split_whitespace().next()).collect();
    let file = Path::new(DEBUGFS).join("coverage");
    for chunk in addresses.chunks(1000) {
        fs::write(&file, chunk.join("\n") + "\n")?;
    }
    fs::write(&file, "start\n")
}

#[cfg(test)]
mod tests {
    use super::{check_parameters, split_variable};
    use std::ffi::OsStr;
    use std::fs;

    #[test]
    fn unknown_module_parameters_are_rejected() {
        let modules = tempfile::tempdir().unwrap();
        let folder = modules.path().join("hsa_vmm/parameters");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("pte_delay"), "0").unwrap();
        let check = |line: &str| check_parameters(line, modules.path());
        check("console=ttyS0 quiet panic=-1 hsa_vmm.vm=1 hsa_vmm.pte-delay=50 hsa_vmm.dyndbg=+p\n")
            .unwrap();
        for (word, problem) in [
            ("hsa_vmm.tbl=0", "unknown parameter hsa_vmm.tbl"),
            ("hsavmm.pte_delay=5", "there is no module hsavmm, or it"),
            ("hsa-vmm.pte_delay=5", "there is no module hsa-vmm, or it"),
            ("x.dyndbg=+p", "there is no module x, or it"),
        ] {
            let error = check(&format!("quiet {word} hsa_vmm.vm=1\n")).unwrap_err().to_string();
            assert!(error.starts_with(problem), "{error}");
            assert!(error.ends_with(&format!("(--parameter {word})")), "{error}");
        }
    }

    #[test]
    fn variable_is_split_at_the_first_equals_sign() {
        let split = split_variable(OsStr::new("NAME=a=b")).unwrap();
        assert_eq!(split, (OsStr::new("NAME"), OsStr::new("a=b")));
        assert_eq!(split_variable(OsStr::new("NAME")), None);
    }
}
