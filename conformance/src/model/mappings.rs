//! Mapping and unmapping.

use super::verdict::{ADDRESS, FLAGS, HANDLE, OFFSET, RANGE, Refusal, Rules, SIZE, Verdict};
use super::{Mapped, Model, common, lies_in, range};
use hsa_vmm::{Access, Handle};

impl Model {
    /// Maps the start of a handle's memory.
    ///
    /// # Errors
    /// Returns everything that is wrong with the call.
    pub fn map(
        &mut self,
        address: usize,
        size: usize,
        offset: usize,
        handle: Handle,
        flags: u64,
    ) -> Verdict {
        let granule = self.world.granule;
        let held = self.named(handle).ok();
        let place = range(address, size);
        let reserved = place.as_ref().is_some_and(|place| self.is_in_one_reservation(place));
        let taken = |place| self.mappings.iter().any(|it| common(&it.range(), place).is_some());
        Rules::default()
            .refuse(FLAGS, flags != 0)
            .refuse(OFFSET, offset != 0)
            .refuse(HANDLE, held.is_none())
            .refuse(ADDRESS, !address.is_multiple_of(granule))
            .refuse(SIZE, size == 0 || !size.is_multiple_of(granule))
            .refuse(SIZE, held.is_some_and(|held| size > held.memory.size))
            .refuse(RANGE, !reserved)
            .refuse(RANGE, place.as_ref().is_some_and(taken))
            .verdict()?;
        let agents = self.world.agents.len();
        let (access, granted) = (vec![Access::None; agents], vec![false; agents]);
        self.mappings.push(Mapped { start: address, size, handle, access, granted });
        self.mappings.sort_by_key(|mapping| mapping.start);
        Ok(())
    }

    /// Unmaps a range of whole mappings.
    ///
    /// # Errors
    /// Returns everything that is wrong with the call.
    pub fn unmap(&mut self, address: usize, size: usize) -> Verdict {
        let run = self.run(address, size)?;
        self.mappings.retain(|mapping| !run.contains(&mapping.start));
        self.forget_unused();
        Ok(())
    }

    /// Returns the starts of the adjacent mappings that exactly make up a range.
    pub(super) fn run(&self, address: usize, size: usize) -> Verdict<Vec<usize>> {
        let run = range(address, size).and_then(|place| {
            let touched = |it: &&Mapped| common(&it.range(), &place).is_some();
            let touched: Vec<_> = self.mappings.iter().filter(touched).collect();
            let whole = touched.iter().all(|it| lies_in(&it.range(), &place));
            let total: usize = touched.iter().map(|it| it.size).sum();
            let is_run = whole && total == size && self.is_in_one_reservation(&place);
            is_run.then(|| touched.iter().map(|it| it.start).collect())
        });
        run.ok_or(Refusal::of(RANGE))
    }
}
