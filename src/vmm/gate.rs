//! Where operations inside one reservation wait for each other.

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, lock};
use std::sync::Arc;

/// Held while an operation changes something inside a reservation. Clones are the same gate.
#[derive(Clone, Debug, Default)]
pub(super) struct Gate {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    turn: Mutex<()>,
    shut: AtomicBool,
}

impl Gate {
    /// Waits until nobody is inside. `None` if the reservation has been freed or taken out of use
    /// meanwhile: its addresses may be another's by now.
    pub fn enter(&self) -> Option<MutexGuard<'_, ()>> {
        let inside = lock(&self.inner.turn);
        (!self.inner.shut.load(Ordering::Acquire)).then_some(inside)
    }

    /// Lets nobody in any more.
    pub fn shut(&self) {
        self.inner.shut.store(true, Ordering::Release);
    }

    /// Lets others in again.
    pub fn open(&self) {
        self.inner.shut.store(false, Ordering::Release);
    }

    /// Whether the two are clones of one another.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

#[cfg(test)]
mod tests {
    use super::Gate;

    #[test]
    fn who_waited_at_a_gate_that_was_shut_is_not_let_in() {
        let gate = Gate::default();
        let inside = gate.enter().unwrap();
        let waiting = {
            let gate = gate.clone();
            std::thread::spawn(move || gate.enter().is_some())
        };
        gate.shut();
        drop(inside);
        assert!(!waiting.join().unwrap());
        gate.open();
        assert!(gate.enter().is_some());
        assert!(gate.is(&gate.clone()) && !gate.is(&Gate::default()));
    }
}
