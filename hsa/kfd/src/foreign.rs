//! Files that another process has open.
//!
//! A driver in the kernel has one state for all processes. The emulation runs in each process
//! separately. To find the state of another process, the emulation reads that process's open files.

use crate::own_descriptors;
use std::fs::{self, File};
use std::path::Path;

/// Opens a memory file of another process, if its name matches.
pub(crate) fn open(process: u32, descriptor: u32, matches: impl Fn(&str) -> bool) -> Option<File> {
    open_at(Path::new(&format!("/proc/{process}/fd/{descriptor}")), matches)
}

/// Finds a memory file by name among the open files of another process.
pub(crate) fn find(process: u32, name: &str) -> Option<File> {
    let files = fs::read_dir(format!("/proc/{process}/fd")).ok()?;
    files.flatten().find_map(|file| open_at(&file.path(), |found| found == name))
}

fn open_at(path: &Path, matches: impl Fn(&str) -> bool) -> Option<File> {
    // Open only memory files: opening a pipe could block forever.
    let name = fs::read_link(path).ok()?;
    let name = name.to_str()?.strip_prefix("/memfd:")?;
    if !matches(name.strip_suffix(" (deleted)").unwrap_or(name)) {
        return None;
    }
    File::options()
        .read(true)
        .write(true)
        .open(path)
        .ok()
        .map(own_descriptors::move_file_above_floor)
}
