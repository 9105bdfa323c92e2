//! Serialises the messages of one direction of a channel.

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread;
use std::time::{Duration, Instant};

/// The first pause of a waiting thread. Each pause doubles the next, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// One direction of a channel. At most one thread transfers a message in this direction, so that the parts of two
/// messages do not mix.
///
/// This is not a mutex, so that every wait ends at the deadline. In a forked child, a mutex that another thread of the
/// parent held would stay locked forever.
#[derive(Debug, Default)]
pub(super) struct Direction {
    is_busy: AtomicBool,
}

/// The right to transfer one message, which ends with this value.
#[derive(Debug)]
pub(super) struct Transfer<'a>(&'a Direction);

impl Direction {
    /// Waits until no other thread transfers a message. Returns `None` at the deadline.
    pub fn begin(&self, deadline: Instant) -> Option<Transfer<'_>> {
        let mut pause = FIRST_PAUSE;
        while self.is_busy.swap(true, Ordering::Acquire) {
            let remaining = deadline.checked_duration_since(Instant::now())?;
            thread::sleep(pause.min(remaining));
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
        Some(Transfer(self))
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        self.0.is_busy.store(false, Ordering::Release);
    }
}
