//! The library's log on standard error, which `HSA_VMM_LOG` enables for C programs.

use crate::errors;
use crate::process::Backend;
use crate::status::Failure;
use hsa_vmm::hsa_sys::library::is_privileged;
use hsa_vmm::runtime::{printable, trusted_environment_variable};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use tracing_subscriber::filter::LevelFilter;

/// Starts the log once. Keeps an existing logger of a Rust program. If the level is invalid, prints a warning, once in
/// a process, and logs nothing.
pub fn init() {
    // In a privileged (set-user-id) program, `trusted_environment_variable` returns `None`, and nothing is logged: a
    // log would show addresses to the user who started the program.
    let Some(level) = trusted_environment_variable("HSA_VMM_LOG") else { return };
    let level = level.to_string_lossy();
    let Ok(level) = level.parse::<LevelFilter>() else {
        static PRINTED: AtomicBool = AtomicBool::new(false);
        if !PRINTED.swap(true, Ordering::Relaxed) {
            print(&format!(
                "HSA_VMM_LOG: invalid level {level:?}: expected off, error, warn, info, debug or trace"
            ));
        }
        return;
    };
    // Fails if a logger is set already.
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(|| Escaped)
        .with_ansi(false)
        // If standard error cannot be written, `tracing_subscriber` would report this with `eprintln!`, which panics.
        .log_internal_errors(false)
        .try_init();
}

/// Prints, once in a process, why no runtime was opened: the program can ignore errors or print only their numbers.
/// `HSA_VMM_LOG=off` disables the message. `backend` is the program's choice of the runtime.
pub fn print_open_failure(failure: &Failure, backend: &Backend) {
    static PRINTED: AtomicBool = AtomicBool::new(false);
    let is_off = trusted_environment_variable("HSA_VMM_LOG").is_some_and(|level| level == "off");
    if is_off || PRINTED.swap(true, Ordering::Relaxed) {
        return;
    }
    let is_simulation = match backend {
        Backend::Automatic => {
            trusted_environment_variable("HSA_VMM_RUNTIME").is_some_and(|name| name == "sim")
        }
        Backend::File(_) => false,
        Backend::Simulation(_) => true,
    };
    // Errors of the simulation, and errors with other codes, are about the configuration, such as an invalid
    // environment variable.
    if failure.code != errors::NO_DEVICE || is_simulation {
        return print(&failure.message);
    }
    print(&format!("no runtime: {}", failure.message));
    // The variables that select another runtime have no effect in a privileged program, or if the program has named the
    // file. `hsa-vmm emulate` has selected a runtime already.
    let is_emulated = std::env::var("HSA_VMM_UNDER").is_ok_and(|it| it.starts_with("emulate"));
    if is_privileged() || matches!(backend, Backend::File(_)) || is_emulated {
        return;
    }
    if cfg!(feature = "simulation") {
        print("to run without AMD's runtime or a GPU, on a simulation: HSA_VMM_RUNTIME=sim");
    }
    print(
        "to run on AMD's runtime without a GPU: `hsa-vmm rocr fetch` downloads AMD's runtime without installing it, \
         and `hsa-vmm emulate --rocr 7.2.4 -- PROGRAM` runs a program on it",
    );
}

fn print(text: &str) {
    // Fails if standard error is closed.
    let _ = writeln!(io::stderr(), "libhsavmm: {}", printable(text));
}

/// Writes to standard error, and escapes control characters, because the log contains names from the runtime.
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
