//! The locks that this library waits at.
//!
//! They are the standard library's, and one of parking_lot's. The package in `tests/interleavings`
//! compiles these very sources with [shuttle](https://docs.rs/shuttle)'s instead, which decides at
//! each of them who goes on, and so runs through orders that a machine would hardly ever show.

pub(crate) mod gate;
mod number;

pub(crate) use number::thread_number;

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

use std::sync::PoisonError;

/// Locks a mutex. Nothing panics while it holds a lock; if it did, the state is still its owner's.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
