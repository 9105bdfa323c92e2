//! The kinds of files that the command writes, to name the kind of a file that a subcommand cannot read.

use crate::BadUsage;
use hsa_vmm_conformance::Report;
use hsa_vmm_conformance::hsa_trace::Recording;
use hsa_vmm_conformance::trace::{Reader, Recorded};
use std::path::Path;

/// A kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Recording,
    Report,
    Sequences,
    Traces,
}

impl FileKind {
    /// Detects the kind of a file by its contents. Returns `None` for other files, and for pipes, which can be read
    /// only once.
    pub fn of(path: &Path) -> Option<Self> {
        if !path.is_file() {
            return None;
        }
        if Recording::is_recording(path) {
            return Some(Self::Recording);
        }
        match Reader::open(path).ok()?.with_sequences().next() {
            Some(Ok(Recorded::Sequence(_))) => Some(Self::Sequences),
            Some(Ok(Recorded::Trace(_))) => Some(Self::Traces),
            _ => Report::read(path).is_ok().then_some(Self::Report),
        }
    }

    /// Returns the error of a subcommand that does not read files of this kind.
    pub fn not_read_by(self, subcommand: &str, path: &Path) -> BadUsage {
        let (kind, others) = match self {
            Self::Recording => ("a recording of `hsa-vmm record`", "`lint` or `replay`"),
            Self::Report => ("a report of `hsa-vmm conform` or `hsa-vmm info`", "`diff`"),
            Self::Sequences => ("a file of sequences of `hsa-vmm fuzz`", "`map` or `replay`"),
            Self::Traces => ("a file of traces", "`map` or `replay`"),
        };
        let path = path.display();
        BadUsage(format!("{path} is {kind}, which `{subcommand}` does not read; use {others}"))
    }
}
