//! Really taking access away: a GPU loses memory only by its being unmapped and mapped again.

use super::is_quarantined;
use crate::access::AgentSet;
use crate::vmm::ledger::{Entered, MappingRecord, Range};
use crate::vmm::mapping::{Broken, Expected, Left, Piece};
use crate::vmm::{Access, Argument, Operation, Shared, VmmError};

impl Shared {
    pub(super) fn take_away(
        &self,
        operation: Operation,
        mut entered: Entered<'_>,
        range: Range,
        revoked: AgentSet,
        expected: Expected<'_>,
    ) -> Result<(), VmmError> {
        let pieces = self.run(operation, &entered, range)?;
        let found = pieces.iter().map(|piece| piece.record.serial);
        expected
            .check(Argument::Address, range.start, found)
            .map_err(|refusal| refusal.during(operation))?;
        // Without one, what is taken down could not be made anew.
        self.check_a_descriptor(operation)?;
        for piece in &pieces {
            self.check_rebuild(operation, &piece.record.access)?;
        }
        let mut done: Vec<(Piece, MappingRecord)> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let mut record = piece.record;
            for index in revoked.iter() {
                record.access.set(index, Access::None);
            }
            match self.rebuild(operation, &piece, &record) {
                Ok(granted) => record.granted = granted,
                Err(broken) => {
                    return Err(self.give_again(operation, &mut entered, &piece, &done, broken));
                }
            }
            done.push((piece, record));
        }
        entered.write_access(done.iter().map(|(piece, record)| (piece.start, record)));
        Ok(())
    }

    /// Undoes a revocation that failed in a piece and had been `done` in those before it.
    fn give_again(
        &self,
        operation: Operation,
        entered: &mut Entered<'_>,
        failed: &Piece,
        done: &[(Piece, MappingRecord)],
        Broken { error, left }: Broken,
    ) -> VmmError {
        if is_quarantined(&error) {
            entered.write_access(done.iter().map(|(piece, record)| (piece.start, record)));
            return error;
        }
        let granted = match left {
            Left::Mapping { granted } => granted,
            _ => AgentSet::default(),
        };
        let now = MappingRecord { granted, ..failed.record };
        let first = (failed, Piece { record: now, ..*failed }, left);
        let rest = done.iter().rev().map(|(piece, record)| {
            let left = Left::Mapping { granted: record.granted };
            (piece, Piece { record: *record, ..*piece }, left)
        });
        for (before, now, left) in std::iter::once(first).chain(rest) {
            let undone = match left {
                Left::Whole => Ok(before.record.granted),
                Left::Refused => self.let_use_again(operation, before).or_else(|_| {
                    self.rebuild(operation, before, &before.record).map_err(|broken| broken.error)
                }),
                // Sending the access once more changes nothing where it is there.
                Left::Mapping { granted } => {
                    let again = self.let_use(operation, &now, &before.record, granted);
                    again.or_else(|_| {
                        self.rebuild(operation, &now, &before.record).map_err(|broken| broken.error)
                    })
                }
                Left::Nothing => self.set_up_as_before(operation, before),
            };
            if let Err(worse) = self.note_undone(operation, entered, before, undone, error) {
                return worse;
            }
        }
        error
    }
}
