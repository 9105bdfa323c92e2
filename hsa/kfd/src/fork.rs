//! Fork handling.
//!
//! The per-process locks are taken before a fork, so that the child gets them free and their data
//! consistent. The parent's driver, with all its locks, is abandoned: like amdkfd, the emulation
//! gives the child nothing until it opens a device.

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
    // A thread that is exiting has no thread-local storage left; its locks are released at once.
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

/// Called by the loader before the program starts.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
