//! Reads traces, plain or compressed.

use super::{Trace, TraceError};
use crate::fuzz::Sequence;
use flate2::bufread::MultiGzDecoder;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// The first bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The maximum length of a line in bytes, so that a few kilobytes of gzip cannot fill the memory.
/// The longest recorded line has 7 kB. A line with 10,000 operations would have 2 MB.
const MAX_LINE: usize = 8 << 20;

/// The maximum size of all blank lines in bytes; recorded files have none. A few kilobytes of gzip
/// can contain tens of millions of blank lines, which would take minutes to read.
const MAX_BLANK: usize = 1 << 20;

/// Reads traces line by line. Skips blank lines. Ends after the first error.
pub struct Reader<'a> {
    lines: Box<dyn BufRead + 'a>,
    line: u64,
    /// The size of all blank lines so far, in bytes.
    blank_bytes: usize,
    ended: bool,
}

impl fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("line", &self.line).finish_non_exhaustive()
    }
}

impl Reader<'static> {
    /// Opens a file.
    ///
    /// # Errors
    /// [`TraceError::Open`], or [`TraceError::Read`] if the first bytes cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        let path = path.as_ref();
        let file =
            File::open(path).map_err(|error| TraceError::Open { path: path.to_owned(), error })?;
        Self::new(file)
    }
}

impl<'a> Reader<'a> {
    /// Reads from any source. Detects compression by the first bytes.
    ///
    /// # Errors
    /// [`TraceError::Read`] if the first bytes cannot be read.
    pub fn new(mut source: impl Read + 'a) -> Result<Self, TraceError> {
        let mut start = Vec::with_capacity(GZIP.len());
        source
            .by_ref()
            .take(GZIP.len() as u64)
            .read_to_end(&mut start)
            .map_err(|error| TraceError::Read { line: 1, error })?;
        let is_compressed = start == GZIP;
        let source = BufReader::new(io::Cursor::new(start).chain(source));
        let lines: Box<dyn BufRead + 'a> = if is_compressed {
            Box::new(BufReader::new(MultiGzDecoder::new(source)))
        } else {
            Box::new(source)
        };
        Ok(Self { lines, line: 0, blank_bytes: 0, ended: false })
    }

    /// Also reads sequences of operations, which fuzzing saves.
    #[must_use]
    pub fn with_sequences(self) -> WithSequences<'a> {
        WithSequences(self)
    }

    /// Returns the number of the last line that was read.
    pub(crate) fn line(&self) -> u64 {
        self.line
    }

    /// Reads and parses the next line; `None` at the end and after an error. `parse` gets the line with its line break.
    pub(crate) fn next_line<T>(
        &mut self,
        parse: fn(&str) -> serde_json::Result<T>,
    ) -> Option<Result<T, TraceError>> {
        if self.ended {
            return None;
        }
        let item = self.read(parse).transpose();
        self.ended = !matches!(item, Some(Ok(_)));
        item
    }

    fn read<T>(
        &mut self,
        parse: fn(&str) -> serde_json::Result<T>,
    ) -> Result<Option<T>, TraceError> {
        let mut bytes = Vec::new();
        loop {
            self.line += 1;
            let line = self.line;
            let read_error = |error| TraceError::Read { line, error };
            bytes.clear();
            let limit = MAX_LINE as u64 + 1;
            let length = self
                .lines
                .by_ref()
                .take(limit)
                .read_until(b'\n', &mut bytes)
                .map_err(read_error)?;
            if length == 0 {
                return Ok(None);
            }
            if length > MAX_LINE {
                return Err(TraceError::TooLong { line, limit: MAX_LINE });
            }
            let invalid = |error| {
                read_error(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("not UTF-8: {error}"),
                ))
            };
            let text = str::from_utf8(&bytes).map_err(invalid)?;
            if !text.trim().is_empty() {
                return parse(text).map(Some).map_err(|error| TraceError::Parse { line, error });
            }
            self.blank_bytes += length;
            if self.blank_bytes > MAX_BLANK {
                return Err(TraceError::Blank { line, limit: MAX_BLANK });
            }
        }
    }
}

impl Iterator for Reader<'_> {
    type Item = Result<Trace, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_line(|text| serde_json::from_str(text))
    }
}

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Recorded calls with their results.
    Trace(Trace),
    /// Operations that a fuzzer saved.
    Sequence(Sequence),
}

impl Recorded {
    fn parse(text: &str) -> serde_json::Result<Self> {
        /// The key that only a sequence has.
        #[derive(Deserialize)]
        struct Head {
            operations: Option<IgnoredAny>,
        }
        let head: Head = serde_json::from_str(text)?;
        match head.operations {
            Some(_) => serde_json::from_str(text).map(Self::Sequence),
            None => serde_json::from_str(text).map(Self::Trace),
        }
    }
}

/// Reads traces and sequences of operations line by line; see [`Reader::with_sequences`].
#[derive(Debug)]
pub struct WithSequences<'a>(Reader<'a>);

impl Iterator for WithSequences<'_> {
    type Item = Result<Recorded, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next_line(Recorded::parse)
    }
}
