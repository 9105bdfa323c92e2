//! The locks of this library, and the order in which a thread takes them.
//!
//! The locks are the standard library's. The package in `tests/interleavings` compiles these sources with
//! the locks of [shuttle](https://docs.rs/shuttle), which have the same API, to test many interleavings of
//! threads.
//!
//! The first table lists locks in the order in which a thread takes them. A thread holds at most one lock of each row,
//! with two exceptions: the tables of paged buffers, and the locks of [`Rank`]. Debug builds check the order of the
//! locks of [`Rank`], except where a lock is taken without waiting.
//!
//! | lock | protects | held |
//! |---|---|---|
//! | `src/vmm/retire/pass.rs`: `pending` | a retire queue's pending mappings | during a pass, which unmaps |
//! | `src/buffer/paged/table.rs`: `table` | a paged buffer's pages; an operation on two buffers first locks the table that has the lower address in memory | during calls of the `Vmm` |
//! | `src/buffer/mod.rs`: `grants` | the access of agents to a buffer | during calls of the `Vmm` that change it |
//! | `src/buffer/handle_pool.rs`: `state` | handles that are ready | not during calls of the `Vmm` |
//! | `src/vmm/ledger/reservations.rs`: `writer` | what is mapped in a reservation ([`Rank::Reservation`]) | during the runtime's calls of an operation |
//! | `src/native/descriptor.rs`: `spare` | the spare descriptor | during the calls that need a descriptor, if they must not fail or no other descriptor is free |
//! | `src/vmm/ledger/reservations.rs`: `tree` | the index of reservations ([`Rank::Index`]) | for a look-up or a change |
//! | `src/vmm/ledger/reservations.rs`: `mappings` | a reservation's mappings ([`Rank::Mappings`]) | for look-ups; at the end of an operation for the change |
//! | `src/vmm/ledger/handles.rs`: `Shard` | a part of the table of handles ([`Rank::Handles`]) | for a look-up or a change |
//! | `src/native/page_table/barrier.rs`: `state`, `page` | the page that a barrier maps and unmaps | for these calls |
//! | `src/native/library_lock.rs`: `LibraryLock` | the runtime's table of handles | for one call of the runtime, or for all calls of a probe |
//!
//! Code that has locked a `Shard`, or `tree` or `mappings` for writing, must not log: a log subscriber may call look-ups,
//! which lock `Shard`, and `tree` and `mappings` for reading.
//!
//! No operation holds a lock of the first table and a lock of the following, second table at the same time. A log
//! subscriber is the exception: it may also call functions that lock the lists of the second table for reading.
//!
//! | lock | protects | held |
//! |---|---|---|
//! | `src/memory/registry.rs`: `state` | whether pool memory is allocated and exported | while the runtime frees it, or exports it as a dma-buf; while an IPC export is created or replaced, up to 15 seconds (`src/ipc/exports.rs`) |
//! | `src/memory/registry.rs`: `access` | agents' access to pool memory | for reading during a copy; for writing while the runtime changes it |
//! | `src/memory/registry.rs`: `records`; `name`, `allowed` | the list of pool memory; a record's name and agents | for a look-up or a change |
//! | `src/ipc/exports.rs`: `table` | the table of exports | while it is created |
//! | `src/native/library_lock.rs`: `ipc_server_lock`, one lock of the process | the start of a runtime's server | for one call of the runtime, and while the sockets of the server are looked up |
//! | `src/ipc/imports.rs`: `Imports` | open imports | while the runtime maps and unmaps them |
//!
//! `src/vmm/page_table/mod.rs`: `wait_is_due` protects whether a wait for page tables must be repeated. A thread takes
//! this lock before the page of a barrier, and holds it during the wait.
//!
//! A thread takes no other lock while it holds one of the following locks: `src/vmm/mod.rs`: `quarantine_list`, the
//! list of quarantined ranges; `src/vmm/ledger/handles.rs`: `numbers`, the next handle's number, and `unreleased`,
//! memory to release later; `src/vmm/retire/submission_queue.rs`: a queue's `slots`; `src/ipc/table.rs`: `free_slots`,
//! the free entries of the table of exports; `src/transport/direction.rs`: `is_busy`, whether a thread sends or
//! receives a message; `src/runtime/mod.rs`: `attachments`, the states of higher layers; `src/native/library_lock.rs`:
//! `REGISTRY`, the locks of the loaded libraries, and `LOCKED_RANGES`, the host memory that areas have locked. A thread
//! that forks locks `REGISTRY` first, then `LOCKED_RANGES`.

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

use crate::native::check_room_for_thread;
use core::cell::Cell;
use core::ops::{Deref, DerefMut};
use std::sync::PoisonError;

/// Locks a mutex, even if another thread has panicked while it held the lock. This is sound because most changes of
/// protected states are a single step. `Journal::finish`, `commit` of paged buffers and the pass of a retire queue make
/// changes of several steps. Between these steps, only a defect of this library can cause a panic: [`crate::log`]
/// catches the panics of subscribers.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for reading, even if another thread has panicked (see [`lock`]).
pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for writing, even if another thread has panicked (see [`lock`]).
pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a thread. Fails near the kernel's limit of mappings ([`check_room_for_thread`]).
pub(crate) fn spawn(
    name: &str,
    act: impl FnOnce() + Send + 'static,
) -> std::io::Result<thread::JoinHandle<()>> {
    check_room_for_thread()?;
    thread::Builder::new().name(name.to_owned()).spawn(act)
}

/// The order in which a thread takes the locks of the ledgers of all `Vmm`s: by rank. A thread takes locks of the same
/// rank in the order of their keys: the addresses of the reservations, or the indexes of the shards. The documentation
/// of this module lists all locks of the library.
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
    /// The key of the last reservation that this thread has locked for a closure of the caller; 0 outside closures.
    static LOCKED_FOR_CLOSURE: Cell<usize> = const { Cell::new(0) };
}

/// Calls `act`, a closure of the library's caller. The reservation with this key must be locked
/// ([`Rank::Reservation`]).
pub(crate) fn call_closure<T>(key: usize, act: impl FnOnce() -> T) -> T {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            LOCKED_FOR_CLOSURE.with(|locked| locked.set(self.0));
        }
    }
    let _restore = Restore(LOCKED_FOR_CLOSURE.with(|locked| locked.replace(key)));
    act()
}

/// Returns whether this thread may lock the reservation with this key. In a closure of [`call_closure`], it may lock
/// only reservations that come after the closure's own reservation: otherwise, it could wait forever.
pub(crate) fn may_lock(key: usize) -> bool {
    key > LOCKED_FOR_CLOSURE.with(Cell::get)
}

/// A lock's guard with its position in the lock order, which debug builds check.
#[derive(Debug)]
pub(crate) struct Ordered<G> {
    guard: G,
    position: (Rank, usize),
}

impl<G> Ordered<G> {
    /// Takes a lock. Debug builds panic if this thread holds a lock that comes later in the order. All builds panic if
    /// this thread may not lock a reservation ([`may_lock`]).
    pub fn take(rank: Rank, key: usize, acquire: impl FnOnce() -> G) -> Self {
        assert!(
            rank != Rank::Reservation || may_lock(key),
            "the closure of Mapping::with_access must not call this library"
        );
        if cfg!(debug_assertions) {
            // Fails if the thread is exiting and its list was destroyed.
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
            if let Some(index) = held.iter().rposition(|position| *position == self.position) {
                held.remove(index);
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
    fn locks_out_of_order_panic() {
        for (held, next) in [
            ((Rank::Mappings, 1), (Rank::Index, 0)),
            ((Rank::Reservation, 2), (Rank::Reservation, 1)),
            ((Rank::Reservation, 2), (Rank::Reservation, 2)),
        ] {
            let thread = std::thread::spawn(move || {
                let locks: [Mutex<()>; 2] = Default::default();
                let _held = take(&locks[0], held.0, held.1);
                drop(take(&locks[1], next.0, next.1));
            });
            let panic = thread.join().unwrap_err();
            let text = panic.downcast_ref::<String>().unwrap();
            assert!(text.contains("lock order"), "{held:?} before {next:?}: {text}");
        }
    }
}
