//! The locks that a gate is made of: one whose readers can come to be its writer, and those behind which
//! is what is lent.

use parking_lot::{
    MappedRwLockReadGuard, RwLock, RwLockReadGuard, RwLockUpgradableReadGuard as Upgradable,
    RwLockWriteGuard,
};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// What is lent, to some of the threads.
#[derive(Debug)]
pub(super) struct Shared<T>(RwLock<Option<Arc<T>>>);

pub(super) type SharedLook<'a, T> = MappedRwLockReadGuard<'a, T>;

impl<T> Shared<T> {
    pub fn new() -> Self {
        Self(RwLock::new(None))
    }

    pub fn look(&self) -> Option<SharedLook<'_, T>> {
        RwLockReadGuard::try_map(self.0.read(), Option::as_deref).ok()
    }

    pub fn lend(&self, value: &Arc<T>) {
        *self.0.write() = Some(value.clone());
    }

    pub fn take_back(&self) -> Option<Arc<T>> {
        self.0.write().take()
    }
}

#[derive(Debug)]
pub(crate) struct Lock<T>(RwLock<T>);

pub(crate) type Look<'a, T> = RwLockReadGuard<'a, T>;

// The fence is dropped before the lock is released.
#[derive(Debug)]
pub(crate) struct Inside<'a, T>(ReleaseFence, Upgradable<'a, T>);

/// Orders what was read before the release of an upgradable lock.
///
/// parking_lot 0.12.5 releases one with `Relaxed` where threads wait for it (`unlock_upgradable_slow`):
/// the next writer would not happen after this thread's reads. The thread sanitizer does not model
/// fences, and reports that race still.
#[derive(Debug)]
struct ReleaseFence;

impl Drop for ReleaseFence {
    fn drop(&mut self) {
        fence(Ordering::Release);
    }
}

#[derive(Debug)]
pub(crate) struct Open<'a, T>(RwLockWriteGuard<'a, T>);

impl<T> Lock<T> {
    pub fn new(value: T) -> Self {
        Self(RwLock::new(value))
    }

    pub fn look(&self) -> Look<'_, T> {
        self.0.read()
    }

    pub fn enter(&self) -> Inside<'_, T> {
        Inside(ReleaseFence, self.0.upgradable_read())
    }

    pub fn try_enter(&self) -> Option<Inside<'_, T>> {
        self.0.try_upgradable_read().map(|lock| Inside(ReleaseFence, lock))
    }
}

impl<'a, T> Inside<'a, T> {
    pub fn change<R>(&mut self, how: impl FnOnce(&mut T) -> R) -> R {
        self.1.with_upgraded(how)
    }

    pub fn open(self) -> Open<'a, T> {
        Open(Upgradable::upgrade(self.1))
    }
}

impl<T> core::ops::Deref for Inside<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.1
    }
}

impl<'a, T> Open<'a, T> {
    pub fn close(self) -> Inside<'a, T> {
        Inside(ReleaseFence, RwLockWriteGuard::downgrade_to_upgradable(self.0))
    }

    pub fn value(&mut self) -> &mut T {
        &mut self.0
    }
}
