//! The time that something takes, without what looking at the clock takes.

use std::time::{Duration, Instant};

/// A clock that knows its own cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    own: Duration,
}

impl Clock {
    /// Looks at the clock often, and takes the least that it ever cost.
    pub fn new() -> Self {
        let once = |_| {
            let begun = Instant::now();
            begun.elapsed()
        };
        Self { own: (0..10_000).map(once).min().unwrap_or_default() }
    }

    /// How long something takes, in nanoseconds.
    pub fn time<T>(self, act: impl FnOnce() -> T) -> (T, f64) {
        let begun = Instant::now();
        let answer = act();
        (answer, begun.elapsed().saturating_sub(self.own).as_nanos() as f64)
    }
}
