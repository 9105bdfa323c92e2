//! Changing who may access mappings: what is sent to the runtime, for which agents and in which order.
//!
//! Only changes are sent. A GPU that the runtime was never asked to grant access is not named to
//! forbid it, which would make AMD's runtime map the memory for it.

use super::Shared;
use super::journal::Journal;
use super::ledger::Range;
use super::mapped_range::MappedRange;
use crate::access::{Access, AccessState, AgentSet, MOST_AGENTS};
use crate::error::{Argument, ErrorKind, Feature, Problem};
use crate::native::{NativeAccess, Protection};
use smallvec::SmallVec;

/// What an agent is to be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AccessChange {
    /// Its index.
    agent: u8,
    pub access: Access,
}

impl AccessChange {
    pub fn new(agent: usize, access: Access) -> Self {
        const { assert!(MOST_AGENTS <= u8::MAX as usize) };
        Self { agent: agent as u8, access }
    }

    /// The agent's index.
    pub fn agent(self) -> usize {
        self.agent.into()
    }
}

/// Changes for several agents, the CPUs first.
pub(super) type AccessChanges = SmallVec<[AccessChange; 16]>;

/// What one call of the runtime sets.
#[derive(Debug, Default, PartialEq, Eq)]
struct Request {
    list: SmallVec<[NativeAccess; 8]>,
    /// The agents that it changes something for.
    agents: AgentSet,
}

impl Journal<'_> {
    /// Changes access to a row of neighbours.
    ///
    /// The CPUs are changed first, and by themselves, so that it is known what to undo.
    pub fn change_access(
        &mut self,
        first: usize,
        count: usize,
        changes: &[AccessChange],
    ) -> Result<(), ErrorKind> {
        let shared = self.shared;
        self.enter_access(first, count);
        let end = first + count;
        let (cpus, gpus) = changes.split_at(shared.count_cpus(changes));
        if !cpus.is_empty() {
            for index in first..end {
                self.change_cpu_access(index, cpus)?;
            }
        }
        let mut next = first;
        while next < end {
            let start = next;
            next += 1;
            if shared.must_be_remapped(&self.targets[start].now, gpus) {
                shared.check_remap(&self.targets[start].now.access)?;
                shared.check_descriptor()?;
                self.remap_with_access(start, gpus)?;
                continue;
            }
            let request = shared.request(&self.targets[start].now, gpus);
            while next < end
                && !shared.quirks.set_access_of_several_fails
                && !shared.must_be_remapped(&self.targets[next].now, gpus)
                && shared.request(&self.targets[next].now, gpus).list == request.list
            {
                next += 1;
            }
            self.send(start, next, &request)?;
            for target in &mut self.targets[start..next] {
                set(&mut target.now.access, gpus);
            }
        }
        Ok(())
    }

    /// Sends a request for neighbours that it fits, and notes which agents were asked for.
    fn send(&mut self, first: usize, end: usize, request: &Request) -> Result<(), ErrorKind> {
        let shared = self.shared;
        let row = &mut self.targets[first..end];
        let Some(start) = row.first().map(|target| target.now.start) else { return Ok(()) };
        let size = row.iter().map(|target| target.now.size).sum();
        let gpus = request.agents.difference(shared.cpus);
        if row.iter().any(|it| !gpus.difference(it.before.runtime_granted).is_empty()) {
            shared.check_descriptor()?;
        }
        row.iter_mut().for_each(|target| target.asked = target.asked.union(request.agents));
        shared.set_access_in_runtime(Range { start, size }, request)?;
        for target in row {
            let granted = &mut target.now.access.runtime_granted;
            *granted = granted.union(request.agents);
        }
        Ok(())
    }

    /// Changes what CPUs may do with one mapping.
    fn change_cpu_access(&mut self, index: usize, cpus: &[AccessChange]) -> Result<(), ErrorKind> {
        let shared = self.shared;
        let now = self.targets[index].now;
        let mut wanted = now.access;
        set(&mut wanted, cpus);
        if shared.change_view(&now, &wanted)? {
            self.targets[index].now.access = wanted;
            return Ok(());
        }
        // All CPUs share this address space, so that one stands for all. The runtime maps once,
        // readable and writable, whatever may be asked for later.
        let host = AccessChange::new(shared.host_index(), Access::ReadWrite);
        let request = shared.request(&now, &[host]);
        self.send(index, index + 1, &request)?;
        let target = &mut self.targets[index];
        target.now.access.requested = wanted.requested;
        match shared.protection(&wanted) {
            Protection::ReadWrite => Ok(()),
            less => shared.protect_view(&target.now, less),
        }
    }

    /// Unmaps and maps one mapping again, with changed access. The caller has checked that there are
    /// descriptors for it; another thread may have taken them since.
    pub fn remap_with_access(
        &mut self,
        index: usize,
        changes: &[AccessChange],
    ) -> Result<(), ErrorKind> {
        let mut wanted = self.targets[index].now;
        set(&mut wanted.access, changes);
        self.unmap(index, 1)?;
        self.check_quarantine()?;
        self.map_with_access(index, &wanted, false)
    }
}

impl Shared {
    /// Refuses access that the hardware can never have to memory of this owner.
    pub(super) fn check_reach(
        &self,
        owner: Option<usize>,
        changes: &[AccessChange],
    ) -> Result<(), ErrorKind> {
        let mut granted = changes.iter().filter(|it| it.access != Access::None);
        // Of imported memory the owner may be unknown; then the runtime decides.
        let Some((owner, peers)) =
            owner.and_then(|owner| Some((owner, self.reached_by.get(owner)?)))
        else {
            // But it grants access to a CPU that then faults, so that every GPU needs a large BAR.
            let all_in_reach = self.runtime.gpus().all(|gpu| gpu.large_bar);
            return match !all_in_reach && granted.any(|it| self.cpus.contains(it.agent())) {
                true => Err(Feature::CpuAccess.into()),
                false => Ok(()),
            };
        };
        match granted.find(|it| !peers.contains(it.agent())) {
            None => Ok(()),
            Some(it) if self.cpus.contains(it.agent()) => Err(Feature::CpuAccess.into()),
            Some(it) => {
                let [agent, owner] = [it.agent(), owner].map(|at| self.runtime.agents()[at].id());
                let problem = Problem::Unreachable(owner);
                Err(ErrorKind::invalid(Argument::Agent, agent, problem))
            }
        }
    }

    /// Refuses what the runtime needs a descriptor for if none is free: it would abort the process.
    pub(super) fn check_descriptor(&self) -> Result<(), ErrorKind> {
        match self.quirks.grant_without_descriptor_aborts && self.runtime.spare().is_last() {
            true => Err(ErrorKind::OutOfDescriptors),
            false => Ok(()),
        }
    }

    /// Sets the access of a mapping without any: one that was just mapped. Adds the agents that the
    /// runtime granted access to `granted`, also if it fails for others.
    pub(super) fn grant_from_nothing(
        &self,
        it: &MappedRange,
        granted: &mut AgentSet,
    ) -> Result<(), ErrorKind> {
        self.grant(it, AgentSet::NONE, granted)
    }

    /// Sets the access of a mapping that the runtime refused to unmap, which changes nothing if the
    /// runtime did nothing. Returns the agents that the runtime knows.
    pub(super) fn grant_again(&self, it: &MappedRange) -> Result<AgentSet, ErrorKind> {
        // If the CPU has kept the memory, the runtime is not asked: it might map over a foreign mapping.
        let known = match self.fill_hole(it)? {
            true => AgentSet::NONE,
            false => it.access.runtime_granted,
        };
        let mut granted = it.access.runtime_granted;
        self.grant(it, known, &mut granted)?;
        Ok(granted)
    }

    /// Sets the access of a mapping, where the runtime knows these agents already.
    fn grant(
        &self,
        it: &MappedRange,
        known: AgentSet,
        granted: &mut AgentSet,
    ) -> Result<(), ErrorKind> {
        // The CPU first, and by itself, so that it is known whether the runtime has mapped for it.
        let host = self.host_index();
        let is_mapped = known.contains(host);
        let view =
            MappedRange { access: AccessState { runtime_granted: known, ..it.access }, ..*it };
        let by_runtime = is_mapped || !self.show_view(&view, &it.access)?;
        if by_runtime {
            let now = MappedRange { access: AccessState::default(), ..*it };
            if !is_mapped {
                let cpu = AccessChange::new(host, Access::ReadWrite);
                self.set_access_in_runtime(it.range(), &self.request_all(&now, &[cpu]))?;
            }
            granted.insert(host);
            let protection = self.protection(&it.access);
            if is_mapped || protection != Protection::ReadWrite {
                self.protect_view(it, protection)?;
            }
        }
        let change = |index| AccessChange::new(index, it.access.requested.get(index));
        let gpus = (0..self.runtime.agents().len()).filter(|&index| !self.cpus.contains(index));
        let gpus: AccessChanges =
            gpus.map(change).filter(|change| change.access != Access::None).collect();
        if !gpus.is_empty() {
            let cpus = by_runtime.then_some(host).into_iter().collect();
            let access = AccessState { runtime_granted: cpus, ..it.access };
            let request = self.request_all(&MappedRange { access, ..*it }, &gpus);
            self.with_descriptor(|| {
                self.check_descriptor()?;
                self.set_access_in_runtime(it.range(), &request)
            })?;
            *granted = granted.union(request.agents);
        }
        Ok(())
    }

    /// Sets the access of a mapping back to what it was, for the agents that were asked for. Returns
    /// the agents that the runtime knows.
    pub(super) fn restore_access(
        &self,
        now: &MappedRange,
        before: &MappedRange,
        asked: AgentSet,
    ) -> Result<AgentSet, ErrorKind> {
        let (has, had) = (self.protection(&now.access), self.protection(&before.access));
        // The view that there was is still there, at worst without access.
        if has != had {
            self.protect_view(before, had)?;
        }
        let restored = MappedRange {
            access: AccessState { runtime_granted: now.access.runtime_granted, ..before.access },
            ..*before
        };
        self.drop_unused_view(&restored, &now.access);
        let known = now.access.runtime_granted;
        let changes: AccessChanges = asked
            .iter()
            .filter(|&index| !self.cpus.contains(index) && known.contains(index))
            .map(|index| AccessChange::new(index, before.access.requested.get(index)))
            .collect();
        self.set_access_in_runtime(before.range(), &self.request_all(&restored, &changes))?;
        Ok(known)
    }

    fn set_access_in_runtime(&self, range: Range, request: &Request) -> Result<(), ErrorKind> {
        if request.list.is_empty() {
            return Ok(());
        }
        self.call_locked(|native| {
            // SAFETY: the reservation is locked, and the range is exactly a run of its mappings.
            unsafe { native.set_access(range.start, range.size, &request.list) }
        })
        .map_err(|failure| ErrorKind::of_call(failure, range.size))
    }

    /// The request for those of the changes that are news to the runtime. To forbid what was never
    /// granted would make AMD's runtime map it; to repeat what is set already costs a call.
    fn request(&self, it: &MappedRange, changes: &[AccessChange]) -> Request {
        let is_news =
            |change: &&AccessChange| match it.access.runtime_granted.contains(change.agent()) {
                true => self.access_in_runtime(&it.access, change.agent()) != change.access,
                false => change.access != Access::None,
            };
        let news: AccessChanges = changes.iter().filter(is_news).copied().collect();
        self.request_all(it, &news)
    }

    /// The request for changes, news or not, in the caller's order, but the owner last: ROCm 7.14
    /// corrupts the mapping if a peer comes after it (rocm-systems#9908).
    fn request_all(&self, it: &MappedRange, changes: &[AccessChange]) -> Request {
        let agents = self.runtime.agents();
        let native = |change: AccessChange| {
            Some(NativeAccess::new(agents.get(change.agent())?.native, change.access.to_bits()))
        };
        let mut request = Request::default();
        for &change in changes {
            request.agents.insert(change.agent());
            request.list.extend(native(change));
        }
        if self.quirks.set_access_drops_unnamed_agents && !request.list.is_empty() {
            let unnamed = it.access.runtime_granted.difference(request.agents).iter();
            let same = |index| AccessChange::new(index, self.access_in_runtime(&it.access, index));
            let unnamed: SmallVec<[NativeAccess; 8]> =
                unnamed.map(same).filter_map(native).collect();
            request.list.insert_from_slice(0, &unnamed);
        }
        if let Some(owner) = it.owner.and_then(|index| agents.get(index))
            && let Some(at) = request.list.iter().position(|entry| entry.is_of(owner.native))
        {
            request.list[at..].rotate_left(1);
        }
        request
    }

    /// What the runtime has granted an agent. It maps memory for the CPU readable and writable; what
    /// the CPU may really do is set by `mprotect`.
    fn access_in_runtime(&self, access: &AccessState, index: usize) -> Access {
        if self.cpus.contains(index) { Access::ReadWrite } else { access.requested.get(index) }
    }

    /// Whether a GPU is to be granted access to a mapping whose owner has some already, or may have,
    /// where the runtime cannot do that.
    fn must_be_remapped(&self, it: &MappedRange, gpus: &[AccessChange]) -> bool {
        if !self.quirks.peer_after_owner_fails {
            return false;
        }
        let granted = |index| it.access.runtime_granted.contains(index);
        let is_new = |it: &&AccessChange| it.access != Access::None && !granted(it.agent());
        let new = gpus.iter().filter(is_new).count();
        let others = it.access.runtime_granted.difference(self.cpus).iter().count();
        // Any of several may be an unknown owner.
        new > 0 && it.owner.map_or(new + others > 1, granted)
    }

    /// The index of the CPU that stands for all of them in the runtime.
    fn host_index(&self) -> usize {
        self.runtime.host().id().index()
    }

    fn count_cpus(&self, changes: &[AccessChange]) -> usize {
        changes.iter().take_while(|change| self.cpus.contains(change.agent())).count()
    }
}

/// Changes the requested access.
fn set(access: &mut AccessState, changes: &[AccessChange]) {
    for change in changes {
        access.requested.set(change.agent(), change.access);
    }
}
