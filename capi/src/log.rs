//! The library's log on standard error, if HSA_VMM_LOG asks for it: a program in C has no other way to it.

use crate::answer::Refusal;
use crate::errors;
use hsa_vmm::runtime::{environment_variable, printable};
use std::io::{self, Write};
use tracing_subscriber::filter::LevelFilter;

/// Begins it, once; a program in Rust that has a log of its own keeps that.
pub fn begin() -> Result<(), Refusal> {
    // It shows addresses: not to the caller of a program that has more rights.
    let Some(level) = environment_variable("HSA_VMM_LOG") else { return Ok(()) };
    let level = level.to_string_lossy();
    let level: LevelFilter = level.parse().map_err(|_| refused(&level))?;
    // It fails where there is one already.
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(|| Escaped)
        .with_ansi(false)
        .try_init();
    Ok(())
}

/// Standard error, without characters that a terminal obeys: the log has names from the runtime.
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
        format!("HSA_VMM_LOG: {level:?} is no level; error, warn, info, debug and trace are");
    Refusal::new(errors::NOT_INITIALIZED, words)
}
