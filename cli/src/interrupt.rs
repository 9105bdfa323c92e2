//! Signals that end a run early. The command then prints the results so far.

use signal_hook::consts::{SIGINT, SIGTERM};
use std::ffi::c_int;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether SIGINT (Ctrl-C), SIGTERM or another handled signal has arrived. A second signal ends this process at once.
/// When this process ends, the kernel kills its workers.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Handles SIGINT and SIGTERM from now on.
    pub fn new() -> io::Result<Self> {
        let interrupt = Self::default();
        interrupt.add(SIGINT)?;
        interrupt.add(SIGTERM)?;
        Ok(interrupt)
    }

    /// Handles another signal, too.
    pub fn add(&self, signal: c_int) -> io::Result<()> {
        signal_hook::flag::register_conditional_shutdown(signal, 1, self.0.clone())?;
        signal_hook::flag::register(signal, self.0.clone())?;
        Ok(())
    }

    /// Returns whether a signal has arrived.
    pub fn arrived(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns the flag that a signal sets.
    pub fn flag(&self) -> &AtomicBool {
        &self.0
    }
}
