//! What another process of the machine has open.
//!
//! There is no kernel here that all processes share; what the kernel would remember for them is
//! found in the files of the process that said it.

use crate::own;
use std::fs::{self, File};
use std::path::Path;

/// Opens a memory file of another process's, if it has a name that is wanted.
pub(crate) fn open(process: u32, number: u32, wanted: impl Fn(&str) -> bool) -> Option<File> {
    open_at(Path::new(&format!("/proc/{process}/fd/{number}")), wanted)
}

/// The memory file of a name, among all that another process has open.
pub(crate) fn find(process: u32, name: &str) -> Option<File> {
    let files = fs::read_dir(format!("/proc/{process}/fd")).ok()?;
    files.flatten().find_map(|file| open_at(&file.path(), |found| found == name))
}

fn open_at(path: &Path, wanted: impl Fn(&str) -> bool) -> Option<File> {
    // What is no memory file must not even be opened: that of a pipe could wait for ever.
    let name = fs::read_link(path).ok()?;
    let name = name.to_str()?.strip_prefix("/memfd:")?;
    if !wanted(name.strip_suffix(" (deleted)").unwrap_or(name)) {
        return None;
    }
    own::keep_file(File::options().read(true).write(true).open(path).ok()?).ok()
}
