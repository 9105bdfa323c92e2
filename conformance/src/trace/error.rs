//! Why traces could not be read or written.

use std::io;
use std::path::PathBuf;

/// Why traces could not be read or written. Lines are counted from 1.
///
/// The text has the cause, so that [`source`](std::error::Error::source) has none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file could not be opened.
    #[error("{} cannot be opened: {error}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        error: io::Error,
    },
    /// Reading stopped: the file ends too early, is damaged, or is no text.
    #[error("line {line}: cannot be read: {error}")]
    Read {
        /// The line that was being read.
        line: u64,
        /// What went wrong.
        error: io::Error,
    },
    /// The line is no trace.
    #[error("line {line}: is no trace: {error}")]
    Parse {
        /// The line.
        line: u64,
        /// What was found instead.
        error: serde_json::Error,
    },
    /// The line is too long for a trace.
    #[error(
        "line {line}: is longer than {} MiB, and no trace: each needs a line of its own",
        limit >> 20
    )]
    TooLong {
        /// The line.
        line: u64,
        /// The longest line that is read, in bytes.
        limit: usize,
    },
    /// The file has too many blank lines for one of traces.
    #[error("line {line}: more than {} MiB of blank lines, and no traces; remove them", limit >> 20)]
    Blank {
        /// The line.
        line: u64,
        /// How much of blank lines is read, in bytes.
        limit: usize,
    },
    /// A trace could not be written.
    #[error("trace {line} cannot be written: {error}")]
    Write {
        /// The line it would have been.
        line: u64,
        /// What went wrong.
        error: io::Error,
    },
}

impl TraceError {
    /// The line that was being read or written; `None` if it did not come to that.
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
