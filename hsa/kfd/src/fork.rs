//! Fork handling.
//!
//! The parent takes the per-process locks before a fork. In the child, these locks are therefore free, and their
//! data is consistent. The child abandons the parent's driver with all its locks. As with
//! amdkfd, the child has no memory and no handles until it opens a device.

use crate::interpose::descriptor_streams;
use crate::{descriptors, driver, observe, own_descriptors};
use std::cell::RefCell;
use std::sync::MutexGuard;

/// The locks, in the order in which they are taken.
struct Locks {
    _start: MutexGuard<'static, ()>,
    _observer: MutexGuard<'static, ()>,
    table: descriptors::Guard,
    _streams: descriptor_streams::Guard,
    _limit: MutexGuard<'static, ()>,
}

thread_local! {
    static HELD: RefCell<Option<Locks>> = const { RefCell::new(None) };
}

extern "C" fn before_fork() {
    let locks = Locks {
        _start: driver::start_lock(),
        _observer: observe::start_lock(),
        table: descriptors::table(),
        _streams: descriptor_streams::lock(),
        _limit: own_descriptors::limit_lock(),
    };
    // An exiting thread may have no thread-local storage left. Then `locks` is dropped here, before the fork.
    let _ = HELD.try_with(|held| held.replace(Some(locks)));
}

extern "C" fn after_fork_in_parent() {
    let _ = HELD.try_with(RefCell::take);
}

extern "C" fn after_fork_in_child() {
    let Ok(Some(mut locks)) = HELD.try_with(RefCell::take) else { return };
    descriptors::reset_in_child(&mut locks.table);
    driver::reset_after_fork();
    // The observer's log stays open: the child has the same observer.
    let log = observe::existing().and_then(|observer| observer.log.descriptor());
    own_descriptors::close_all_except(log);
}

extern "C" fn register() {
    descriptors::take_ownership();
    // SAFETY: the three functions live as long as the object, which is never unloaded.
    unsafe {
        libc::pthread_atfork(
            Some(before_fork),
            Some(after_fork_in_parent),
            Some(after_fork_in_child),
        )
    };
}

/// The dynamic loader calls [`register`] before the program starts.
#[used]
#[unsafe(link_section = ".init_array")]
static REGISTER: extern "C" fn() = register;
