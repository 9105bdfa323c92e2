//! What the runtime is told of access: no more than is news, and in the order that it bears.

use super::Change;
use super::grant::Progress;
use crate::access::AgentSet;
use crate::native::{NativeAccess, Protection};
use crate::vmm::ledger::{MappingRecord, Range};
use crate::vmm::mapping::Piece;
use crate::vmm::{Access, Operation, Shared, VmmError};
use smallvec::SmallVec;

/// A list for the runtime, which takes no memory of its own for as many as there are in most machines.
type Natives = SmallVec<[NativeAccess; 8]>;

/// A mapping that not all agents may use that should, and those that the runtime was told of.
#[derive(Clone, Copy, Debug)]
pub(in crate::vmm) struct Unfinished {
    pub error: VmmError,
    pub granted: AgentSet,
}

impl From<Unfinished> for VmmError {
    fn from(unfinished: Unfinished) -> Self {
        unfinished.error
    }
}

/// What the runtime is to be told of a mapping. It is filled where it is: to move it costs more.
#[derive(Debug, Default)]
struct News {
    list: Natives,
    /// The agents that it is news of.
    agents: AgentSet,
}

impl Shared {
    /// Whether the runtime can be told in one call what is news to two neighbours: it has to be
    /// told the same of both, in the same order.
    pub(super) fn are_told_together(
        &self,
        one: &Progress,
        next: &Progress,
        changes: &[Change],
    ) -> bool {
        if self.quirks.set_access_of_several_fails {
            return false;
        }
        let mut news = [News::default(), News::default()];
        self.news(one, changes, &mut news[0]);
        self.news(next, changes, &mut news[1]);
        news[0].list == news[1].list
    }

    /// Tells the runtime those of the changes that are any, in one call for neighbours that are
    /// [told together](Self::are_told_together), and notes whom it was told of.
    pub(super) fn tell_news(
        &self,
        operation: Operation,
        alike: &mut [Progress],
        changes: &[Change],
    ) -> Result<(), VmmError> {
        let Some(first) = alike.first() else { return Ok(()) };
        // To all of them the same is news.
        let mut news = News::default();
        self.news(first, changes, &mut news);
        let size = alike.iter().map(|mapping| mapping.before.record.size).sum();
        let range = Range { start: first.before.start, size };
        if alike.iter().any(|mapping| self.lets_in(mapping.before.record.granted, news.agents)) {
            self.check_a_descriptor(operation)?;
        }
        for mapping in &mut *alike {
            mapping.asked = mapping.asked.and(news.agents);
        }
        self.tell(operation, range, &news.list)?;
        for mapping in alike {
            mapping.record.granted = mapping.record.granted.and(news.agents);
        }
        Ok(())
    }

    /// Those of the changes that the runtime does not know to be so.
    fn news(&self, mapping: &Progress, changes: &[Change], news: &mut News) {
        let before = &mapping.before.record;
        let is_news = |change: &Change| {
            // To forbid what was never allowed would make AMD's runtime map it; to repeat what
            // is so already costs a call.
            let known = before.granted.contains(change.agent());
            if known {
                self.access_in_runtime(&before.access, change.agent()) != change.access
            } else {
                change.access != Access::None
            }
        };
        let changes = changes.iter().copied().filter(is_news);
        self.to_tell(&mapping.before, &mapping.record, changes, news);
    }

    /// What is to be said of a mapping for it to be told of changes: its owner last (ROCm 7.14
    /// corrupts the mapping if a peer comes after it: rocm-systems#9908).
    fn to_tell(
        &self,
        piece: &Piece,
        now: &MappingRecord,
        changes: impl Iterator<Item = Change>,
        news: &mut News,
    ) {
        let all = self.runtime.agents();
        let native = |change: Change| {
            Some(NativeAccess::new(all.get(change.agent())?.native, change.access.to_bits()))
        };
        // In the caller's order: whose an import is may be known to nobody else.
        for change in changes {
            news.agents.insert(change.agent());
            if let Some(told) = native(change) {
                news.list.push(told);
            }
        }
        if self.quirks.set_access_drops_unnamed_agents && !news.list.is_empty() {
            let unnamed = now.granted.without(news.agents).iter();
            let as_it_is = |index| Change::new(index, self.access_in_runtime(&now.access, index));
            let unnamed: Natives = unnamed.map(as_it_is).filter_map(native).collect();
            news.list.insert_from_slice(0, &unnamed);
        }
        if let Some(owner) = piece.owner.and_then(|index| all.get(index))
            && let Some(at) = news.list.iter().position(|told| told.is_of(owner.native))
        {
            news.list[at..].rotate_left(1);
        }
    }

    /// Tells the runtime, unless there is nothing to tell.
    fn tell(
        &self,
        operation: Operation,
        range: Range,
        list: &[NativeAccess],
    ) -> Result<(), VmmError> {
        if list.is_empty() {
            return Ok(());
        }
        self.call_locked(|native| native.set_access(range.start, range.size, list))
            .map_err(|failure| self.failure(operation, failure, range.size))
    }

    /// Tells the runtime of changes to one mapping, news or not.
    pub(super) fn tell_again(
        &self,
        operation: Operation,
        piece: &Piece,
        now: &MappingRecord,
        told: &[Change],
    ) -> Result<(), VmmError> {
        let range = Range { start: piece.start, size: piece.record.size };
        let mut news = News::default();
        self.to_tell(piece, now, told.iter().copied(), &mut news);
        self.tell(operation, range, &news.list)
    }

    /// Lets the agents use a mapping as `record` says, and returns those that the runtime was
    /// told of. What they may do already is not changed. `told` are those that the runtime knows of in
    /// this mapping.
    ///
    /// # Errors
    /// Those that were told before the failure come with it.
    pub(in crate::vmm) fn let_use(
        &self,
        operation: Operation,
        piece: &Piece,
        record: &MappingRecord,
        told: AgentSet,
    ) -> Result<AgentSet, Unfinished> {
        let mut after = MappingRecord { granted: AgentSet::default(), ..*record };
        let nobody = |error| Unfinished { error, granted: AgentSet::default() };
        // The CPU first, and by itself, so that it is known whether the runtime has mapped for it.
        let host = self.host_index();
        let is_mapped = told.contains(host);
        if is_mapped || !self.show_to_cpu(operation, piece, &record.access).map_err(nobody)? {
            after.granted.insert(host);
            if !is_mapped {
                let cpu = Change::new(host, Access::ReadWrite);
                self.tell_again(operation, piece, &after, &[cpu]).map_err(nobody)?;
            }
            let protection = self.protection(&record.access);
            if is_mapped || protection != Protection::ReadWrite {
                self.protect_view(operation, piece, protection)
                    .map_err(|error| Unfinished { error, granted: after.granted })?;
            }
        }
        let cpus = after.granted;
        let mut gpus = Vec::new();
        for index in 0..self.runtime.agents().len() {
            let access = record.access.get(index);
            if !self.is_cpu(index) && access != Access::None {
                after.granted.insert(index);
                gpus.push(Change::new(index, access));
            }
        }
        if gpus.is_empty() {
            return Ok(after.granted);
        }
        self.with_descriptor(|| {
            self.check_a_descriptor(operation)?;
            self.tell_again(operation, piece, &after, &gpus)
        })
        .map_err(|error| Unfinished { error, granted: cpus })?;
        Ok(after.granted)
    }

    /// Whether to tell the runtime of these agents lets a GPU in that was not `granted` access before,
    /// for which it needs a descriptor.
    fn lets_in(&self, granted: AgentSet, news: AgentSet) -> bool {
        news.without(granted).without(self.cpus) != AgentSet::NONE
    }

    /// Refuses what the runtime needs a descriptor for, and ends the process for want of one, if
    /// there is none left.
    pub(in crate::vmm) fn check_a_descriptor(&self, operation: Operation) -> Result<(), VmmError> {
        if self.quirks.grant_without_descriptor_aborts && self.runtime.spare().is_last() {
            return Err(VmmError::OutOfDescriptors { operation });
        }
        Ok(())
    }
}
