//! Writes traces, plain or compressed.

use super::{Trace, TraceError};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::{self, Write};

/// Writes traces, one per line.
#[derive(Debug)]
pub struct Writer<W: Write> {
    sink: Sink<W>,
    line: u64,
}

#[derive(Debug)]
enum Sink<W: Write> {
    Plain(W),
    Gzip(GzEncoder<W>),
}

impl<W: Write> Writer<W> {
    /// Writes plain text.
    pub fn plain(to: W) -> Self {
        Self { sink: Sink::Plain(to), line: 0 }
    }

    /// Writes compressed with gzip.
    pub fn gzip(to: W) -> Self {
        Self { sink: Sink::Gzip(GzEncoder::new(to, Compression::default())), line: 0 }
    }

    /// Writes a trace.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn write(&mut self, trace: &Trace) -> Result<(), TraceError> {
        self.line += 1;
        let written = match &mut self.sink {
            Sink::Plain(to) => line(to, trace),
            Sink::Gzip(to) => line(to, trace),
        };
        written.map_err(|error| TraceError::Write { line: self.line, error })
    }

    /// Finishes the file and returns the underlying writer.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn finish(self) -> Result<W, TraceError> {
        let line = self.line;
        let ended = match self.sink {
            Sink::Plain(mut to) => to.flush().map(|()| to),
            Sink::Gzip(to) => to.finish().and_then(|mut to| to.flush().map(|()| to)),
        };
        ended.map_err(|error| TraceError::Write { line, error })
    }
}

fn line(to: &mut impl Write, trace: &Trace) -> io::Result<()> {
    let mut text = serde_json::to_vec(trace)?;
    text.push(b'\n');
    to.write_all(&text)
}
