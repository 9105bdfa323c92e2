//! Reads, writes, copies and fills of mapped memory.

use super::verdict::{
    ADDRESS, AGENT, DESTINATION, NOT_GRANTED, RANGE, Refusal, Rules, SIZE, SOURCE, Verdict, Wrong,
};
use super::{Contents, Held, Mapped, Model, common, range};
use hsa_vmm::vmm::Location;
use hsa_vmm::{Access, AgentId};
use std::ops::Range;
use std::rc::Rc;

/// A part of a range: a mapping and the bytes of its memory.
struct Part<'a> {
    mapping: &'a Mapped,
    held: &'a Held,
    bytes: Range<usize>,
}

impl Model {
    /// Reads by this process's loads.
    ///
    /// # Errors
    /// Returns everything that is wrong with the call.
    pub fn read(&self, address: usize, size: usize) -> Verdict<Contents> {
        if size == 0 {
            return Ok(Contents::unknown(0));
        }
        let parts = self.parts(RANGE, address, size)?;
        let forbidden = |part: &Part| self.cpu_access(part.mapping) < Access::Read;
        Rules::default().refuse(ADDRESS, parts.iter().any(forbidden)).verdict()?;
        Ok(contents(&parts))
    }

    /// Writes by this process's stores.
    ///
    /// # Errors
    /// Returns everything that is wrong with the call.
    pub fn write(&self, address: usize, bytes: &[u8]) -> Verdict {
        if bytes.is_empty() {
            return Ok(());
        }
        let parts = self.parts(RANGE, address, bytes.len())?;
        let forbidden = |part: &Part| self.cpu_access(part.mapping) < Access::ReadWrite;
        Rules::default().refuse(ADDRESS, parts.iter().any(forbidden)).verdict()?;
        store_parts(&parts, |memory, place, done| memory.write(place.start, &bytes[done]));
        forget_what_is_written_twice(&parts);
        Ok(())
    }

    /// Copies by an agent.
    ///
    /// # Errors
    /// Returns everything that is wrong with the call.
    pub fn copy(&self, id: AgentId, to: usize, from: usize, size: usize) -> Verdict {
        let (target, source) = (self.parts(DESTINATION, to, size), self.parts(SOURCE, from, size));
        let agent = self.world.agent(id);
        let lacks = |parts: &Verdict<Vec<Part>>, needed| {
            let may = |part: &Part| agent.is_some_and(|agent| part.mapping.access[agent] >= needed);
            parts.as_ref().is_ok_and(|parts| !parts.iter().all(may))
        };
        Rules::default()
            .refuse(SIZE, size == 0)
            .refuse(AGENT, agent.is_none())
            .refuse(DESTINATION, target.is_err())
            .refuse(SOURCE, source.is_err())
            .refuse(DESTINATION, lacks(&target, Access::ReadWrite))
            .refuse(SOURCE, lacks(&source, Access::Read))
            .verdict()?;
        let (target, source) = (target?, source?);
        let new = contents(&source);
        store_parts(&target, |memory, place, done| memory.overwrite(place.start, &new, done));
        forget_what_is_written_twice(&target);
        if target.iter().any(|one| source.iter().any(|other| in_common(one, other).is_some())) {
            // The order in which bytes are copied is undefined.
            for part in &target {
                part.held.memory.contents.borrow_mut().forget(part.bytes.clone());
            }
        }
        Ok(())
    }

    /// Fills memory with a value, by its owners.
    ///
    /// # Errors
    /// Returns everything that is wrong with the call.
    pub fn fill(&self, address: usize, value: u32, size: usize) -> Verdict {
        let parts = self.parts(RANGE, address, size);
        let filled = |parts: &Vec<Part>| parts.iter().all(|part| self.can_be_filled(part));
        Rules::default()
            .refuse(ADDRESS, !address.is_multiple_of(4))
            .refuse(SIZE, !size.is_multiple_of(4))
            .refuse(RANGE, parts.is_err())
            .refuse(NOT_GRANTED, parts.as_ref().is_ok_and(|parts| !filled(parts)))
            .verdict()?;
        // Mappings consist of whole words.
        store_parts(&parts?, |memory, place, _| memory.fill(place, value.to_ne_bytes()));
        Ok(())
    }

    /// Marks a range as unknown, after a write to it failed half-way.
    pub fn forget(&self, address: usize, size: usize) {
        for part in self.parts(RANGE, address, size).unwrap_or_default() {
            part.held.memory.contents.borrow_mut().forget(part.bytes);
        }
    }

    /// Returns the parts of mappings in a range, which must be in one reservation.
    fn parts(&self, wrong: Wrong, address: usize, size: usize) -> Verdict<Vec<Part<'_>>> {
        let Some(place) = range(address, size).filter(|place| self.is_in_one_reservation(place))
        else {
            return Err(Refusal::of(wrong));
        };
        let parts: Vec<_> = self
            .mappings
            .iter()
            .filter_map(|mapping| {
                let here = common(&mapping.range(), &place)?;
                let held = self.handles.iter().find(|held| held.handle == mapping.handle)?;
                let bytes = here.start - mapping.start..here.end - mapping.start;
                Some(Part { mapping, held, bytes })
            })
            .collect();
        let covered: usize = parts.iter().map(|part| part.bytes.len()).sum();
        if covered == size { Ok(parts) } else { Err(Refusal::of(wrong)) }
    }

    /// Returns whether the memory's owner can write it; if the owner is unknown, whether any GPU can.
    fn can_be_filled(&self, part: &Part) -> bool {
        let may = |agent: usize| part.mapping.access[agent] == Access::ReadWrite;
        match part.held.properties.location {
            Location::Agent(owner) => self.world.agent(owner).is_some_and(may),
            _ => self.world.gpus().any(may),
        }
    }
}

fn contents(parts: &[Part]) -> Contents {
    let mut all = Contents::unknown(0);
    for part in parts {
        all.append(&part.held.memory.contents.borrow(), part.bytes.clone());
    }
    all
}

/// Changes the memory of each part. `store` receives the memory, the range in it, and the range of the
/// source.
fn store_parts(parts: &[Part], store: impl Fn(&mut Contents, Range<usize>, Range<usize>)) {
    let mut done = 0;
    for part in parts {
        let end = done + part.bytes.len();
        store(&mut part.held.memory.contents.borrow_mut(), part.bytes.clone(), done..end);
        done = end;
    }
}

/// Marks bytes as unknown that several parts share, because the order of writes is undefined.
fn forget_what_is_written_twice(parts: &[Part]) {
    for (index, one) in parts.iter().enumerate() {
        for both in parts[index + 1..].iter().filter_map(|other| in_common(one, other)) {
            one.held.memory.contents.borrow_mut().forget(both);
        }
    }
}

/// Returns the bytes of memory that two parts share.
fn in_common(one: &Part, other: &Part) -> Option<Range<usize>> {
    let same = Rc::ptr_eq(&one.held.memory.contents, &other.held.memory.contents);
    same.then(|| common(&one.bytes, &other.bytes)).flatten()
}
