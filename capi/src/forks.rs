//! Detects forked children that cannot use the library, because a thread of the parent can have held one of its locks.

use crate::errors;
use crate::status::Failure;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Counts the users of the library's state: an open runtime, and each call that opens, configures, uses or closes it.
#[derive(Debug)]
pub struct Users {
    count: AtomicUsize,
    /// The ID of the process that counts its users here; 0 before the first one.
    process: AtomicU32,
    /// Whether the fork handler is registered.
    is_registered: AtomicBool,
    /// Whether this process was forked while its parent had users.
    is_unusable: AtomicBool,
}

impl Users {
    pub const fn new() -> Self {
        Self {
            count: AtomicUsize::new(0),
            process: AtomicU32::new(0),
            is_registered: AtomicBool::new(false),
            is_unusable: AtomicBool::new(false),
        }
    }

    /// Fails in a forked child in which a lock can be held by a thread that exists only in the parent.
    fn check_not_forked(&self) -> Result<(), Failure> {
        let process = self.process.load(Ordering::Acquire);
        // The ID detects children in which the fork handler did not run: it was not registered yet, or the child was
        // created without `fork`. The ID alone does not suffice, because a child in a new PID namespace can have the ID
        // of its parent.
        let is_own = process == 0 || process == std::process::id();
        if is_own && !self.is_unusable.load(Ordering::Acquire) {
            return Ok(());
        }
        let message = format!(
            "this process was forked from process {process} while that process had the runtime open, or was opening, \
             configuring or closing it; an open runtime does not work in a forked child: fork first, or start a new \
             program"
        );
        Err(Failure::new(errors::NOT_INITIALIZED, message))
    }

    /// Counts a user. The caller must call this method before it locks anything, and [`Self::end`] after it has
    /// unlocked everything. `handler` calls [`Self::after_fork`]. Fails as `check_not_forked` does.
    pub fn begin(&self, handler: extern "C" fn()) -> Result<(), Failure> {
        self.check_not_forked()?;
        if self.process.load(Ordering::Relaxed) == 0 {
            self.process.store(std::process::id(), Ordering::Release);
        }
        self.count.fetch_add(1, Ordering::SeqCst);
        if !self.is_registered.load(Ordering::Acquire) {
            // Two threads can register the handler twice. The second run of the handler then has no effect.
            // SAFETY: the handler is a function of this library, and only changes atomics. If the call fails (out of
            // memory), only the process's ID detects forks.
            unsafe { libc::pthread_atfork(None, None, Some(handler)) };
            self.is_registered.store(true, Ordering::Release);
        }
        Ok(())
    }

    pub fn end(&self) {
        self.count.fetch_sub(1, Ordering::Release);
    }

    /// Makes the library unusable in a forked child whose parent had users. Called in each child.
    pub fn after_fork(&self) {
        if self.count.load(Ordering::Acquire) > 0 {
            self.is_unusable.store(true, Ordering::Release);
        } else {
            self.process.store(0, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Users;

    extern "C" fn no_handler() {}

    #[test]
    fn child_of_a_process_with_users_is_rejected() {
        let users = Users::new();
        users.after_fork();
        users.check_not_forked().unwrap();
        users.begin(no_handler).unwrap();
        users.begin(no_handler).unwrap();
        users.end();
        users.check_not_forked().unwrap();
        // Also in a child with the ID of its parent.
        users.after_fork();
        users.check_not_forked().unwrap_err();
        users.begin(no_handler).unwrap_err();
        // The child's own children are rejected, too.
        users.after_fork();
        users.check_not_forked().unwrap_err();
    }

    #[test]
    fn child_of_a_process_without_users_is_accepted() {
        let users = Users::new();
        users.begin(no_handler).unwrap();
        users.end();
        users.after_fork();
        users.begin(no_handler).unwrap();
    }
}
