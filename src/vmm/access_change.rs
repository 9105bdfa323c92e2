//! Changes of access to mappings: the requests to the runtime, their agents and their order.
//!
//! Requests contain only changed permissions, unless a quirk requires the permissions of all agents. AMD's runtime maps
//! the memory for every GPU in a request. Therefore a request that removes access names only GPUs to which the runtime
//! has granted access.

use super::Shared;
use super::journal::Journal;
use super::ledger::{AddressRange, MappedRange};
use crate::access::{Access, AccessSet, AccessState, AgentSet};
use crate::agent::AgentKind;
use crate::error::{Argument, ErrorKind, Feature, Problem};
use crate::native::NativeAccess;
use smallvec::SmallVec;

/// The access to set for some agents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AccessChange {
    pub agents: AgentSet,
    /// The access of each of `agents`.
    pub access: AccessSet,
}

impl AccessChange {
    /// Changes the access of no agent.
    pub const NONE: Self = Self { agents: AgentSet::NONE, access: AccessSet::NONE };

    fn without(&self, agents: AgentSet) -> Self {
        Self { agents: self.agents.difference(agents), ..*self }
    }

    /// Returns the agents that get any access.
    fn grantees(&self) -> AgentSet {
        self.agents.intersection(self.access.read)
    }

    /// Applies the change to the requested access.
    fn apply(&self, state: &mut AccessState) {
        state.requested.copy_from(self.agents, self.access);
    }
}

/// If an agent occurs several times, its last access counts.
impl FromIterator<(usize, Access)> for AccessChange {
    fn from_iter<I: IntoIterator<Item = (usize, Access)>>(changes: I) -> Self {
        let mut change = Self::default();
        for (agent, access) in changes {
            change.agents.insert(agent);
            change.access.set(agent, access);
        }
        change
    }
}

/// The access that one call of the runtime sets.
#[derive(Debug, Default, PartialEq, Eq)]
struct Request {
    list: SmallVec<[NativeAccess; 8]>,
    /// The agents whose access changes.
    agents: AgentSet,
}

impl Journal<'_, '_> {
    /// Applies the change of each target. One group of adjacent targets with equal changes is changed at a time.
    pub fn change_access(&mut self, targets: core::ops::Range<usize>) -> Result<(), ErrorKind> {
        let mut next = targets.start;
        while next < targets.end {
            let start = next;
            next = self.group_end(start, targets.end);
            let change = self.targets[start].change;
            if !change.agents.is_empty() {
                self.change_group(start..next, change)?;
            }
        }
        Ok(())
    }

    /// Changes access to a group of adjacent mappings.
    ///
    /// Changes the access of CPUs first, in a separate request. A failure then shows whether the access of CPUs or of
    /// GPUs was being changed.
    fn change_group(
        &mut self,
        group: core::ops::Range<usize>,
        change: &AccessChange,
    ) -> Result<(), ErrorKind> {
        let shared = self.shared;
        self.record_access(group.clone());
        let gpus = change.without(shared.cpus);
        let cpus = change.without(gpus.agents);
        if !cpus.agents.is_empty() {
            for index in group.clone() {
                self.change_cpu_access(index, &cpus)?;
            }
        }
        let mut next = group.start;
        while next < group.end {
            let start = next;
            next += 1;
            if shared.must_be_remapped(self.targets[start].now(), &gpus) {
                shared.check_remap(self.targets[start].now())?;
                shared.check_descriptor()?;
                self.remap_with_access(start)?;
                continue;
            }
            let request = shared.request(self.targets[start].now(), &gpus);
            while next < group.end
                && !shared.quirks.set_access_of_several_fails
                && !shared.must_be_remapped(self.targets[next].now(), &gpus)
                && shared.request(self.targets[next].now(), &gpus) == request
            {
                next += 1;
            }
            self.send(start, next, &request)?;
            for index in start..next {
                self.enforce(index, &gpus, request.agents)?;
            }
        }
        Ok(())
    }

    /// Applies a change of access of GPUs to one mapping, after the runtime has performed the request that
    /// the change needs. `in_request` are the agents in that request. Writes the entries of the page tables that the
    /// library controls.
    fn enforce(
        &mut self,
        index: usize,
        gpus: &AccessChange,
        in_request: AgentSet,
    ) -> Result<(), ErrorKind> {
        let shared = self.shared;
        let target = &mut self.targets[index];
        let before = target.now().access.requested;
        let mut after = *target.now();
        gpus.apply(&mut after.access);
        // The request has just written entries with full access for the agents in `in_request`. Only restricted
        // agents among them need other entries.
        let changed = after.access.requested.differing(&before).difference(in_request);
        let restricted = shared.restricted(&after).intersection(in_request);
        let agents = changed.union(restricted).intersection(shared.controlled());
        // SAFETY: the target is locked, and mapped.
        unsafe { shared.set_entries(&after, agents, &mut target.attempted, false) }?;
        *target.access_mut() = after.access;
        Ok(())
    }

    /// Sends one request for adjacent mappings, and records its agents.
    fn send(&mut self, first: usize, end: usize, request: &Request) -> Result<(), ErrorKind> {
        let shared = self.shared;
        let group = &mut self.targets[first..end];
        let Some(start) = group.first().map(|target| target.now().start) else { return Ok(()) };
        let size = group.iter().map(|target| target.now().size).sum();
        let gpus = request.agents.difference(shared.cpus);
        if group.iter().any(|it| !gpus.difference(it.before.runtime_granted).is_empty()) {
            shared.check_descriptor()?;
        }
        group.iter_mut().for_each(|it| it.attempted = it.attempted.union(request.agents));
        // SAFETY: the targets are locked, and mapped.
        unsafe { shared.set_access_in_runtime(AddressRange { start, size }, request) }?;
        for target in group {
            let granted = &mut target.access_mut().runtime_granted;
            *granted = granted.union(request.agents);
        }
        Ok(())
    }

    fn change_cpu_access(&mut self, index: usize, cpus: &AccessChange) -> Result<(), ErrorKind> {
        let shared = self.shared;
        let now = *self.targets[index].now();
        let mut access = now.access;
        cpus.apply(&mut access);
        // SAFETY: the target is locked, and mapped.
        if unsafe { shared.change_view(&now, &access) }? {
            *self.targets[index].access_mut() = access;
            return Ok(());
        }
        Shared::check_room_for_view()?;
        self.send(index, index + 1, &shared.request(&now, &shared.host_access()))?;
        let target = &mut self.targets[index];
        target.access_mut().requested = access.requested;
        // SAFETY: the target is locked, and mapped.
        unsafe { shared.limit_view(now.range(), &access) }
    }

    /// Unmaps one mapping and maps it again with changed access. The caller has checked that enough descriptors are
    /// free. If another thread has used them in the meantime, mapping again fails.
    pub fn remap_with_access(&mut self, index: usize) -> Result<(), ErrorKind> {
        let target = &self.targets[index];
        let mut access = target.now().access;
        target.change.apply(&mut access);
        self.unmap(index..index + 1)?;
        self.check_quarantine()?;
        self.map_with_access(index, access, false)
    }
}

impl Shared {
    /// Rejects a change that grants access to memory of `owner` to an agent whose hardware cannot access it, or to an
    /// agent that is neither a CPU nor a GPU: on ROCm 7.2, an unmap destroys memory that an AI engine can access
    /// (rocm-systems#10798).
    pub(super) fn check_peers(
        &self,
        owner: Option<u8>,
        change: &AccessChange,
    ) -> Result<(), ErrorKind> {
        let granted = change.grantees();
        let agents = self.runtime.agents();
        let is_other = |&agent: &usize| matches!(agents[agent].kind(), AgentKind::Other(_));
        if let Some(agent) = granted.iter().find(is_other) {
            return Err(ErrorKind::invalid(Argument::Agent, agents[agent].id(), Problem::NotAGpu));
        }
        // If the owner of imported memory is unknown, the runtime decides whether a GPU can access the memory.
        let owner = owner.map(usize::from);
        let Some((owner, peers)) = owner.and_then(|owner| Some((owner, self.peers_of.get(owner)?)))
        else {
            // Any GPU may be the owner, so CPU access needs a large BAR on every GPU. Without a large BAR, the
            // runtime grants access, and the CPU's accesses fault.
            let is_accessible = self.runtime.gpus().all(|gpu| gpu.large_bar);
            return match is_accessible || granted.intersection(self.cpus).is_empty() {
                true => Ok(()),
                false => Err(Feature::CpuAccess.into()),
            };
        };
        match granted.difference(*peers).iter().next() {
            None => Ok(()),
            Some(agent) if self.cpus.contains(agent) => Err(Feature::CpuAccess.into()),
            Some(agent) => {
                let [agent, owner] = [agent, owner].map(|index| agents[index].id());
                let problem = Problem::NoPeerAccess(owner);
                Err(ErrorKind::invalid(Argument::Agent, agent, problem))
            }
        }
    }

    /// Fails if the runtime would abort the process in the next call because no file descriptor is free.
    pub(super) fn check_descriptor(&self) -> Result<(), ErrorKind> {
        match self.quirks.grant_without_descriptor_aborts
            && self.runtime.spare_descriptors().none_free()
        {
            true => Err(ErrorKind::OutOfDescriptors),
            false => Ok(()),
        }
    }

    /// Sets the access of a new mapping. Adds to `granted` the agents to which the runtime has granted access, even if
    /// a later grant fails.
    ///
    /// # Safety
    /// The mapping is [locked](super::runtime_mapping), and was just mapped.
    pub(super) unsafe fn grant(
        &self,
        mapping: &MappedRange,
        granted: &mut AgentSet,
        is_rollback: bool,
    ) -> Result<(), ErrorKind> {
        // Grants the CPU access first, in a separate request, so that a failure shows whether the runtime has mapped
        // the memory for the CPU.
        let host = self.host_index();
        let without_access = MappedRange { access: AccessState::default(), ..*mapping };
        let mut already_granted = AgentSet::NONE;
        let change_view = || {
            // SAFETY: the caller guarantees that the mapping is locked and mapped.
            unsafe { self.change_view(&without_access, &mapping.access) }
        };
        if !self.with_free_descriptor(is_rollback, change_view)? {
            // A rollback is worth the risk that another thread has taken the room.
            if !is_rollback {
                Self::check_room_for_view()?;
            }
            let request = self.request_all(&without_access, &self.host_access());
            // SAFETY: the caller guarantees that the mapping is locked and mapped.
            unsafe { self.set_access_in_runtime(mapping.range(), &request) }?;
            already_granted.insert(host);
            granted.insert(host);
            // SAFETY: the caller guarantees that the mapping is locked and mapped.
            unsafe { self.limit_view(mapping.range(), &mapping.access) }?;
        }
        let access = mapping.access.requested;
        let gpus = AccessChange { agents: access.read.difference(self.cpus), access };
        let before = AccessState { runtime_granted: already_granted, ..mapping.access };
        let request = self.request_all(&MappedRange { access: before, ..*mapping }, &gpus);
        // SAFETY: the caller guarantees that the mapping is locked and mapped.
        unsafe { self.grant_gpus_in_runtime(mapping.range(), &request, is_rollback) }?;
        *granted = granted.union(request.agents);
        let after = AccessState { runtime_granted: *granted, ..mapping.access };
        let now = MappedRange { access: after, ..*mapping };
        // SAFETY: the caller guarantees that the mapping is locked and mapped.
        unsafe {
            self.set_entries(&now, self.restricted(&now), &mut AgentSet::default(), is_rollback)
        }
    }

    /// Returns whether [`restore_access`](Self::restore_access) can restore the grants of a mapping that the runtime
    /// failed to unmap. The runtime may have revoked some of these grants. If this function returns `false`, the
    /// mapping must be unmapped and mapped again.
    pub(super) fn can_restore_grants(&self, access: &AccessState) -> bool {
        // Granting again to a CPU could map over a foreign mapping, if the runtime has unmapped the memory.
        !self.runtime_mapped_for_cpu(access) && !self.quirks.peer_after_owner_fails
    }

    /// Restores the access `before` of a mapping: of the CPUs, and of the GPUs in `attempted` to which the runtime has
    /// granted access. Returns the mapping with the restored access.
    ///
    /// # Safety
    /// The mapping is [locked](super::runtime_mapping), and mapped.
    pub(super) unsafe fn restore_access(
        &self,
        now: &MappedRange,
        before: AccessState,
        attempted: AgentSet,
    ) -> Result<MappedRange, ErrorKind> {
        let (current, old) = (self.process_access(&now.access), self.process_access(&before));
        // The view from before the operation still exists, but may be inaccessible.
        if current != old {
            // SAFETY: the caller guarantees that the mapping is locked and mapped.
            unsafe { self.protect_view(now.range(), old) }?;
        }
        let granted = now.access.runtime_granted;
        let access = AccessState { runtime_granted: granted, ..before };
        let restored = MappedRange { access, ..*now };
        // SAFETY: the caller guarantees that the mapping is locked and mapped.
        unsafe { self.drop_unused_view(&restored, &now.access) }?;
        let agents = attempted.intersection(granted).difference(self.cpus);
        let change = AccessChange { agents, access: before.requested };
        let request = self.request_all(&restored, &change);
        // SAFETY: the caller guarantees that the mapping is locked and mapped.
        unsafe {
            self.grant_gpus_in_runtime(now.range(), &request, true)?;
            self.set_entries(&restored, agents, &mut AgentSet::default(), true)?;
        }
        Ok(restored)
    }

    /// Sends a request for adjacent whole mappings.
    ///
    /// # Safety
    /// The range is [locked](super::runtime_mapping), and mapped.
    unsafe fn set_access_in_runtime(
        &self,
        range: AddressRange,
        request: &Request,
    ) -> Result<(), ErrorKind> {
        if request.list.is_empty() {
            return Ok(());
        }
        let result = self.call_shared(|native| {
            // SAFETY: the caller guarantees that the range is locked and consists of whole mappings.
            unsafe { native.set_access(range.start, range.size, &request.list) }
        });
        if result.is_err() && !request.agents.intersection(self.cpus).is_empty() {
            // The runtime maps with `MAP_FIXED`: the kernel may have unmapped the old mapping before it failed.
            self.fill_hole_with_spare(range)?;
        }
        result.map_err(|failure| ErrorKind::of_call(failure, range.size))
    }

    /// Sends a request for GPUs in a rollback, or when a mapping is mapped again. Some of the GPUs may have no access
    /// yet. The request changes the access of no CPU: filling a hole uses the spare descriptor, too.
    ///
    /// # Safety
    /// As for [`set_access_in_runtime`](Self::set_access_in_runtime).
    unsafe fn grant_gpus_in_runtime(
        &self,
        range: AddressRange,
        request: &Request,
        is_rollback: bool,
    ) -> Result<(), ErrorKind> {
        debug_assert!(request.agents.intersection(self.cpus).is_empty(), "{request:?}");
        if request.list.is_empty() {
            return Ok(());
        }
        self.with_free_descriptor(is_rollback, || {
            self.check_descriptor()?;
            // SAFETY: the caller guarantees that the range is locked and consists of whole mappings.
            unsafe { self.set_access_in_runtime(range, request) }
        })
    }

    /// Returns the request for the agents whose access changes. Omits agents whose access stays the same: this can save
    /// the call. Omits agents without access before and after: AMD's runtime would map the memory for them.
    fn request(&self, mapping: &MappedRange, change: &AccessChange) -> Request {
        let granted = mapping.access.runtime_granted;
        // For a CPU, and for a GPU whose page table the library controls, the library always requests full access.
        let full = self.cpus.union(self.controlled());
        let differing = mapping.access.requested.differing(&change.access).difference(full);
        let changed = granted.intersection(differing).union(change.access.read.difference(granted));
        let agents = change.agents.intersection(changed);
        self.request_all(mapping, &AccessChange { agents, ..*change })
    }

    /// Returns the request for all agents of a change, the owner last: ROCm 7.14 corrupts the mapping if a
    /// peer follows the owner (rocm-systems#9908).
    fn request_all(&self, mapping: &MappedRange, change: &AccessChange) -> Request {
        let (mut agents, mut access) = (change.agents, change.access);
        if self.quirks.set_access_drops_unnamed_agents && !agents.is_empty() {
            agents = agents.union(mapping.access.runtime_granted);
            access = mapping.access.requested;
            access.copy_from(change.agents, change.access);
        }
        let owner = agents.intersection(mapping.owner.map(usize::from).into_iter().collect());
        let native = |agent: usize| {
            let native = self.runtime.agents()[agent].native;
            NativeAccess::new(native, self.runtime_access(agent, &access).to_bits())
        };
        let list = agents.difference(owner).iter().chain(owner.iter()).map(native).collect();
        Request { list, agents: change.agents }
    }

    /// Returns the access to request from the runtime for an agent. For a CPU, this is always read and write, and
    /// `mprotect` sets the actual permissions. For a GPU whose page table the library controls, this is also read and
    /// write, and [`set_entries`](Self::set_entries) sets the actual permissions.
    fn runtime_access(&self, index: usize, access: &AccessSet) -> Access {
        let is_full = self.cpus.contains(index) || self.controlled().contains(index);
        if is_full { Access::ReadWrite } else { access.get(index) }
    }

    /// Returns whether the mapping must be mapped again to grant another GPU access. A runtime with the quirk
    /// `peer_after_owner_fails` cannot grant access if the owner, or a GPU that may be the owner, already has access.
    fn must_be_remapped(&self, mapping: &MappedRange, gpus: &AccessChange) -> bool {
        if !self.quirks.peer_after_owner_fails {
            return false;
        }
        let granted = mapping.access.runtime_granted;
        let new_count = gpus.grantees().difference(granted).iter().count();
        let granted_count = granted.difference(self.cpus).iter().count();
        // If the owner is unknown, each GPU may be the owner.
        let owner = self.gpu_owner(mapping);
        new_count > 0
            && owner.map_or(new_count + granted_count > 1, |owner| granted.contains(owner.into()))
    }

    /// Returns the index of the CPU that represents all CPUs in the runtime.
    fn host_index(&self) -> usize {
        self.runtime.host().id().index()
    }

    /// Returns the change to request for CPUs. One CPU represents all CPUs, because they share the address space. The
    /// runtime maps the memory once, readable and writable; later changes of access use `mprotect`.
    fn host_access(&self) -> AccessChange {
        [(self.host_index(), Access::ReadWrite)].into_iter().collect()
    }
}
