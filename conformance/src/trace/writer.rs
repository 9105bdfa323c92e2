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
    /// Creates a writer of plain text.
    pub fn plain(output: W) -> Self {
        Self { sink: Sink::Plain(output), line: 0 }
    }

    /// Creates a writer that compresses with gzip.
    pub fn gzip(output: W) -> Self {
        Self { sink: Sink::Gzip(GzEncoder::new(output, Compression::default())), line: 0 }
    }

    /// Writes a trace.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn write(&mut self, trace: &Trace) -> Result<(), TraceError> {
        self.line += 1;
        let written = match &mut self.sink {
            Sink::Plain(output) => write_line(output, trace),
            Sink::Gzip(output) => write_line(output, trace),
        };
        written.map_err(|error| TraceError::Write { line: self.line, error })
    }

    /// Finishes the file and returns the underlying writer.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn finish(self) -> Result<W, TraceError> {
        let line = self.line;
        let output = match self.sink {
            Sink::Plain(mut output) => output.flush().map(|()| output),
            Sink::Gzip(gzip) => gzip.finish().and_then(|mut it| it.flush().map(|()| it)),
        };
        output.map_err(|error| TraceError::Write { line, error })
    }
}

fn write_line(output: &mut impl Write, trace: &Trace) -> io::Result<()> {
    let mut text = serde_json::to_vec(trace)?;
    text.push(b'\n');
    output.write_all(&text)
}
