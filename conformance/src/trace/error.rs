//! Errors of reading and writing traces.

use std::io;
use std::path::PathBuf;

/// The error of reading or writing traces. Line numbers start at 1.
///
/// The message includes the cause, so [`source`](std::error::Error::source) returns `None`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file could not be opened.
    #[error("{} cannot be opened: {error}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Reading failed: the file is truncated, damaged, or not text.
    #[error("line {line}: cannot be read: {error}")]
    Read {
        /// The line that was being read.
        line: u64,
        /// The cause.
        error: io::Error,
    },
    /// The line is not a trace.
    #[error("line {line}: not a trace: {error}")]
    Parse {
        /// The line.
        line: u64,
        /// The parse error.
        error: serde_json::Error,
    },
    /// The line is too long for a trace.
    #[error(
        "line {line}: longer than {} MiB; write each trace on a line of its own",
        limit >> 20
    )]
    TooLong {
        /// The line.
        line: u64,
        /// The maximum length in bytes.
        limit: usize,
    },
    /// The file has too many blank lines.
    #[error("line {line}: more than {} MiB of blank lines; remove them", limit >> 20)]
    Blank {
        /// The line.
        line: u64,
        /// The maximum size of all blank lines in bytes.
        limit: usize,
    },
    /// A trace could not be written.
    #[error("trace {line} cannot be written: {error}")]
    Write {
        /// The line number of the trace.
        line: u64,
        /// The cause.
        error: io::Error,
    },
}

impl TraceError {
    /// Returns the line that was being read or written; `None` if the file could not be opened.
    #[must_use]
    pub fn line(&self) -> Option<u64> {
        match *self {
            Self::Open { .. } => None,
            Self::Read { line, .. }
            | Self::Parse { line, .. }
            | Self::TooLong { line, .. }
            | Self::Blank { line, .. }
            | Self::Write { line, .. } => Some(line),
        }
    }
}
