//! The locks that a gate is made of: one whose readers can come to be its writer, and one of many parts.

use parking_lot::{
    RwLock, RwLockReadGuard, RwLockUpgradableReadGuard as Upgradable, RwLockWriteGuard,
};

pub(super) use crossbeam_utils::sync::{ShardedLock as Shards, ShardedLockReadGuard as ShardsLook};

#[derive(Debug)]
pub(crate) struct Lock<T>(RwLock<T>);

pub(crate) type Look<'a, T> = RwLockReadGuard<'a, T>;

#[derive(Debug)]
pub(crate) struct Inside<'a, T>(Upgradable<'a, T>);

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
        Inside(self.0.upgradable_read())
    }

    pub fn try_enter(&self) -> Option<Inside<'_, T>> {
        self.0.try_upgradable_read().map(Inside)
    }
}

impl<'a, T> Inside<'a, T> {
    pub fn change<R>(&mut self, how: impl FnOnce(&mut T) -> R) -> R {
        self.0.with_upgraded(how)
    }

    pub fn open(self) -> Open<'a, T> {
        Open(Upgradable::upgrade(self.0))
    }
}

impl<T> core::ops::Deref for Inside<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<'a, T> Open<'a, T> {
    pub fn close(self) -> Inside<'a, T> {
        Inside(RwLockWriteGuard::downgrade_to_upgradable(self.0))
    }

    pub fn value(&mut self) -> &mut T {
        &mut self.0
    }
}
