//! The kinds of files that the command writes, to name the kind of a file that a subcommand cannot read.

use crate::BadUsage;
use hsa_vmm_conformance::Report;
use hsa_vmm_conformance::hsa_trace::Recording;
use hsa_vmm_conformance::trace::{Reader, Recorded};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

/// Returns whether a file is a report of `bringup` in JSON.
fn is_bringup_report(path: &Path) -> bool {
    #[derive(Deserialize)]
    struct Fields {
        #[serde(rename = "levels")]
        _levels: Vec<IgnoredAny>,
        #[serde(rename = "simulation")]
        _simulation: bool,
    }
    let file = File::open(path).map(|file| BufReader::new(file.take(MAX_REPORT)));
    file.is_ok_and(|file| serde_json::from_reader::<_, Fields>(file).is_ok())
}

/// The maximum size of a report of `bringup`, in bytes.
const MAX_REPORT: u64 = 64 << 20;

/// A kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Bringup,
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
            _ if is_bringup_report(path) => Some(Self::Bringup),
            _ => Report::read(path).is_ok().then_some(Self::Report),
        }
    }

    /// Returns the error of a subcommand that does not read files of this kind.
    pub fn not_read_by(self, subcommand: &str, path: &Path) -> BadUsage {
        let (kind, others) = match self {
            Self::Bringup => ("a report of `hsa-vmm bringup`", "`jq .failure` or `jq .levels`"),
            Self::Recording => ("a recording of `hsa-vmm record`", "`lint` or `replay`"),
            Self::Report => ("a report of `hsa-vmm conform` or `hsa-vmm info`", "`diff`"),
            Self::Sequences => ("a file of sequences of `hsa-vmm fuzz`", "`map` or `replay`"),
            Self::Traces => ("a file of traces", "`map` or `replay`"),
        };
        let path = path.display();
        BadUsage(format!("{path} is {kind}, which `{subcommand}` does not read; use {others}"))
    }
}
