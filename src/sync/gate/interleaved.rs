//! The same of shuttle's locks, which has none of the kind.

use crate::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, lock};
use std::cell::OnceCell;
use std::sync::{Arc, PoisonError};

#[derive(Debug)]
pub(super) struct Shared<T>(RwLock<Option<Arc<T>>>);

#[derive(Debug)]
pub(crate) struct SharedLook<'a, T>(RwLockReadGuard<'a, Option<Arc<T>>>);

impl<T> Shared<T> {
    pub fn new() -> Self {
        Self(RwLock::new(None))
    }

    pub fn look(&self) -> Option<SharedLook<'_, T>> {
        let look = self.0.read().unwrap_or_else(PoisonError::into_inner);
        look.is_some().then_some(SharedLook(look))
    }

    pub fn lend(&self, value: &Arc<T>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(value.clone());
    }

    pub fn take_back(&self) -> Option<Arc<T>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<T> core::ops::Deref for SharedLook<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it was there when this was made")
    }
}

#[derive(Debug)]
pub(crate) struct Lock<T> {
    gate: Mutex<()>,
    value: RwLock<T>,
}

pub(crate) type Look<'a, T> = RwLockReadGuard<'a, T>;

#[derive(Debug)]
pub(crate) struct Inside<'a, T> {
    place: &'a RwLock<T>,
    /// From the first look to the next change: who looks already may enter, and must not look twice.
    look: OnceCell<RwLockReadGuard<'a, T>>,
    inside: MutexGuard<'a, ()>,
}

#[derive(Debug)]
pub(crate) struct Open<'a, T> {
    place: &'a RwLock<T>,
    value: RwLockWriteGuard<'a, T>,
    inside: MutexGuard<'a, ()>,
}

impl<T> Lock<T> {
    pub fn new(value: T) -> Self {
        Self { gate: Mutex::new(()), value: RwLock::new(value) }
    }

    pub fn look(&self) -> Look<'_, T> {
        self.value.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn enter(&self) -> Inside<'_, T> {
        self.inside(lock(&self.gate))
    }

    pub fn try_enter(&self) -> Option<Inside<'_, T>> {
        self.gate.try_lock().ok().map(|inside| self.inside(inside))
    }

    fn inside<'a>(&'a self, inside: MutexGuard<'a, ()>) -> Inside<'a, T> {
        Inside { place: &self.value, look: OnceCell::new(), inside }
    }
}

impl<'a, T> Inside<'a, T> {
    pub fn change<R>(&mut self, how: impl FnOnce(&mut T) -> R) -> R {
        self.look.take();
        how(&mut self.place.write().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn open(self) -> Open<'a, T> {
        let Self { place, look, inside } = self;
        drop(look);
        let value = place.write().unwrap_or_else(PoisonError::into_inner);
        Open { place, value, inside }
    }
}

impl<T> core::ops::Deref for Inside<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.look.get_or_init(|| self.place.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<'a, T> Open<'a, T> {
    pub fn close(self) -> Inside<'a, T> {
        let Self { place, value, inside } = self;
        drop(value);
        Inside { place, look: OnceCell::new(), inside }
    }

    pub fn value(&mut self) -> &mut T {
        &mut self.value
    }
}
