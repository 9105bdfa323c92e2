//! What becomes of the emulation when the process forks.
//!
//! The locks that every process has are taken before a fork, so that the child gets them
//! free and what they guard whole. The driver of the parent stays behind, with all its locks: the
//! child has none until it opens a device, as amdkfd keeps nothing of the parent for it.

use crate::interpose::lists;
use crate::{descriptors, driver, own};
use std::cell::RefCell;
use std::sync::MutexGuard;

/// The locks, in the order in which they are taken.
struct Locks {
    _birth: MutexGuard<'static, ()>,
    table: descriptors::Held,
    _lists: lists::Held,
    _turn: MutexGuard<'static, ()>,
}

thread_local! {
    static HELD: RefCell<Option<Locks>> = const { RefCell::new(None) };
}

extern "C" fn before() {
    let locks = Locks {
        _birth: driver::birth(),
        table: descriptors::table(),
        _lists: lists::open(),
        _turn: own::turn(),
    };
    // A thread that is ending has no such place any more; its locks are free again at once.
    let _ = HELD.try_with(|held| held.replace(Some(locks)));
}

extern "C" fn parent() {
    let _ = HELD.try_with(RefCell::take);
}

extern "C" fn child() {
    let Ok(Some(mut locks)) = HELD.try_with(RefCell::take) else { return };
    descriptors::begin_anew(&mut locks.table);
    driver::forget();
    own::close_all();
}

extern "C" fn begin() {
    descriptors::own();
    // SAFETY: the three functions live as long as the object, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before), Some(parent), Some(child)) };
}

/// Run by the loader before the program is.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
