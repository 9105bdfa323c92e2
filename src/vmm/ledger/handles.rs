//! Handles: physical memory, counted by references (create, import, retain) and mappings.

use super::Ledger;
use crate::vmm::error::{Argument, Problem, Refusal};
use crate::vmm::handle::Handle;
use crate::vmm::properties::AllocationProperties;
use std::collections::VecDeque;
use std::sync::Arc;

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
    pub(super) mappings: u32,
    /// Operations under way that need it to stay alive: each ends, or becomes a mapping.
    uses: u32,
    pub payload: H,
}

impl<H> HandleRecord<H> {
    /// How many references the caller has.
    pub fn references(&self) -> u32 {
        self.references
    }

    /// How many mappings there are of it.
    pub fn mappings(&self) -> u32 {
        self.mappings
    }
}

#[derive(Debug)]
pub(super) struct Slot<H> {
    generation: u32,
    pub record: Option<HandleRecord<H>>,
}

/// All handles, in slots that remember how often they were used.
#[derive(Debug)]
pub(super) struct Handles<H> {
    owner: u16,
    pub slots: Vec<Slot<H>>,
    /// Used first in, first out, so that a generation lasts as long as possible.
    pub free: VecDeque<u32>,
    pub live: usize,
    /// How many slots there may be.
    most: usize,
}

impl<H> Handles<H> {
    pub fn new(owner: u16) -> Self {
        Self { owner, slots: Vec::new(), free: VecDeque::new(), live: 0, most: Handle::SLOTS }
    }

    pub fn len(&self) -> usize {
        self.live
    }

    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    pub fn by_slot(&self, slot: u32) -> Option<&HandleRecord<H>> {
        self.slots.get(slot as usize)?.record.as_ref()
    }

    fn by_slot_mut(&mut self, slot: u32) -> Option<&mut HandleRecord<H>> {
        self.slots.get_mut(slot as usize)?.record.as_mut()
    }

    fn name(&self, slot: u32) -> Option<Handle> {
        let generation = self.slots.get(slot as usize)?.generation;
        Some(Handle::pack(self.owner, generation, slot))
    }

    fn insert(&mut self, record: HandleRecord<H>) -> Option<Handle> {
        let slot = match self.free.pop_front() {
            Some(slot) => slot,
            None if self.slots.len() < self.most => {
                self.slots.push(Slot { generation: 0, record: None });
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let entry = self.slots.get_mut(slot as usize)?;
        entry.generation += 1;
        entry.record = Some(record);
        self.live += 1;
        self.name(slot)
    }

    fn remove(&mut self, slot: u32) -> Option<HandleRecord<H>> {
        let entry = self.slots.get_mut(slot as usize)?;
        let record = entry.record.take()?;
        self.live -= 1;
        // A slot that has been through all generations could give out an old name again.
        if entry.generation < Handle::LAST_GENERATION {
            self.free.push_back(slot);
        }
        Some(record)
    }

    /// The slot of a handle that somebody still holds a reference to.
    fn find(&self, handle: Handle) -> Result<u32, Refusal> {
        let refuse = |problem| Err(Refusal::new(Argument::Handle, problem));
        if handle.to_bits() == 0 {
            return refuse(Problem::NoHandle);
        }
        if handle.owner() != self.owner {
            return refuse(Problem::ForeignHandle);
        }
        match self.slots.get(handle.slot()) {
            None => refuse(Problem::UnknownHandle),
            Some(slot) if handle.generation() > slot.generation || handle.generation() == 0 => {
                refuse(Problem::UnknownHandle)
            }
            Some(Slot { generation, record: Some(record) })
                if *generation == handle.generation() && record.references > 0 =>
            {
                Ok(handle.slot() as u32)
            }
            Some(_) => refuse(Problem::Released),
        }
    }

    /// Checks against the mappings that each slot has.
    pub fn check(&self, mapped: &[u32]) -> Result<(), String> {
        let live = self.slots.iter().filter(|slot| slot.record.is_some()).count();
        if live != self.live {
            return Err(format!("{} handles are counted and {live} are alive", self.live));
        }
        for (index, (slot, &found)) in self.slots.iter().zip(mapped).enumerate() {
            let Some(record) = &slot.record else { continue };
            let HandleRecord { references, mappings, uses, .. } = *record;
            if mappings != found {
                return Err(format!("slot {index} counts {mappings} mappings and has {found}"));
            }
            if references == 0 && mappings == 0 && uses == 0 {
                return Err(format!("nothing keeps slot {index} alive"));
            }
        }
        let mut free: Vec<_> = self.free.iter().copied().collect();
        free.sort_unstable();
        let taken = free.iter().find(|&&slot| self.by_slot(slot).is_some());
        let twice = free.windows(2).find(|two| two[0] == two[1]).map(|two| &two[0]);
        match taken.or(twice) {
            Some(slot) => Err(format!("slot {slot} would be given to two")),
            None => Ok(()),
        }
    }
}

impl<R, H> Ledger<R, H> {
    /// Adds physical memory with one reference; `None` if no handle is left.
    pub fn add_handle(
        &mut self,
        size: usize,
        granule: usize,
        properties: AllocationProperties,
        payload: H,
    ) -> Option<Handle> {
        let record = HandleRecord {
            size,
            granule,
            properties,
            name: None,
            references: 1,
            mappings: 0,
            uses: 0,
            payload,
        };
        let handle = self.handles.insert(record);
        self.checked();
        handle
    }

    /// The record of a handle that somebody holds a reference to.
    pub fn handle(&self, handle: Handle) -> Result<&HandleRecord<H>, Refusal> {
        let slot = self.handles.find(handle)?;
        self.handles.by_slot(slot).ok_or(Refusal::new(Argument::Handle, Problem::Released))
    }

    /// The same, to be changed.
    pub(super) fn handle_mut(&mut self, handle: Handle) -> Result<&mut HandleRecord<H>, Refusal> {
        let slot = self.handles.find(handle)?;
        self.handles.by_slot_mut(slot).ok_or(Refusal::new(Argument::Handle, Problem::Released))
    }

    /// Every handle that is alive, referenced or only mapped.
    pub fn handles(&self) -> impl Iterator<Item = (Handle, &HandleRecord<H>)> {
        (0..self.handles.slots() as u32).filter_map(|slot| self.handle_of_slot(slot))
    }

    /// The handle in a slot, with its record.
    pub fn handle_of_slot(&self, slot: u32) -> Option<(Handle, &HandleRecord<H>)> {
        Some((self.handles.name(slot)?, self.handles.by_slot(slot)?))
    }

    /// The record of the handle in this slot, referenced or only mapped.
    pub fn handle_in(&self, slot: u32) -> Option<&HandleRecord<H>> {
        self.handles.by_slot(slot)
    }

    /// Keeps a handle alive, whatever is released meanwhile; undone by [`end_use`](Self::end_use).
    pub fn begin_use(&mut self, handle: Handle) -> Result<u32, Refusal> {
        let slot = self.handles.find(handle)?;
        if let Some(record) = self.handles.by_slot_mut(slot) {
            record.uses += 1;
        }
        self.checked();
        Ok(slot)
    }

    /// A use has become a mapping.
    pub(super) fn use_became_mapping(&mut self, slot: u32) {
        if let Some(record) = self.handles.by_slot_mut(slot) {
            record.uses -= 1;
            record.mappings += 1;
        }
    }

    /// A mapping has become a use.
    pub(super) fn mapping_became_use(&mut self, slot: u32) {
        if let Some(record) = self.handles.by_slot_mut(slot) {
            record.mappings -= 1;
            record.uses += 1;
        }
    }

    /// Ends a use. The record comes back if it was the last thing that kept the memory alive:
    /// the caller then gives the memory back.
    #[must_use = "the memory is to be given back"]
    pub fn end_use(&mut self, slot: u32) -> Option<HandleRecord<H>> {
        let record = self.handles.by_slot_mut(slot)?;
        record.uses -= 1;
        let dead = record.uses == 0 && record.mappings == 0 && record.references == 0;
        let record = dead.then(|| self.handles.remove(slot)).flatten();
        self.checked();
        record
    }

    /// Drops a reference. If it was the last thing that kept the memory alive, the handle is
    /// refused from now on, and the caller gives the memory back and then says
    /// [`forget`](Self::forget), or [`unrelease`](Self::unrelease) if that failed.
    pub fn begin_release(&mut self, handle: Handle) -> Result<Option<u32>, Refusal> {
        let slot = self.handles.find(handle)?;
        let Some(record) = self.handles.by_slot_mut(slot) else { return Ok(None) };
        record.references -= 1;
        let dead = record.references == 0 && record.mappings == 0 && record.uses == 0;
        // To give it back is a use, too.
        record.uses += u32::from(dead);
        self.checked();
        Ok(dead.then_some(slot))
    }

    /// Removes a handle that [`begin_release`](Self::begin_release) declared dead.
    pub fn forget(&mut self, slot: u32) -> Option<HandleRecord<H>> {
        let record = self.handles.remove(slot);
        self.checked();
        record
    }

    /// Puts back the reference that [`begin_release`](Self::begin_release) took.
    pub fn unrelease(&mut self, slot: u32) {
        if let Some(record) = self.handles.by_slot_mut(slot) {
            record.references += 1;
            record.uses -= 1;
        }
        self.checked();
    }

    /// Takes one more reference to what is mapped at this address, even if all references had
    /// been released: the mapping keeps the memory alive.
    pub fn retain(&mut self, address: usize) -> Result<Handle, Refusal> {
        let not_mapped = Problem::NotMapped { at: crate::vmm::Address::new(address) };
        let refusal = Refusal::new(Argument::Address, not_mapped);
        let slot = self.slot_at(address).ok_or(refusal)?;
        let record = self.handles.by_slot_mut(slot).ok_or(refusal)?;
        record.references = record.references.checked_add(1).ok_or(refusal)?;
        self.checked();
        self.handles.name(slot).ok_or(refusal)
    }

    /// Drops every handle's record, for an ending that gives everything back.
    pub fn drain_handles(&mut self) -> Vec<HandleRecord<H>> {
        (0..self.handles.slots() as u32).filter_map(|slot| self.handles.remove(slot)).collect()
    }
}

#[cfg(test)]
mod tests;
