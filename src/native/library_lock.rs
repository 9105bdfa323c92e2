//! One reader-writer lock for each loaded library. The lock protects the runtime's table of handles, because some
//! calls of the runtime use the table without a lock.
//!
//! AMD's runtime has one table of handles per process and guards it with `memory_lock_`. Before
//! ROCm 10, four functions use the table without that lock: `hsa_amd_vmem_export_shareable_handle`,
//! `hsa_amd_vmem_import_shareable_handle`, `hsa_amd_vmem_retain_alloc_handle` and
//! `hsa_amd_vmem_get_alloc_properties_from_handle` (`Runtime::VMemory…` in `runtime.cpp`, ROCm 6.0
//! to 7.2). This library never calls `hsa_amd_vmem_retain_alloc_handle`. On these releases (the quirk
//! `some_calls_take_no_lock`), it calls the other three functions while it holds this lock exclusively. The other
//! functions on handles and mappings take `memory_lock_`; this library calls them while it holds this lock shared.
//!
//! This module also has the lock for the start of the IPC server, and the list of host memory that areas have locked.
//! Fork handlers keep the registry of locks and this list usable in a forked child, and count forks ([`ForkCount`]).

use crate::sync::RwLock;
use hsa_sys::Table;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A loaded library's lock, or the lock of the [IPC server](ipc_server_lock). A thread holds a library's lock for one
/// call of the library, or for all calls of a probe. The thread holds it shared if the runtime takes its own lock during
/// the call, otherwise exclusively. A thread that holds it takes no other lock of hsa-vmm, except that a log subscriber
/// may call look-ups.
pub(crate) type LibraryLock = RwLock<()>;

/// Returns the lock of the library that a table was loaded from. All tables of one library share one lock.
///
/// The address of `hsa_init` identifies the library: loading a file twice loads one library, and every simulation has
/// its own functions. A forked child gets a new lock, because a thread of the parent may have held the old one.
pub(crate) fn lock_of(table: &Table) -> Arc<LibraryLock> {
    registered_lock(table.core.hsa_init as usize)
}

/// Returns the lock of this process for the start of a runtime's IPC server. The server's socket is named after the
/// process, so all runtimes share this lock. A forked child gets a new lock.
pub(crate) fn ipc_server_lock() -> Arc<LibraryLock> {
    // No function has the address 0.
    registered_lock(0)
}

/// Returns the lock that is registered for an address in this process. Creates the lock if no thread has it.
fn registered_lock(address: usize) -> Arc<LibraryLock> {
    // `ForkCount::current` also registers the handlers that keep the registry usable after a fork.
    let key = (address, ForkCount::current());
    let mut registry = registry();
    registry.retain(|_, lock| lock.strong_count() > 0);
    registry.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
        let lock = Arc::new(LibraryLock::new(()));
        registry.insert(key, Arc::downgrade(&lock));
        lock
    })
}

/// The locks by the address of `hsa_init`, 0 for the lock of the IPC server, and by the number of forks.
type Registry = BTreeMap<(usize, ForkCount), Weak<LibraryLock>>;

// This is always the standard library's mutex, even in tests that substitute the locks of `crate::sync`, because a
// thread that holds this lock waits for nothing but the other lock of this module.
static REGISTRY: Mutex<Registry> = Mutex::new(BTreeMap::new());

/// The end of each range of host memory that areas have locked, by the number of forks and the start.
///
/// All `Runtime` values share the list, because two `Runtime`s may use one loaded library. AMD's runtime identifies a
/// locked range only by its start. If two locked ranges have the same start, the runtime can unlock neither, and
/// version 7.2 aborts the process. The number of forks is part of the key, because the parent's ranges are not locked
/// in a forked child.
pub(crate) type LockedRanges = BTreeMap<(ForkCount, usize), usize>;

static LOCKED_RANGES: Mutex<LockedRanges> = Mutex::new(BTreeMap::new());

/// Locks the list of locked host memory. The caller makes no call of the runtime while it holds the guard.
pub(crate) fn locked_ranges() -> MutexGuard<'static, LockedRanges> {
    LOCKED_RANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the start of a locked range that overlaps `start..end`; `None` if no locked range overlaps it.
pub(crate) fn overlapping_lock(locked: &LockedRanges, start: usize, end: usize) -> Option<usize> {
    let forks = ForkCount::current();
    let last = locked.range((forks, 0)..(forks, end)).next_back();
    last.filter(|&(_, &last_end)| last_end > start).map(|(&(_, locked_start), _)| locked_start)
}

/// Allocates memory that overlaps no locked range. Other code may have freed memory that an area still has locked, and
/// the allocator may return this memory. Memory must not be locked a second time. Therefore leaks it, because the
/// allocator would return it again.
pub(super) fn allocate_unlocked<T>(allocate: impl Fn() -> T, bytes: impl Fn(&T) -> &[u8]) -> T {
    loop {
        let memory = allocate();
        let range = bytes(&memory).as_ptr_range();
        if overlapping_lock(&locked_ranges(), range.start as usize, range.end as usize).is_none() {
            return memory;
        }
        core::mem::forget(memory);
    }
}

/// The guards of the registry and of the list of locked ranges.
type Guards = (MutexGuard<'static, Registry>, MutexGuard<'static, LockedRanges>);

thread_local! {
    /// The guards that this thread holds while it forks.
    static FORKING: RefCell<Option<Guards>> = const { RefCell::new(None) };
}

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The value of [`ForkCount`] in this process.
static FORKS: AtomicU64 = AtomicU64::new(0);
/// Whether a thread has registered the fork handlers.
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// A number that increases with each fork after the first call of [`Self::current`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ForkCount(u64);

/// Locks the registry and the list of locked ranges before this thread forks. Otherwise another thread could hold one
/// of these locks during the fork, and the child could never take it. Does nothing if this thread holds the locks,
/// because the handlers may be registered twice.
extern "C" fn before_fork() {
    let _ = FORKING.try_with(|held| {
        held.borrow_mut().get_or_insert_with(|| (registry(), locked_ranges()));
    });
}

/// Unlocks the registry and the list of locked ranges after the fork.
extern "C" fn unlock_after_fork() {
    let _ = FORKING.try_with(RefCell::take);
}

/// Counts the fork, and unlocks the registry and the list of locked ranges, in the child.
extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    unlock_after_fork();
}

fn register_fork_handlers() {
    // SAFETY: the handlers are functions of this code; if the code is unloaded, glibc removes them. In the child, they
    // change one atomic and unlock mutexes that the same thread has locked. If the call fails (out of memory), the
    // library does not detect forks.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(unlock_after_fork), Some(count_fork)) };
}

impl ForkCount {
    /// Returns the count of this process. The first call registers the fork handlers.
    pub fn current() -> Self {
        // Waits for no other thread: if this process was forked during the registration, no thread of the child ends
        // the registration. Therefore several threads may register the handlers. Each fork is then counted several
        // times, which makes no difference.
        if !REGISTERED.load(Ordering::Acquire) {
            register_fork_handlers();
            REGISTERED.store(true, Ordering::Release);
        }
        Self(FORKS.load(Ordering::Relaxed))
    }

    pub fn number(self) -> u64 {
        self.0
    }

    /// Returns whether this process is a forked child of the process that took this count.
    pub fn has_forked(self) -> bool {
        self.0 != FORKS.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, feature = "simulation"))]
mod tests {
    use super::{ForkCount, LibraryLock, locked_ranges, register_fork_handlers, registry};
    use crate::native::Native;
    use crate::sync::{read, write};
    use hsa_sim::{Config, Simulation};
    use std::sync::Arc;

    fn simulation() -> Arc<Simulation> {
        Arc::new(Simulation::start(Config::mi300x(1)).unwrap())
    }

    #[test]
    fn each_simulation_has_one_lock() {
        let (first, second) = (simulation(), simulation());
        let lock = |simulation: &Arc<Simulation>| {
            Arc::clone(&Native::simulated(simulation.clone()).library_lock)
        };
        let first_lock = lock(&first);
        assert!(Arc::ptr_eq(&first_lock, &lock(&first)));
        assert!(!Arc::ptr_eq(&first_lock, &lock(&second)));
    }

    #[test]
    fn exclusive_excludes_shared() {
        let lock = LibraryLock::default();
        let shared = (read(&lock), read(&lock));
        assert!(lock.try_write().is_err());
        drop(shared);
        let exclusive = write(&lock);
        assert!(lock.try_read().is_err() && lock.try_write().is_err());
        drop(exclusive);
        assert!(lock.try_read().is_ok());
    }

    /// Two threads can register the handlers at the same time.
    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot fork")]
    fn fork_handlers_can_be_registered_twice() {
        let count = ForkCount::current();
        register_fork_handlers();
        // SAFETY: the child only reads an atomic and exits.
        match unsafe { libc::fork() } {
            // SAFETY: `_exit` runs no code of this process.
            0 => unsafe { libc::_exit(i32::from(!count.has_forked())) },
            child => {
                let mut status = 0;
                // SAFETY: `status` is writable.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                assert_eq!(status, 0, "the child has counted the fork");
            }
        }
        assert!(!count.has_forked());
        // This process has unlocked both.
        drop((registry(), locked_ranges()));
    }

    #[test]
    fn lock_is_released_after_a_panic() {
        let lock = LibraryLock::default();
        let panicking = std::panic::AssertUnwindSafe(|| {
            let _exclusive = write(&lock);
            panic!("while locked");
        });
        assert!(std::panic::catch_unwind(panicking).is_err());
        drop(read(&lock));
        drop(write(&lock));
    }
}
