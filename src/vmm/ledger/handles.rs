//! Handles: physical memory, counted by references (create, import, retain) and mappings.

use super::numbers::Numbers;
use crate::address::Address;
use crate::handle::Handle;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::vmm::error::{Argument, Problem, Refusal};
use crate::vmm::properties::AllocationProperties;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

/// Physical memory.
#[derive(Debug)]
pub(crate) struct HandleRecord<H> {
    pub size: usize,
    /// What sizes and addresses of its mappings must be multiples of.
    pub granule: usize,
    pub properties: AllocationProperties,
    pub name: Option<Arc<str>>,
    /// References of the caller: one for create or import, one for each retain.
    pub(super) references: u32,
    /// Those that are there, and those that are being made.
    pub(super) mappings: u32,
    /// Operations under way that need it to stay alive.
    uses: u32,
    pub payload: H,
}

impl<H> HandleRecord<H> {
    /// How many references the caller has.
    pub fn references(&self) -> u32 {
        self.references
    }

    fn is_dead(&self) -> bool {
        self.references == 0 && self.mappings == 0 && self.uses == 0
    }
}

/// Where one handle after the other may be kept.
#[derive(Debug)]
pub(super) struct Slot<H> {
    /// The number of the handle that it has or had last.
    pub(super) number: u64,
    pub(super) record: Option<HandleRecord<H>>,
}

/// A slot with its lock. Its size is that of whole pairs of the processor's cache lines, so that threads
/// with different handles do not slow each other.
#[derive(Debug)]
#[repr(align(128))]
struct Locked<H>(Mutex<Slot<H>>);

type Slots<H> = Box<[Locked<H>]>;

/// How many slots the first part has; each other has twice as many as the one before it.
const FIRST: usize = 64;
/// So many parts have all the slots that handles can name.
const PARTS: usize = (Handle::SLOTS / FIRST).ilog2() as usize + 1;

/// Which slots to use next.
#[derive(Debug)]
pub(super) struct Stock {
    /// Used first in, first out.
    pub(super) free: VecDeque<u32>,
    /// How many have been used at all.
    pub(super) used: usize,
    pub(super) live: usize,
    /// How many there may be.
    pub(super) most: usize,
    numbers: Numbers,
}

/// All handles, in slots with a lock each. The stock's lock is taken before a slot's.
#[derive(Debug)]
pub(crate) struct Handles<H> {
    /// They never move, so that nobody waits while there come to be more.
    parts: [OnceLock<Slots<H>>; PARTS],
    pub(super) stock: Mutex<Stock>,
}

/// The part of a slot, and its place there.
fn place(slot: usize) -> (usize, usize) {
    let part = (slot / FIRST + 1).ilog2();
    (part as usize, slot - FIRST * ((1 << part) - 1))
}

impl<H> Handles<H> {
    pub(super) fn new() -> Self {
        let (free, numbers) = (VecDeque::new(), Numbers::default());
        let stock = Stock { free, used: 0, live: 0, most: Handle::SLOTS, numbers };
        Self { parts: [const { OnceLock::new() }; PARTS], stock: Mutex::new(stock) }
    }

    /// How many are alive.
    pub fn len(&self) -> usize {
        lock(&self.stock).live
    }

    /// The slot of that number, if it has been used.
    pub(super) fn slot(&self, number: usize) -> Option<MutexGuard<'_, Slot<H>>> {
        let (part, place) = place(number);
        Some(lock(&self.parts.get(part)?.get()?.get(place)?.0))
    }

    /// The slot of a handle that somebody still holds a reference to.
    fn find(&self, handle: Handle) -> Result<MutexGuard<'_, Slot<H>>, Refusal> {
        if let Some(slot) = self.slot(handle.slot())
            && slot.number == handle.number()
            && slot.record.as_ref().is_some_and(|record| record.references > 0)
        {
            return Ok(slot);
        }
        Err(Refusal::new(Argument::Handle, self.problem_with(handle)))
    }

    /// Why nothing is found by a handle.
    fn problem_with(&self, handle: Handle) -> Problem {
        let stock = lock(&self.stock);
        if handle.to_bits() == 0 {
            Problem::NoHandle
        } else if stock.numbers.contain(handle.number()) && handle.slot() < stock.used {
            Problem::Released
        } else if stock.numbers.is_foreign(handle.number()) {
            Problem::ForeignHandle
        } else {
            Problem::UnknownHandle
        }
    }

    /// Does something with a handle that somebody holds a reference to.
    pub fn with<T>(
        &self,
        handle: Handle,
        act: impl FnOnce(&mut HandleRecord<H>) -> T,
    ) -> Result<T, Refusal> {
        let mut slot = self.find(handle)?;
        slot.record.as_mut().map(act).ok_or(Refusal::new(Argument::Handle, Problem::Released))
    }

    /// Looks at the handle in a slot, referenced or only mapped.
    pub fn in_slot<T>(&self, slot: u32, look: impl FnOnce(&HandleRecord<H>) -> T) -> Option<T> {
        self.slot(slot as usize)?.record.as_ref().map(look)
    }

    /// Looks at the handle in a slot, and its name to the caller.
    pub fn named_in_slot<T>(
        &self,
        slot: u32,
        look: impl FnOnce(Handle, &HandleRecord<H>) -> T,
    ) -> Option<T> {
        let found = self.slot(slot as usize)?;
        let handle = Handle::pack(found.number, slot);
        found.record.as_ref().map(|record| look(handle, record))
    }

    /// Looks at every handle that is alive, referenced or only mapped.
    pub fn each<T>(&self, mut look: impl FnMut(Handle, &HandleRecord<H>) -> T) -> Vec<T> {
        let used = lock(&self.stock).used as u32;
        (0..used).filter_map(|slot| self.named_in_slot(slot, &mut look)).collect()
    }

    /// Adds physical memory with one reference; `None` if no handle is left.
    pub fn add(
        &self,
        size: usize,
        granule: usize,
        properties: AllocationProperties,
        payload: H,
    ) -> Option<Handle> {
        let mut stock = lock(&self.stock);
        if stock.free.is_empty() && stock.used == stock.most {
            return None;
        }
        let number = stock.numbers.give()?;
        let index = match stock.free.pop_front() {
            Some(slot) => slot as usize,
            None => {
                stock.used += 1;
                stock.used - 1
            }
        };
        stock.live += 1;
        let (part, _) = place(index);
        let empty = || Locked(Mutex::new(Slot { number: 0, record: None }));
        self.parts.get(part)?.get_or_init(|| (0..FIRST << part).map(|_| empty()).collect());
        let mut slot = self.slot(index)?;
        slot.number = number;
        slot.record = Some(HandleRecord {
            size,
            granule,
            properties,
            name: None,
            references: 1,
            mappings: 0,
            uses: 0,
            payload,
        });
        Some(Handle::pack(number, index as u32))
    }

    fn change<T>(&self, slot: u32, how: impl FnOnce(&mut HandleRecord<H>) -> T) -> Option<T> {
        self.slot(slot as usize)?.record.as_mut().map(how)
    }

    /// Keeps a handle alive, whatever is released meanwhile, if the caller finds it good. Undone by
    /// [`end_use`](Self::end_use).
    pub fn begin_use<T>(
        &self,
        handle: Handle,
        look: impl FnOnce(&HandleRecord<H>) -> Result<T, Refusal>,
    ) -> Result<(u32, T), Refusal> {
        self.begin(handle, look, |record| record.uses += 1)
    }

    /// Counts a mapping that is about to be made, if the caller finds the handle good. Undone by
    /// [`end_mapping`](Self::end_mapping).
    pub(super) fn begin_mapping<T>(
        &self,
        handle: Handle,
        look: impl FnOnce(&HandleRecord<H>) -> Result<T, Refusal>,
    ) -> Result<(u32, T), Refusal> {
        self.begin(handle, look, |record| record.mappings += 1)
    }

    fn begin<T>(
        &self,
        handle: Handle,
        look: impl FnOnce(&HandleRecord<H>) -> Result<T, Refusal>,
        count: impl FnOnce(&mut HandleRecord<H>),
    ) -> Result<(u32, T), Refusal> {
        let seen = self.with(handle, |record| {
            let seen = look(record)?;
            count(record);
            Ok(seen)
        });
        Ok((handle.slot() as u32, seen??))
    }

    /// Ends a use. The record comes back if it was the last thing that kept the memory alive:
    /// the caller then gives the memory back.
    #[must_use = "the memory is to be given back"]
    pub fn end_use(&self, slot: u32) -> Option<HandleRecord<H>> {
        self.end(slot, |record| record.uses -= 1)
    }

    /// A mapping has gone; else as [`end_use`](Self::end_use).
    #[must_use = "the memory is to be given back"]
    pub fn end_mapping(&self, slot: u32) -> Option<HandleRecord<H>> {
        self.end(slot, |record| record.mappings -= 1)
    }

    fn end(&self, slot: u32, how: impl FnOnce(&mut HandleRecord<H>)) -> Option<HandleRecord<H>> {
        let is_dead = self.change(slot, |record| {
            how(record);
            let is_dead = record.is_dead();
            // To give it back is a use, too.
            record.uses += u32::from(is_dead);
            is_dead
        });
        if is_dead? { self.forget(slot) } else { None }
    }

    /// Drops a reference. If it was the last thing that kept the memory alive, the handle is
    /// refused from now on, and the caller gives the memory back and then says
    /// [`forget`](Self::forget), or [`unrelease`](Self::unrelease) if that failed.
    pub fn begin_release<T>(
        &self,
        handle: Handle,
        look: impl FnOnce(&HandleRecord<H>) -> T,
    ) -> Result<Option<(u32, T)>, Refusal> {
        self.with(handle, |record| {
            record.references -= 1;
            let dead = record.is_dead();
            // To give it back is a use, too.
            record.uses += u32::from(dead);
            dead.then(|| (handle.slot() as u32, look(record)))
        })
    }

    /// Removes a handle that [`begin_release`](Self::begin_release) declared dead.
    pub fn forget(&self, slot: u32) -> Option<HandleRecord<H>> {
        let mut stock = lock(&self.stock);
        let mut found = self.slot(slot as usize)?;
        let record = found.record.take()?;
        stock.live -= 1;
        stock.free.push_back(slot);
        Some(record)
    }

    /// Puts back the reference that [`begin_release`](Self::begin_release) took.
    pub fn unrelease(&self, slot: u32) {
        self.change(slot, |record| {
            record.references += 1;
            record.uses -= 1;
        });
    }

    /// Takes one more reference to what is mapped, even if all references had been released: the
    /// mapping keeps the memory alive.
    fn retain(&self, slot: u32) -> Option<Handle> {
        let mut found = self.slot(slot as usize)?;
        let record = found.record.as_mut()?;
        record.references = record.references.checked_add(1)?;
        Some(Handle::pack(found.number, slot))
    }

    /// Drops every handle's record, for an ending that gives everything back.
    pub fn drain(&self) -> Vec<HandleRecord<H>> {
        let used = lock(&self.stock).used as u32;
        (0..used).filter_map(|slot| self.forget(slot)).collect()
    }

    /// Checks against the mappings that there are of each slot, and maybe more are being made.
    pub(super) fn check(&self, mapped: &[u32], may_be_more: bool) -> Result<(), String> {
        let stock = lock(&self.stock);
        let mut live = 0;
        for index in 0..stock.used {
            let Some(slot) = self.slot(index) else { continue };
            let Some(record) = &slot.record else { continue };
            live += 1;
            let found = mapped.get(index).copied().unwrap_or_default();
            let counted = record.mappings;
            if counted < found || counted > found && !may_be_more {
                return Err(format!("slot {index} counts {counted} mappings and has {found}"));
            }
            if record.is_dead() {
                return Err(format!("nothing keeps slot {index} alive"));
            }
        }
        if live != stock.live {
            return Err(format!("{} handles are counted and {live} are alive", stock.live));
        }
        let mut free = Vec::from_iter(stock.free.iter().copied());
        free.sort_unstable();
        let is_taken = |&&slot: &&u32| self.in_slot(slot, |_| ()).is_some();
        let taken = free.iter().find(is_taken);
        let twice = free.windows(2).find(|two| two[0] == two[1]).map(|two| &two[0]);
        match taken.or(twice) {
            Some(slot) => Err(format!("slot {slot} would be given to two")),
            None => Ok(()),
        }
    }
}

impl<H> super::Ledger<H> {
    /// Takes one more reference to what is mapped at an address.
    pub fn retain(&self, address: usize) -> Result<Handle, Refusal> {
        let retained = self.at(address, |reserved| {
            // Nobody unmaps it in between.
            let mappings = reserved.mappings();
            self.handles.retain(mappings.slot_at(address)?)
        });
        let not_mapped = Problem::NotMapped { at: Address::new(address) };
        retained.flatten().ok_or(Refusal::new(Argument::Address, not_mapped))
    }
}

#[cfg(test)]
mod tests;
