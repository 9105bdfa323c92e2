//! The library's log on standard error, which `HSA_VMM_LOG` enables for C programs.

use crate::answer::Refusal;
use crate::errors;
use hsa_vmm::runtime::{environment_variable, printable};
use std::io::{self, Write};
use tracing_subscriber::filter::LevelFilter;

/// Starts the log once; keeps an existing logger of a Rust program.
pub fn begin() -> Result<(), Refusal> {
    // The log contains addresses, which a privileged program must not disclose to its caller.
    let Some(level) = environment_variable("HSA_VMM_LOG") else { return Ok(()) };
    let level = level.to_string_lossy();
    let level: LevelFilter = level.parse().map_err(|_| refused(&level))?;
    // Fails if a logger is set already.
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(|| Escaped)
        .with_ansi(false)
        .try_init();
    Ok(())
}

/// Writes to standard error without control characters: the log contains names from the runtime.
struct Escaped;

impl Write for Escaped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        io::stderr().write_all(printable(&text).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

fn refused(level: &str) -> Refusal {
    let words =
        format!("HSA_VMM_LOG: invalid level {level:?}: expected error, warn, info, debug or trace");
    Refusal::new(errors::NOT_INITIALIZED, words)
}
