//! Which reservation an address is in.

use super::mappings::Mappings;
use super::reserved::Reserved;
use super::{Inside, Ledger, Range};
use crate::address::Address;
use crate::sync::gate::Look;
use crate::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, thread_local};
use crate::vmm::error::{Argument, Problem, Refusal};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

/// Tells directories of one process apart.
pub(super) type Number = u64;

static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The reservation that this thread used last: most likely the next one, too. Found here, it is
    /// found without a lock, and threads that work in reservations of their own do not meet.
    static LAST: Cell<Option<Arc<Reserved>>> = const { Cell::new(None) };
}

/// How many freed reservations are kept to be used again.
const SPARES: usize = 64;

/// Reservations, and those that have been.
#[derive(Debug, Default)]
struct Entries {
    /// By address.
    of: BTreeMap<usize, Arc<Reserved>>,
    /// Freed, and to be used again once nobody has them any more: to give memory back and to ask for it
    /// anew costs as much as all the rest.
    freed: Vec<Arc<Reserved>>,
}

impl Entries {
    /// Adds a reservation where none is.
    fn add(&mut self, fresh: Reserved) {
        let base = fresh.base;
        while let Some(mut again) = self.freed.pop() {
            if let Some(place) = Arc::get_mut(&mut again) {
                *place = fresh;
                self.of.insert(base, again);
                return;
            }
        }
        self.of.insert(base, Arc::new(fresh));
    }

    /// Takes a reservation away.
    fn remove(&mut self, base: usize) {
        let gone = self.of.remove(&base);
        if self.freed.len() < SPARES {
            self.freed.extend(gone);
        }
    }
}

/// All reservations.
#[derive(Debug)]
pub(super) struct Directory {
    number: Number,
    entries: RwLock<Entries>,
}

impl Default for Directory {
    fn default() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { number, entries: RwLock::default() }
    }
}

impl Directory {
    fn entries(&self) -> RwLockReadGuard<'_, Entries> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn entries_mut(&self) -> RwLockWriteGuard<'_, Entries> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, address: usize) -> Option<Arc<Reserved>> {
        let entries = self.entries();
        let (_, reserved) = entries.of.range(..=address).next_back()?;
        if reserved.holds(address) { Some(reserved.clone()) } else { None }
    }

    /// The reservation that holds an address: without a lock, if it is the one that this thread used
    /// last and has [kept](Reserved::keep).
    fn take(&self, address: usize) -> Option<Arc<Reserved>> {
        let is_it =
            |it: &Arc<Reserved>| it.holds(address) && it.ledger == self.number && !it.is_freed();
        match LAST.try_with(Cell::take) {
            Ok(Some(last)) if is_it(&last) => Some(last),
            _ => self.find(address),
        }
    }
}

impl Reserved {
    /// Remembers the reservation that this thread has used: most likely it is the next one, too.
    pub fn keep(self: Arc<Self>) {
        // Else the thread is at its end.
        let _ = LAST.try_with(|last| last.set(Some(self)));
    }
}

/// A reservation while nothing in it can change.
#[derive(Debug)]
pub(crate) struct Frozen<'a> {
    pub reserved: &'a Reserved,
    pub mappings: Look<'a, Mappings>,
}

impl<H> Ledger<H> {
    /// The reservation that holds an address, if one does.
    pub fn take(&self, address: usize) -> Option<Arc<Reserved>> {
        self.directory.take(address)
    }

    /// Does something with the reservation that holds an address, if one does.
    pub fn at<T>(&self, address: usize, act: impl FnOnce(&Reserved) -> T) -> Option<T> {
        let reserved = self.directory.take(address)?;
        let done = act(&reserved);
        reserved.keep();
        Some(done)
    }

    /// The reservation that holds all of a range.
    pub fn around(&self, range: Range) -> Result<Arc<Reserved>, Refusal> {
        match self.directory.take(range.start) {
            Some(reserved) if reserved.holds_all(range) => Ok(reserved),
            _ => Err(Refusal::new(Argument::Address, Problem::NotReserved)),
        }
    }

    /// Adds a reservation and returns its serial; or says which address in it is in another.
    pub fn reserve(&self, range: Range) -> Result<u64, usize> {
        let mut entries = self.directory.entries_mut();
        // If any reaches into it, the last one that begins before its end does.
        if let Some((&base, last)) = entries.of.range(..range.end()).next_back()
            && base + last.size > range.start
        {
            return Err(base.max(range.start));
        }
        let serial = self.serials.one();
        entries.add(Reserved::new(range, serial, self.directory.number));
        Ok(serial)
    }

    /// Removes a reservation in which nothing is mapped. Who waits to enter it is not let in any more.
    pub fn remove(&self, inside: &Inside<'_>) {
        inside.reserved.set_freed(true);
        self.directory.entries_mut().remove(inside.reserved.base);
    }

    /// Puts back what was [removed](Self::remove).
    pub fn restore(&self, reserved: Arc<Reserved>) {
        let mut entries = self.directory.entries_mut();
        reserved.set_freed(false);
        entries.of.insert(reserved.base, reserved);
    }

    /// Takes the reservation that holds an address out of use: nobody is let in any more.
    pub fn quarantine(&self, address: usize) -> Option<(Address, usize)> {
        self.at(address, |reserved| {
            reserved.quarantine();
            (Address::new(reserved.base), reserved.size)
        })
    }

    /// Looks at all reservations, by address, while nothing in any of them can change. Whoever looks
    /// asks the ledger nothing else but handles.
    pub fn at_one_moment<T>(&self, look: impl FnOnce(&[Frozen<'_>]) -> T) -> T {
        let entries = self.directory.entries();
        let freeze = |reserved| Frozen { reserved, mappings: Reserved::mappings(reserved) };
        let all: Vec<_> = entries.of.values().map(|reserved| freeze(&**reserved)).collect();
        look(&all)
    }
}

#[cfg(test)]
impl<H> Ledger<H> {
    /// Forgets all reservations.
    pub(super) fn empty_directory(&self) {
        self.directory.entries_mut().of.clear();
    }

    /// Makes a reservation larger than it is, or smaller.
    pub(super) fn set_size_of_reservation(&mut self, base: usize, size: usize) {
        let mut entries = self.directory.entries_mut();
        let reserved = entries.of.get_mut(&base).and_then(Arc::get_mut);
        reserved.expect("nobody else has it").size = size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::lock;

    const PAGE: usize = 4096;

    fn range(page: usize) -> Range {
        Range { start: page * PAGE, size: PAGE }
    }

    fn reserve(ledger: &Ledger<()>, page: usize) -> *const Reserved {
        ledger.reserve(range(page)).unwrap();
        ledger.at(page * PAGE, |reserved| &raw const *reserved).unwrap()
    }

    fn free(ledger: &Ledger<()>, page: usize) {
        let reserved = ledger.take(page * PAGE).unwrap();
        ledger.remove(&reserved.enter().unwrap());
    }

    #[test]
    fn what_was_freed_is_used_again_once_nobody_has_it() {
        let ledger = Ledger::new();
        let first = reserve(&ledger, 1);
        let held = ledger.take(PAGE).unwrap();
        free(&ledger, 1);
        // Who has it still sees that it was freed.
        let second = reserve(&ledger, 2);
        assert!(held.is_freed() && second != first);
        assert_eq!((held.base, ledger.take(PAGE).is_some()), (PAGE, false));
        drop(held);
        *lock(&ledger.take(2 * PAGE).unwrap().name) = Some("gone with it".into());
        free(&ledger, 2);
        assert_eq!(reserve(&ledger, 3), second);
        let third = ledger.take(3 * PAGE).unwrap();
        assert_eq!((third.range(), third.name(), third.is_freed()), (range(3), None, false));
        assert!(third.enter().is_some());
    }

    #[test]
    fn no_more_is_kept_than_is_of_use() {
        let ledger = Ledger::<()>::new();
        for page in 1..=2 * SPARES {
            reserve(&ledger, page);
        }
        for page in 1..=2 * SPARES {
            free(&ledger, page);
        }
        assert_eq!(ledger.directory.entries().freed.len(), SPARES);
        ledger.check().unwrap();
    }
}
