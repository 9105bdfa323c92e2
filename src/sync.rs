//! The locks of this library, and the order in which a thread takes them.
//!
//! The locks are the standard library's. The package in `tests/interleavings` compiles these sources with
//! the locks of [shuttle](https://docs.rs/shuttle), which have the same API, to test many interleavings of
//! threads.

#[cfg(not(feature = "interleavings"))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic,
};
#[cfg(not(feature = "interleavings"))]
pub(crate) use std::{thread, thread_local};

#[cfg(feature = "interleavings")]
pub(crate) use shuttle::sync::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic,
};
#[cfg(feature = "interleavings")]
pub(crate) use shuttle::{thread, thread_local};

use core::ops::{Deref, DerefMut};
use std::sync::PoisonError;

/// Locks a mutex. A panic of another thread while it held the lock is ignored: every change of the
/// protected state is a single step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for reading; otherwise as [`lock`].
pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for writing; otherwise as [`lock`].
pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// The order in which a thread takes the locks of one `Vmm`: by rank, and locks of the same rank by key,
/// the address of the reservation.
///
/// Two other locks come after these: the runtime's library lock (`native::library_lock`), held for one call
/// of the runtime, and the lock of the list of quarantined ranges. No lock is taken while one of these two
/// is held. The lock of a retire queue's pending mappings comes before all of them; a submission does not take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// The mutex of a reservation, which an operation holds while it changes mappings in it.
    Reservation,
    /// The index of reservations by address.
    Index,
    /// The mappings in a reservation: written at commit, read by look-ups.
    Mappings,
    /// A shard of the table of handles.
    Handles,
}

thread_local! {
    /// The ranks and keys of the locks that this thread holds.
    static HELD: std::cell::RefCell<Vec<(Rank, usize)>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// A lock's guard with its position in the lock order, which debug builds check.
#[derive(Debug)]
pub(crate) struct Ordered<G> {
    guard: G,
    position: (Rank, usize),
}

impl<G> Ordered<G> {
    /// Takes a lock. Panics in debug builds if this thread holds a lock that comes later in the order.
    pub fn take(rank: Rank, key: usize, acquire: impl FnOnce() -> G) -> Self {
        if cfg!(debug_assertions) {
            // The list of an exiting thread may be destroyed already.
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                let last = held.iter().max();
                assert!(
                    last.is_none_or(|last| *last < (rank, key)),
                    "lock order: {rank:?} {key:#x} is taken after {last:x?}"
                );
                held.push((rank, key));
            });
        }
        Self { guard: acquire(), position: (rank, key) }
    }
}

impl<G> Drop for Ordered<G> {
    fn drop(&mut self) {
        if cfg!(not(debug_assertions)) {
            return;
        }
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(at) = held.iter().rposition(|position| *position == self.position) {
                held.remove(at);
            }
        });
    }
}

impl<G: Deref> Deref for Ordered<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Ordered<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

#[cfg(all(test, not(feature = "interleavings")))]
mod tests {
    use super::*;

    fn take(mutex: &Mutex<()>, rank: Rank, key: usize) -> Ordered<MutexGuard<'_, ()>> {
        Ordered::take(rank, key, || lock(mutex))
    }

    #[test]
    fn locks_in_order_are_allowed() {
        let locks: [Mutex<()>; 3] = Default::default();
        let first = take(&locks[0], Rank::Reservation, 1);
        let second = take(&locks[1], Rank::Reservation, 2);
        drop(first);
        drop(take(&locks[2], Rank::Handles, 0));
        drop(second);
        drop(take(&locks[0], Rank::Reservation, 1));
    }

    #[test]
    #[cfg(debug_assertions)]
    fn locks_out_of_order_are_found() {
        for (held, next) in [
            ((Rank::Mappings, 1), (Rank::Index, 0)),
            ((Rank::Reservation, 2), (Rank::Reservation, 1)),
            ((Rank::Reservation, 2), (Rank::Reservation, 2)),
        ] {
            let found = std::thread::spawn(move || {
                let locks: [Mutex<()>; 2] = Default::default();
                let _held = take(&locks[0], held.0, held.1);
                drop(take(&locks[1], next.0, next.1));
            });
            assert!(found.join().is_err(), "{held:?} before {next:?}");
        }
    }
}
