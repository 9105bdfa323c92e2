//! Waiting for a program that may never end.

use std::io;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// How often it is looked at.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until a program ends: its status, or `None` if it is still running after so long. Whoever
/// started it then knows what else to end with it.
pub(crate) fn wait(child: &mut Child, patience: Duration) -> io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    loop {
        match child.try_wait()? {
            None if begun.elapsed() <= patience => std::thread::sleep(PAUSE),
            status => return Ok(status),
        }
    }
}
