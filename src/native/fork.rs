//! Knowing that this process is a fork, without a system call on each operation.

use super::library_lock;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static FORKS: AtomicU64 = AtomicU64::new(0);
static WATCH: Once = Once::new();

/// A process in a line of forks. The child of a fork is of another generation than its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u64);

extern "C" fn prepare() {
    library_lock::before_fork();
}

extern "C" fn in_parent() {
    library_lock::after_fork();
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    library_lock::after_fork();
}

impl Generation {
    /// This process's generation.
    pub fn current() -> Self {
        WATCH.call_once(|| {
            // SAFETY: the handlers are plain functions. In the child they change one atomic and
            // unlock a mutex that this very thread locked. They are never unregistered because
            // they are part of this code. A failure (out of memory) leaves forks unnoticed.
            unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this process is a fork of the one that asked for its generation.
    pub fn has_forked(self) -> bool {
        self.0 != FORKS.load(Ordering::Relaxed)
    }
}
