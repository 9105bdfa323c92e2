//! Memory behind addresses, in whole steps from their start.

use super::BufferError;
use super::addresses::Addresses;
use super::grants::Grants;
use super::stock::Stock;
use crate::Kept;
use crate::agent::AgentId;
use crate::vmm::{
    Access, AccessDescriptor, Address, Allocation, Mapping, Only, Operation, Serial, Vmm, VmmError,
};
use smallvec::SmallVec;
use std::ops::Range;

/// Of the mappings that a call touches: few, when it reads or writes.
type Serials = SmallVec<[Serial; 8]>;

/// Steps of one size, each a handle and a mapping. Every change is made or leaves all as it was.
#[derive(Debug)]
pub(super) struct Steps {
    /// One a step, from the start.
    mappings: Vec<Mapping>,
    /// How many are in use. There are more mappings only while the runtime refuses to unmap them.
    used: usize,
    grants: Grants,
    /// Of one step, in bytes.
    size: usize,
    addresses: Addresses,
    stock: Stock,
    vmm: Vmm,
}

impl Steps {
    pub fn new(vmm: &Vmm, addresses: Addresses, size: usize, stock: Stock) -> Self {
        let (mappings, grants) = (Vec::new(), Grants::default());
        Self { mappings, used: 0, grants, size, addresses, stock, vmm: vmm.clone() }
    }

    pub fn vmm(&self) -> &Vmm {
        &self.vmm
    }

    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Of one step, in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// How many bytes are mapped.
    pub fn bytes(&self) -> usize {
        self.used * self.size
    }

    pub fn stock(&self) -> &Stock {
        &self.stock
    }

    pub fn allocations(&self) -> impl Iterator<Item = &Allocation> {
        self.mappings.iter().take(self.used).map(Mapping::allocation)
    }

    /// Reserves more addresses exactly at the end.
    pub fn extend(&mut self, size: usize) -> Result<(), VmmError> {
        self.addresses.extend(&self.vmm, size)
    }

    /// Maps memory or takes it away, so that there are so many steps.
    ///
    /// Where several reservations are to be unmapped, one after the other, and one fails, those
    /// before are mapped again; if that fails too, there are fewer steps.
    pub fn set(&mut self, steps: usize) -> Result<(), BufferError> {
        if steps == self.used {
            return Ok(());
        }
        self.unmap_unused()?;
        if steps < self.used {
            return self.take_off(steps);
        }
        let memory = self.stock.take(steps - self.used)?;
        self.put_behind(memory).inspect_err(|_| {
            // What cannot be unmapped now is tried again before the next change.
            let _ = self.unmap_unused();
        })
    }

    /// Maps memory at the end, and lets everybody use it who may use the rest. If that fails, what
    /// was mapped is still mapped, and not used.
    fn put_behind(&mut self, memory: Vec<Allocation>) -> Result<(), BufferError> {
        let mut memory = memory.into_iter();
        while let Some(one) = memory.next() {
            match self.map_at_end(&one) {
                Ok(mapping) => self.mappings.push(mapping),
                Err(error) => {
                    std::iter::once(one).chain(memory).for_each(|left| self.stock.give(left));
                    return Err(error);
                }
            }
        }
        if !self.grants.list().is_empty() {
            for part in self.addresses.parts(self.bytes()..self.mappings.len() * self.size) {
                let (address, serials) = (self.addresses.at(part.start), self.serials(&part));
                self.vmm.only(&serials).set_access(address, part.len(), self.grants.list())?;
            }
        }
        self.used = self.mappings.len();
        Ok(())
    }

    fn map_at_end(&self, memory: &Allocation) -> Result<Mapping, BufferError> {
        let end = self.mappings.len() * self.size;
        let (wanted, maximum) = (end + self.size, self.addresses.size());
        let full = BufferError::BeyondMaximum { wanted, maximum };
        let (reservation, offset) = self.addresses.reservation_at(end).ok_or(full)?;
        Ok(reservation.map(offset, memory)?)
    }

    /// Unmaps what a failed change has left behind the end.
    fn unmap_unused(&mut self) -> Result<(), BufferError> {
        while self.mappings.len() > self.used {
            let Some(mapping) = self.mappings.pop() else { break };
            let memory = mapping.allocation().clone();
            if let Err(Kept { value: mapping, error }) = mapping.unmap() {
                drop(memory);
                crate::log::warning!(%error, "memory stays mapped behind the end of a buffer");
                self.mappings.push(mapping);
                return Err(error.into());
            }
            self.stock.give(memory);
        }
        Ok(())
    }

    /// Takes all but so many steps away.
    fn take_off(&mut self, steps: usize) -> Result<(), BufferError> {
        let parts: Vec<_> = self.addresses.parts(steps * self.size..self.bytes()).collect();
        let mut unmapped = Vec::new();
        for part in parts.iter().rev() {
            let run = self.mappings.split_off(part.start / self.size);
            let memory: Vec<_> = run.iter().map(|mapping| mapping.allocation().clone()).collect();
            let unmap = Mapping::unmap_run(run);
            if let Err(Kept { value: run, error }) = unmap {
                self.mappings.extend(run);
                self.used = self.mappings.len();
                // Of this reservation nothing is gone, but of those behind it.
                let again = unmapped.into_iter().rev().flatten().collect();
                if let Err(undo) = self.put_behind(again) {
                    crate::log::warning!(%undo, "a buffer is shorter than it was");
                    let _ = self.unmap_unused();
                }
                return Err(error.into());
            }
            self.used = self.mappings.len();
            unmapped.push(memory);
        }
        unmapped.into_iter().flatten().for_each(|memory| self.stock.give(memory));
        Ok(())
    }

    /// Which mappings hold these bytes, whatever is mapped at their addresses by now.
    pub fn serials(&self, bytes: &Range<usize>) -> Serials {
        let steps = bytes.start / self.size..bytes.end.div_ceil(self.size);
        self.mappings.get(steps).unwrap_or_default().iter().map(Mapping::serial).collect()
    }

    /// What an agent may do.
    ///
    /// # Errors
    /// [`Problem::NotMapped`](crate::vmm::Problem::NotMapped) if a step was unmapped by its address.
    pub fn access(&self, agent: AgentId) -> Result<Access, VmmError> {
        for part in self.addresses.parts(0..self.bytes()) {
            let (address, serials) = (self.addresses.at(part.start), self.serials(&part));
            self.vmm.only(&serials).check(Operation::GetAccess, address, part.len())?;
        }
        Ok(self.grants.of(agent))
    }

    /// Grants agents access to all steps there are and will be.
    pub fn grant(&mut self, agents: &[AgentId], access: Access) -> Result<(), VmmError> {
        let descriptors = AccessDescriptor::of_each(agents, access);
        self.change_access(agents, |mappings, address, size| {
            mappings.set_access(address, size, &descriptors)
        })?;
        self.grants = self.grants.with(agents, access);
        Ok(())
    }

    /// Really takes all steps away from agents.
    pub fn revoke(&mut self, agents: &[AgentId]) -> Result<(), VmmError> {
        self.change_access(agents, |mappings, address, size| {
            mappings.revoke(address, size, agents)
        })?;
        self.grants = self.grants.with(agents, Access::None);
        Ok(())
    }

    /// Changes access reservation by reservation.
    fn change_access(
        &self,
        agents: &[AgentId],
        change: impl Fn(Only<'_>, Address, usize) -> Result<(), VmmError>,
    ) -> Result<(), VmmError> {
        for part in self.addresses.parts(0..self.bytes()) {
            let serials = self.serials(&part);
            let mappings = self.vmm.only(&serials);
            if let Err(error) = change(mappings, self.addresses.at(part.start), part.len()) {
                for done in self.addresses.parts(0..part.start) {
                    let place = (self.addresses.at(done.start), done.len());
                    let serials = self.serials(&done);
                    let mappings = self.vmm.only(&serials);
                    let undone = self.grants.restore(mappings, place, agents, Access::ReadWrite);
                    if let Err(undo) = undone {
                        crate::log::warning!(%undo, "access to a part of a buffer stays changed");
                    }
                }
                return Err(error);
            }
        }
        Ok(())
    }
}
