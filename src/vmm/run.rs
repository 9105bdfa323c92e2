//! Something of each mapping of a run, which mostly is one.

use core::ops::{Deref, DerefMut};

/// A list that takes no memory of its own for one.
#[derive(Debug)]
pub(super) enum Run<T> {
    One([T; 1]),
    Many(Vec<T>),
}

impl<T> Run<T> {
    pub fn one(only: T) -> Self {
        Self::One([only])
    }
}

impl<T> Deref for Run<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}

impl<T> DerefMut for Run<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}
