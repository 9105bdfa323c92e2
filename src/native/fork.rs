//! Knowing that this process is a fork, without a system call on each operation.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static FORKS: AtomicU64 = AtomicU64::new(0);
static WATCH: Once = Once::new();

/// A process in a line of forks. The child of a fork is of another generation than its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u64);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

impl Generation {
    /// This process's generation.
    pub fn current() -> Self {
        WATCH.call_once(|| {
            // SAFETY: the handler is a plain function that touches one atomic, which is allowed
            // between fork and exec; it is never unregistered because it is part of this code.
            // A failure (out of memory) leaves forks unnoticed, as without it.
            unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this process is a fork of the one that asked for its generation.
    pub fn has_forked(self) -> bool {
        self.0 != FORKS.load(Ordering::Relaxed)
    }
}
