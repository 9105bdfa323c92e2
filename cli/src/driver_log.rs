//! Reads the kernel's log and the emulated driver's log while cases run.

use crate::kernel_log::KernelLog;
use crate::planned_faults::is_driver_emulated;
use crate::screen::note;
use crate::subcommands::bringup::{call_and_error, count_failures, has_ended, returned_error};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;

/// The environment variable with the path of the emulated driver's log.
const LOG_VARIABLE: &str = "HSA_KFD_LOG";
/// The number of last lines of the emulated driver's log that [`DriverLog::new_lines`] returns. Earlier lines are
/// returned only if they report failures.
const LAST_LINES: usize = 12;

/// The prefix that [`DriverLog`] adds to lines of the emulated driver's log.
pub const DRIVER_PREFIX: &str = "driver: ";

/// The prefix that [`DriverLog`] adds to lines of the kernel's log.
pub const KERNEL_PREFIX: &str = "kernel: ";

/// Returns whether the emulated driver logged a failure in this line of output. Returns `None` if the line is not the
/// driver's.
pub fn driver_line_failed(line: &str) -> Option<bool> {
    line.strip_prefix(DRIVER_PREFIX).map(is_failure)
}

/// Returns a line of the emulated driver's log without its prefix, if the line reports a failure.
pub fn failed_driver_line(line: &str) -> Option<&str> {
    line.strip_prefix(DRIVER_PREFIX).filter(|line| is_failure(line))
}

/// Returns the failures that the emulated driver logged in these lines: one line for each call and error, with the
/// number of equal failures.
pub fn driver_failures<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let failures = count_failures(lines.filter_map(failed_driver_line)).into_iter();
    failures.map(|line| format!("{DRIVER_PREFIX}{line}")).collect()
}

/// Returns the call and the error of a failure that the emulated driver logged: `("kfd GET_VERSION", "EIO")`.
pub fn failed_request(line: &str) -> Option<(String, String)> {
    let line = line.strip_prefix(DRIVER_PREFIX).filter(|line| returned_error(line))?;
    let (call, error) = call_and_error(line);
    Some((call, error.to_owned()))
}

/// Returns the failures that the emulated driver logged in these lines, as `--redact` keeps them: the call and the error
/// of each request, such as `kfd GET_VERSION EIO`, and the GPU faults with their addresses. Returns each failure once.
pub fn redacted_failures<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    redacted_requests(lines.filter_map(|line| line.strip_prefix(DRIVER_PREFIX)))
}

/// Returns the failures in these lines of the emulated driver's log, without [`DRIVER_PREFIX`], as
/// [`redacted_failures`] does.
pub fn redacted_requests<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let failures = lines.filter(|line| is_failure(line)).map(|line| {
        if returned_error(line) {
            let (call, error) = call_and_error(line);
            return format!("{call} {error}");
        }
        // Omit process, thread and time.
        line.splitn(3, ' ').nth(2).unwrap_or_default().to_owned()
    });
    failures.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns whether a line says that the driver returned an error, or that a GPU accessed an address without a page.
fn is_failure(line: &str) -> bool {
    returned_error(line) || is_gpu_fault(line)
}

/// Returns whether a line of the emulated driver's log says that a GPU accessed an address without a page.
pub fn is_gpu_fault(line: &str) -> bool {
    line.contains(" fault at ")
}

/// Returns the regular file that the user chose for the emulated driver's log. The file may not exist yet.
pub fn regular_log() -> Option<PathBuf> {
    let path = PathBuf::from(chosen_log()?);
    match fs::metadata(&path) {
        // Resolve links: in a worker process, `/dev/stderr` is another file.
        Ok(found) if found.is_file() => path.canonicalize().ok(),
        Ok(_) => None,
        // The driver creates the file.
        Err(_) => Some(path),
    }
}

/// If the user chose a log that cannot be read again, such as a pipe, prints that `bringup` does not use it.
pub fn note_unused_log() {
    if let Some(path) = chosen_log().filter(|_| is_driver_emulated() && regular_log().is_none()) {
        note!(
            "no calls of the levels are written to {}, which is not a regular file; use `bringup --log FILE`",
            path.display()
        );
    }
}

/// Returns the value of [`LOG_VARIABLE`].
fn chosen_log() -> Option<OsString> {
    env::var_os(LOG_VARIABLE).filter(|path| !path.is_empty())
}

/// The log of the kernel and, if workers use the emulated driver, that driver's log.
#[derive(Debug)]
pub struct DriverLog {
    kernel: KernelLog,
    emulated: Option<EmulatedLog>,
}

/// The log of the emulated driver: an own file, or the file that the user chose.
#[derive(Debug)]
struct EmulatedLog {
    file: File,
    is_users: bool,
}

impl EmulatedLog {
    /// Opens the log, so that only later lines are read. Returns `None` for a user's file that cannot be read, such as a
    /// pipe.
    fn open() -> Option<Self> {
        let Some(path) = chosen_log() else {
            let file = memfd_create("driver log", MemfdFlags::CLOEXEC).ok()?;
            return Some(Self { file: file.into(), is_users: false });
        };
        // Opening a pipe would block.
        fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        let mut file = File::open(path).ok()?;
        file.seek(SeekFrom::End(0)).ok()?;
        Some(Self { file, is_users: true })
    }

    /// Reads what was logged since the previous call of this method, or since [`open`](Self::open).
    fn read(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        self.file.read_to_end(bytes)?;
        let end = self.file.stream_position()?;
        if !self.is_users && end > 0 {
            // Free the memory of what was read. Do not truncate the file: a running worker can have appended lines.
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&self.file, flags, 0, end)?;
        }
        Ok(())
    }
}

impl DriverLog {
    /// Opens the logs, so that only later lines are read.
    pub fn open() -> Self {
        let emulated = is_driver_emulated().then(EmulatedLog::open).flatten();
        Self { kernel: KernelLog::open_at_end(), emulated }
    }

    /// Makes the emulated driver of a worker process write to this log.
    pub fn apply(&self, command: &mut Command) {
        if let Some(EmulatedLog { file, is_users: false }) = &self.emulated {
            command
                .env(LOG_VARIABLE, format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
        }
    }

    /// Returns the lines that were logged since the previous call of this method, or since [`open`](Self::open). Omits
    /// lines of the emulated driver's log as described at [`LAST_LINES`].
    pub fn new_lines(&mut self) -> Vec<String> {
        let kernel = self.kernel.new_lines().unwrap_or_default();
        let kernel = kernel.into_iter().map(|line| format!("{KERNEL_PREFIX}{line}"));
        let mut lines: Vec<_> = kernel.collect();
        let Some(log) = &mut self.emulated else { return lines };
        let mut bytes = Vec::new();
        if let Err(error) = log.read(&mut bytes) {
            lines.push(format!("driver: (cannot read its log: {error})"));
        }
        let text = String::from_utf8_lossy(&bytes);
        lines.extend(shown_lines(&text).map(|line| format!("{DRIVER_PREFIX}{line}")));
        lines
    }
}

/// Returns the last lines of the emulated driver's log, and the earlier lines that report failures.
fn shown_lines(text: &str) -> impl Iterator<Item = &str> {
    let lines: Vec<_> = text.lines().collect();
    let start = lines.len().saturating_sub(LAST_LINES);
    (0..lines.len()).filter_map(move |index| {
        let (line, later) = (lines[index], &lines[index + 1..]);
        let is_shown = index >= start || is_failure(line);
        (is_shown && !has_ended(line, later.iter().copied())).then_some(line)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    /// A thread of the runtime can append lines while the log is read.
    #[test]
    fn log_loses_no_line_of_a_running_worker() {
        const LINES: usize = 20_000;
        let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mut appended = File::options().append(true).open(path).unwrap();
        let mut log = EmulatedLog { file, is_users: false };
        let worker = std::thread::spawn(move || {
            (0..LINES).for_each(|_| appended.write_all(b"1:1 0.1 kfd WAIT_EVENTS\n").unwrap());
        });
        let mut bytes = Vec::new();
        while !worker.is_finished() {
            log.read(&mut bytes).unwrap();
        }
        log.read(&mut bytes).unwrap();
        assert_eq!(String::from_utf8(bytes).unwrap().lines().count(), LINES);
        let pages = log.file.metadata().unwrap().blocks() / 8;
        assert!(pages <= 1, "{pages} pages are not freed");
    }

    #[test]
    fn delay_that_has_ended_is_not_shown() {
        let [running, delayed] = ["1:1", "1:2"].map(|task| {
            format!("{task} 0.1 engine COPY to=0x1000 length=0x1000 = ? (delayed by 1s)")
        });
        let ended = "1:2 1.1 engine COPY to=0x1000 length=0x1000 -> ok";
        let text = [&running, &delayed, ended].join("\n");
        assert_eq!(shown_lines(&text).collect::<Vec<_>>(), [&running, ended]);
    }

    #[test]
    fn redacted_failures_keep_gpu_faults() {
        let lines = [
            "driver: 1:1 0.5 kfd EXPORT_DMABUF handle=0x5 = EIO (1.0 us)",
            "driver: 1:2 0.6 kfd EXPORT_DMABUF handle=0x6 = EIO (1.0 us)",
            "driver: 1:3 0.7 gpu0 fault at 0x7f38c727e000: EFAULT",
            "driver: 1:1 0.8 kfd FREE_MEMORY_OF_GPU handle=0x5 -> ok (1.0 us)",
            "kernel: amdgpu: page fault at 0x7f38c727e000",
        ];
        let expected = ["gpu0 fault at 0x7f38c727e000: EFAULT", "kfd EXPORT_DMABUF EIO"];
        assert_eq!(redacted_failures(lines.into_iter()), expected);
    }
}
