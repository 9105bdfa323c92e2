//! Which reservation an address is in.

use super::mappings::Mappings;
use super::reserved::Reserved;
use super::{Ledger, Range};
use crate::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, thread_local};
use crate::vmm::address::Address;
use crate::vmm::error::{Argument, Problem, Refusal};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

/// Tells directories of one process apart.
pub(super) type Number = u64;

static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The reservation that this thread used last: most likely the next one, too. Found here, it is
    /// found without a lock, and threads that work in reservations of their own do not meet.
    static LAST: RefCell<Option<Arc<Reserved>>> = const { RefCell::new(None) };
}

type Entries = BTreeMap<usize, Arc<Reserved>>;

/// All reservations, by address.
#[derive(Debug)]
pub(super) struct Directory {
    number: Number,
    entries: RwLock<Entries>,
}

impl Default for Directory {
    fn default() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { number, entries: RwLock::new(BTreeMap::new()) }
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
        holding(&self.entries(), address).cloned()
    }

    /// Does something with the reservation that holds an address, if one does.
    pub fn with<T>(&self, address: usize, act: impl FnOnce(&Reserved) -> T) -> Option<T> {
        let mut act = Some(act);
        let by_last = LAST.try_with(|last| {
            let last = last.try_borrow().ok()?;
            let is_it = |it: &&Arc<Reserved>| {
                it.holds(address) && it.ledger == self.number && !it.is_freed()
            };
            let reserved = last.as_ref().filter(is_it)?;
            act.take().map(|act| act(reserved))
        });
        if let Ok(Some(done)) = by_last {
            return Some(done);
        }
        let act = act?;
        let reserved = self.find(address)?;
        // Unless one is being used by whoever called this.
        let _ = LAST.try_with(|last| {
            if let Ok(mut last) = last.try_borrow_mut() {
                *last = Some(reserved.clone());
            }
        });
        Some(act(&reserved))
    }
}

/// The reservation that holds an address.
fn holding(entries: &Entries, address: usize) -> Option<&Arc<Reserved>> {
    let (_, reserved) = entries.range(..=address).next_back()?;
    reserved.holds(address).then_some(reserved)
}

/// A reservation while nothing in it can change.
#[derive(Debug)]
pub(crate) struct Frozen<'a> {
    pub reserved: &'a Reserved,
    pub mappings: RwLockReadGuard<'a, Mappings>,
}

impl<H> Ledger<H> {
    /// Does something with the reservation that holds an address, if one does.
    pub fn at<T>(&self, address: usize, act: impl FnOnce(&Reserved) -> T) -> Option<T> {
        self.directory.with(address, act)
    }

    /// Does something with the reservation that holds all of a range.
    pub fn around<T>(&self, range: Range, act: impl FnOnce(&Reserved) -> T) -> Result<T, Refusal> {
        let done = self.at(range.start, |reserved| {
            if reserved.holds_all(range) { Some(act(reserved)) } else { None }
        });
        done.flatten().ok_or(Refusal::new(Argument::Address, Problem::NotReserved))
    }

    /// The reservation that holds all of a range, for as long as the caller likes.
    pub fn reservation_around(&self, range: Range) -> Result<Arc<Reserved>, Refusal> {
        let found = self.directory.find(range.start);
        let found = found.filter(|reserved| reserved.holds_all(range));
        found.ok_or(Refusal::new(Argument::Address, Problem::NotReserved))
    }

    /// Adds a reservation and returns its serial; or says which address in it is in another.
    pub fn reserve(&self, range: Range) -> Result<u64, usize> {
        let mut entries = self.directory.entries_mut();
        if holding(&entries, range.start).is_some() {
            return Err(range.start);
        }
        if let Some((&base, _)) = entries.range(range.start..range.end()).next() {
            return Err(base);
        }
        let serial = self.serials.one();
        let reserved = Reserved::new(range, serial, self.directory.number);
        entries.insert(range.start, Arc::new(reserved));
        Ok(serial)
    }

    /// Removes a reservation, unless something is mapped in it. The caller has entered it; nobody
    /// else does any more.
    pub fn remove_if_free(&self, range: Range) -> Option<Arc<Reserved>> {
        let mut entries = self.directory.entries_mut();
        entries.get(&range.start)?.check_free(range).ok()?;
        let reserved = entries.remove(&range.start)?;
        reserved.set_freed(true);
        Some(reserved)
    }

    /// Puts back what [`remove_if_free`](Self::remove_if_free) took.
    pub fn restore(&self, reserved: Arc<Reserved>) {
        let mut entries = self.directory.entries_mut();
        reserved.set_freed(false);
        entries.insert(reserved.base, reserved);
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
        let all: Vec<_> = entries.values().map(|reserved| freeze(&**reserved)).collect();
        look(&all)
    }
}

#[cfg(test)]
impl<H> Ledger<H> {
    /// Makes a reservation larger than it is, or smaller.
    pub(super) fn set_size_of_reservation(&mut self, base: usize, size: usize) {
        let mut entries = self.directory.entries_mut();
        let reserved = entries.get_mut(&base).and_then(Arc::get_mut);
        reserved.expect("nobody else has it").size = size;
    }
}
