//! The fault of the call that the current thread executes.

use crate::FaultKind;
use std::cell::Cell;

thread_local! {
    static CURRENT: Cell<Option<FaultKind>> = const { Cell::new(None) };
}

/// Restores the previous fault when dropped, even after a panic.
struct Restore(Option<FaultKind>);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// Runs `call` with `fault` as the current fault of this thread. With `None`, `call` has no fault.
pub fn with_fault<T>(fault: Option<FaultKind>, call: impl FnOnce() -> T) -> T {
    let _restore = Restore(CURRENT.replace(fault));
    call()
}

/// Returns the fault of the current call, for example to pass it to another thread.
#[must_use]
pub fn current_fault() -> Option<FaultKind> {
    CURRENT.get()
}

/// Returns whether the current call has this fault.
#[must_use]
pub fn has_fault(fault: FaultKind) -> bool {
    CURRENT.get() == Some(fault)
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
