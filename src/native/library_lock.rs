//! One reader-writer lock for each loaded library, for calls that the library does not lock itself.
//!
//! AMD's runtime has one table of handles per process and guards it with `memory_lock_`. Before
//! ROCm 10, four functions use the table without that lock: `hsa_amd_vmem_export_shareable_handle`,
//! `hsa_amd_vmem_import_shareable_handle`, `hsa_amd_vmem_retain_alloc_handle` and
//! `hsa_amd_vmem_get_alloc_properties_from_handle` (`Runtime::VMemory…` in `runtime.cpp`, ROCm 6.0
//! to 7.2). Other calls on handles and mappings take `memory_lock_`: they hold this lock shared, and
//! the four hold it exclusively.

use super::Generation;
use crate::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use hsa_sys::Table;
use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A library's lock. It is held for one call of the library, and no other lock is taken meanwhile.
#[derive(Debug)]
pub(crate) struct LibraryLock(RwLock<()>);

impl LibraryLock {
    /// Returns the lock of the library that a table was loaded from: the same for every table of it.
    ///
    /// The address of `hsa_init` identifies the library: loading a file twice loads one library, and
    /// every simulation has functions of its own. A child of a fork gets a new lock, as a thread of
    /// the parent may have held the old one.
    pub fn of(table: &Table) -> Arc<Self> {
        // This also registers the handlers that keep the registry usable after a fork.
        let generation = Generation::current();
        let library = table.core.hsa_init as usize;
        let mut registry = registry();
        registry.retain(|entry| entry.lock.strong_count() > 0);
        let known = registry
            .iter()
            .find(|entry| (entry.library, entry.generation) == (library, generation))
            .and_then(|entry| entry.lock.upgrade());
        known.unwrap_or_else(|| {
            let lock = Arc::new(Self(RwLock::new(())));
            registry.push(Entry { library, generation, lock: Arc::downgrade(&lock) });
            lock
        })
    }

    /// Waits until no unlocked call is under way. Held for a call that the library locks itself.
    pub fn shared(&self) -> RwLockReadGuard<'_, ()> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other call is under way. Held for a call that the library does not lock.
    pub fn exclusive(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Entry {
    library: usize,
    generation: Generation,
    lock: Weak<LibraryLock>,
}

// The standard library's mutex also where tests substitute locks: nothing blocks while it is held.
static REGISTRY: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

thread_local! {
    /// The registry while this thread forks.
    static FORKING: RefCell<Option<MutexGuard<'static, Vec<Entry>>>> = const { RefCell::new(None) };
}

fn registry() -> MutexGuard<'static, Vec<Entry>> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the registry before this thread forks, so that the child does not inherit it locked by
/// another thread.
pub(super) fn before_fork() {
    let _ = FORKING.try_with(|held| *held.borrow_mut() = Some(registry()));
}

/// Unlocks the registry again, in the parent and in the child.
pub(super) fn after_fork() {
    let _ = FORKING.try_with(RefCell::take);
}

#[cfg(all(test, feature = "simulation"))]
mod tests {
    use super::LibraryLock;
    use crate::native::Native;
    use hsa_sim::{Config, Simulation};
    use std::sync::Arc;

    fn simulation() -> Arc<Simulation> {
        Arc::new(Simulation::start(Config::mi300x(1)).unwrap())
    }

    #[test]
    fn each_simulation_has_one_lock() {
        let (one, other) = (simulation(), simulation());
        let lock = |simulation: &Arc<Simulation>| {
            Arc::clone(&Native::simulated(simulation.clone()).library_lock)
        };
        let (first, second) = (lock(&one), lock(&one));
        assert!(Arc::ptr_eq(&first, &second));
        assert!(!Arc::ptr_eq(&first, &lock(&other)));
    }

    #[test]
    fn exclusive_excludes_shared() {
        let lock = LibraryLock(Default::default());
        let shared = (lock.shared(), lock.shared());
        assert!(lock.0.try_write().is_err());
        drop(shared);
        let exclusive = lock.exclusive();
        assert!(lock.0.try_read().is_err() && lock.0.try_write().is_err());
        drop(exclusive);
        assert!(lock.0.try_read().is_ok());
    }

    #[test]
    fn lock_is_released_after_a_panic() {
        let lock = LibraryLock(Default::default());
        let panicking = std::panic::AssertUnwindSafe(|| {
            let _exclusive = lock.exclusive();
            panic!("planted");
        });
        assert!(std::panic::catch_unwind(panicking).is_err());
        drop(lock.shared());
        drop(lock.exclusive());
    }
}
