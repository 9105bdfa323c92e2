//! Log events that cannot disturb the operation that sends them.
//!
//! A `tracing` subscriber is code of the program and may panic. A panic between a call of the runtime and its
//! bookkeeping would make the bookkeeping wrong. Memory could be freed twice, or freed while a GPU writes to it. This
//! module sends all events of this library, and catches the panic after the panic hook has reported it.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Sends an event of a level, if any subscriber may be interested in that level.
macro_rules! event {
    ($level:ident, $($fields:tt)*) => {
        if tracing::Level::$level <= tracing::level_filters::LevelFilter::current() {
            $crate::log::catch_panic(|| tracing::event!(tracing::Level::$level, $($fields)*));
        }
    };
}

pub(crate) use event;

thread_local! {
    static EXPECTS_FAILURES: Cell<bool> = const { Cell::new(false) };
}

/// Runs a query or a probe, in which failed calls of the runtime are logged as traces, not as warnings.
pub(crate) fn expect_failures<T>(run: impl FnOnce() -> T) -> T {
    let previous = EXPECTS_FAILURES.replace(true);
    let result = run();
    EXPECTS_FAILURES.set(previous);
    result
}

/// Returns whether this thread runs inside [`expect_failures`].
#[cold]
pub(crate) fn expects_failures() -> bool {
    EXPECTS_FAILURES.get()
}

/// Runs `send` and catches a panic in it. Cold: few programs have a subscriber for these events.
#[cold]
pub(crate) fn catch_panic(send: impl FnOnce()) {
    // The closure only reads the fields of the event, so no state is left half changed.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(send)) {
        // Dropping the payload may panic again.
        core::mem::forget(payload);
    }
}
