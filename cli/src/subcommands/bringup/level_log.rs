//! The file of `bringup --log`: all calls of all levels, with the lines that driver and runtime logged.

use super::gpu_fault::is_driver_line;
use super::requests::returned_error;
use super::supervisor::{Call, LevelRun};
use crate::BadUsage;
use crate::provenance::Privacy;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::SystemTime;

/// Opens the log for writing. Keeps an earlier log until [`begin_log`].
pub fn open_log(path: &Path) -> anyhow::Result<File> {
    let cannot_write = |error| BadUsage(format!("cannot write {}: {error}", path.display())).into();
    File::options().write(true).create(true).truncate(false).open(path).map_err(cannot_write)
}

/// Empties the log, and writes its first line: the version of this command, the kernel and the time.
pub fn begin_log(log: &mut File) -> std::io::Result<()> {
    if log.metadata()?.is_file() {
        log.set_len(0)?;
    }
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let time = humantime::format_rfc3339_seconds(SystemTime::now());
    let version = env!("CARGO_PKG_VERSION");
    log.write_all(format!("hsa-vmm {version}, Linux {}, {time}\n", kernel.trim()).as_bytes())
}

/// Writes all calls of a level, each with the lines that driver and runtime logged during the call. GPU faults, and
/// failures of other threads, are written once: with the first call that was in flight, or after all calls. With
/// `--redact`, omits the runtime's output, and cleans the rest.
pub fn write_log(log: &mut File, run: &LevelRun, privacy: &Privacy) -> std::io::Result<()> {
    let mut text = Vec::new();
    let mut written = BTreeSet::new();
    writeln!(text, "== {} ({:?})", run.level.title(), run.took)?;
    for call in &run.calls {
        let (process, number) = (call.begin.id.process, call.begin.id.number);
        let took =
            call.end.as_ref().map_or(String::new(), |end| format!(" ({} us)", end.microseconds));
        writeln!(text, "{process}.{} {number:4} {}{took}", call.begin.thread, call.line())?;
        for line in driver_lines(run, call, &mut written) {
            writeln!(text, "          driver  {line}")?;
        }
        // The output of several threads cannot be attributed to calls.
        if call.begin.thread == 0 && !privacy.is_redacting() {
            for line in run.output_during(call).lines() {
                writeln!(text, "          runtime {line}")?;
            }
        }
    }
    for (offset, line) in run.driver.iter().flatten() {
        if is_failure(line) && !written.contains(offset) {
            writeln!(text, "          driver  {line}")?;
        }
    }
    if privacy.is_redacting() {
        text = privacy.clean_text(&String::from_utf8_lossy(&text)).into_bytes();
    }
    log.write_all(&text)
}

/// Returns the lines that the emulated driver logged during a call: those of the call's thread, and the failures that
/// are not in `written` and do not belong to another call's thread. Adds the lines to `written`.
fn driver_lines<'a>(run: &'a LevelRun, call: &Call, written: &mut BTreeSet<u64>) -> Vec<&'a str> {
    let start = call.begin.logs.driver;
    let end = call.end.as_ref().map_or(u64::MAX, |end| end.logs.driver);
    let process = call.begin.task.split_inclusive(':').next().unwrap_or_default();
    let task = |line: &'a str| line.split(' ').next().unwrap_or_default();
    let is_by_call = |line: &'a str| run.calls.iter().any(|it| it.begin.task == task(line));
    let lines = run.driver.iter().flatten().filter(|(offset, _)| (start..end).contains(offset));
    let lines = lines.filter(|(offset, line)| {
        let is_other = || is_failure(line) && line.starts_with(process) && !is_by_call(line);
        (task(line) == call.begin.task || is_other()) && written.insert(*offset)
    });
    lines.map(|(_, line)| line.as_str()).collect()
}

/// Returns whether a line of the driver's log reports a failed request, an error of an engine or a GPU fault.
fn is_failure(line: &str) -> bool {
    returned_error(line) || is_driver_line(line)
}
