//! Reads, writes, copies and fills of mapped memory.

use super::verdict::{
    ADDRESS, AGENT, DESTINATION, NOT_GRANTED, RANGE, Reason, Rejection, Rules, SIZE, SOURCE,
    Verdict,
};
use super::{Contents, HandleState, Mapping, Model, intersection, range};
use hsa_vmm::vmm::Location;
use hsa_vmm::{Access, AgentId};
use std::ops::Range;
use std::rc::Rc;

/// The part of a range that is in one mapping.
struct Part<'a> {
    mapping: &'a Mapping,
    state: &'a HandleState,
    /// The offsets of the part in the memory.
    bytes: Range<usize>,
}

impl Model {
    /// Reads with this process's loads.
    ///
    /// # Errors
    /// Returns all reasons for rejecting the call.
    pub fn read(&self, address: usize, size: usize) -> Verdict<Contents> {
        if size == 0 {
            return Ok(Contents::unknown(0));
        }
        let parts = self.parts(RANGE, address, size)?;
        let is_forbidden = |part: &Part| self.cpu_access(part.mapping) < Access::Read;
        Rules::default().reject_if(ADDRESS, parts.iter().any(is_forbidden)).verdict()?;
        Ok(contents(&parts))
    }

    /// Writes with this process's stores.
    ///
    /// # Errors
    /// Returns all reasons for rejecting the call.
    pub fn write(&self, address: usize, bytes: &[u8]) -> Verdict {
        if bytes.is_empty() {
            return Ok(());
        }
        let parts = self.parts(RANGE, address, bytes.len())?;
        let is_forbidden = |part: &Part| self.cpu_access(part.mapping) < Access::ReadWrite;
        Rules::default().reject_if(ADDRESS, parts.iter().any(is_forbidden)).verdict()?;
        write_parts(&parts, bytes);
        Ok(())
    }

    /// Copies mapped memory to the host. The agent `id` makes the copy.
    ///
    /// # Errors
    /// Returns all reasons for rejecting the call.
    pub fn copy_to_host(&self, id: AgentId, source: usize, size: usize) -> Verdict<Contents> {
        let parts = self.parts(SOURCE, source, size)?;
        let agent = self.machine.agent(id);
        let lacks =
            |part: &Part| agent.is_none_or(|agent| part.mapping.access[agent] < Access::Read);
        Rules::default().reject_if(SOURCE, parts.iter().any(lacks)).verdict()?;
        Ok(contents(&parts))
    }

    /// Copies the host's bytes to mapped memory. The agent `id` makes the copy.
    ///
    /// # Errors
    /// Returns all reasons for rejecting the call.
    pub fn copy_from_host(&self, id: AgentId, destination: usize, bytes: &[u8]) -> Verdict {
        let parts = self.parts(DESTINATION, destination, bytes.len())?;
        let agent = self.machine.agent(id);
        let lacks =
            |part: &Part| agent.is_none_or(|agent| part.mapping.access[agent] < Access::ReadWrite);
        Rules::default().reject_if(DESTINATION, parts.iter().any(lacks)).verdict()?;
        write_parts(&parts, bytes);
        Ok(())
    }

    /// Copies one range to another. The agent `id` makes the copy.
    ///
    /// # Errors
    /// Returns all reasons for rejecting the call.
    pub fn copy(&self, id: AgentId, destination: usize, source: usize, size: usize) -> Verdict {
        let target = self.parts(DESTINATION, destination, size);
        let source = self.parts(SOURCE, source, size);
        let agent = self.machine.agent(id);
        let lacks = |parts: &Verdict<Vec<Part>>, needed| {
            let has_access =
                |part: &Part| agent.is_some_and(|agent| part.mapping.access[agent] >= needed);
            parts.as_ref().is_ok_and(|parts| !parts.iter().all(has_access))
        };
        Rules::default()
            .reject_if(SIZE, size == 0)
            .reject_if(AGENT, agent.is_none())
            .reject_if(DESTINATION, target.is_err())
            .reject_if(SOURCE, source.is_err())
            .reject_if(DESTINATION, lacks(&target, Access::ReadWrite))
            .reject_if(SOURCE, lacks(&source, Access::Read))
            .verdict()?;
        let (target, source) = (target?, source?);
        let new = contents(&source);
        store_parts(&target, |memory, part, source_range| {
            memory.overwrite(part.start, &new, source_range)
        });
        forget_overlaps(&target);
        let overlaps_source =
            |part: &Part| source.iter().any(|other| shared_bytes(part, other).is_some());
        if target.iter().any(overlaps_source) {
            // The order in which bytes are copied is undefined.
            for part in &target {
                part.state.memory.contents.borrow_mut().forget(part.bytes.clone());
            }
        }
        Ok(())
    }

    /// Fills a range with a value. The GPUs that own the memory write the value.
    ///
    /// # Errors
    /// Returns all reasons for rejecting the call.
    pub fn fill(&self, address: usize, value: u32, size: usize) -> Verdict {
        let parts = self.parts(RANGE, address, size);
        let can_be_filled = |parts: &Vec<Part>| parts.iter().all(|part| self.can_be_filled(part));
        Rules::default()
            .reject_if(ADDRESS, !address.is_multiple_of(4))
            .reject_if(SIZE, !size.is_multiple_of(4))
            .reject_if(RANGE, parts.is_err())
            .reject_if(NOT_GRANTED, parts.as_ref().is_ok_and(|parts| !can_be_filled(parts)))
            .verdict()?;
        // Mappings consist of whole words.
        store_parts(&parts?, |memory, part, _| memory.fill(part, value.to_ne_bytes()));
        Ok(())
    }

    /// Marks the contents of a range as unknown, after a write to the range failed half-way.
    pub fn forget(&self, address: usize, size: usize) {
        for part in self.parts(RANGE, address, size).unwrap_or_default() {
            part.state.memory.contents.borrow_mut().forget(part.bytes);
        }
    }

    /// Returns the parts of a range, one for each mapping. Fails with `reason` if a part of the range is not mapped, or
    /// if the range extends past one reservation.
    fn parts(&self, reason: Reason, address: usize, size: usize) -> Verdict<Vec<Part<'_>>> {
        let Some(target) = range(address, size).filter(|target| self.is_in_one_reservation(target))
        else {
            return Err(Rejection::of(reason));
        };
        let parts: Vec<_> = self
            .mappings
            .iter()
            .filter_map(|mapping| {
                let overlap = intersection(&mapping.range(), &target)?;
                let state = self.handles.iter().find(|state| state.handle == mapping.handle)?;
                let offset = |address| mapping.offset + (address - mapping.start);
                let bytes = offset(overlap.start)..offset(overlap.end);
                Some(Part { mapping, state, bytes })
            })
            .collect();
        let covered: usize = parts.iter().map(|part| part.bytes.len()).sum();
        if covered == size { Ok(parts) } else { Err(Rejection::of(reason)) }
    }

    /// Returns whether the owner of the memory has write access. If the owner is unknown, returns whether any GPU has
    /// write access.
    fn can_be_filled(&self, part: &Part) -> bool {
        let can_write = |agent: usize| part.mapping.access[agent] == Access::ReadWrite;
        match part.state.properties.location {
            Location::Agent(owner) => self.machine.agent(owner).is_some_and(can_write),
            _ => self.machine.gpus().any(can_write),
        }
    }
}

/// Returns the contents of all parts, in order.
fn contents(parts: &[Part]) -> Contents {
    let mut all = Contents::unknown(0);
    for part in parts {
        all.append(&part.state.memory.contents.borrow(), part.bytes.clone());
    }
    all
}

/// Calls `store` for each part. The arguments are the part's memory, the part's offsets in the memory, and the part's
/// offsets in the whole range.
fn store_parts(parts: &[Part], store: impl Fn(&mut Contents, Range<usize>, Range<usize>)) {
    let mut done = 0;
    for part in parts {
        let end = done + part.bytes.len();
        store(&mut part.state.memory.contents.borrow_mut(), part.bytes.clone(), done..end);
        done = end;
    }
}

/// Writes bytes to all parts, in order.
fn write_parts(parts: &[Part], bytes: &[u8]) {
    store_parts(parts, |memory, part, source_range| memory.write(part.start, &bytes[source_range]));
    forget_overlaps(parts);
}

/// Marks bytes that several parts share as unknown, because the order of writes is undefined.
fn forget_overlaps(parts: &[Part]) {
    for (index, part) in parts.iter().enumerate() {
        for shared in parts[index + 1..].iter().filter_map(|other| shared_bytes(part, other)) {
            part.state.memory.contents.borrow_mut().forget(shared);
        }
    }
}

/// Returns the bytes of memory that two parts share.
fn shared_bytes(a: &Part, b: &Part) -> Option<Range<usize>> {
    let is_shared = Rc::ptr_eq(&a.state.memory.contents, &b.state.memory.contents);
    is_shared.then(|| intersection(&a.bytes, &b.bytes)).flatten()
}
