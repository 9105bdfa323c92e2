//! A lock for what one may change at a time, after some thought, while everybody may look.
//!
//! Who has entered is alone in changing it, and shuts those who look out for no longer than the change
//! takes. So it may call the runtime inside, and look-ups do not wait for that.
//!
//! Who looks says so in the lock, where others who look must say so too, and that is what costs. So,
//! when several threads do nothing but look, it is lent to them: each finds it behind a lock that it
//! shares with few others, or none. Who enters next takes it back.

#[cfg(feature = "interleavings")]
mod interleaved;
#[cfg(not(feature = "interleavings"))]
mod upgradable;

#[cfg(feature = "interleavings")]
use interleaved as locks;
#[cfg(not(feature = "interleavings"))]
use upgradable as locks;

use super::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use super::thread_number;
use core::ops::Deref;
use core::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, OnceLock};

/// After how many changes of who looks it is lent; soon where every step takes long.
const OFTEN: u32 = if cfg!(any(feature = "interleavings", miri)) { 2 } else { 64 };

/// Behind how many locks it is found when it is lent.
const SHARES: usize = 16;

/// Where some threads find what is lent. Its size is that of two of the processor's cache lines, so that
/// those who look in one do not slow those who look in another.
#[derive(Debug)]
#[repr(align(128))]
struct Share<T>(locks::Shared<T>);

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
    lent: OnceLock<Box<[Share<T>; SHARES]>>,
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
                && let Some(look) = lent[thread_number() % SHARES].0.look()
            {
                return Look::Lent(look);
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
        let me = thread_number();
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
            let nothing = || Box::new(core::array::from_fn(|_| Share(locks::Shared::new())));
            let value = Arc::new(core::mem::take(own).value);
            for share in self.lent.get_or_init(nothing).iter() {
                share.0.lend(&value);
            }
            self.is_lent.store(true, Ordering::Release);
        }
    }

    #[cold]
    fn take_back(&self, own: &mut Place<T>) {
        // Who comes from now on waits for the change; those who look already are waited for.
        self.is_lent.store(false, Ordering::Release);
        let all = self.lent.get().into_iter().flat_map(|lent| lent.iter());
        let last = all.filter_map(|share| share.0.take_back()).reduce(|_, last| last);
        if let Some(value) = last.and_then(Arc::into_inner) {
            *own = Place { value, is_here: true };
        }
    }
}

// As for the standard library's locks: whoever panics inside leaves what its owner has to bear anyway.
impl<T> RefUnwindSafe for Gate<T> {}
impl<T> UnwindSafe for Gate<T> {}

/// Somebody who looks.
#[derive(Debug)]
pub(crate) enum Look<'a, T> {
    Own(locks::Look<'a, Place<T>>),
    Lent(locks::SharedLook<'a, T>),
}

impl<T> Deref for Look<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Own(look) => &look.value,
            Self::Lent(look) => look,
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
