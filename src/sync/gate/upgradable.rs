//! Of one lock whose readers can come to be its writer.

use parking_lot::{
    RwLock, RwLockReadGuard, RwLockUpgradableReadGuard as Upgradable, RwLockWriteGuard,
};

/// What one may change at a time.
#[derive(Debug, Default)]
pub(crate) struct Gate<T>(RwLock<T>);

/// Somebody who looks.
pub(crate) type Look<'a, T> = RwLockReadGuard<'a, T>;

/// Somebody who has entered.
#[derive(Debug)]
pub(crate) struct Inside<'a, T>(Upgradable<'a, T>);

/// Somebody who has entered and shut the others out.
#[derive(Debug)]
pub(crate) struct Open<'a, T>(RwLockWriteGuard<'a, T>);

impl<T> Gate<T> {
    pub fn new(value: T) -> Self {
        Self(RwLock::new(value))
    }

    /// Waits until nobody changes anything at this moment.
    pub fn look(&self) -> Look<'_, T> {
        self.0.read()
    }

    /// Waits until nobody is inside.
    pub fn enter(&self) -> Inside<'_, T> {
        Inside(self.0.upgradable_read())
    }

    /// Enters if nobody is inside.
    pub fn try_enter(&self) -> Option<Inside<'_, T>> {
        self.0.try_upgradable_read().map(Inside)
    }
}

impl<'a, T> Inside<'a, T> {
    /// Changes something, when nobody looks.
    pub fn change<R>(&mut self, how: impl FnOnce(&mut T) -> R) -> R {
        self.0.with_upgraded(how)
    }

    /// Shuts those who look out.
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
    /// Lets others look again.
    pub fn close(self) -> Inside<'a, T> {
        Inside(RwLockWriteGuard::downgrade_to_upgradable(self.0))
    }

    pub fn value(&mut self) -> &mut T {
        &mut self.0
    }
}
