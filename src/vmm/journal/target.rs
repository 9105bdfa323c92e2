//! The mappings that an operation changes.

use crate::access::{AccessState, AgentSet};
use crate::vmm::access_change::AccessChange;
use crate::vmm::ledger::MappedRange;

/// A mapping that the operation changes, creates or removes.
#[derive(Debug)]
pub(in crate::vmm) struct Target<'c> {
    /// The current mapping in the runtime. For an unmapped target: the mapping before it was unmapped, or the mapping
    /// to create.
    pub(super) now: MappedRange,
    /// The access before the operation.
    pub before: AccessState,
    /// The requested change of access.
    pub change: &'c AccessChange,
    /// The index of the mapping's reservation in the journal's guards.
    pub(super) guard: usize,
    /// The agents whose access the operation may have changed in the runtime or in page tables, also by failed calls.
    pub attempted: AgentSet,
    pub(super) state: State,
    /// Whether the ledger listed the mapping before the operation.
    pub(super) listed: bool,
}

/// Whether the runtime has mapped a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Mapped as before the operation, or again by a rollback. Only the access can differ from that before the
    /// operation.
    AsBefore,
    /// Mapped by the operation. Unmapping the target undoes all changes to it.
    MappedAnew,
    /// Not mapped yet, or unmapped.
    Unmapped,
    /// Unknown, because a rollback has failed. If the ledger listed the target before, the target stays listed, so that
    /// its memory stays allocated.
    Unknown,
}

impl Target<'_> {
    pub fn now(&self) -> &MappedRange {
        &self.now
    }

    /// Returns the current access, to change it. Only the journal changes the other fields of [`now`](Self::now), when it
    /// unmaps a target or maps it again.
    pub fn access_mut(&mut self) -> &mut AccessState {
        &mut self.now.access
    }

    pub fn is_mapped(&self) -> bool {
        matches!(self.state, State::AsBefore | State::MappedAnew)
    }

    /// Returns whether the operation has unmapped a mapping that the ledger lists.
    pub fn was_unmapped(&self) -> bool {
        self.listed && self.state != State::AsBefore
    }
}
