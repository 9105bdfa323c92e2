//! What is behind a run of pages, and exchanging it for something else.

use super::Core;
use crate::agent::AgentId;
use crate::buffer::grants::Grants;
use crate::vmm::{Access, AccessDescriptor, Allocation, VmmError};
use std::ops::Range;

/// What is behind a run of pages.
#[derive(Clone, Copy, Debug)]
pub(in crate::buffer) enum Backing<'a> {
    Nothing,
    /// The zero page, again and again.
    Zero,
    /// Memory of its own for each page.
    Memory(&'a [Allocation]),
}

/// Why pages did not get another backing.
#[derive(Clone, Copy, Debug)]
pub(in crate::buffer) struct Failure {
    pub error: VmmError,
    /// Whether they have the one that they had.
    pub undone: bool,
}

impl Failure {
    /// Of a call that by itself changes everything or nothing.
    fn of(error: VmmError) -> Self {
        Self { error, undone: !matches!(error, VmmError::Quarantined { now: true, .. }) }
    }
}

impl Core {
    /// What is behind pages that are not in use.
    pub fn idle(&self) -> Backing<'_> {
        if self.zero.is_some() { Backing::Zero } else { Backing::Nothing }
    }

    /// Exchanges what is behind a run of pages, or leaves it.
    pub fn swap(
        &self,
        run: &Range<usize>,
        grants: &Grants,
        before: Backing<'_>,
        after: Backing<'_>,
    ) -> Result<(), Failure> {
        if run.is_empty() {
            return Ok(());
        }
        if !matches!(before, Backing::Nothing) {
            self.unmap_pages(run).map_err(Failure::of)?;
        }
        self.lay(run, grants, after).map_err(|failure| {
            let Failure { error, undone: lifted } = failure;
            let undone = lifted
                && self.lay(run, grants, before).map_err(|undo| undo.error).map_or_else(
                    |undo| {
                        crate::log::warning!(%undo, ?run, "what was behind pages could not be put back");
                        false
                    },
                    |()| true,
                );
            Failure { error, undone }
        })
    }

    /// Puts something behind a run of pages that have nothing, or nothing.
    fn lay(
        &self,
        run: &Range<usize>,
        grants: &Grants,
        backing: Backing<'_>,
    ) -> Result<(), Failure> {
        let (first, most) = match backing {
            Backing::Nothing => return Ok(()),
            Backing::Zero => (self.zero.as_slice(), Access::Read),
            Backing::Memory(memory) => (memory, Access::ReadWrite),
        };
        // The zero page is one for all.
        for (page, memory) in run.clone().zip(first.iter().cycle()) {
            self.map_page(page, memory).map_err(|error| self.lift(run.start..page, error))?;
        }
        let limited = |granted: &AccessDescriptor| AccessDescriptor {
            access: granted.access.min(most),
            ..*granted
        };
        let granted: Vec<_> = grants.list().iter().map(limited).collect();
        if granted.is_empty() {
            return Ok(());
        }
        let (address, size) = (self.address_of(run.start), run.len() * self.page);
        let opened = self.vmm.only(&self.serials(run)).set_access(address, size, &granted);
        opened.map_err(|error| self.lift(run.clone(), error))
    }

    /// Takes away again what was laid before `error`.
    fn lift(&self, run: Range<usize>, error: VmmError) -> Failure {
        let failure = Failure::of(error);
        if run.is_empty() || !failure.undone {
            return failure;
        }
        let lifted = self.unmap_pages(&run);
        let failed =
            |undo: &_| crate::log::warning!(%undo, ?run, "pages could not be unmapped again");
        Failure { undone: lifted.inspect_err(failed).is_ok(), ..failure }
    }

    /// Makes the zero page and puts it behind all pages.
    pub fn lay_zero_page(&mut self, owner: AgentId) -> Result<(), VmmError> {
        let zero = Allocation::create(&self.vmm, self.page, &self.properties)?;
        // New memory holds anything.
        let mapping = self.reservation.map(0, &zero)?;
        mapping.grant(&[owner], Access::ReadWrite)?;
        mapping.fill(0, 0, self.page)?;
        mapping.unmap()?;
        self.zero = Some(zero);
        let laid = self.lay(&(0..self.count), &Grants::default(), Backing::Zero);
        laid.map_err(|failure| {
            if failure.undone {
                self.zero = None;
            }
            failure.error
        })
    }
}
