//! Signals that end a run early. The command then prints the results so far.

#![expect(unsafe_code, reason = "registers a signal handler")]

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level;
use std::ffi::c_int;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time after the first signal during which further signals are ignored. GNU `timeout` sends a signal to the
/// process that it runs, and then to the process group, so that the process receives the signal twice.
const IGNORE_TIME: Duration = Duration::from_secs(1);

/// Whether SIGINT (Ctrl-C), SIGTERM or another handled signal has arrived. A signal that arrives more than
/// [`IGNORE_TIME`] after the first ends this process at once. When this process ends, the kernel kills its workers.
#[derive(Clone, Debug)]
pub struct Interrupt {
    arrived: Arc<AtomicBool>,
    created: Instant,
    /// When the first signal arrived: milliseconds after `created`, or [`u64::MAX`] before the first signal.
    first: Arc<AtomicU64>,
}

impl Default for Interrupt {
    fn default() -> Self {
        Self {
            arrived: Arc::default(),
            created: Instant::now(),
            first: Arc::new(AtomicU64::new(u64::MAX)),
        }
    }
}

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
        let interrupt = self.clone();
        // SAFETY: `handle` is async-signal-safe.
        unsafe { low_level::register(signal, move || interrupt.handle()) }?;
        Ok(())
    }

    /// Handles the arrival of a signal. Only reads the clock, uses atomics and calls `_exit`, so it is
    /// async-signal-safe.
    fn handle(&self) {
        let now = u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX);
        let relaxed = Ordering::Relaxed;
        match self.first.compare_exchange(u64::MAX, now, relaxed, relaxed) {
            Ok(_) => self.arrived.store(true, relaxed),
            Err(first) if Duration::from_millis(now.saturating_sub(first)) > IGNORE_TIME => {
                low_level::exit(1);
            }
            Err(_) => {}
        }
    }

    /// Returns whether a signal has arrived.
    pub fn arrived(&self) -> bool {
        self.arrived.load(Ordering::Relaxed)
    }

    /// Returns the flag that a signal sets.
    pub fn flag(&self) -> &AtomicBool {
        &self.arrived
    }
}
