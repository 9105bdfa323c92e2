//! The library's log on standard error, which `HSA_VMM_LOG` enables for C programs.

use crate::errors;
use crate::status::Failure;
use hsa_vmm::runtime::{environment_variable, printable};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use tracing_subscriber::filter::LevelFilter;

/// Starts the log once; keeps an existing logger of a Rust program.
pub fn init() -> Result<(), Failure> {
    // Returns nothing in a privileged program, which must not disclose the addresses in the log to its caller.
    let Some(level) = environment_variable("HSA_VMM_LOG") else { return Ok(()) };
    let level = level.to_string_lossy();
    let level: LevelFilter = level.parse().map_err(|_| invalid_level(&level))?;
    // Fails if a logger is set already.
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(|| Escaped)
        .with_ansi(false)
        .try_init();
    Ok(())
}

/// Prints, once in a process, that no runtime could be opened: the program may ignore errors or print
/// only their numbers. `HSA_VMM_LOG=off` disables the message.
pub fn print_open_failure(failure: &Failure) {
    static PRINTED: AtomicBool = AtomicBool::new(false);
    let is_off = environment_variable("HSA_VMM_LOG").is_some_and(|level| level == "off");
    if is_off || PRINTED.swap(true, Ordering::Relaxed) {
        return;
    }
    let hint = if cfg!(feature = "simulation") {
        "\nlibhsavmm: to run without AMD's runtime or a GPU, on a simulation: HSA_VMM_RUNTIME=sim"
    } else {
        ""
    };
    let text = printable(&failure.message).into_owned();
    // Standard error may be closed.
    let _ = writeln!(io::stderr(), "libhsavmm: no runtime: {text}{hint}");
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

fn invalid_level(level: &str) -> Failure {
    let message = format!(
        "HSA_VMM_LOG: invalid level {level:?}: expected off, error, warn, info, debug or trace"
    );
    Failure::new(errors::NOT_INITIALIZED, message)
}
