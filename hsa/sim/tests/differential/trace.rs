//! Records the current sequence and call in a file, which remains after a crash of AMD's runtime.

use crate::calls::{self, Call};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

/// A file that always contains the current sequence, and the number of its current call.
#[derive(Debug)]
pub struct Trace(File);

impl Trace {
    pub fn new(path: &Path) -> Self {
        Self(File::create(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    /// Records that a sequence begins.
    pub fn begin_sequence(&mut self, title: &str, calls: &[Call]) {
        let text = format!("# at call    0 of {title}\n{}", calls::to_text(calls));
        self.0.set_len(0).expect("a file to write");
        self.write(text.as_bytes());
    }

    /// Records that a call of the sequence begins.
    pub fn begin_call(&mut self, number: usize) {
        self.write(format!("# at call {number:4}").as_bytes());
    }

    fn write(&mut self, text: &[u8]) {
        self.0.seek(SeekFrom::Start(0)).expect("a file to write");
        self.0.write_all(text).expect("a file to write");
    }
}

/// Returns the number of the last sequence, and its calls. A sequence from a file has no number.
pub fn read_last(path: &Path) -> (Option<u64>, Vec<Call>) {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let title = text.lines().next().and_then(|line| line.split(" of sequence ").nth(1));
    let number = title.and_then(|title| title.split(' ').next()?.parse().ok());
    (number, calls::from_text(&text))
}
