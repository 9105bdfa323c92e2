//! Waiting for a child process with a timeout.

use std::io;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// The polling interval.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until a child ends; returns `None` if it still runs after `patience`. The caller then
/// kills it.
pub(crate) fn wait(child: &mut Child, patience: Duration) -> io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    loop {
        match child.try_wait()? {
            None if begun.elapsed() <= patience => std::thread::sleep(PAUSE),
            status => return Ok(status),
        }
    }
}
