//! Mapping and unmapping.

use super::verdict::{
    ADDRESS, FLAGS, HANDLE, OFFSET, RANGE, Reason, Rejection, Rules, SIZE, Verdict,
};
use super::{Mapping, Model, intersection, is_inside, range};
use hsa_vmm::{Access, Handle};

impl Model {
    /// Maps a part of a handle's memory.
    ///
    /// # Errors
    /// Returns all reasons for rejecting the call.
    pub fn map(
        &mut self,
        address: usize,
        size: usize,
        offset: usize,
        handle: Handle,
        flags: u64,
    ) -> Verdict {
        let granule = self.machine.granule;
        let state = self.valid_handle(handle).ok();
        let target = range(address, size);
        let is_reserved = target.as_ref().is_some_and(|target| self.is_in_one_reservation(target));
        let is_mapped =
            |target| self.mappings.iter().any(|it| intersection(&it.range(), target).is_some());
        Rules::default()
            .reject_if(FLAGS, flags != 0)
            .reject_if(Reason::NotSupported, offset != 0 && !self.machine.maps_offsets)
            .reject_if(OFFSET, !offset.is_multiple_of(granule))
            .reject_if(HANDLE, state.is_none())
            .reject_if(ADDRESS, !address.is_multiple_of(granule))
            .reject_if(SIZE, size == 0 || !size.is_multiple_of(granule))
            .reject_if(OFFSET, state.is_some_and(|state| offset > state.memory.size))
            .reject_if(SIZE, state.is_some_and(|it| size > it.memory.size))
            .reject_if(
                OFFSET,
                state.is_some_and(|it| {
                    size <= it.memory.size && size > it.memory.size.saturating_sub(offset)
                }),
            )
            .reject_if(RANGE, !is_reserved)
            .reject_if(RANGE, target.as_ref().is_some_and(is_mapped))
            .verdict()?;
        let agents = self.machine.agents.len();
        let (access, granted) = (vec![Access::None; agents], vec![false; agents]);
        self.mappings.push(Mapping { start: address, size, handle, offset, access, granted });
        self.mappings.sort_by_key(|mapping| mapping.start);
        Ok(())
    }

    /// Unmaps a range of whole mappings.
    ///
    /// # Errors
    /// Returns all reasons for rejecting the call.
    pub fn unmap(&mut self, address: usize, size: usize) -> Verdict {
        let starts = self.starts_of_whole_mappings(address, size)?;
        self.mappings.retain(|mapping| !starts.contains(&mapping.start));
        self.forget_unused();
        Ok(())
    }

    /// Returns the starts of the mappings in a range. Fails if the range has a hole, splits a mapping, or extends past
    /// one reservation.
    pub(super) fn starts_of_whole_mappings(
        &self,
        address: usize,
        size: usize,
    ) -> Verdict<Vec<usize>> {
        let starts = range(address, size).and_then(|target| {
            let overlaps = |it: &&Mapping| intersection(&it.range(), &target).is_some();
            let mappings: Vec<_> = self.mappings.iter().filter(overlaps).collect();
            let all_inside = mappings.iter().all(|it| is_inside(&it.range(), &target));
            let total: usize = mappings.iter().map(|it| it.size).sum();
            let is_covered = all_inside && total == size && self.is_in_one_reservation(&target);
            is_covered.then(|| mappings.iter().map(|it| it.start).collect())
        });
        starts.ok_or(Rejection::of(RANGE))
    }
}
