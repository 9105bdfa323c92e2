//! The state of the recorded process: its reservations, handles, mappings and unmapped ranges.

use crate::hsa_trace::{Access, AgentKind, Call, Header, Record};
use std::collections::{BTreeMap, BTreeSet, HashMap};

#[derive(Clone, Debug)]
pub(super) struct Reservation<'a> {
    size: u64,
    /// The call that created the reservation.
    pub(super) created_by: &'a Record,
}

#[derive(Clone, Debug)]
pub(super) struct Handle<'a> {
    /// The number of references: each needs a release.
    pub(super) references: u64,
    /// The agent that owns the memory, if known.
    owner: Option<u64>,
    pub(super) created_by: &'a Record,
}

#[derive(Clone, Debug)]
pub(super) struct Mapping<'a> {
    pub(super) start: u64,
    pub(super) size: u64,
    owner: Option<u64>,
    /// The agents that have access.
    pub(super) granted: BTreeSet<u64>,
    /// Whether any agent has ever had access, or the memory was exported while it was mapped. With an export, the
    /// process can map the memory for the CPU, as `hsa_vmm` does. A recording does not contain this `mmap`.
    pub(super) was_granted: bool,
    pub(super) created_by: &'a Record,
}

/// A range that was unmapped and has not been used again.
#[derive(Clone, Debug)]
pub(super) struct Unmapped<'a> {
    start: u64,
    end: u64,
    /// Whether the reservation was freed, too. If so, the addresses may belong to another allocation.
    pub(super) is_freed: bool,
    pub(super) unmapped_by: &'a Record,
}

/// The state between two calls.
#[derive(Debug)]
pub(super) struct State<'a> {
    header: &'a Header,
    pub(super) reservations: BTreeMap<u64, Reservation<'a>>,
    pub(super) handles: HashMap<u64, Handle<'a>>,
    pub(super) mappings: BTreeMap<u64, Mapping<'a>>,
    /// The unmapped ranges, by start. These ranges do not overlap.
    unmapped: BTreeMap<u64, Unmapped<'a>>,
}

impl<'a> State<'a> {
    pub(super) fn new(header: &'a Header) -> Self {
        Self {
            header,
            reservations: BTreeMap::new(),
            handles: HashMap::new(),
            mappings: BTreeMap::new(),
            unmapped: BTreeMap::new(),
        }
    }

    /// Returns the mappings that overlap a range.
    pub(super) fn overlapping(
        &self,
        address: u64,
        size: u64,
    ) -> impl Iterator<Item = &Mapping<'a>> {
        let end = address.saturating_add(size);
        let before = self.mappings.range(..address).next_back();
        let before = before.filter(|(start, it)| start.saturating_add(it.size) > address);
        let inside = self.mappings.range(address..end.max(address));
        before.into_iter().chain(inside).map(|(_, mapping)| mapping)
    }

    /// Returns the start and the size of the reservation that contains an address.
    pub(super) fn reservation(&self, address: u64) -> Option<(u64, u64)> {
        let (start, reservation) = self.reservations.range(..=address).next_back()?;
        (address - start < reservation.size).then_some((*start, reservation.size))
    }

    /// Returns the last unmapped range that overlaps a range.
    pub(super) fn unmapped(&self, address: u64, size: u64) -> Option<&Unmapped<'a>> {
        let end = address.saturating_add(size);
        let (_, last) = self.unmapped.range(..end).next_back()?;
        (last.end > address).then_some(last)
    }

    /// If a call grants a GPU access to a mapping after the owner of the memory has got access, returns the owner and
    /// that GPU. ROCm 7.14 rejects such a call, or corrupts the mapping (rocm-systems#9908).
    pub(super) fn grant_after_owner(
        &self,
        mapping: &Mapping<'_>,
        access: &[Access],
    ) -> Option<(u64, u64)> {
        let owner = mapping.owner?;
        let mut owner_has_access = mapping.granted.contains(&owner);
        // If the last entry names the owner, the owner is granted access last, even if the owner has access already.
        let names_owner_last = access.last().is_some_and(|last| last.agent == owner);
        if names_owner_last {
            return None;
        }
        for entry in access.iter().filter(|entry| entry.permissions != 0) {
            if entry.agent == owner {
                owner_has_access = true;
            } else if owner_has_access
                && !mapping.granted.contains(&entry.agent)
                && self.is_gpu(entry.agent)
            {
                return Some((owner, entry.agent));
            }
        }
        None
    }

    fn is_gpu(&self, agent: u64) -> bool {
        let index = self.header.agent(agent);
        index.is_some_and(|index| self.header.agents[index].kind == AgentKind::Gpu)
    }

    /// Applies a call to the state, if the call succeeded. If the call unmaps mappings to which no agent has ever had
    /// access, returns the calls that created these mappings.
    pub(super) fn apply(&mut self, record: &'a Record) -> Vec<&'a Record> {
        if !record.succeeded() {
            return Vec::new();
        }
        match record.call {
            Call::Reserve { size, address: Some(address), .. } => {
                self.forget_unmapped(address, size);
                self.reservations.insert(address, Reservation { size, created_by: record });
            }
            Call::Allocate { size, address: Some(address), .. }
            | Call::IpcAttach { size, address: Some(address) } => {
                self.forget_unmapped(address, size);
            }
            Call::Free { address, .. } => {
                if let Some(reservation) = self.reservations.remove(&address) {
                    let end = address.saturating_add(reservation.size);
                    for (_, unmapped) in self.unmapped.range_mut(address..end) {
                        unmapped.is_freed = true;
                    }
                }
            }
            Call::Create { pool, handle: Some(handle), .. } => {
                let owner =
                    self.header.pool(pool).map(|(agent, _)| self.header.agents[agent].agent);
                self.add_reference(handle, owner, record);
            }
            Call::Import { handle: Some(handle), .. } => self.add_reference(handle, None, record),
            Call::Retain { address, handle: Some(handle) } => {
                let owner = self.overlapping(address, 1).next().and_then(|mapping| mapping.owner);
                self.add_reference(handle, owner, record);
            }
            Call::Release { handle } => {
                if let Some(handle) = self.handles.get_mut(&handle) {
                    handle.references = handle.references.saturating_sub(1);
                }
            }
            Call::Map { address, size, handle, .. } => {
                self.forget_unmapped(address, size);
                let owner = self.handles.get(&handle).and_then(|handle| handle.owner);
                let mapping = Mapping {
                    start: address,
                    size,
                    owner,
                    granted: BTreeSet::new(),
                    was_granted: false,
                    created_by: record,
                };
                self.mappings.insert(address, mapping);
            }
            Call::Export { handle, .. } => {
                let maps_handle = |mapping: &&mut Mapping<'_>| matches!(mapping.created_by.call, Call::Map { handle: it, .. } if it == handle);
                for mapping in self.mappings.values_mut().filter(maps_handle) {
                    mapping.was_granted = true;
                }
            }
            Call::Unmap { address, size } => return self.unmap(address, size, record),
            Call::SetAccess { address, size, ref access, .. } => {
                let end = address.saturating_add(size);
                let starts: Vec<u64> =
                    self.overlapping(address, size).map(|mapping| mapping.start).collect();
                for start in starts.into_iter().filter(|start| *start < end) {
                    let Some(mapping) = self.mappings.get_mut(&start) else { continue };
                    for entry in access {
                        if entry.permissions == 0 {
                            mapping.granted.remove(&entry.agent);
                        } else {
                            mapping.granted.insert(entry.agent);
                            mapping.was_granted = true;
                        }
                    }
                }
            }
            _ => {}
        }
        Vec::new()
    }

    fn add_reference(&mut self, handle: u64, owner: Option<u64>, record: &'a Record) {
        match self.handles.get_mut(&handle).filter(|handle| handle.references > 0) {
            Some(held) => held.references += 1,
            // The handle is new, even if an earlier handle had this value: the runtime reuses values of released
            // handles.
            None => {
                self.handles.insert(handle, Handle { references: 1, owner, created_by: record });
            }
        }
    }

    fn unmap(&mut self, address: u64, size: u64, record: &'a Record) -> Vec<&'a Record> {
        let starts: Vec<u64> =
            self.overlapping(address, size).map(|mapping| mapping.start).collect();
        let mut ungranted = Vec::new();
        for start in starts {
            if let Some(mapping) = self.mappings.remove(&start) {
                if !mapping.was_granted {
                    ungranted.push(mapping.created_by);
                }
                let end = start.saturating_add(mapping.size);
                let unmapped = Unmapped { start, end, is_freed: false, unmapped_by: record };
                self.unmapped.insert(start, unmapped);
            }
        }
        ungranted
    }

    /// Removes unmapped ranges that are used again.
    fn forget_unmapped(&mut self, address: u64, size: u64) {
        while let Some(start) = self.unmapped(address, size).map(|unmapped| unmapped.start) {
            self.unmapped.remove(&start);
        }
    }
}
