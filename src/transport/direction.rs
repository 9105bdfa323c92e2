//! Serialises the messages of one direction of a channel.

use crate::sync::{Condvar, Mutex, lock};
use std::sync::PoisonError;
use std::time::Instant;

/// One direction of a channel. At most one thread transfers a message in this direction, so that the parts of two
/// messages do not mix.
///
/// No thread holds the mutex during a transfer, so that a waiting thread can give up at its deadline.
#[derive(Debug, Default)]
pub(super) struct Direction {
    is_busy: Mutex<bool>,
    freed: Condvar,
}

/// The right to transfer one message, which ends with this value.
#[derive(Debug)]
pub(super) struct Transfer<'a>(&'a Direction);

impl Direction {
    /// Waits until no other thread transfers a message. Returns `None` at the deadline.
    pub fn begin(&self, deadline: Instant) -> Option<Transfer<'_>> {
        let time = deadline.saturating_duration_since(Instant::now());
        let waited = self.freed.wait_timeout_while(lock(&self.is_busy), time, |busy| *busy);
        let (mut is_busy, result) = waited.unwrap_or_else(PoisonError::into_inner);
        if result.timed_out() {
            return None;
        }
        *is_busy = true;
        Some(Transfer(self))
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        *lock(&self.0.is_busy) = false;
        self.0.freed.notify_one();
    }
}
