//! Waits for a child process with a timeout.

use std::io;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

const POLLING_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until a child process ends. Returns `None` if the process still runs after `timeout`. The
/// caller must then kill the process.
pub(crate) fn wait(child: &mut Child, timeout: Duration) -> io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        match child.try_wait()? {
            None if start.elapsed() <= timeout => std::thread::sleep(POLLING_INTERVAL),
            status => return Ok(status),
        }
    }
}
