//! The fault that this thread's call has_fault, for the places where it shows.

use crate::FaultKind;
use std::cell::Cell;

thread_local! {
    static CURRENT: Cell<Option<FaultKind>> = const { Cell::new(None) };
}

/// Ends the fault, also if the call panics.
struct Restore(Option<FaultKind>);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// Performs a call that has_fault a fault.
pub fn with_fault<T>(fault: Option<FaultKind>, call: impl FnOnce() -> T) -> T {
    let _restore = Restore(CURRENT.replace(fault));
    call()
}

/// What the call that this thread is in has_fault, to hand it on to another thread.
#[must_use]
pub fn current_fault() -> Option<FaultKind> {
    CURRENT.get()
}

/// Whether the call that this thread is in has_fault this.
#[must_use]
pub fn has_fault(wrong: FaultKind) -> bool {
    CURRENT.get() == Some(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_ends_with_its_call() {
        with_fault(Some(FaultKind::Wide), || {
            assert!(has_fault(FaultKind::Wide) && !has_fault(FaultKind::Narrow));
            with_fault(None, || assert_eq!(current_fault(), None));
            assert_eq!(current_fault(), Some(FaultKind::Wide));
        });
        let panicked =
            std::panic::catch_unwind(|| with_fault(Some(FaultKind::Leak), || panic!("once")));
        assert!(panicked.is_err() && !has_fault(FaultKind::Leak));
    }
}
