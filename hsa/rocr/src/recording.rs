//! Runs a program and records its virtual memory calls.

use crate::NoObject;
use crate::object::Object;
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

const OBJECT: Object = Object {
    description: "recorder",
    file: "libhsa_record.so",
    package: "hsa-record",
    variable: "HSA_VMM_RECORDER",
};

/// The environment variable that names the tools of AMD's runtime.
const TOOLS: &str = "HSA_TOOLS_LIB";

/// A recording of the virtual memory calls of a program, through the interface of AMD's runtime for tools.
///
/// The runtime must be AMD's: the simulation loads no tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    file: PathBuf,
    stacks: bool,
}

impl Recording {
    /// Records into a file. The path must be absolute. If the file exists, a process records into
    /// `FILE.PID` instead: for example, a second process that the program starts.
    #[must_use]
    pub fn new(file: impl Into<PathBuf>) -> Self {
        Self { file: file.into(), stacks: false }
    }

    /// Sets whether the call stack of each call is recorded.
    #[must_use]
    pub fn with_stacks(mut self, stacks: bool) -> Self {
        self.stacks = stacks;
        self
    }

    /// Makes the program of a command, and the programs that it starts, record their calls. Tools that the
    /// variable `HSA_TOOLS_LIB` names stay enabled.
    ///
    /// # Errors
    /// The shared object was not found.
    pub fn apply(&self, command: &mut Command) -> Result<(), NoObject> {
        let object = OBJECT.find()?;
        command
            .env(TOOLS, tool_list(&object, env::var_os(TOOLS).as_deref()))
            // Releases with rocprofiler-register (6.4 and later) ignore HSA_TOOLS_LIB without this variable.
            .env("HSA_TOOLS_ROCPROFILER_V1_TOOLS", "1")
            .env("HSA_VMM_RECORD", &self.file)
            .env("HSA_VMM_RECORD_STACKS", if self.stacks { "1" } else { "0" });
        Ok(())
    }
}

/// Returns the value of `HSA_TOOLS_LIB`: the object, then the inherited value. Spaces separate the
/// names. A backslash escapes the next character.
fn tool_list(object: &Path, inherited: Option<&OsStr>) -> OsString {
    let mut list = Vec::new();
    for &byte in object.as_os_str().as_bytes() {
        if matches!(byte, b' ' | b'"' | b'\\') {
            list.push(b'\\');
        }
        list.push(byte);
    }
    if let Some(inherited) = inherited.filter(|inherited| !inherited.is_empty()) {
        list.push(b' ');
        list.extend_from_slice(inherited.as_bytes());
    }
    OsString::from_vec(list)
}

#[cfg(test)]
mod tests {
    use super::tool_list;

    #[test]
    fn existing_tools_are_kept() {
        let list = |before: Option<&str>| tool_list("/a b/r.so".as_ref(), before.map(str::as_ref));
        assert_eq!(list(None), "/a\\ b/r.so");
        assert_eq!(list(Some("")), "/a\\ b/r.so");
        assert_eq!(list(Some("x.so y.so")), "/a\\ b/r.so x.so y.so");
    }
}
