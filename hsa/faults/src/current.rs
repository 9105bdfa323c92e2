//! The fault that this thread's call suffers, for the places where it shows.

use crate::Wrong;
use std::cell::Cell;

thread_local! {
    static NOW: Cell<Option<Wrong>> = const { Cell::new(None) };
}

/// Ends the fault, also if the call panics.
struct Until(Option<Wrong>);

impl Drop for Until {
    fn drop(&mut self) {
        NOW.set(self.0);
    }
}

/// Performs a call that suffers a fault.
pub fn during<T>(wrong: Option<Wrong>, call: impl FnOnce() -> T) -> T {
    let _until = Until(NOW.replace(wrong));
    call()
}

/// What the call that this thread is in suffers, to hand it on to another thread.
#[must_use]
pub fn now() -> Option<Wrong> {
    NOW.get()
}

/// Whether the call that this thread is in suffers this.
#[must_use]
pub fn suffers(wrong: Wrong) -> bool {
    NOW.get() == Some(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_lasts_as_long_as_its_call() {
        during(Some(Wrong::Wide), || {
            assert!(suffers(Wrong::Wide) && !suffers(Wrong::Narrow));
            during(None, || assert_eq!(now(), None));
            assert_eq!(now(), Some(Wrong::Wide));
        });
        let panicked = std::panic::catch_unwind(|| during(Some(Wrong::Leak), || panic!("once")));
        assert!(panicked.is_err() && !suffers(Wrong::Leak));
    }
}
