//! A lock for what one may change at a time, after some thought, while everybody may look.
//!
//! Who has entered is alone in changing it, and shuts those who look out for no longer than the change
//! takes. So it may call the runtime inside, and look-ups do not wait for that.
//!
//! Who looks says so in the lock, where others who look must say so too, and that is what costs. So,
//! when several threads do nothing but look, it is lent to them: put into a lock of many parts, in
//! which each thread uses one of its own. Who enters next takes it back.

#[cfg(feature = "interleavings")]
mod interleaved;
#[cfg(not(feature = "interleavings"))]
mod upgradable;

#[cfg(feature = "interleavings")]
use interleaved as locks;
#[cfg(not(feature = "interleavings"))]
use upgradable as locks;

use super::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use super::thread_local;
use core::ops::Deref;
use std::sync::{OnceLock, PoisonError};

/// After how many changes of who looks it is lent; soon where every step takes long.
const OFTEN: u32 = if cfg!(any(feature = "interleavings", miri)) { 2 } else { 64 };

thread_local! {
    /// Its address tells threads apart.
    static MARK: u8 = const { 0 };
}

/// Where the value is, or was.
#[derive(Debug, Default)]
pub(crate) struct Place<T> {
    value: T,
    is_here: bool,
}

/// What one may change at a time.
#[derive(Debug)]
// What is read each time stands beside the lock's own state.
#[repr(C)]
pub(crate) struct Gate<T> {
    /// The thread that looked last, and how often since somebody entered it was another than before.
    /// If it is wrong now and then, the value is lent a little later.
    last: AtomicUsize,
    others: AtomicU32,
    is_lent: AtomicBool,
    own: locks::Lock<Place<T>>,
    lent: OnceLock<Box<locks::Shards<Place<T>>>>,
}

impl<T: Default> Gate<T> {
    pub fn new(value: T) -> Self {
        Self {
            last: AtomicUsize::new(0),
            others: AtomicU32::new(0),
            is_lent: AtomicBool::new(false),
            own: locks::Lock::new(Place { value, is_here: true }),
            lent: OnceLock::new(),
        }
    }

    /// Waits until nobody changes anything at this moment.
    pub fn look(&self) -> Look<'_, T> {
        loop {
            if self.is_lent.load(Ordering::Acquire)
                && let Some(lent) = self.lent.get()
            {
                let look = lent.read().unwrap_or_else(PoisonError::into_inner);
                if look.is_here {
                    return Look::Lent(look);
                }
            }
            let look = self.own.look();
            if look.is_here {
                if !self.is_to_be_lent() {
                    return Look::Own(look);
                }
                drop(look);
                self.lend();
            }
        }
    }

    /// Waits until nobody is inside.
    pub fn enter(&self) -> Inside<'_, T> {
        let mut inside = self.own.enter();
        self.others.store(0, Ordering::Relaxed);
        if !inside.is_here {
            inside.change(|own| self.take_back(own));
        }
        Inside(inside)
    }

    /// Lets nobody in, if nobody is inside.
    pub fn shut(&self) -> Option<Shut<'_, T>> {
        self.own.try_enter().map(Shut)
    }

    fn is_to_be_lent(&self) -> bool {
        let me = MARK.try_with(|mark| core::ptr::from_ref(mark).addr()).unwrap_or_default();
        if self.last.load(Ordering::Relaxed) == me {
            return false;
        }
        self.last.store(me, Ordering::Relaxed);
        let others = self.others.load(Ordering::Relaxed).wrapping_add(1);
        self.others.store(others % OFTEN, Ordering::Relaxed);
        others == OFTEN
    }

    fn lend(&self) {
        // Who is inside is about to change it.
        let Some(inside) = self.own.try_enter() else { return };
        let mut open = inside.open();
        let own = open.value();
        if own.is_here {
            let lent = self.lent.get_or_init(|| Box::new(locks::Shards::new(Place::default())));
            let mut lent = lent.write().unwrap_or_else(PoisonError::into_inner);
            *lent = core::mem::take(own);
            self.is_lent.store(true, Ordering::Release);
        }
    }

    #[cold]
    fn take_back(&self, own: &mut Place<T>) {
        if let Some(lent) = self.lent.get() {
            let mut lent = lent.write().unwrap_or_else(PoisonError::into_inner);
            *own = core::mem::take(&mut *lent);
            self.is_lent.store(false, Ordering::Release);
        }
    }
}

/// Somebody who looks.
#[derive(Debug)]
pub(crate) enum Look<'a, T> {
    Own(locks::Look<'a, Place<T>>),
    Lent(locks::ShardsLook<'a, Place<T>>),
}

impl<T> Deref for Look<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Own(look) => &look.value,
            Self::Lent(look) => &look.value,
        }
    }
}

/// Somebody who has entered.
#[derive(Debug)]
pub(crate) struct Inside<'a, T>(locks::Inside<'a, Place<T>>);

impl<'a, T> Inside<'a, T> {
    /// Changes something, when nobody looks.
    pub fn change<R>(&mut self, how: impl FnOnce(&mut T) -> R) -> R {
        self.0.change(|own| how(&mut own.value))
    }

    /// Shuts those who look out.
    pub fn open(self) -> Open<'a, T> {
        Open(self.0.open())
    }
}

impl<T> Deref for Inside<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

/// Somebody who has entered and shut the others out.
#[derive(Debug)]
pub(crate) struct Open<'a, T>(locks::Open<'a, Place<T>>);

impl<'a, T> Open<'a, T> {
    /// Lets others look again.
    pub fn close(self) -> Inside<'a, T> {
        Inside(self.0.close())
    }

    pub fn value(&mut self) -> &mut T {
        &mut self.0.value().value
    }
}

/// Keeps others from entering.
#[derive(Debug)]
pub(crate) struct Shut<'a, T>(#[allow(dead_code, reason = "held")] locks::Inside<'a, Place<T>>);

#[cfg(test)]
mod tests;
