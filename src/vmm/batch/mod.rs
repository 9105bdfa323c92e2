//! Many at once: one call that maps, grants or unmaps many ranges, all of them or none.
//!
//! The ranges may be anywhere, in any order and in several reservations. Neighbours go to the runtime
//! together where it can take them so:
//!
//! | | calls of the runtime |
//! |---|---|
//! | [`Vmm::map_many`] | `hsa_amd_vmem_map` a mapping; `hsa_amd_vmem_set_access` a row of neighbours of one owner, for all agents |
//! | [`Vmm::set_access_many`] | `hsa_amd_vmem_set_access` a row of neighbours to which the same is news, for all agents |
//! | [`Vmm::unmap_many`] | `hsa_amd_vmem_unmap` a row of neighbours from ROCm 7.0 on, before that a mapping |
//!
//! To other threads a batch is one step: they find all of it done, or nothing.

mod grant;
mod map;
mod unmap;

use super::ledger::{Entered, Range, Reserved};
use super::mapping::Piece;
use super::{
    AccessDescriptor, Address, Argument, Handle, Operation, Problem, Refusal, Shared, Vmm,
    VmmError, not_open,
};
use std::sync::Arc;

/// A mapping that [`Vmm::map_many`] is to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewMapping {
    /// Where it begins, a multiple of the granule.
    pub address: Address,
    /// Its size in bytes, a multiple of the granule.
    pub size: usize,
    /// The memory, whose first `size` bytes appear there.
    pub handle: Handle,
}

impl Vmm {
    /// Maps many at once and lets agents use them, all or nothing (`hipMemMap`, `hipMemSetAccess`;
    /// `hsa_amd_vmem_map`, `hsa_amd_vmem_set_access`).
    ///
    /// Of each what [`map`](Self::map) asks for must hold, and none may share bytes with another. All
    /// get the access that `access` says, as by [`set_access`](Self::set_access); nobody does if it is
    /// empty. Who asks meanwhile finds nothing mapped until all of it is, and may be used.
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] of the first, by address, that is wrong, or of an empty list; what
    /// else `map` and `set_access` answer. Nothing is mapped then, except that what could not be
    /// unmapped again is in the quarantine ([`VmmError::Quarantined`]).
    pub fn map_many(
        &self,
        mappings: &[NewMapping],
        access: &[AccessDescriptor],
    ) -> Result<(), VmmError> {
        self.shared.map_many(mappings, access)
    }

    /// Says who may do what with many runs of whole mappings at once, all or nothing
    /// (`hipMemSetAccess`, `hsa_amd_vmem_set_access`).
    ///
    /// Each run is an address and a size; otherwise as [`set_access`](Self::set_access).
    ///
    /// # Errors
    /// As for `set_access`; [`VmmError::InvalidArgument`] also of an empty list, and of runs that
    /// share bytes.
    pub fn set_access_many(
        &self,
        runs: &[(Address, usize)],
        access: &[AccessDescriptor],
    ) -> Result<(), VmmError> {
        self.shared.set_access_many(runs, access)
    }

    /// Unmaps many runs of whole mappings at once, all or nothing (`hipMemUnmap`,
    /// `hsa_amd_vmem_unmap`).
    ///
    /// Each run is an address and a size; otherwise as [`unmap`](Self::unmap).
    ///
    /// # Errors
    /// As for `unmap`; [`VmmError::InvalidArgument`] also of an empty list, and of runs that share
    /// bytes.
    pub fn unmap_many(&self, runs: &[(Address, usize)]) -> Result<(), VmmError> {
        self.shared.unmap_many(runs)
    }
}

impl Shared {
    /// Does something inside the reservations around these ranges, which are in order, while nobody
    /// else does.
    fn at_gates<T>(
        &self,
        operation: Operation,
        ranges: &[Range],
        act: impl FnOnce(Entered<'_>) -> Result<T, VmmError>,
    ) -> Result<T, VmmError> {
        loop {
            let mut found: Vec<Arc<Reserved>> = Vec::new();
            for &range in ranges {
                if found.last().is_some_and(|last| last.holds_all(range)) {
                    continue;
                }
                let reserved = self.ledger.around(range);
                let reserved = reserved.map_err(|refusal| refusal.during(operation))?;
                not_open(operation, &reserved)?;
                found.push(reserved);
            }
            // One may have been freed, and its addresses reserved anew, meanwhile.
            let all = found.iter().map(|reserved| &**reserved);
            let Some(entered) = Entered::all(all) else { continue };
            let done = act(entered);
            found.into_iter().take(1).for_each(Reserved::keep);
            return done;
        }
    }

    /// Whether an address is in a reservation that is out of use.
    fn is_out_of_use(&self, address: usize) -> bool {
        self.ledger.at(address, Reserved::is_quarantined).unwrap_or_default()
    }
}

/// How many of these ranges, which are in order, are neighbours in one reservation: of each row, one
/// after the other.
fn rows(entered: &Entered<'_>, ranges: impl Iterator<Item = Range>) -> Vec<usize> {
    let mut rows: Vec<usize> = Vec::new();
    let mut end = 0;
    for range in ranges {
        let begins_another =
            entered.at(range.start).is_some_and(|inside| inside.reserved.base == range.start);
        match rows.last_mut() {
            Some(row) if range.start == end && !begins_another => *row += 1,
            _ => rows.push(1),
        }
        end = range.end();
    }
    rows
}

/// The ranges of a list, in order; none of them may share bytes with another.
fn in_order(operation: Operation, runs: &[(Address, usize)]) -> Result<Vec<Range>, VmmError> {
    let range = |&(address, size): &_| Range::new(address, size);
    let ranges = runs.iter().map(range).collect::<Result<Vec<_>, _>>();
    let mut ranges = ranges.map_err(|refusal| refusal.during(operation))?;
    ranges.sort_by_key(|range| range.start);
    check_list(operation, &ranges)?;
    Ok(ranges)
}

/// Refuses an empty list, and one in which two share bytes. The ranges are in order.
fn check_list(operation: Operation, ranges: &[Range]) -> Result<(), VmmError> {
    let refuse = |problem| Err(Refusal::new(Argument::List, problem).during(operation));
    if ranges.is_empty() {
        return refuse(Problem::Zero);
    }
    if ranges.windows(2).any(|two| two[0].end() > two[1].start) {
        return refuse(Problem::Overlapping);
    }
    Ok(())
}

/// The range of a mapping.
fn range_of(piece: &Piece) -> Range {
    Range { start: piece.start, size: piece.record.size }
}
