//! A reservation: a range of addresses, with what is mapped in it.

use super::entered::Inside;
use super::mappings::Mappings;
use super::{Range, directory::Number};
use crate::sync::atomic::{AtomicU8, Ordering};
use crate::sync::gate::{Gate, Look, Shut};
use crate::sync::{Mutex, lock};
use crate::vmm::error::{Argument, Problem, Refusal};
use std::sync::Arc;

/// May be used.
const OPEN: u8 = 0;
/// Not any more, or not now: its addresses may be another's.
const FREED: u8 = 1;
/// Not any more, and never to be freed.
const QUARANTINED: u8 = 2;

/// A reservation. Whoever has found one may use it after it was freed, and is told so. Its locks
/// share no cache line with another's, so that threads in different ones do not slow each other; room
/// on both sides costs less than memory that begins at a line.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Reserved {
    _before: [u64; 8],
    pub base: usize,
    pub size: usize,
    /// Never used twice, unlike the address.
    pub serial: u64,
    /// Whose it is.
    pub(super) ledger: Number,
    state: AtomicU8,
    mappings: Gate<Mappings>,
    pub(super) name: Mutex<Option<Arc<str>>>,
    _behind: [u64; 8],
}

impl Reserved {
    pub(super) fn new(range: Range, serial: u64, ledger: Number) -> Self {
        Self {
            _before: [0; 8],
            base: range.start,
            size: range.size,
            serial,
            ledger,
            state: AtomicU8::new(OPEN),
            mappings: Gate::new(Mappings::default()),
            name: Mutex::new(None),
            _behind: [0; 8],
        }
    }

    pub fn range(&self) -> Range {
        Range { start: self.base, size: self.size }
    }

    /// Whether an address is in it.
    pub fn holds(&self, address: usize) -> bool {
        address.wrapping_sub(self.base) < self.size
    }

    /// Whether all of a range is in it.
    pub fn holds_all(&self, range: Range) -> bool {
        self.holds(range.start) && range.size <= self.size - (range.start - self.base)
    }

    /// Waits until nobody changes anything inside. `None` if it has been freed or taken out of use
    /// meanwhile.
    pub fn enter(&self) -> Option<Inside<'_>> {
        let inside = self.mappings.enter();
        let is_open = self.state.load(Ordering::Acquire) == OPEN;
        is_open.then(|| Inside::new(self, inside))
    }

    /// Lets nobody in, if nobody is inside.
    pub(super) fn shut(&self) -> Option<Shut<'_, Mappings>> {
        self.mappings.shut()
    }

    /// Whether it has been freed.
    pub fn is_freed(&self) -> bool {
        self.state.load(Ordering::Acquire) == FREED
    }

    /// Whether it is not to be used, and never to be freed.
    pub fn is_quarantined(&self) -> bool {
        self.state.load(Ordering::Acquire) == QUARANTINED
    }

    pub(super) fn quarantine(&self) {
        self.state.store(QUARANTINED, Ordering::Release);
    }

    pub(super) fn set_freed(&self, freed: bool) {
        self.state.store(if freed { FREED } else { OPEN }, Ordering::Release);
    }

    /// What is mapped in it.
    pub fn mappings(&self) -> Look<'_, Mappings> {
        self.mappings.look()
    }

    /// Changes what belongs to what is mapped in it, in use or not. Waits until nobody is inside.
    pub(super) fn change<R>(&self, how: impl FnOnce(&mut Mappings) -> R) -> R {
        self.mappings.enter().change(how)
    }

    /// What it is called.
    pub fn name(&self) -> Option<Arc<str>> {
        lock(&self.name).clone()
    }

    /// Whether exactly this range is this reservation, with nothing in it.
    pub fn check_free(&self, range: Range, mappings: &Mappings) -> Result<(), Refusal> {
        let refuse = |argument, problem| Err(Refusal::new(argument, problem));
        if self.base != range.start {
            return refuse(Argument::Address, Problem::NotAReservation);
        }
        if self.size != range.size {
            return refuse(Argument::Size, Problem::WrongSize { expected: self.size });
        }
        match mappings.len() {
            0 => Ok(()),
            mappings => refuse(Argument::Address, Problem::StillMapped { mappings }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waited_for_what_was_freed_meanwhile_is_not_let_in() {
        let range = Range { start: 4096, size: 4096 };
        let reserved = Arc::new(Reserved::new(range, 1, Number::default()));
        let inside = reserved.enter().unwrap();
        let waiting = {
            let reserved = reserved.clone();
            std::thread::spawn(move || reserved.enter().is_some())
        };
        reserved.set_freed(true);
        drop(inside);
        assert!(!waiting.join().unwrap());
        reserved.set_freed(false);
        assert!(reserved.enter().is_some());
        reserved.quarantine();
        assert!(reserved.enter().is_none());
    }
}
