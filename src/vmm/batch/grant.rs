//! Granting access to many runs.

use super::{in_order, range_of, rows};
use crate::vmm::ledger::Entered;
use crate::vmm::permission::{Changes, Progress, is_quarantined};
use crate::vmm::{AccessDescriptor, Address, Operation, Shared, VmmError};

impl Shared {
    pub(super) fn set_access_many(
        &self,
        runs: &[(Address, usize)],
        access: &[AccessDescriptor],
    ) -> Result<(), VmmError> {
        let operation = Operation::SetAccess;
        self.alive(operation)?;
        let ranges = in_order(operation, runs)?;
        let mut changes = Changes::new();
        self.changes(operation, access, &mut changes)?;
        self.at_gates(operation, &ranges, |mut entered| {
            let mut all = Vec::with_capacity(ranges.len());
            for &range in &ranges {
                all.extend(self.run_of(operation, &entered, range, Progress::none)?);
            }
            for mapping in &all {
                self.check_reach(operation, mapping.before.owner, &changes)?;
            }
            let rows = rows(&entered, all.iter().map(|mapping| range_of(&mapping.before)));
            let mut done = 0;
            for row in rows {
                let end = done + row;
                if let Err(error) = self.change_run(operation, &mut all[done..end], &changes) {
                    return Err(self.undo_all(operation, &mut entered, &all[..end], error));
                }
                done = end;
            }
            all.iter().for_each(|mapping| self.remove_view(&mapping.before, &mapping.record));
            let records = all.iter().map(|mapping| (mapping.before.start, &mapping.record));
            entered.write_access_and_leave(records);
            Ok(())
        })
    }

    /// Puts access back to what it was, but in reservations that are out of use.
    fn undo_all(
        &self,
        operation: Operation,
        entered: &mut Entered<'_>,
        all: &[Progress],
        error: VmmError,
    ) -> VmmError {
        let mut answer = error;
        for mapping in all.iter().rev() {
            if self.is_out_of_use(mapping.before.start) {
                continue;
            }
            let undone = self.undo_run(operation, entered, std::slice::from_ref(mapping), error);
            if is_quarantined(&undone) {
                answer = undone;
            }
        }
        answer
    }
}
