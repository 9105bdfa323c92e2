//! Standard output, for results.

use rustix::io::Errno;
use std::io::{self, Write};

/// Writes to standard output, without a buffer.
///
/// If the reader has closed the pipe (`hsa-vmm conform | head -1`), discards the text. The command continues, so that
/// its exit status is that of the complete run.
#[derive(Clone, Copy, Debug)]
pub struct StandardOutput;

impl Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match rustix::io::write(rustix::stdio::stdout(), bytes) {
            Err(Errno::PIPE) => Ok(bytes.len()),
            result => Ok(result?),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
