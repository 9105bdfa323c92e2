//! Sends log events so that a panic of a subscriber does not affect the operation.
//!
//! A `tracing` subscriber is code of the program and may panic. If it panicked between a call of the runtime and the
//! update of the ledger, the ledger would be wrong: memory could be freed twice, or freed while a GPU writes to it.
//! This module sends all events of this library, and catches the panic after the panic hook has reported it.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Sends an event, if a subscriber may be interested in events of this level.
macro_rules! event {
    ($level:ident, $($fields:tt)*) => {
        if tracing::Level::$level <= tracing::level_filters::LevelFilter::current() {
            $crate::log::catch_panic(|| tracing::event!(tracing::Level::$level, $($fields)*));
        }
    };
}

pub(crate) use event;

thread_local! {
    static FAILURES_ARE_EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `run`, a query or a probe whose runtime calls may fail. Failed calls are logged as traces, not as warnings.
pub(crate) fn with_expected_failures<T>(run: impl FnOnce() -> T) -> T {
    let previous = FAILURES_ARE_EXPECTED.replace(true);
    let result = run();
    FAILURES_ARE_EXPECTED.set(previous);
    result
}

/// Returns whether this thread runs inside [`with_expected_failures`].
#[cold]
pub(crate) fn failures_are_expected() -> bool {
    FAILURES_ARE_EXPECTED.get()
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
