//! Runs programs of the host, such as `apt-get`, `dpkg-deb` and `make`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Why a tool failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// The program is not installed.
    #[error("cannot start `{program}`: {cause}; install the Debian package {package}")]
    NotStarted {
        /// The program.
        program: String,
        /// The package that contains the program.
        package: &'static str,
        /// The system's error.
        cause: io::Error,
    },
    /// The program failed.
    #[error("`{command}` failed ({status}):\n{errors}")]
    Failed {
        /// The program and its arguments.
        command: String,
        /// The exit status.
        status: String,
        /// The last lines of the program's standard error.
        errors: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {cause}", path = path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
}

/// Adds the path to a system error.
pub(crate) fn file_error(path: &Path) -> impl FnOnce(io::Error) -> ToolError + use<> {
    let path = path.to_owned();
    move |cause| ToolError::File { path, cause }
}

/// Converts the error of a missing file to success.
pub(crate) fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    result
        .or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Runs a tool. Returns the tool's standard output. An error names `package` if the tool is missing.
pub(crate) fn run(mut command: Command, package: &'static str) -> Result<Vec<u8>, ToolError> {
    let program = command.get_program().display().to_string();
    let words = command.get_args().map(|word| word.display().to_string()).collect::<Vec<_>>();
    // Fix the language of the output, because callers parse the output. Disable questions, which would block.
    command.env("LC_ALL", "C.UTF-8").env("DEBIAN_FRONTEND", "noninteractive");
    command.env_remove("LD_PRELOAD").env_remove("MAKEFLAGS").stdin(Stdio::null());
    let output = command.output();
    let output = output.map_err(|cause| ToolError::NotStarted {
        program: program.clone(),
        package,
        cause,
    })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<_> = errors.lines().filter(|line| !line.trim().is_empty()).collect();
    Err(ToolError::Failed {
        command: format!("{program} {}", words.join(" ")),
        status: output.status.to_string(),
        errors: lines[lines.len().saturating_sub(12)..].join("\n"),
    })
}
