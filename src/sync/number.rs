//! Numbers of threads, for what each keeps in a place of its own.

use super::thread_local;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    /// This thread's, from 1 on; 0 as long as it has none.
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// The number of this thread: 1 for the first that asks, and so on; 0 for one that is at its end.
pub(crate) fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let own = NUMBER.try_with(|number| match number.get() {
        0 => {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
            number.get()
        }
        own => own,
    });
    own.unwrap_or_default()
}
